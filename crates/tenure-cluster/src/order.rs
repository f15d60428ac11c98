//! What the next start on a data directory does, as a durable file beside the data.
//!
//! ```text
//!   rejoin, recover, restore ──▶ join ──┐
//!   a node that waits for a cluster ──▶ join ──init──▶ found
//!                                       └── removed once the node belongs to a cluster
//! ```
//!
//! A node that was in a cluster and lost its data looks like a new node. The file is the difference:
//! with `join` in it the node never founds a cluster, because two clusters grant the same locks.

use std::io;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::card::Card;
use crate::directory;

/// The name of the file in the data directory.
pub(crate) const FILE: &str = "next-start";
const TITLE: &str = "tenure next start, version 1";

/// What the next start does, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) what: What,
    /// The command or the event that wrote it.
    pub(crate) because: Because,
    /// The cluster that the directory belonged to, if that could be read.
    pub(crate) old_cluster: Option<u64>,
    /// When it was written, in seconds of the machine's clock. For people only.
    pub(crate) at: u64,
    /// Nodes of the old cluster, if they could be read.
    pub(crate) peers: Vec<Peer>,
}

/// See [`Order`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// Join a cluster; never found one.
    Join,
    /// Found a cluster, unless one answers.
    Found,
    /// The same, although older data stands beside it.
    FoundDespiteOldData,
}

/// Who wrote an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Because {
    /// A node that found no cluster yet. It has never been in one.
    Waiting,
    Rejoin,
    Recover,
    Restore,
    Init,
}

/// Where a node of the old cluster was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) name: String,
    pub(crate) gossip: String,
    pub(crate) internal: String,
}

const WHATS: [(What, &str); 3] = [
    (What::Join, "join"),
    (What::Found, "found"),
    (What::FoundDespiteOldData, "found despite old data"),
];

const REASONS: [(Because, &str); 5] = [
    (Because::Waiting, "waiting"),
    (Because::Rejoin, "rejoin"),
    (Because::Recover, "recover"),
    (Because::Restore, "restore"),
    (Because::Init, "init"),
];

impl Because {
    /// As the command is called.
    pub(crate) fn name(self) -> &'static str {
        REASONS
            .iter()
            .find(|(one, _)| *one == self)
            .map_or("", |(_, name)| name)
    }
}

impl Order {
    pub(crate) fn new(what: What, because: Because) -> Order {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH);
        Order {
            what,
            because,
            old_cluster: None,
            at: wall.unwrap_or_default().as_secs(),
            peers: Vec::new(),
        }
    }

    /// The same, with what is known of the old cluster.
    pub(crate) fn of(self, old_cluster: Option<u64>, cards: &[Card]) -> Order {
        let peer = |card: &Card| Peer {
            name: card.name.clone(),
            gossip: card.gossip.clone(),
            internal: card.internal.clone(),
        };
        Order {
            old_cluster,
            peers: cards.iter().map(peer).collect(),
            ..self
        }
    }

    /// Whether the node was in a cluster and may never found one.
    pub(crate) fn forbids_founding(&self) -> bool {
        self.what == What::Join && self.because != Because::Waiting
    }

    /// The order in a data directory, if there is one. One that cannot be read is an error: the node
    /// must not act as if there were none.
    pub(crate) fn read(data_dir: &Path) -> io::Result<Option<Order>> {
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

    /// Writes it durably; an older one is replaced.
    pub(crate) fn write(&self, data_dir: &Path) -> io::Result<()> {
        directory::write(data_dir, FILE, self.text().as_bytes())
    }

    /// Writes it durably, unless there is one: an order that an operator gives at the same moment counts.
    pub(crate) fn write_new(&self, data_dir: &Path) -> io::Result<bool> {
        directory::write_new(data_dir, FILE, self.text().as_bytes())
    }

    /// Removes it durably.
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
            // Names come from other nodes' configuration: a line break must not become a line.
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

fn parse(text: &str) -> Option<Order> {
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
                peers.push(Peer {
                    gossip: fields.next()?,
                    internal: fields.next()?,
                    name: fields.next()?,
                });
            }
            _ => return None,
        }
    }
    ended.then_some(())?;
    Some(Order {
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
    use crate::card::tests::card;

    /// A daemon that begins to wait does not replace the order that it is given meanwhile.
    #[test]
    fn an_order_that_came_first_stays() {
        let data = tempfile::tempdir().unwrap();
        let waits = Order::new(What::Join, Because::Waiting);
        let found = Order::new(What::Found, Because::Init);
        found.write(data.path()).unwrap();
        assert!(!waits.write_new(data.path()).unwrap());
        assert_eq!(Order::read(data.path()).unwrap(), Some(found));
        Order::remove(data.path()).unwrap();
        assert!(waits.write_new(data.path()).unwrap());
        assert_eq!(Order::read(data.path()).unwrap(), Some(waits));
        assert_eq!(std::fs::read_dir(data.path()).unwrap().count(), 1);
    }

    #[test]
    fn an_order_comes_back_and_a_damaged_one_is_an_error() {
        let data = tempfile::tempdir().unwrap();
        assert_eq!(Order::read(data.path()).unwrap(), None);
        let mut named = card(2, 2);
        named.name = "a\nb".to_owned();
        let mut order = Order::new(What::Join, Because::Rejoin).of(Some(7), &[card(1, 1), named]);
        order.write(data.path()).unwrap();
        order.peers[1].name = "ab".to_owned();
        assert_eq!(Order::read(data.path()).unwrap(), Some(order.clone()));
        assert!(order.forbids_founding());
        for (what, because) in [
            (What::Found, Because::Init),
            (What::FoundDespiteOldData, Because::Init),
            (What::Join, Because::Waiting),
        ] {
            let order = Order::new(what, because);
            order.write(data.path()).unwrap();
            assert_eq!(Order::read(data.path()).unwrap(), Some(order.clone()));
            assert!(!order.forbids_founding());
        }
        let text = order.text();
        for end in 0..text.len() - 1 {
            std::fs::write(data.path().join(FILE), &text[..end]).unwrap();
            assert!(Order::read(data.path()).is_err(), "cut at {end}");
        }
        Order::remove(data.path()).unwrap();
        Order::remove(data.path()).unwrap();
        assert_eq!(Order::read(data.path()).unwrap(), None);
    }
}
