//! Commands on a data directory without a running daemon: restore, recover, rejoin, and keep (which
//! of two clusters survives). `init` also works while a daemon waits for its cluster.

use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use tenure_server::offline;

use super::ClusterReport;

/// Create the data directory of a new cluster from a backup.
///
/// Then start a node on it; other nodes join with empty directories. Every fencing token of the new
/// cluster is greater than any token of the old one.
#[derive(Args)]
pub(crate) struct Restore {
    /// The backup file.
    file: PathBuf,
    /// The data directory to create.
    #[arg(long, env = "TENURE_DATA_DIR", value_name = "DIR")]
    data_dir: PathBuf,
    /// The name of the node that will run on it.
    #[arg(
        long,
        env = "TENURE_NODE_ID",
        value_name = "NAME",
        default_value = "tenure-0"
    )]
    node_id: String,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
}

/// Start a new cluster from the remaining nodes when a majority is permanently lost.
///
/// Locks that only the lost nodes had are lost. The directory becomes a new cluster of one node; its old
/// data is kept beside it. The other remaining nodes join with empty directories. Every fencing token of
/// the new cluster is greater than any token of the old one.
#[derive(Args)]
pub(crate) struct Recover {
    /// The data directory of a stopped node that remains.
    #[arg(long, env = "TENURE_DATA_DIR", value_name = "DIR")]
    data_dir: PathBuf,
    /// Data directories (or copies) of other stopped nodes that remain. For each group the most recent
    /// state is used.
    #[arg(long, value_name = "DIR")]
    also: Vec<PathBuf>,
    /// Confirm that the lost nodes will never run again.
    #[arg(long, required = true)]
    others_are_lost: bool,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
}

/// Move the data of a stopped node aside, so that it joins its cluster again with an empty directory.
#[derive(Args)]
pub(crate) struct Rejoin {
    /// The data directory.
    #[arg(long, env = "TENURE_DATA_DIR", value_name = "DIR")]
    data_dir: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
}

/// Create a new cluster on this node. Run it once, on one node.
///
/// The daemon that waits for a cluster on this directory, or the next one that starts on it, creates the
/// cluster. Before that it asks its seeds and listens for other nodes with its token; if a cluster
/// answers, it joins that cluster instead.
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
    /// Create a cluster although the directory has data of an earlier one. The locks in that data are
    /// forgotten and can be granted again.
    #[arg(long)]
    forget_old_data: bool,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
}

/// Keep the cluster of this stopped node when two clusters have the same token.
///
/// Two clusters with one token cannot both serve, so one of them has stopped, or both have. Run this on
/// every node of the cluster to keep, and `tenure cluster rejoin` on every node of the other one.
#[derive(Args)]
pub(crate) struct Keep {
    /// The data directory.
    #[arg(long, env = "TENURE_DATA_DIR", value_name = "DIR")]
    data_dir: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
}

impl Init {
    pub(super) fn run(self) -> Result<ClusterReport, String> {
        let old_data = if self.forget_old_data {
            offline::OldData::Forget
        } else {
            offline::OldData::Keep
        };
        offline::found(&self.data_dir, old_data).map_err(|error| error.to_string())?;
        let dir = self.data_dir.display().to_string();
        Ok(ClusterReport::done(
            format!(
                "the daemon on {dir} creates a cluster: now if it is waiting for one, otherwise at its next start"
            ),
            json!({ "data_dir": dir, "creates_cluster": true }),
        ))
    }
}

impl Keep {
    pub(super) fn run(self) -> Result<ClusterReport, String> {
        let other = offline::keep(&self.data_dir).map_err(|error| error.to_string())?;
        let text = format!(
            "this cluster is kept, not cluster {other:016x}; start the node, and run tenure cluster rejoin on the \
             nodes of the other cluster"
        );
        let json = json!({ "kept": true, "other_cluster": format!("{other:016x}") });
        Ok(ClusterReport::done(text, json))
    }
}

impl Restore {
    pub(super) fn run(self) -> Result<ClusterReport, String> {
        let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", self.file.display());
        let node = offline::node_of(&self.node_id).ok_or_else(|| {
            format!(
                "--node-id {} must end in digits, such as tenure-0",
                self.node_id
            )
        })?;
        let file = File::open(&self.file).map_err(|error| failed(&error))?;
        let offline::Archive {
            facts,
            cluster,
            groups,
        } = offline::read_archive(BufReader::new(file)).map_err(|error| failed(&error))?;
        offline::restore(&self.data_dir, node, &facts, groups, cluster)
            .map_err(|error| error.to_string())?;
        let text = format!(
            "{} groups restored; start {} on {} with group_count = {}",
            facts.group_count + 1,
            self.node_id,
            self.data_dir.display(),
            facts.group_count
        );
        let json = json!({
            "groups": facts.group_count + 1,
            "node_id": self.node_id,
            "data_dir": self.data_dir.display().to_string(),
            "group_count": facts.group_count,
        });
        Ok(ClusterReport::done(text, json))
    }
}

impl Recover {
    pub(super) fn run(self) -> Result<ClusterReport, String> {
        let found = offline::recover(&self.data_dir, &self.also).map_err(|e| e.to_string())?;
        let recovered = found.facts.group_count as usize + 1 - found.lost.len();
        let groups = found.facts.group_count + 1;
        let mut text = format!("recovered {recovered} of {groups} groups; start the node");
        if !found.lost.is_empty() {
            text.push_str(&format!(
                "\nno directory had a usable state of these groups, so they start empty: {:?}",
                found.lost
            ));
        }
        let json = json!({ "recovered": recovered, "groups": groups, "lost": found.lost });
        Ok(ClusterReport::done(text, json))
    }
}

impl Rejoin {
    pub(super) fn run(self) -> Result<ClusterReport, String> {
        let aside = offline::rejoin(&self.data_dir).map_err(|error| error.to_string())?;
        let aside = aside.display().to_string();
        let text = format!(
            "the old data is now in {aside}; start the node, and it joins its cluster again through its seeds and the \
             nodes that it knew"
        );
        Ok(ClusterReport::done(text, json!({ "old_data": aside })))
    }
}
