//! The verbs for a data directory that no daemon runs on: restore, recover, rejoin.

use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use tenure_server::operate;

/// Make a data directory from a backup: the beginning of a new cluster.
///
/// Start a node on it; any number of others join with empty directories. Every fencing token that it
/// gives out is greater than any that the old cluster can have given out.
#[derive(Args)]
pub(crate) struct Restore {
    /// The backup.
    file: PathBuf,
    /// The data directory to be made.
    #[arg(long, env = "TENURE_DATA_DIR", value_name = "DIR")]
    data_dir: PathBuf,
    /// The node that will be started on it.
    #[arg(
        long,
        env = "TENURE_NODE_ID",
        value_name = "NAME",
        default_value = "tenure-0"
    )]
    node_id: String,
}

/// Go on with the nodes that are left, when a majority is lost for good.
///
/// Locks that only the lost nodes knew of are lost with them. The directory becomes the beginning of
/// a new cluster of one node; its old data stays beside it, and the other nodes that are left join
/// with empty directories. Every fencing token that it gives out is greater than any before.
#[derive(Args)]
pub(crate) struct Recover {
    /// The data directory of a stopped node that is left.
    #[arg(long, env = "TENURE_DATA_DIR", value_name = "DIR")]
    data_dir: PathBuf,
    /// Data directories of other stopped nodes that are left (or copies): whoever knows most of a
    /// group is believed.
    #[arg(long, value_name = "DIR")]
    also: Vec<PathBuf>,
    /// Yes: the lost nodes will never come back.
    #[arg(long, required = true)]
    others_are_lost: bool,
}

/// After damage: set the data of a stopped node aside, so that it joins again, empty.
#[derive(Args)]
pub(crate) struct Rejoin {
    /// The data directory.
    #[arg(long, env = "TENURE_DATA_DIR", value_name = "DIR")]
    data_dir: PathBuf,
}

impl Restore {
    pub(super) fn run(self) -> Result<ExitCode, String> {
        let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", self.file.display());
        let node = operate::node_of(&self.node_id)
            .ok_or_else(|| format!("{} does not end in digits", self.node_id))?;
        let file = File::open(&self.file).map_err(|error| failed(&error))?;
        let (facts, groups) =
            operate::read_archive(BufReader::new(file)).map_err(|error| failed(&error))?;
        operate::restore(&self.data_dir, node, &facts, groups)
            .map_err(|error| error.to_string())?;
        println!(
            "{} groups restored; start {} on {} with bootstrap = true and group_count = {}",
            facts.group_count + 1,
            self.node_id,
            self.data_dir.display(),
            facts.group_count
        );
        Ok(ExitCode::SUCCESS)
    }
}

impl Recover {
    pub(super) fn run(self) -> Result<ExitCode, String> {
        let found = operate::recover(&self.data_dir, &self.also).map_err(|e| e.to_string())?;
        println!(
            "recovered {} of {} groups; start the node with bootstrap = true",
            found.facts.group_count as usize + 1 - found.lost.len(),
            found.facts.group_count + 1
        );
        if !found.lost.is_empty() {
            println!(
                "these groups were found nowhere and begin empty: {:?}",
                found.lost
            );
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Rejoin {
    pub(super) fn run(self) -> Result<ExitCode, String> {
        let aside = operate::rejoin(&self.data_dir).map_err(|error| error.to_string())?;
        println!(
            "the old data is in {}; the node joins by its seeds when it is started",
            aside.display()
        );
        Ok(ExitCode::SUCCESS)
    }
}
