//! Bootstrap: a node binds its sockets and decides whether to create a cluster or to join one.

mod discovery;

use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};

use crate::directory;
use crate::gossip;
use crate::identity::NodeIdentity;
use crate::next_start::{NextStart, StartAction};
use crate::node_record::NodeRecord;
use crate::peers::{BootstrapMode, PeerOptions};

/// Reason why a node can neither create nor join a cluster.
#[derive(Debug, thiserror::Error)]
pub enum BootstrapError {
    /// A socket cannot be bound.
    #[error("cannot listen on {address} for {what}")]
    Listen {
        /// Address of the socket.
        address: SocketAddr,
        /// Purpose of the socket.
        what: &'static str,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The seeds could not be asked.
    #[error("cannot contact the seed nodes")]
    Ask(#[source] std::io::Error),
    /// A seed did not answer (R167 (bootstrap decision)). Two nodes that each create a cluster
    /// would grant the same locks twice.
    #[error(
        "no cluster was created: bootstrap is set and the data directory is empty, but these seeds did not answer \
         within 10 s, so a cluster may exist: {0}. If there is no cluster, run: tenure cluster init --data-dir DIR"
    )]
    NoSeedAnswers(String),
    /// Data of an earlier incarnation is in the directory (R167). A new cluster would grant its
    /// locks again.
    #[error(
        "no cluster was created: {data_dir} has {found} and no other data, so this node was in a cluster before. \
         To join that cluster again, run: tenure cluster rejoin --data-dir {data_dir}. To create a new cluster and \
         forget the old locks, run: tenure cluster init --forget-old-data --data-dir {data_dir}"
    )]
    SetAside {
        /// Name of the old data.
        found: String,
        /// Path of the data directory.
        data_dir: String,
    },
    /// A restore or a recovery was interrupted before its data was complete and in place.
    #[error(
        "a recovery or a restore was interrupted: {data_dir} has db.new but no data. Run the command \
         again: tenure cluster recover --others-are-lost --data-dir {data_dir}, or tenure cluster restore \
         FILE --data-dir {data_dir}"
    )]
    Interrupted {
        /// Path of the data directory.
        data_dir: String,
    },
    /// The directory requires that the node joins a cluster, but no peers are configured.
    #[error(
        "no cluster was created: tenure cluster {because} has moved the data of {data_dir} aside, so this node must \
         join its cluster again. Set internal_auth_token and seed_nodes. To create a new cluster and forget the \
         old locks instead, run: tenure cluster init --forget-old-data --data-dir {data_dir}"
    )]
    MustJoin {
        /// Path of the data directory.
        data_dir: String,
        /// The command that set the data aside.
        because: &'static str,
    },
    /// The `next_start` file in the directory cannot be read or written.
    #[error("cannot read or write {path}: {source}")]
    Order {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The directory belongs to another cluster than the configured one, or to none.
    #[error("expected_cluster_id is {expected:016x}, but {found}")]
    Unexpected {
        /// Configured cluster id.
        expected: u64,
        /// What was found instead.
        found: String,
    },
    /// The node's cluster stopped in favour of another cluster with the same token (R161 (settings
    /// fixed per cluster)).
    #[error("{0}")]
    GaveWay(String),
    /// The data is an older copy. A node that starts on it could vote twice in one term.
    #[error("{0}")]
    OlderCopy(String),
    /// The cluster that answered has other fixed settings (R161).
    #[error("this node cannot join the cluster of its seeds: {0}")]
    DoesNotFit(String),
}

/// The bound sockets for peers and gossip.
pub(crate) struct Listeners {
    pub(crate) listener: TcpListener,
    pub(crate) socket: UdpSocket,
    pub(crate) peers: SocketAddr,
    pub(crate) gossip: SocketAddr,
}

impl Listeners {
    pub(crate) fn open(options: &PeerOptions) -> Result<Listeners, BootstrapError> {
        let cannot = |address, what| {
            move |source| BootstrapError::Listen {
                address,
                what,
                source,
            }
        };
        let tcp = cannot(options.listen, "peers");
        let listener = TcpListener::bind(options.listen).map_err(tcp)?;
        let udp = cannot(options.gossip_listen, "gossip");
        let socket = UdpSocket::bind(options.gossip_listen).map_err(udp)?;
        let peers = listener.local_addr().map_err(tcp)?;
        let gossip = socket.local_addr().map_err(udp)?;
        Ok(Listeners {
            listener,
            socket,
            peers,
            gossip,
        })
    }

    /// Returns the record that this node gossips about itself.
    pub(crate) fn node_record(
        &self,
        name: &str,
        options: &PeerOptions,
        identity: &NodeIdentity,
    ) -> NodeRecord {
        let (host, port) = &options.advertise;
        let port = if *port == 0 { self.peers.port() } else { *port };
        NodeRecord {
            member: identity.me,
            born_ms: identity.born_ms,
            start: identity.starts,
            revision: 0,
            name: name.to_owned(),
            internal: format!("{host}:{port}"),
            gossip: gossip::advertised(options, self.gossip),
            public: options.public.clone(),
            draining: identity.draining,
        }
    }
}

/// Facts for the bootstrap decision of a node with an empty directory.
pub(crate) struct BootstrapFacts<'a> {
    pub(crate) data_dir: &'a Path,
    pub(crate) name: &'a str,
    pub(crate) peers: Option<&'a PeerOptions>,
    pub(crate) listeners: Option<&'a Listeners>,
    pub(crate) born: &'a NodeIdentity,
    pub(crate) order: Option<&'a NextStart>,
    /// Data of earlier incarnations in the directory.
    pub(crate) set_aside: &'a [PathBuf],
}

/// Decision of a node with an empty directory.
pub(crate) enum BootstrapDecision {
    /// Create a cluster.
    Found,
    /// Join a cluster; these nodes may belong to it.
    Join(Vec<NodeRecord>),
}

/// Refuses to start beside the unfinished data of a recovery or restore. Called before anything is
/// created in the directory.
pub(crate) fn check_set_aside(
    data_dir: &Path,
    order: Option<&NextStart>,
    set_aside: &[PathBuf],
) -> Result<(), BootstrapError> {
    let interrupted = set_aside
        .iter()
        .any(|path| path.ends_with(directory::STAGING));
    let forget = order.is_some_and(|order| order.what == StartAction::FoundDespiteOldData);
    if interrupted && !forget {
        let data_dir = data_dir.display().to_string();
        return Err(BootstrapError::Interrupted { data_dir });
    }
    Ok(())
}

/// Decides whether a node with an empty directory creates a cluster or joins an existing one
/// (R167).
///
/// The first of these that applies decides:
///
/// 1. An order to join, a configured cluster id, or the mode `Join`: join.
/// 2. A cluster with this token answers: join it.
/// 3. Old data is in the directory and the operator has not given it up: refuse.
/// 4. A seed is silent and the node is neither forced nor ordered to create a cluster: refuse.
/// 5. Otherwise: create a cluster.
pub(crate) fn decide(beginning: &BootstrapFacts<'_>) -> Result<BootstrapDecision, BootstrapError> {
    let data_dir = || beginning.data_dir.display().to_string();
    check_set_aside(beginning.data_dir, beginning.order, beginning.set_aside)?;
    let what = beginning.order.map(|order| order.what);
    let (Some(peers), Some(listeners)) = (beginning.peers, beginning.listeners) else {
        // Without a token the node cannot have peers.
        if let Some(order) = beginning.order.filter(|order| order.forbids_founding()) {
            let because = order.because.name();
            return Err(BootstrapError::MustJoin {
                data_dir: data_dir(),
                because,
            });
        }
        old_data(beginning)?;
        return Ok(BootstrapDecision::Found);
    };
    let ordered = matches!(
        what,
        Some(StartAction::Found | StartAction::FoundDespiteOldData)
    );
    let must_join = beginning.order.is_some_and(NextStart::forbids_founding)
        // A new cluster would have another id.
        || peers.expected_cluster.is_some();
    if must_join || peers.begin == BootstrapMode::Join && !ordered {
        return Ok(BootstrapDecision::Join(Vec::new()));
    }
    let node_record = listeners.node_record(beginning.name, peers, beginning.born);
    let discovered = discovery::discover(peers, listeners, &node_record, &beginning.born.cluster)?;
    if let Some(why) = discovered.misfit {
        return Err(BootstrapError::DoesNotFit(why));
    }
    if !discovered.node_records.is_empty() {
        tracing::warn!(
            node = discovered.node_records[0].name,
            "no cluster is created: a cluster with this token exists, and this node joins it"
        );
        return Ok(BootstrapDecision::Join(discovered.node_records));
    }
    old_data(beginning)?;
    if !discovered.silent.is_empty() && peers.begin != BootstrapMode::Force && !ordered {
        return Err(BootstrapError::NoSeedAnswers(discovered.silent.join(", ")));
    }
    Ok(BootstrapDecision::Found)
}

/// Refuses to create a cluster beside data of an earlier incarnation, unless the operator gave it
/// up.
fn old_data(beginning: &BootstrapFacts<'_>) -> Result<(), BootstrapError> {
    let forget = beginning
        .order
        .is_some_and(|order| order.what == StartAction::FoundDespiteOldData);
    match beginning.set_aside.first() {
        Some(found) if !forget => Err(BootstrapError::SetAside {
            found: found
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned(),
            data_dir: beginning.data_dir.display().to_string(),
        }),
        _ => Ok(()),
    }
}
