//! Cluster discovery: before a node creates a cluster, it asks its seeds and listens for members.
//!
//! A node that created a cluster and then lost its disk knows no other node, but the members know
//! it: each of them dials its address repeatedly and announces itself to its seeds. So the node
//! listens longer than these intervals and hears from its cluster even without seeds.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use tenure_node::ClusterConfig;
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::{BootstrapError, Listeners};
use crate::gossip::{self, ASK_EVERY, MAX_PACKET, Packet, RecordPacket};
use crate::node_record::NodeRecord;
use crate::peers::{HandshakeRefusal, Hello, PeerOptions, REDIAL_WITHIN, TokenKey, answer_hello};

/// How long seeds are asked before they count as silent (R167 (bootstrap decision)).
const SEEDS: Duration = Duration::from_secs(10);
/// Allowance for a busy machine at the other end.
const MARGIN: Duration = Duration::from_millis(500);
/// How long to wait for another node that is about to create a cluster. That node is silent between
/// its last question and its first answer as a member.
const FOUNDER: Duration = Duration::from_secs(10);

/// Result of the search.
#[derive(Debug, Default)]
pub(crate) struct DiscoveryResult {
    /// Nodes that belong to a cluster with this node's token.
    pub(crate) node_records: Vec<NodeRecord>,
    /// Why this node cannot join the cluster that was found (R161 (settings fixed per cluster)).
    pub(crate) misfit: Option<String>,
    /// Seeds that did not answer.
    pub(crate) silent: Vec<String>,
}

/// Asks and listens until a cluster is found or the time is over. It runs on a thread of its own,
/// because the caller may or may not be inside an event loop.
pub(crate) fn discover(
    options: &PeerOptions,
    listeners: &Listeners,
    node_record: &NodeRecord,
    facts: &ClusterConfig,
) -> Result<DiscoveryResult, BootstrapError> {
    let run = || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let listener = listeners.listener.try_clone()?;
        let socket = listeners.socket.try_clone()?;
        listener.set_nonblocking(true)?;
        socket.set_nonblocking(true)?;
        let discovery = Rc::new(Discovery {
            token: options.token.token(),
            options: options.clone(),
            node_record: node_record.clone(),
            facts: facts.clone(),
        });
        let local = tokio::task::LocalSet::new();
        local.block_on(&runtime, async {
            let listener = TcpListener::from_std(listener)?;
            discovery.run(listener, UdpSocket::from_std(socket)?).await
        })
    };
    std::thread::scope(|scope| scope.spawn(run).join())
        .unwrap_or_else(|_| {
            Err(std::io::Error::other(
                "the thread that contacts the seeds panicked",
            ))
        })
        .map_err(BootstrapError::Ask)
}

struct Discovery {
    token: TokenKey,
    options: PeerOptions,
    node_record: NodeRecord,
    facts: ClusterConfig,
}

/// An authenticated node that this node met.
struct MetNode {
    cluster: Option<u64>,
    node_record: Option<NodeRecord>,
    misfit: Option<String>,
}

impl Discovery {
    async fn run(
        self: &Rc<Self>,
        listener: TcpListener,
        socket: UdpSocket,
    ) -> std::io::Result<DiscoveryResult> {
        // The longest interval at which a member announces itself to its seeds or dials this node.
        let listen = self.options.announce_every.max(REDIAL_WITHIN) + MARGIN;
        let begun = Instant::now();
        let (listened, given_up) = (begun + listen, begun + listen.max(SEEDS));
        let nonce = crate::random()?;
        let ask = Packet::Ask {
            nonce,
            cluster: None,
            node_record: self.node_record.clone(),
            should_bootstrap: true,
        };
        let ask = ask.seal(&self.token);
        let (sender, mut met) = mpsc::unbounded_channel();
        let mut buffer = vec![0; MAX_PACKET];
        let mut answered: BTreeSet<usize> = BTreeSet::new();
        let mut tick = tokio::time::interval(ASK_EVERY);
        // Members that asked this node. Only their answer to our nonce counts, because an old
        // datagram may be replayed.
        let mut hints: BTreeSet<SocketAddr> = BTreeSet::new();
        let mut seeds: Vec<(usize, SocketAddr)> = Vec::new();
        let seed_count = self.options.seeds.len();
        // When a node that may create a cluster before this one was last heard.
        let mut founder: Option<Instant> = None;
        loop {
            // If all seeds have answered, only the listening time matters.
            let end = if answered.len() == seed_count {
                listened
            } else {
                given_up
            };
            let end = founder.map_or(end, |heard| end.max(heard + FOUNDER));
            let found = tokio::select! {
                () = sleep_until(end) => break,
                _ = tick.tick() => {
                    seeds = self.resolve().await;
                    for address in seeds.iter().map(|(_, address)| address).chain(&hints) {
                        // A seed that is not up yet may be up later.
                        let _ = socket.send_to(&ask, address).await;
                    }
                    None
                }
                Ok((stream, _)) = listener.accept() => {
                    let (discovery, sender) = (Rc::clone(self), sender.clone());
                    // In a task of its own, so that a silent stranger does not delay members.
                    tokio::task::spawn_local(async move {
                        if let Some(found) = discovery.handshake(stream).await {
                            let _ = sender.send(found);
                        }
                    });
                    None
                }
                Some(found) = met.recv() => Some(found),
                Ok((length, from)) = socket.recv_from(&mut buffer) => {
                    match Packet::open(&buffer[..length], &self.token) {
                        Some(Packet::Tell(tell)) if tell.nonce == nonce => {
                            let names = seeds.iter().filter(|(_, address)| *address == from);
                            answered.extend(names.map(|(seed, _)| *seed));
                            if tell.should_bootstrap && tell.node_records.iter().any(|node_record| self.comes_after(node_record)) {
                                founder = Some(Instant::now());
                            }
                            let misfit = gossip::fits(&self.facts, &tell).err();
                            Some(MetNode {
                                cluster: tell.cluster,
                                node_record: tell.node_records.into_iter().next(),
                                misfit,
                            })
                        }
                        // The seed is this node itself: it counts as answered.
                        Some(Packet::Ask { nonce: own, .. }) if own == nonce => {
                            let names = seeds.iter().filter(|(_, address)| *address == from);
                            answered.extend(names.map(|(seed, _)| *seed));
                            None
                        }
                        Some(Packet::Ask { nonce, cluster: None, node_record, should_bootstrap }) => {
                            if should_bootstrap && self.comes_after(&node_record) {
                                founder = Some(Instant::now());
                            }
                            let _ = socket.send_to(&self.answer(nonce), from).await;
                            None
                        }
                        // A member of a cluster, by a datagram that may be old: ask it with our
                        // nonce.
                        Some(Packet::Ask { cluster: Some(_), .. } | Packet::Swim { .. }) => {
                            if hints.len() < 64 && hints.insert(from) {
                                let _ = socket.send_to(&ask, from).await;
                            }
                            None
                        }
                        Some(Packet::Tell(_)) | None => None,
                    }
                }
            };
            if let Some(found) = found.filter(|found| found.cluster.is_some()) {
                return Ok(DiscoveryResult {
                    node_records: found.node_record.into_iter().collect(),
                    misfit: found.misfit,
                    silent: Vec::new(),
                });
            }
        }
        let silent = (0..seed_count).filter(|seed| !answered.contains(seed));
        let silent = silent.map(|seed| self.options.seeds[seed].clone());
        Ok(DiscoveryResult {
            silent: silent.collect(),
            ..DiscoveryResult::default()
        })
    }

    /// Returns whether `other` goes first. Of two nodes that want to create a cluster, the higher
    /// number waits for the lower one.
    fn comes_after(&self, other: &NodeRecord) -> bool {
        other.member < self.node_record.member
    }

    /// Returns the answer to another node without a cluster.
    fn answer(&self, nonce: u64) -> Vec<u8> {
        let tell = RecordPacket {
            nonce,
            cluster: None,
            facts: self.facts.clone(),
            node_records: vec![self.node_record.clone()],
            should_bootstrap: true,
        };
        Packet::Tell(tell).seal(&self.token)
    }

    async fn resolve(&self) -> Vec<(usize, SocketAddr)> {
        let mut addresses = Vec::new();
        for (at, seed) in self.options.seeds.iter().enumerate() {
            if let Ok(found) = tokio::net::lookup_host(seed).await {
                addresses.extend(found.map(|address| (at, address)));
            }
        }
        addresses
    }

    /// Completes the handshake with a dialing node to learn its cluster, then refuses the
    /// connection.
    async fn handshake(&self, stream: TcpStream) -> Option<MetNode> {
        let mut random = [0; 32];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()).ok()?;
        let mine = |theirs: &Hello| Hello {
            versions: self.options.versions,
            ..Hello::new(
                self.facts.clone(),
                None,
                self.node_record.clone(),
                (theirs.channel, theirs.connection),
                None,
                random,
            )
        };
        let mut met = None;
        let admit = async |theirs: Hello, judged: Result<u8, HandshakeRefusal>| {
            let misfit = judged.err().filter(|refusal| {
                matches!(
                    refusal,
                    HandshakeRefusal::Facts { .. } | HandshakeRefusal::Version { .. }
                )
            });
            met = Some(MetNode {
                cluster: theirs.cluster,
                node_record: Some(theirs.node_record),
                misfit: misfit.map(|refusal| refusal.to_string()),
            });
            Err("the node has not found its cluster yet".to_owned())
        };
        answer_hello(self.options.tls.as_ref(), stream, mine, &self.token, admit).await;
        met
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use tenure_core::policy::Algorithm;

    use super::*;
    use crate::node_record::tests::node_record;
    use crate::peers::{BootstrapMode, Secret, Versions};

    fn facts() -> ClusterConfig {
        ClusterConfig {
            group_count: 1,
            prefix_segments: 1,
            default_algorithm: Algorithm::RecursiveRw,
        }
    }

    fn options(seed: SocketAddr) -> PeerOptions {
        let any = || "127.0.0.1:0".parse().unwrap();
        PeerOptions {
            token: Secret::new(&[7; 32]),
            tls: None,
            listen: any(),
            advertise: ("127.0.0.1".to_owned(), 0),
            gossip_listen: any(),
            gossip_advertise: None,
            seeds: vec![seed.to_string()],
            announce_every: Duration::from_millis(200),
            expected_nodes: 8,
            max_packet: 1400,
            public: String::new(),
            begin: BootstrapMode::Force,
            expected_cluster: None,
            rules: crate::PlacementRules {
                replication_factor: 3,
                stability_ms: 0,
                eviction_ms: 60_000,
                balance_ms: 1_000,
                at_once: 16,
            },
            versions: Versions::OURS,
        }
    }

    /// R167: of two nodes that want to create a cluster, the higher number waits for the other one,
    /// even if it started earlier and would finish earlier.
    #[test]
    fn of_two_founders_the_higher_number_waits() {
        let nowhere: SocketAddr = "127.0.0.1:9".parse().unwrap();
        let [low, high] = [1, 2].map(|_| Listeners::open(&options(nowhere)).unwrap());
        let (to_low, to_high) = (options(low.gossip), options(high.gossip));
        let token = to_low.token.token();
        let waited = std::thread::scope(|scope| {
            let waiting =
                scope.spawn(|| discover(&to_low, &high, &node_record(2, 5), &facts()).unwrap());
            // The lower number starts when the higher one has asked.
            let mut buffer = vec![0; MAX_PACKET];
            low.socket.peek_from(&mut buffer).unwrap();
            let found = discover(&to_high, &low, &node_record(1, 9), &facts()).unwrap();
            assert!(found.node_records.is_empty(), "{found:?}");
            assert!(found.silent.is_empty(), "a node that looks answers, too");
            // It has created a cluster and answers as a member.
            low.socket.set_nonblocking(false).unwrap();
            let often = Some(Duration::from_millis(20));
            low.socket.set_read_timeout(often).unwrap();
            while !waiting.is_finished() {
                let Ok((length, from)) = low.socket.recv_from(&mut buffer) else {
                    continue;
                };
                if let Some(Packet::Ask { nonce, .. }) = Packet::open(&buffer[..length], &token) {
                    let tell = RecordPacket {
                        nonce,
                        cluster: Some(9),
                        facts: facts(),
                        node_records: vec![node_record(1, 9)],
                        should_bootstrap: false,
                    };
                    let tell = Packet::Tell(tell).seal(&token);
                    low.socket.send_to(&tell, from).unwrap();
                }
            }
            waiting.join().unwrap()
        });
        assert_eq!(waited.node_records, [node_record(1, 9)]);
    }
}
