//! Gossip: how nodes find each other, over UDP, knowing nothing but a seed's name.
//!
//! ```text
//!   ASK: here I am, who is there?  ──▶  TELL: we are, and this is our cluster
//! ```
//!
//! Every packet carries a tag that only somebody with the cluster's token can make (R168); the token
//! itself is in none. What is learned this way is where to try: whoever is met there proves itself
//! again on its connection.

mod packet;

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::rc::Rc;
use std::time::{Duration, Instant};

use tenure_node::ClusterConfig;
use tokio::net::lookup_host;
use tokio::time::MissedTickBehavior;

use crate::card::Card;
use crate::peers::{Event, Home, PeerOptions, Token, same_facts};
pub(crate) use packet::{Packet, Tell};

/// How often seeds are asked while this node has no cluster.
const ASK_EVERY: Duration = Duration::from_millis(300);
/// No packet is longer.
const MAX_PACKET: usize = 65_536;

/// Asks the seeds whether there is a cluster, for as long as `patience` (R167).
pub(crate) fn find_cluster(
    socket: &UdpSocket,
    seeds: &[String],
    token: &Token,
    card: &Card,
    patience: Duration,
) -> std::io::Result<Option<Tell>> {
    let mut nonce = [0; 8];
    rustix::rand::getrandom(&mut nonce, rustix::rand::GetRandomFlags::empty())?;
    let nonce = u64::from_le_bytes(nonce);
    let ask = Packet::Ask {
        nonce,
        cluster: None,
        card: card.clone(),
    };
    let ask = ask.seal(token);
    let end = Instant::now() + patience;
    let mut buffer = vec![0; MAX_PACKET];
    socket.set_read_timeout(Some(ASK_EVERY))?;
    while Instant::now() < end {
        for address in seeds.iter().flat_map(|seed| resolve(seed)) {
            // A seed that is not there yet may be later.
            let _ = socket.send_to(&ask, address);
        }
        let pause = Instant::now() + ASK_EVERY;
        while Instant::now() < pause {
            let Ok((length, _)) = socket.recv_from(&mut buffer) else {
                break;
            };
            if let Some(Packet::Tell(tell)) = Packet::open(&buffer[..length], token)
                && tell.nonce == nonce
                && tell.cluster.is_some()
            {
                return Ok(Some(tell));
            }
        }
    }
    Ok(None)
}

fn resolve(seed: &str) -> Vec<SocketAddr> {
    use std::net::ToSocketAddrs;
    seed.to_socket_addrs()
        .map_or_else(|_| Vec::new(), Iterator::collect)
}

/// The gossip address to tell others: as configured, as bound, or as the way out to a seed shows.
pub(crate) fn advertised(options: &PeerOptions, bound: SocketAddr) -> String {
    if let Some(address) = &options.gossip_advertise {
        return if address.contains(':') {
            address.clone()
        } else {
            format!("{address}:{}", bound.port())
        };
    }
    let ip = if bound.ip().is_unspecified() {
        way_out(&options.seeds).unwrap_or(bound.ip())
    } else {
        bound.ip()
    };
    SocketAddr::new(ip, bound.port()).to_string()
}

/// The address of this machine as a seed would see it.
fn way_out(seeds: &[String]) -> Option<IpAddr> {
    let seed = seeds.iter().flat_map(|seed| resolve(seed)).next()?;
    let any = if seed.is_ipv4() {
        "0.0.0.0:0"
    } else {
        "[::]:0"
    };
    let socket = UdpSocket::bind(any).ok()?;
    // Nothing is sent: connecting a datagram socket only chooses a route.
    socket.connect(seed).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// Asks and tells until the end.
pub(crate) async fn run(
    home: Rc<Home>,
    socket: tokio::net::UdpSocket,
    seeds: Vec<String>,
    every: Duration,
) {
    let mut gossip = Gossip {
        home,
        socket,
        seeds,
        nonce: 0,
    };
    let mut buffer = vec![0; MAX_PACKET];
    let mut eager = tokio::time::interval(ASK_EVERY);
    let mut calm = tokio::time::interval(every);
    for tick in [&mut eager, &mut calm] {
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    }
    loop {
        let joined = gossip.home.identity.borrow().cluster_id.is_some();
        tokio::select! {
            _ = eager.tick(), if !joined => gossip.ask().await,
            _ = calm.tick(), if joined => gossip.ask().await,
            received = gossip.socket.recv_from(&mut buffer) => {
                if let Ok((length, from)) = received {
                    gossip.hear(&buffer[..length], from).await;
                }
            }
        }
    }
}

struct Gossip {
    home: Rc<Home>,
    socket: tokio::net::UdpSocket,
    seeds: Vec<String>,
    nonce: u64,
}

impl Gossip {
    async fn ask(&mut self) {
        let mut nonce = [0; 8];
        let flags = rustix::rand::GetRandomFlags::empty();
        if rustix::rand::getrandom(&mut nonce, flags).is_err() {
            return;
        }
        self.nonce = u64::from_le_bytes(nonce);
        let ask = Packet::Ask {
            nonce: self.nonce,
            cluster: self.home.identity.borrow().cluster_id,
            card: self.home.card.borrow().clone(),
        };
        let ask = ask.seal(&self.home.token);
        for seed in &self.seeds {
            // Names are resolved anew each time: a seed may have moved.
            let Ok(addresses) = lookup_host(seed).await else {
                tracing::debug!(seed, "a seed's name cannot be resolved");
                continue;
            };
            for address in addresses {
                let _ = self.socket.send_to(&ask, address).await;
            }
        }
    }

    async fn hear(&mut self, bytes: &[u8], from: SocketAddr) {
        // A packet without the right tag is not worth a word: anybody can send one.
        let Some(packet) = Packet::open(bytes, &self.home.token) else {
            return;
        };
        let (me, ours) = {
            let identity = self.home.identity.borrow();
            (identity.me, identity.cluster_id)
        };
        match packet {
            Packet::Ask {
                nonce,
                cluster,
                card,
            } => {
                if card.member.node == me.node {
                    return;
                }
                let tell = Packet::Tell(Tell {
                    nonce,
                    cluster: ours,
                    facts: self.home.facts.clone(),
                    cards: vec![self.home.card.borrow().clone()],
                });
                let _ = self
                    .socket
                    .send_to(&tell.seal(&self.home.token), from)
                    .await;
                if ours.is_some() && (cluster.is_none() || cluster == ours) {
                    self.home.tell(Event::Cards(vec![card]));
                }
            }
            Packet::Tell(tell) => {
                let other = |cluster| ours.is_some_and(|ours| ours != cluster);
                match tell.cluster {
                    Some(cluster) if tell.nonce == self.nonce && !other(cluster) => {
                        self.told(tell);
                    }
                    // An answer to an earlier question, a node that has no cluster either, or
                    // another cluster that has the same token.
                    Some(_) | None => {}
                }
            }
        }
    }

    fn told(&self, tell: Tell) {
        match same_facts(&self.home.facts, &tell.facts) {
            Ok(()) => self.home.tell(Event::Cards(tell.cards)),
            Err(refusal) => self.home.tell(Event::Excluded(refusal.to_string())),
        }
    }
}

/// What is told must be the same here (R161).
pub(crate) fn fits(facts: &ClusterConfig, tell: &Tell) -> Result<(), String> {
    same_facts(facts, &tell.facts).map_err(|refusal| refusal.to_string())
}
