//! Gossip over UDP: node discovery from seeds, then SWIM membership.
//!
//! ```text
//!   ASK: record of this node  ──▶  TELL: id and settings of the cluster, known node records
//!   SWIM: members probe each other and pass on what they know
//! ```
//!
//! Every packet carries a MAC made with the cluster token; the token itself is never sent (R168
//! (internal authentication)). Gossip only yields addresses to try: each node proves the token
//! again in the handshake of its connection.

mod packet;
mod swim;

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::rc::Rc;
use std::time::Duration;

use foca::Timer;
use tenure_node::ClusterConfig;
use tokio::net::lookup_host;
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

use crate::node_record::NodeRecord;
use crate::peers::{PeerOptions, PeersContext, RegistryEvent, same_facts};
pub(crate) use packet::{Packet, RecordPacket};
use swim::{Swim, SwimActions};

/// Interval at which a node without a cluster asks its seeds.
pub(crate) const ASK_EVERY: Duration = Duration::from_millis(300);
/// Maximum length of a packet.
pub(crate) const MAX_PACKET: usize = 65_536;

pub(crate) fn resolve(seed: &str) -> Vec<SocketAddr> {
    use std::net::ToSocketAddrs;
    seed.to_socket_addrs()
        .map_or_else(|_| Vec::new(), Iterator::collect)
}

/// Returns the gossip address to advertise: the configured one, the bound one, or the source
/// address of the route to a seed.
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

/// Returns the local address that a seed would see.
fn way_out(seeds: &[String]) -> Option<IpAddr> {
    let seed = seeds.iter().flat_map(|seed| resolve(seed)).next()?;
    let any = if seed.is_ipv4() {
        "0.0.0.0:0"
    } else {
        "[::]:0"
    };
    let socket = UdpSocket::bind(any).ok()?;
    // Nothing is sent: connecting a datagram socket only selects a route.
    socket.connect(seed).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// Runs discovery and gossip until the task is dropped.
pub(crate) async fn run(
    home: Rc<PeersContext>,
    socket: tokio::net::UdpSocket,
    options: PeerOptions,
) {
    let (timers, mut due) = mpsc::unbounded_channel();
    let mut gossip = Gossip {
        home,
        socket,
        seeds: options.seeds,
        nonce: 0,
        swim: None,
        timers,
        expected: options.expected_nodes,
        max_packet: options.max_packet,
    };
    let mut buffer = vec![0; MAX_PACKET];
    let mut eager = tokio::time::interval(ASK_EVERY);
    let mut settled = tokio::time::interval(options.announce_every);
    for tick in [&mut eager, &mut settled] {
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    }
    let home = Rc::clone(&gossip.home);
    loop {
        let joined = home.identity.borrow().cluster_id.is_some();
        tokio::select! {
            _ = eager.tick(), if !joined => gossip.ask().await,
            _ = settled.tick(), if joined => gossip.ask().await,
            Some(timer) = due.recv() => {
                let wants = gossip.swim.as_mut().map(|swim| swim.timer(timer));
                gossip.carry_out(wants.unwrap_or_default()).await;
            }
            () = home.node_record_changed.notified() => {
                let node_record = home.node_record.borrow().clone();
                let wants = gossip.swim.as_mut().map(|swim| swim.rename(&node_record));
                gossip.carry_out(wants.unwrap_or_default()).await;
            }
            received = gossip.socket.recv_from(&mut buffer) => {
                if let Ok((length, from)) = received {
                    gossip.hear(&buffer[..length], from).await;
                }
            }
        }
    }
}

struct Gossip {
    home: Rc<PeersContext>,
    socket: tokio::net::UdpSocket,
    seeds: Vec<String>,
    nonce: u64,
    /// Created with the first member that this node meets.
    swim: Option<Swim>,
    timers: mpsc::UnboundedSender<Timer<NodeRecord>>,
    expected: u32,
    max_packet: usize,
}

impl Gossip {
    async fn ask(&mut self) {
        let Ok(nonce) = crate::random() else {
            return;
        };
        self.nonce = nonce;
        let ask = Packet::Ask {
            nonce,
            cluster: self.home.identity.borrow().cluster_id,
            node_record: self.home.node_record.borrow().clone(),
            should_bootstrap: false,
        };
        let ask = ask.seal(&self.home.token);
        for seed in &self.seeds {
            // Resolved anew each time, because a seed may have moved.
            let Ok(addresses) = lookup_host(seed).await else {
                tracing::debug!(seed, "cannot resolve the host name of a seed");
                continue;
            };
            for address in addresses {
                let _ = self.socket.send_to(&ask, address).await;
            }
        }
    }

    async fn hear(&mut self, bytes: &[u8], from: SocketAddr) {
        // Dropped without a log line: any host can send packets with a wrong MAC.
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
                node_record,
                should_bootstrap: _,
            } => {
                // A node must not answer itself: a seed list may contain its own address.
                if node_record.member.node == me.node {
                    return;
                }
                let tell = Packet::Tell(RecordPacket {
                    nonce,
                    cluster: ours,
                    facts: self.home.facts.clone(),
                    node_records: vec![self.home.node_record.borrow().clone()],
                    should_bootstrap: false,
                });
                let tell = tell.seal(&self.home.token);
                let _ = self.socket.send_to(&tell, from).await;
                // A node without a cluster connects by itself and is checked in the handshake.
                if ours.is_some() && cluster == ours {
                    self.home
                        .tell(RegistryEvent::NodeRecords(vec![node_record]));
                } else if cluster.is_some() {
                    self.home.tell(RegistryEvent::Foreign(node_record));
                }
            }
            // Otherwise it is an answer to an earlier question, or from a node without a cluster.
            Packet::Tell(mut tell) if tell.nonce == self.nonce && tell.cluster.is_some() => {
                if ours.is_none() || ours == tell.cluster {
                    self.told(tell, ours).await;
                } else if let Some(node_record) = tell.node_records.pop() {
                    self.home.tell(RegistryEvent::Foreign(node_record));
                }
            }
            Packet::Tell(_) => {}
            Packet::Swim { cluster, data } if ours == Some(cluster) => {
                let wants = self.swim().data(&data);
                self.carry_out(wants).await;
            }
            Packet::Swim { .. } => {}
        }
    }

    async fn told(&mut self, tell: RecordPacket, ours: Option<u64>) {
        if let Err(why) = fits(&self.home.facts, &tell) {
            self.home.tell(RegistryEvent::Excluded(why));
            return;
        }
        self.home
            .tell(RegistryEvent::NodeRecords(tell.node_records.clone()));
        // Only members take part in SWIM. A node that has not joined is not a member yet.
        let others = tell.node_records.into_iter();
        let me = self.home.node_record.borrow().node();
        for node_record in others.filter(|node_record| ours.is_some() && node_record.node() != me) {
            let wants = self.swim().announce(node_record);
            self.carry_out(wants).await;
        }
    }

    fn swim(&mut self) -> &mut Swim {
        self.swim.get_or_insert_with(|| {
            let node_record = self.home.node_record.borrow().clone();
            let room = self.max_packet.saturating_sub(packet::OVERHEAD);
            let seed = crate::random().unwrap_or(node_record.member.pack());
            Swim::new(node_record, self.expected, room, seed)
        })
    }

    async fn carry_out(&mut self, wants: SwimActions) {
        if let Some(node_record) = wants.renewed {
            *self.home.node_record.borrow_mut() = node_record;
        }
        if !wants.node_records.is_empty() {
            self.home
                .tell(RegistryEvent::NodeRecords(wants.node_records));
        }
        for node in wants.gone {
            tracing::debug!(%node, "gossip: the node does not answer and is removed");
        }
        for (after, timer) in wants.timers {
            let timers = self.timers.clone();
            tokio::task::spawn_local(async move {
                tokio::time::sleep(after).await;
                let _ = timers.send(timer);
            });
        }
        let Some(cluster) = self.home.identity.borrow().cluster_id else {
            return;
        };
        for (to, data) in wants.send {
            let packet = Packet::Swim {
                cluster,
                data: data.to_vec(),
            };
            // Node records carry addresses as configured; a host name is resolved each time.
            if let Ok(mut addresses) = lookup_host(&to.gossip).await
                && let Some(address) = addresses.next()
            {
                let _ = self
                    .socket
                    .send_to(&packet.seal(&self.home.token), address)
                    .await;
            }
        }
    }
}

/// Checks that the cluster of the answering node has the same fixed settings (R161 (settings fixed
/// per cluster)).
pub(crate) fn fits(facts: &ClusterConfig, tell: &RecordPacket) -> Result<(), String> {
    same_facts(facts, &tell.facts).map_err(|refusal| refusal.to_string())
}
