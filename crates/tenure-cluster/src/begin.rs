//! The beginning: a node opens its doors, and finds out whether it founds a cluster or joins one.

mod look;

use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};

use crate::card::Card;
use crate::directory;
use crate::gossip;
use crate::identity::Identity;
use crate::order::{Order, What};
use crate::peers::{Begin, PeerOptions};

/// Why a node does not begin.
#[derive(Debug, thiserror::Error)]
pub enum BeginError {
    /// A port cannot be had.
    #[error("cannot listen on {address} for {what}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// For what.
        what: &'static str,
        /// Why.
        source: std::io::Error,
    },
    /// Its seeds could not be asked.
    #[error("the seeds cannot be asked")]
    Ask(#[source] std::io::Error),
    /// R167: a seed did not answer, and two nodes that both begin a cluster would each grant the same
    /// locks.
    #[error(
        "bootstrap is set and the data directory is empty, but no seed has answered within 10 s ({0}): \
         a cluster may be there. If there is none, run: tenure cluster init --data-dir DIR"
    )]
    NoSeedAnswers(String),
    /// R167: what the node had before stands there, and a new cluster would grant its locks again.
    #[error(
        "{found} stands in {data_dir} and the node has no other data, so it was in a cluster and founds \
         none. To join that cluster again: tenure cluster rejoin --data-dir {data_dir}. To found a new one \
         and give the old locks up: tenure cluster init --forget-old-data --data-dir {data_dir}"
    )]
    SetAside {
        /// Which data.
        found: String,
        /// Where.
        data_dir: String,
    },
    /// A restore or a recovery was interrupted before its data was complete or in place.
    #[error(
        "{data_dir}/db.new stands beside missing data: a recovery or a restore was interrupted. Run it \
         again: tenure cluster recover --others-are-lost --data-dir {data_dir}, or tenure cluster restore \
         FILE --data-dir {data_dir}"
    )]
    Interrupted {
        /// Where.
        data_dir: String,
    },
    /// The directory says that the node joins a cluster, and nothing says how.
    #[error(
        "{data_dir} was set aside by tenure cluster {because}, so the node joins its cluster again and founds \
         none: set internal_auth_token and seed_nodes. To found a new cluster and give the old locks up: \
         tenure cluster init --forget-old-data --data-dir {data_dir}"
    )]
    MustJoin {
        /// Where.
        data_dir: String,
        /// By which command.
        because: &'static str,
    },
    /// The order in the directory cannot be read.
    #[error("{path} cannot be used: {source}")]
    Order {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The directory belongs to another cluster than the expected one, or to none that could be it.
    #[error("expected_cluster_id is {expected:016x}, and {found}")]
    Unexpected {
        /// The configured cluster.
        expected: u64,
        /// What was found.
        found: String,
    },
    /// R161: the node's cluster gave way to another one with the same token.
    #[error("{0}")]
    GaveWay(String),
    /// The data is an older copy: a node on it would vote again where it has voted.
    #[error("{0}")]
    OlderCopy(String),
    /// R161: the cluster that answered was born with other facts.
    #[error("this node does not fit in the cluster of its seeds: {0}")]
    DoesNotFit(String),
}

/// The sockets through which others reach this node.
pub(crate) struct Doors {
    pub(crate) listener: TcpListener,
    pub(crate) socket: UdpSocket,
    pub(crate) peers: SocketAddr,
    pub(crate) gossip: SocketAddr,
}

impl Doors {
    pub(crate) fn open(options: &PeerOptions) -> Result<Doors, BeginError> {
        let cannot = |address, what| {
            move |source| BeginError::Listen {
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
        Ok(Doors {
            listener,
            socket,
            peers,
            gossip,
        })
    }

    /// What this node tells others about itself.
    pub(crate) fn card(&self, name: &str, options: &PeerOptions, identity: &Identity) -> Card {
        let (host, port) = &options.advertise;
        let port = if *port == 0 { self.peers.port() } else { *port };
        Card {
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

/// What is known before a node with an empty directory begins.
pub(crate) struct Beginning<'a> {
    pub(crate) data_dir: &'a Path,
    pub(crate) name: &'a str,
    pub(crate) peers: Option<&'a PeerOptions>,
    pub(crate) doors: Option<&'a Doors>,
    pub(crate) born: &'a Identity,
    pub(crate) order: Option<&'a Order>,
    /// Data of an earlier life in the directory.
    pub(crate) set_aside: &'a [PathBuf],
}

/// What a node with an empty directory does.
pub(crate) enum Decision {
    /// It founds a cluster.
    Found,
    /// It joins one; these nodes may be in it.
    Join(Vec<Card>),
}

/// Data that is not live must not be in the way of a node without data of its own. Asked before anything
/// is made in the directory.
pub(crate) fn check_set_aside(
    data_dir: &Path,
    order: Option<&Order>,
    set_aside: &[PathBuf],
) -> Result<(), BeginError> {
    let interrupted = set_aside
        .iter()
        .any(|path| path.ends_with(directory::STAGING));
    let forget = order.is_some_and(|order| order.what == What::FoundDespiteOldData);
    if interrupted && !forget {
        let data_dir = data_dir.display().to_string();
        return Err(BeginError::Interrupted { data_dir });
    }
    Ok(())
}

/// R167: whether a node with an empty directory founds a cluster, or joins the one that is there.
pub(crate) fn decide(beginning: &Beginning<'_>) -> Result<Decision, BeginError> {
    let data_dir = || beginning.data_dir.display().to_string();
    check_set_aside(beginning.data_dir, beginning.order, beginning.set_aside)?;
    let what = beginning.order.map(|order| order.what);
    let (Some(peers), Some(doors)) = (beginning.peers, beginning.doors) else {
        // Without a token it cannot meet anyone.
        if let Some(order) = beginning.order.filter(|order| order.forbids_founding()) {
            let because = order.because.name();
            return Err(BeginError::MustJoin {
                data_dir: data_dir(),
                because,
            });
        }
        old_data(beginning)?;
        return Ok(Decision::Found);
    };
    let ordered = matches!(what, Some(What::Found | What::FoundDespiteOldData));
    let must_join = beginning.order.is_some_and(Order::forbids_founding)
        // A new cluster would have another number.
        || peers.expected_cluster.is_some();
    if must_join || peers.begin == Begin::Join && !ordered {
        return Ok(Decision::Join(Vec::new()));
    }
    let card = doors.card(beginning.name, peers, beginning.born);
    let looked = look::look(peers, doors, &card, &beginning.born.cluster)?;
    if let Some(why) = looked.misfit {
        return Err(BeginError::DoesNotFit(why));
    }
    if !looked.cards.is_empty() {
        tracing::warn!(
            node = looked.cards[0].name,
            "this node was to found a cluster, but a cluster with its token answers: it joins that"
        );
        return Ok(Decision::Join(looked.cards));
    }
    old_data(beginning)?;
    if !looked.silent.is_empty() && peers.begin != Begin::Force && !ordered {
        return Err(BeginError::NoSeedAnswers(looked.silent.join(", ")));
    }
    Ok(Decision::Found)
}

/// Refuses to found where data of an earlier life stands, unless the operator gave it up.
fn old_data(beginning: &Beginning<'_>) -> Result<(), BeginError> {
    let forget = beginning
        .order
        .is_some_and(|order| order.what == What::FoundDespiteOldData);
    match beginning.set_aside.first() {
        Some(found) if !forget => Err(BeginError::SetAside {
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
