//! Commands on a data directory: restore, recover, rejoin and keep while no daemon runs on it; init
//! also while a daemon waits for its cluster.

use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use tenure_server::offline;

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

/// Found a new cluster on this node, once.
///
/// Orders the daemon that waits for a cluster on this directory, or the next one that is started on it,
/// to found one. The daemon asks its seeds and listens for other nodes with its token first; if a
/// cluster answers, it joins that instead.
///
/// Examples:
///   tenure cluster init --data-dir /var/lib/tenure
///   docker compose exec tenure-0 tenure cluster init --data-dir /data
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Init {
    /// The data directory.
    #[arg(long, env = "TENURE_DATA_DIR", value_name = "DIR")]
    data_dir: PathBuf,
    /// Found a cluster although data of an earlier one stands there: the locks in that data are granted
    /// again.
    #[arg(long)]
    forget_old_data: bool,
}

/// Decide that the cluster of this stopped node is the right one of two.
///
/// Two clusters with one token cannot both serve: one of them has given way, or both have. Run this on
/// every node of the cluster that is right, and `tenure cluster rejoin` on every node of the other one.
#[derive(Args)]
pub(crate) struct Keep {
    /// The data directory.
    #[arg(long, env = "TENURE_DATA_DIR", value_name = "DIR")]
    data_dir: PathBuf,
}

impl Init {
    pub(super) fn run(self) -> Result<ExitCode, String> {
        let old_data = if self.forget_old_data {
            offline::OldData::Forget
        } else {
            offline::OldData::Keep
        };
        offline::found(&self.data_dir, old_data).map_err(|error| error.to_string())?;
        println!(
            "the daemon on {} founds a cluster, now if it is waiting, otherwise when it is started",
            self.data_dir.display()
        );
        Ok(ExitCode::SUCCESS)
    }
}

impl Keep {
    pub(super) fn run(self) -> Result<ExitCode, String> {
        let other = offline::keep(&self.data_dir).map_err(|error| error.to_string())?;
        println!(
            "kept against cluster {other:016x}; start the node, and run tenure cluster rejoin on the nodes of \
             the other cluster"
        );
        Ok(ExitCode::SUCCESS)
    }
}

impl Restore {
    pub(super) fn run(self) -> Result<ExitCode, String> {
        let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", self.file.display());
        let node = offline::node_of(&self.node_id)
            .ok_or_else(|| format!("{} does not end in digits", self.node_id))?;
        let file = File::open(&self.file).map_err(|error| failed(&error))?;
        let offline::Archive {
            facts,
            cluster,
            groups,
        } = offline::read_archive(BufReader::new(file)).map_err(|error| failed(&error))?;
        offline::restore(&self.data_dir, node, &facts, groups, cluster)
            .map_err(|error| error.to_string())?;
        println!(
            "{} groups restored; start {} on {} with group_count = {}",
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
        let found = offline::recover(&self.data_dir, &self.also).map_err(|e| e.to_string())?;
        println!(
            "recovered {} of {} groups; start the node",
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
        let aside = offline::rejoin(&self.data_dir).map_err(|error| error.to_string())?;
        println!(
            "the old data is in {}; when the node is started, it joins its cluster again, by its seeds and by \
             the nodes that it knew",
            aside.display()
        );
        Ok(ExitCode::SUCCESS)
    }
}
