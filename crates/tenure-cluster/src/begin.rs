//! The beginning: a node opens its doors, and finds out whether it founds a cluster or joins one.

use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::time::Duration;

use crate::card::Card;
use crate::gossip;
use crate::identity::Identity;
use crate::peers::{Begin, PeerOptions};

/// Seeds are asked for so long before a node gives up on them (R167).
const PATIENCE: Duration = Duration::from_secs(10);

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
    /// R167: nobody answered, and two nodes that both begin a cluster would each grant the same locks.
    #[error(
        "bootstrap is set and the data directory is empty, but no seed has answered within 10 s: \
         a cluster may be there. If there is none, set force_bootstrap once"
    )]
    NoSeedAnswers,
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

/// R167: whether a node with an empty directory founds a cluster, or joins the one that is there.
pub(crate) fn founds(
    name: &str,
    options: &PeerOptions,
    doors: &Doors,
    born: &Identity,
) -> Result<bool, BeginError> {
    if options.begin == Begin::Join {
        return Ok(false);
    }
    if options.seeds.is_empty() {
        return Ok(true);
    }
    let card = doors.card(name, options, born);
    let token = options.token.token();
    let found = gossip::find_cluster(&doors.socket, &options.seeds, &token, &card, PATIENCE)
        .map_err(BeginError::Ask)?;
    match (found, options.begin) {
        (Some(tell), _) => {
            gossip::fits(&born.cluster, &tell).map_err(BeginError::DoesNotFit)?;
            tracing::warn!("bootstrap is set, but the seeds know a cluster: this node joins it");
            Ok(false)
        }
        (None, Begin::Force) => Ok(true),
        (None, Begin::Bootstrap | Begin::Join) => Err(BeginError::NoSeedAnswers),
    }
}
