//! Start order: a durable file that tells the next start to join a cluster or to create one.
//!
//! ```text
//!   rejoin, recover, restore ──▶ join ──┐
//!   a node that waits for a cluster ──▶ join ──init──▶ found (create a cluster)
//!                                       └── removed once the node belongs to a cluster
//! ```
//!
//! A node that lost its data looks like a new node. This file is the difference: after the first
//! three commands the node never creates a cluster, because two clusters would grant the same
//! locks. Only `init --forget-old-data` overrides that.

use std::io;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::directory;
use crate::node_record::NodeRecord;

/// Name of the file in the data directory.
pub(crate) const FILE: &str = "next-start";
const TITLE: &str = "tenure next start, version 1";

/// What the next start does, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NextStart {
    pub(crate) what: StartAction,
    /// The command or event that wrote the order.
    pub(crate) because: StartReason,
    /// Id of the directory's former cluster, if it could be read.
    pub(crate) old_cluster: Option<u64>,
    /// Time of writing in seconds of the wall clock. For people only.
    pub(crate) at: u64,
    /// Nodes of the former cluster, if they could be read.
    pub(crate) peers: Vec<FormerPeer>,
}

/// Action of the next start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StartAction {
    /// Join a cluster; never create one.
    Join,
    /// Create a cluster, unless one answers.
    Found,
    /// Like `Found`, although older data is in the directory.
    FoundDespiteOldData,
}

/// Origin of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StartReason {
    /// A node that has not found a cluster yet. It has never been in one.
    Waiting,
    Rejoin,
    Recover,
    Restore,
    Init,
}

/// Addresses of a node of the former cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FormerPeer {
    pub(crate) name: String,
    pub(crate) gossip: String,
    pub(crate) internal: String,
}

const WHATS: [(StartAction, &str); 3] = [
    (StartAction::Join, "join"),
    (StartAction::Found, "found"),
    (StartAction::FoundDespiteOldData, "found despite old data"),
];

const REASONS: [(StartReason, &str); 5] = [
    (StartReason::Waiting, "waiting"),
    (StartReason::Rejoin, "rejoin"),
    (StartReason::Recover, "recover"),
    (StartReason::Restore, "restore"),
    (StartReason::Init, "init"),
];

impl StartReason {
    /// Returns the name of the command.
    pub(crate) fn name(self) -> &'static str {
        REASONS
            .iter()
            .find(|(one, _)| *one == self)
            .map_or("", |(_, name)| name)
    }
}

impl NextStart {
    pub(crate) fn new(what: StartAction, because: StartReason) -> NextStart {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH);
        NextStart {
            what,
            because,
            old_cluster: None,
            at: wall.unwrap_or_default().as_secs(),
            peers: Vec::new(),
        }
    }

    /// Adds what is known about the former cluster.
    pub(crate) fn of(self, old_cluster: Option<u64>, node_records: &[NodeRecord]) -> NextStart {
        let peer = |node_record: &NodeRecord| FormerPeer {
            name: node_record.name.clone(),
            gossip: node_record.gossip.clone(),
            internal: node_record.internal.clone(),
        };
        NextStart {
            old_cluster,
            peers: node_records.iter().map(peer).collect(),
            ..self
        }
    }

    /// Returns whether the node was in a cluster and must never create one.
    pub(crate) fn forbids_founding(&self) -> bool {
        self.what == StartAction::Join && self.because != StartReason::Waiting
    }

    /// Reads the order in a data directory. An unreadable order is an error: the node must not act
    /// as if there were none.
    pub(crate) fn read(data_dir: &Path) -> io::Result<Option<NextStart>> {
        match std::fs::read(data_dir.join(FILE)) {
            Ok(bytes) => std::str::from_utf8(&bytes)
                .ok()
                .and_then(parse)
                .map(Some)
                .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "it cannot be read")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes the order durably and replaces an older one.
    pub(crate) fn write(&self, data_dir: &Path) -> io::Result<()> {
        directory::write(data_dir, FILE, self.text().as_bytes())
    }

    /// Writes the order durably, unless one exists: an operator's concurrent order has precedence.
    /// Returns whether it was written.
    pub(crate) fn write_new(&self, data_dir: &Path) -> io::Result<bool> {
        directory::write_new(data_dir, FILE, self.text().as_bytes())
    }

    /// Removes the order durably.
    pub(crate) fn remove(data_dir: &Path) -> io::Result<()> {
        directory::remove(data_dir, FILE)
    }

    fn text(&self) -> String {
        let what = WHATS.iter().find(|(one, _)| *one == self.what);
        let mut text = format!(
            "{TITLE}\ndo: {}\nbecause: {}\nat: {}\n",
            what.map_or("", |(_, name)| name),
            self.because.name(),
            self.at
        );
        if let Some(cluster) = self.old_cluster {
            text.push_str(&format!("old cluster: {cluster:016x}\n"));
        }
        for peer in &self.peers {
            // Names come from the configuration of other nodes: a line break in a name must not
            // start a new line.
            let fields = [&peer.gossip, &peer.internal, &peer.name].map(|field| clean(field));
            text.push_str(&format!("peer: {}\n", fields.join("\t")));
        }
        text.push_str("end\n");
        text
    }
}

fn clean(field: &str) -> String {
    field.chars().filter(|one| !one.is_control()).collect()
}

fn parse(text: &str) -> Option<NextStart> {
    let mut lines = text.lines();
    if lines.next()? != TITLE {
        return None;
    }
    let (mut what, mut because, mut at) = (None, None, None);
    let (mut old_cluster, mut peers, mut ended) = (None, Vec::new(), false);
    for line in lines {
        if ended {
            return None;
        }
        if line == "end" {
            ended = true;
            continue;
        }
        let (key, value) = line.split_once(": ")?;
        match key {
            "do" => what = Some(WHATS.iter().find(|(_, name)| *name == value)?.0),
            "because" => because = Some(REASONS.iter().find(|(_, name)| *name == value)?.0),
            "at" => at = Some(value.parse().ok()?),
            "old cluster" => old_cluster = Some(u64::from_str_radix(value, 16).ok()?),
            "peer" => {
                let mut fields = value.split('\t').map(str::to_owned);
                peers.push(FormerPeer {
                    gossip: fields.next()?,
                    internal: fields.next()?,
                    name: fields.next()?,
                });
            }
            _ => return None,
        }
    }
    ended.then_some(())?;
    Some(NextStart {
        what: what?,
        because: because?,
        old_cluster,
        at: at?,
        peers,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_record::tests::node_record;

    /// A daemon that starts to wait does not replace an operator's order.
    #[test]
    fn an_order_that_came_first_stays() {
        let data = tempfile::tempdir().unwrap();
        let waits = NextStart::new(StartAction::Join, StartReason::Waiting);
        let found = NextStart::new(StartAction::Found, StartReason::Init);
        found.write(data.path()).unwrap();
        assert!(!waits.write_new(data.path()).unwrap());
        assert_eq!(NextStart::read(data.path()).unwrap(), Some(found));
        NextStart::remove(data.path()).unwrap();
        assert!(waits.write_new(data.path()).unwrap());
        assert_eq!(NextStart::read(data.path()).unwrap(), Some(waits));
        assert_eq!(std::fs::read_dir(data.path()).unwrap().count(), 1);
    }

    #[test]
    fn an_order_comes_back_and_a_damaged_one_is_an_error() {
        let data = tempfile::tempdir().unwrap();
        assert_eq!(NextStart::read(data.path()).unwrap(), None);
        let mut named = node_record(2, 2);
        named.name = "a\nb".to_owned();
        let mut order = NextStart::new(StartAction::Join, StartReason::Rejoin)
            .of(Some(7), &[node_record(1, 1), named]);
        order.write(data.path()).unwrap();
        order.peers[1].name = "ab".to_owned();
        assert_eq!(NextStart::read(data.path()).unwrap(), Some(order.clone()));
        assert!(order.forbids_founding());
        for (what, because) in [
            (StartAction::Found, StartReason::Init),
            (StartAction::FoundDespiteOldData, StartReason::Init),
            (StartAction::Join, StartReason::Waiting),
        ] {
            let order = NextStart::new(what, because);
            order.write(data.path()).unwrap();
            assert_eq!(NextStart::read(data.path()).unwrap(), Some(order.clone()));
            assert!(!order.forbids_founding());
        }
        let text = order.text();
        for end in 0..text.len() - 1 {
            std::fs::write(data.path().join(FILE), &text[..end]).unwrap();
            assert!(NextStart::read(data.path()).is_err(), "cut at {end}");
        }
        NextStart::remove(data.path()).unwrap();
        NextStart::remove(data.path()).unwrap();
        assert_eq!(NextStart::read(data.path()).unwrap(), None);
    }
}
