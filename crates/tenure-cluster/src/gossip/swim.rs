//! SWIM membership with the crate `foca`: periodic random probes; membership updates travel with
//! them.
//!
//! The periods are long, because speed does not depend on gossip: known nodes are connected, a
//! broken connection is noticed at once, and node records also travel on connections. Each packet
//! wakes up its receiver, even in an idle cluster.
//!
//! In SWIM terms, a node's identity is its node record and its address is its node number. A node
//! that moves, restarts or was declared dead too early appears with a newer record, which replaces
//! the older one.

use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use foca::{
    AccumulatingRuntime, Codec, Config, Foca, Header, Identity, Member, Message, NoCustomBroadcast,
    OwnedNotification, PeriodicParams, State, Timer,
};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use tenure_core::codec::{DecodeError, Encode, Reader, Writer};
use tenure_node::NodeId;

use crate::node_record::NodeRecord;

impl Identity for NodeRecord {
    type Addr = NodeId;

    fn renew(&self) -> Option<NodeRecord> {
        Some(NodeRecord {
            revision: self.revision + 1,
            ..self.clone()
        })
    }

    fn addr(&self) -> NodeId {
        self.node()
    }

    fn win_addr_conflict(&self, other: &NodeRecord) -> bool {
        self.is_newer_than(other)
    }
}

/// Actions that result from one SWIM step.
#[derive(Debug, Default)]
pub(crate) struct SwimActions {
    /// Packets for the gossip addresses of these nodes.
    pub(crate) send: Vec<(NodeRecord, Bytes)>,
    /// Timers: [`Swim::timer`] must be called after this time.
    pub(crate) timers: Vec<(Duration, Timer<NodeRecord>)>,
    /// Nodes that are up, or that have a new record.
    pub(crate) node_records: Vec<NodeRecord>,
    /// Nodes that are considered down.
    pub(crate) gone: Vec<NodeId>,
    /// New record of this node after others declared it dead.
    pub(crate) renewed: Option<NodeRecord>,
}

/// SWIM state machine of one node, without I/O.
pub(crate) struct Swim {
    foca: Foca<NodeRecord, NodeRecordCodec, SmallRng, NoCustomBroadcast>,
}

impl Swim {
    pub(crate) fn new(
        node_record: NodeRecord,
        expected: u32,
        max_packet: usize,
        seed: u64,
    ) -> Swim {
        let expected = NonZeroU32::new(expected).unwrap_or(NonZeroU32::MIN);
        let some = |number| NonZeroUsize::new(number).unwrap_or(NonZeroUsize::MIN);
        let config = Config {
            max_packet_size: some(max_packet.max(1)),
            probe_period: Duration::from_secs(4),
            periodic_gossip: Some(PeriodicParams {
                frequency: Duration::from_secs(2),
                num_members: some(3),
            }),
            ..Config::new_lan(expected)
        };
        let rng = SmallRng::seed_from_u64(seed);
        Swim {
            foca: Foca::new(node_record, config, rng, NodeRecordCodec),
        }
    }

    /// Announces this node to another one.
    pub(crate) fn announce(&mut self, to: NodeRecord) -> SwimActions {
        self.turn(|foca, runtime| foca.announce(to, runtime))
    }

    pub(crate) fn data(&mut self, data: &[u8]) -> SwimActions {
        self.turn(|foca, runtime| foca.handle_data(data, runtime))
    }

    pub(crate) fn timer(&mut self, timer: Timer<NodeRecord>) -> SwimActions {
        self.turn(|foca, runtime| foca.handle_timer(timer, runtime))
    }

    /// Updates this node's record.
    pub(crate) fn rename(&mut self, node_record: &NodeRecord) -> SwimActions {
        if node_record == self.foca.identity() {
            return SwimActions::default();
        }
        self.turn(|foca, runtime| foca.change_identity(node_record.clone(), runtime))
    }

    fn turn(
        &mut self,
        step: impl FnOnce(
            &mut Foca<NodeRecord, NodeRecordCodec, SmallRng, NoCustomBroadcast>,
            &mut AccumulatingRuntime<NodeRecord>,
        ) -> Result<(), foca::Error>,
    ) -> SwimActions {
        let mut runtime = AccumulatingRuntime::new();
        if let Err(error) = step(&mut self.foca, &mut runtime) {
            tracing::debug!(%error, "gossip");
        }
        let mut wants = SwimActions::default();
        while let Some(packet) = runtime.to_send() {
            wants.send.push(packet);
        }
        while let Some(timer) = runtime.to_schedule() {
            wants.timers.push(timer);
        }
        while let Some(news) = runtime.to_notify() {
            match news {
                OwnedNotification::MemberUp(node_record)
                | OwnedNotification::Rename(_, node_record) => {
                    wants.node_records.push(node_record);
                }
                OwnedNotification::MemberDown(node_record) => wants.gone.push(node_record.node()),
                OwnedNotification::Rejoin(node_record) => wants.renewed = Some(node_record),
                OwnedNotification::Active
                | OwnedNotification::Idle
                | OwnedNotification::Defunct => {}
            }
        }
        wants
    }
}

/// Codec of SWIM messages. It validates everything that it decodes.
struct NodeRecordCodec;

/// Decoding failed, or the packet is full.
#[derive(Debug, thiserror::Error)]
enum BadGossip {
    #[error("{0}")]
    Decode(DecodeError),
    #[error("no room left in the packet")]
    Full,
}

impl From<DecodeError> for BadGossip {
    fn from(error: DecodeError) -> BadGossip {
        BadGossip::Decode(error)
    }
}

impl Codec<NodeRecord> for NodeRecordCodec {
    type Error = BadGossip;

    fn encode_header(
        &mut self,
        header: &Header<NodeRecord>,
        buf: impl BufMut,
    ) -> Result<(), BadGossip> {
        let mut out = Writer::new();
        out.put(&header.src);
        out.number(u64::from(header.src_incarnation));
        out.put(&header.dst);
        put_message(&mut out, &header.message);
        copy(&out.into_bytes(), buf)
    }

    fn decode_header(&mut self, mut buf: impl Buf) -> Result<Header<NodeRecord>, BadGossip> {
        take(&mut buf, |input| {
            Ok(Header {
                src: NodeRecord::take(input)?,
                src_incarnation: incarnation(input)?,
                dst: NodeRecord::take(input)?,
                message: take_message(input)?,
            })
        })
    }

    fn encode_member(
        &mut self,
        member: &Member<NodeRecord>,
        buf: impl BufMut,
    ) -> Result<(), BadGossip> {
        let mut out = Writer::new();
        out.put(member.id());
        out.number(u64::from(member.incarnation()));
        out.byte(match member.state() {
            State::Alive => 0,
            State::Suspect => 1,
            State::Down => 2,
        });
        copy(&out.into_bytes(), buf)
    }

    fn decode_member(&mut self, mut buf: impl Buf) -> Result<Member<NodeRecord>, BadGossip> {
        take(&mut buf, |input| {
            let node_record = NodeRecord::take(input)?;
            let incarnation = incarnation(input)?;
            let state = match input.byte()? {
                0 => State::Alive,
                1 => State::Suspect,
                2 => State::Down,
                found => return Err(DecodeError::Tag { of: "state", found }),
            };
            Ok(Member::new(node_record, incarnation, state))
        })
    }
}

fn copy(bytes: &[u8], mut buf: impl BufMut) -> Result<(), BadGossip> {
    if buf.remaining_mut() < bytes.len() {
        return Err(BadGossip::Full);
    }
    buf.put_slice(bytes);
    Ok(())
}

fn take<T>(
    buf: &mut impl Buf,
    read: impl FnOnce(&mut Reader<'_>) -> Result<T, DecodeError>,
) -> Result<T, BadGossip> {
    let chunk = buf.chunk();
    let mut input = Reader::new(chunk);
    let value = read(&mut input)?;
    let used = chunk.len() - input.remaining();
    buf.advance(used);
    Ok(value)
}

fn incarnation(input: &mut Reader<'_>) -> Result<u16, DecodeError> {
    u16::try_from(input.number()?).map_err(|_| DecodeError::Number)
}

fn put_message(out: &mut Writer, message: &Message<NodeRecord>) {
    let mut put = |kind, number: u8, node_record: Option<&NodeRecord>| {
        out.byte(kind);
        out.byte(number);
        out.option(node_record);
    };
    match message {
        Message::Ping(number) => put(1, *number, None),
        Message::Ack(number) => put(2, *number, None),
        Message::PingReq {
            target,
            probe_number,
        } => put(3, *probe_number, Some(target)),
        Message::IndirectPing {
            origin,
            probe_number,
        } => put(4, *probe_number, Some(origin)),
        Message::IndirectAck {
            target,
            probe_number,
        } => put(5, *probe_number, Some(target)),
        Message::ForwardedAck {
            origin,
            probe_number,
        } => put(6, *probe_number, Some(origin)),
        Message::Announce => put(7, 0, None),
        Message::Feed => put(8, 0, None),
        Message::Gossip => put(9, 0, None),
        Message::Broadcast => put(10, 0, None),
        Message::TurnUndead => put(11, 0, None),
    }
}

fn take_message(input: &mut Reader<'_>) -> Result<Message<NodeRecord>, DecodeError> {
    let (kind, probe_number) = (input.byte()?, input.byte()?);
    let node_record: Option<NodeRecord> = input.option()?;
    let missing = DecodeError::Inconsistent("a card is missing");
    Ok(match (kind, node_record) {
        (1, None) => Message::Ping(probe_number),
        (2, None) => Message::Ack(probe_number),
        (3, node_record) => Message::PingReq {
            target: node_record.ok_or(missing)?,
            probe_number,
        },
        (4, node_record) => Message::IndirectPing {
            origin: node_record.ok_or(missing)?,
            probe_number,
        },
        (5, node_record) => Message::IndirectAck {
            target: node_record.ok_or(missing)?,
            probe_number,
        },
        (6, node_record) => Message::ForwardedAck {
            origin: node_record.ok_or(missing)?,
            probe_number,
        },
        (7, None) => Message::Announce,
        (8, None) => Message::Feed,
        (9, None) => Message::Gossip,
        (10, None) => Message::Broadcast,
        (11, None) => Message::TurnUndead,
        (found, _) => {
            return Err(DecodeError::Tag {
                of: "gossip message",
                found,
            });
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_record::tests::node_record;
    use std::collections::{BTreeMap, BinaryHeap, VecDeque};

    /// Nodes that gossip in one thread: packets arrive in order, timers fire by their time.
    struct SimulatedNetwork {
        nodes: BTreeMap<NodeId, Swim>,
        packets: VecDeque<(NodeId, Bytes)>,
        timers: BinaryHeap<std::cmp::Reverse<(Duration, u64, NodeId)>>,
        pending: BTreeMap<u64, Timer<NodeRecord>>,
        known: BTreeMap<NodeId, BTreeMap<NodeId, NodeRecord>>,
        gone: BTreeMap<NodeId, Vec<NodeId>>,
        now: Duration,
        last: u64,
    }

    impl SimulatedNetwork {
        fn new(count: u32) -> SimulatedNetwork {
            let swim = |node| Swim::new(node_record(node, 1), 8, 1400, u64::from(node));
            SimulatedNetwork {
                nodes: (1..=count)
                    .map(|node| (node_record(node, 1).node(), swim(node)))
                    .collect(),
                packets: VecDeque::new(),
                timers: BinaryHeap::new(),
                pending: BTreeMap::new(),
                known: BTreeMap::new(),
                gone: BTreeMap::new(),
                now: Duration::ZERO,
                last: 0,
            }
        }

        fn take(&mut self, node: NodeId, wants: SwimActions) {
            for (to, bytes) in wants.send {
                self.packets.push_back((to.node(), bytes));
            }
            for (after, timer) in wants.timers {
                self.last += 1;
                let due = (self.now + after, self.last, node);
                self.timers.push(std::cmp::Reverse(due));
                self.pending.insert(self.last, timer);
            }
            for node_record in wants.node_records {
                self.known
                    .entry(node)
                    .or_default()
                    .insert(node_record.node(), node_record);
            }
            self.gone.entry(node).or_default().extend(wants.gone);
        }

        fn run(&mut self, until: Duration) {
            loop {
                while let Some((to, bytes)) = self.packets.pop_front() {
                    if let Some(swim) = self.nodes.get_mut(&to) {
                        let wants = swim.data(&bytes);
                        self.take(to, wants);
                    }
                }
                let Some(std::cmp::Reverse((at, id, node))) = self.timers.pop() else {
                    return;
                };
                if at > until {
                    self.timers.push(std::cmp::Reverse((at, id, node)));
                    return;
                }
                self.now = at;
                let timer = self.pending.remove(&id).unwrap();
                if let Some(swim) = self.nodes.get_mut(&node) {
                    let wants = swim.timer(timer);
                    self.take(node, wants);
                }
            }
        }
    }

    /// R162 (node ids): all nodes learn of each other through one node, and of new addresses and
    /// dead nodes.
    #[test]
    fn a_chain_of_announcements_makes_a_cluster() {
        let mut network = SimulatedNetwork::new(5);
        for node in 2..=5 {
            let from = node_record(node, 1).node();
            let wants = network
                .nodes
                .get_mut(&from)
                .unwrap()
                .announce(node_record(node - 1, 1));
            network.take(from, wants);
        }
        network.run(Duration::from_secs(20));
        for node in 1..=5 {
            let known = &network.known[&node_record(node, 1).node()];
            assert_eq!(known.len(), 4, "node {node}: {:?}", known.keys());
        }
        let moved = NodeRecord {
            revision: 1,
            internal: "elsewhere:1".into(),
            ..node_record(3, 1)
        };
        let wants = network.nodes.get_mut(&moved.node()).unwrap().rename(&moved);
        network.take(moved.node(), wants);
        network.run(Duration::from_secs(40));
        for node in [1, 2, 4, 5] {
            let known = &network.known[&node_record(node, 1).node()][&moved.node()];
            assert_eq!(known.internal, "elsewhere:1", "node {node}");
        }
        let dead = node_record(5, 1).node();
        network.nodes.remove(&dead);
        network.run(Duration::from_secs(100));
        for node in 1..=4 {
            assert!(
                network.gone[&node_record(node, 1).node()].contains(&dead),
                "node {node}"
            );
        }
    }

    #[test]
    fn rubbish_is_refused() {
        let mut swim = Swim::new(node_record(1, 1), 8, 1400, 1);
        let mut other = Swim::new(node_record(2, 1), 8, 1400, 2);
        let wants = other.announce(node_record(1, 1));
        let bytes = wants.send[0].1.clone();
        for end in 0..bytes.len() {
            let answer = swim.data(&bytes[..end]);
            assert!(answer.node_records.is_empty() && answer.send.is_empty());
        }
        assert_eq!(swim.data(&bytes).node_records, [node_record(2, 1)]);
    }
}
