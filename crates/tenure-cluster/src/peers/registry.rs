//! Registry of known peers and their connection pairs.
//!
//! A pair consists of two connections of the main channel, one per direction. It is established
//! when both are, and when one breaks, the registry ends the other. So the loss of a peer is a
//! single event, and the node is informed at once: followers of groups that the lost peer led need
//! not wait for their election timeouts. Bulk connections come and go separately.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use tenure_node::{Channel, Input, NodeId, ReplicaId};
use tokio::sync::{mpsc, oneshot, watch};

use super::control::ControlMessage;
use super::frame_writer::{FrameWriter, OutboundMessage};
use super::handshake::{HandshakeRefusal, Hello};
use super::rival_cluster::{ClusterClaim, RivalCluster, RivalOutcome, decide};
use super::status::{self, StatusRequests};
use super::{
    BelongsToCluster, ClusterMembership, IncarnationMark, PeersContext, PeersStart, Succession,
    accept, dial, persisted_state,
};
use crate::driver::MachineClock;
use crate::identity::NodeIdentity;
use crate::job::Job;
use crate::node_record::NodeRecord;
use crate::placement_plan::{NodeView, PlacementView};
use crate::status_report::NodeReport;

/// An event for the registry. All state changes of the registry are events in one queue.
pub(crate) enum RegistryEvent {
    /// Node records from gossip or from a peer.
    NodeRecords(Vec<NodeRecord>),
    /// An authenticated node that this node has dialed, with its own record.
    Met {
        node_record: Box<NodeRecord>,
        belongs: BelongsToCluster,
    },
    /// A node is refused because of its data directory.
    Problem {
        node: NodeId,
        refusal: HandshakeRefusal,
    },
    /// Another node knows that this node runs on outdated data.
    Outdated {
        by: NodeId,
        refusal: HandshakeRefusal,
    },
    /// An authenticated node requests admission.
    Admit {
        theirs: Box<Hello>,
        reply: oneshot::Sender<Result<Admission, String>>,
    },
    /// An incoming connection was established.
    InUp {
        node: NodeId,
        channel: Channel,
        id: u64,
        cancel: oneshot::Sender<()>,
    },
    /// An incoming connection ended.
    InDown {
        node: NodeId,
        channel: Channel,
        id: u64,
    },
    /// An outgoing connection was established.
    OutUp {
        node: NodeId,
        incarnation: u32,
        channel: Channel,
        connection: u64,
        version: u8,
        frame_writer: FrameWriter,
    },
    /// An outgoing connection ended.
    OutDown {
        node: NodeId,
        channel: Channel,
        connection: u64,
    },
    /// The node thread found a send buffer full: the pair is given up.
    Overflow { node: NodeId },
    /// A control message of a peer.
    Control { from: NodeId, bytes: Bytes },
    /// A peer reports that this node does not fit into its cluster.
    Excluded(String),
    /// Gossip names a node that may belong to another cluster.
    Foreign(NodeRecord),
    /// An authenticated node of a cluster that this node, which has none, could join.
    Candidate(Box<Hello>),
    /// The time to collect candidate clusters is over.
    Choose,
    /// An authenticated node of another cluster, and the claim that this node made in the same
    /// handshake.
    Rival {
        ours: Option<ClusterClaim>,
        theirs: Box<Hello>,
    },
    /// Requests the list of known nodes.
    Inspect(oneshot::Sender<Vec<NodeInfo>>),
    /// Requests the reports of all connected nodes.
    StatusRequest(oneshot::Sender<Vec<NodeReport>>),
    /// This node's report, for its own status request or for that of another node.
    Reported {
        to: NodeId,
        id: u64,
        report: NodeReport,
    },
    /// The time limit of a status request has passed.
    StatusDeadline(u64),
    /// This node's claim about the cluster's history, for another node of the cluster.
    Claimed { to: NodeId, claim: ClusterClaim },
    /// Operator command: starts or ends draining.
    Drain {
        node: NodeId,
        wanted: bool,
        done: oneshot::Sender<Result<(), String>>,
    },
    /// Operator command: removes a node permanently.
    Remove {
        node: NodeId,
        done: oneshot::Sender<Result<(), String>>,
    },
    /// The node has ended.
    Stop,
}

/// Admission of an incoming connection.
pub(crate) struct Admission {
    /// Id of the connection in this registry.
    pub(crate) id: u64,
    /// Whether the other direction is established.
    pub(crate) stands: watch::Receiver<bool>,
}

/// A node as shown to operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeInfo {
    /// Name given by the operator.
    pub name: String,
    /// Node number and incarnation.
    pub member: ReplicaId,
    /// Whether the node is up, as seen from the asked node.
    pub up: bool,
    /// How long it has been up or down, in milliseconds.
    pub for_ms: u64,
    /// Whether the node gives its replicas away.
    pub draining: bool,
    /// Address for peers.
    pub internal: String,
    /// Address for clients.
    pub public: String,
    /// Negotiated version of the peer protocol while the node is connected.
    pub version: Option<u8>,
}

impl NodeInfo {
    /// Returns the entry of a node that runs without peers.
    pub(crate) fn alone(member: ReplicaId, name: &str) -> NodeInfo {
        NodeInfo {
            name: name.to_owned(),
            member,
            up: true,
            for_ms: 0,
            draining: false,
            internal: String::new(),
            public: String::new(),
            version: None,
        }
    }
}

/// Another node and its connections.
struct PeerEntry {
    node_record: watch::Sender<Option<NodeRecord>>,
    /// Main connection to it.
    out: Option<OutgoingConnection>,
    incoming: Option<IncomingConnection>,
    bulk: Option<IncomingConnection>,
    stands: watch::Sender<bool>,
    up: bool,
    since_ms: u64,
}

struct OutgoingConnection {
    connection: u64,
    version: u8,
    frame_writer: FrameWriter,
}

/// A connection from the peer. Dropping `cancel` ends it.
struct IncomingConnection {
    id: u64,
    member: ReplicaId,
    /// Start number of the peer's process, and its connection number. Orders the peer's
    /// connections.
    number: (u64, u64),
    cancel: Option<oneshot::Sender<()>>,
}

struct Registry {
    home: Rc<PeersContext>,
    clock: MachineClock,
    started_ms: u64,
    pairs: BTreeMap<NodeId, PeerEntry>,
    removed: BTreeSet<ReplicaId>,
    last_pass: u64,
    /// What the node thread was last informed of. Stability and eviction windows end without an
    /// event; the rebalancer checks them by itself.
    told: Vec<NodeId>,
    told_view: Option<PlacementView>,
    status_requests: StatusRequests,
    /// Clusters that this node could join while it has none. `None` before the first is met.
    candidates: Option<BTreeMap<u64, ClusterCandidate>>,
    /// Other clusters with this cluster's token.
    rivals: BTreeMap<u64, RivalCluster>,
    /// Whether this node has stopped serving because of a rival cluster or outdated data.
    gave_way: bool,
}

/// A cluster that this node could join: its claim, and some of its nodes.
type ClusterCandidate = (Option<ClusterClaim>, Vec<NodeRecord>);

/// Time to collect candidate clusters. The seeds are asked three times meanwhile.
const CHOOSE_AFTER: Duration = Duration::from_secs(1);
/// Time for the last control messages to be sent before the connections end.
const LAST_WORDS: Duration = Duration::from_millis(300);

/// Runs the registry until the stop event.
pub(crate) async fn run(
    start: PeersStart,
    (sender, mut events): (
        mpsc::UnboundedSender<RegistryEvent>,
        mpsc::UnboundedReceiver<RegistryEvent>,
    ),
) {
    let home = PeersContext::new(&start, sender);
    let nonblocking = start
        .listener
        .set_nonblocking(true)
        .and_then(|()| start.socket.set_nonblocking(true));
    if let Err(error) = nonblocking {
        tracing::error!(%error, "cannot set the peer sockets to non-blocking mode: this node cannot connect to other nodes");
        return;
    }
    let listener = match tokio::net::TcpListener::from_std(start.listener) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(%error, "cannot listen for peers");
            return;
        }
    };
    let mut registry = Registry {
        home: Rc::clone(&home),
        started_ms: start.clock.now().monotonic_ms,
        clock: start.clock,
        pairs: BTreeMap::new(),
        removed: start.peer_state.removed.clone(),
        last_pass: 0,
        told: Vec::new(),
        told_view: None,
        status_requests: StatusRequests::default(),
        candidates: None,
        rivals: BTreeMap::new(),
        gave_way: false,
    };
    // Rewrites the first release's single record as one record per node.
    if start.peer_state.is_legacy {
        home.write(start.peer_state.items());
    }
    let acceptor = tokio::task::spawn_local(accept::run(Rc::clone(&home), listener));
    let gossip = match tokio::net::UdpSocket::from_std(start.socket) {
        Ok(socket) => {
            let gossip = crate::gossip::run(Rc::clone(&home), socket, start.options);
            tokio::task::spawn_local(gossip)
        }
        Err(error) => {
            tracing::error!(%error, "cannot use the gossip socket: this node cannot connect to other nodes");
            return;
        }
    };
    registry.begin(start.peer_state.node_records);
    registry.ask_which_cluster(start.hints);
    while let Some(event) = events.recv().await {
        if matches!(event, RegistryEvent::Stop) {
            break;
        }
        registry.handle(event);
    }
    if registry.gave_way {
        // The other nodes of this cluster must learn of it, and the connections end with this task.
        tokio::time::sleep(LAST_WORDS).await;
    }
    acceptor.abort();
    gossip.abort();
}

impl Registry {
    fn handle(&mut self, event: RegistryEvent) {
        match event {
            RegistryEvent::NodeRecords(node_records)
                if self.home.identity.borrow().cluster_id.is_none() =>
            {
                self.ask_which_cluster(node_records);
            }
            RegistryEvent::NodeRecords(node_records) => self.learn(node_records),
            RegistryEvent::Met {
                node_record,
                belongs,
            } => self.met(*node_record, belongs),
            RegistryEvent::Problem { node, refusal } => self.problem(node, &refusal),
            RegistryEvent::Outdated { by, refusal } => self.outdated(by, &refusal),
            RegistryEvent::Foreign(node_record) => self.ask_which_cluster(vec![node_record]),
            RegistryEvent::Candidate(theirs) => self.candidate(*theirs),
            RegistryEvent::Choose => self.choose(),
            RegistryEvent::Rival { ours, theirs } => self.met_rival(ours, &theirs),
            RegistryEvent::Admit { theirs, reply } => {
                let _ = reply.send(self.admit(&theirs));
            }
            RegistryEvent::InUp {
                node,
                channel,
                id,
                cancel,
            } => self.in_up(node, channel, id, cancel),
            RegistryEvent::InDown { node, channel, id } => self.in_down(node, channel, id),
            RegistryEvent::OutUp {
                node,
                incarnation,
                channel,
                connection,
                version,
                frame_writer,
            } => {
                let out = OutgoingConnection {
                    connection,
                    version,
                    frame_writer,
                };
                self.out_up(ReplicaId::new(node, incarnation), channel, out);
            }
            RegistryEvent::OutDown {
                node,
                channel,
                connection,
            } => self.out_down(node, channel, connection),
            RegistryEvent::Overflow { node } => self.fall(node),
            RegistryEvent::Control { from, bytes } => self.hear(from, &bytes),
            RegistryEvent::Excluded(why) => {
                self.home.joined.send_if_modified(|joined| {
                    let fresh = *joined == ClusterMembership::NotYet;
                    if fresh {
                        *joined = ClusterMembership::Excluded(why.clone());
                    }
                    fresh
                });
                tracing::error!(why, "this node cannot join the cluster");
            }
            RegistryEvent::Inspect(reply) => {
                let _ = reply.send(self.nodes());
            }
            RegistryEvent::StatusRequest(reply) => self.cluster_report(reply),
            RegistryEvent::Reported { to, id, report } if to == self.me() => {
                self.status_requests.heard(id, report);
            }
            RegistryEvent::Reported { to, id, report } => {
                self.say(to, &ControlMessage::Edition(id, report.edition()));
                self.say(to, &ControlMessage::Told(id, report));
            }
            RegistryEvent::StatusDeadline(id) => self.status_requests.end(id),
            RegistryEvent::Claimed { to, claim } => {
                self.say(to, &ControlMessage::Claim(claim));
            }
            RegistryEvent::Drain { node, wanted, done } => {
                let _ = done.send(self.drain(node, wanted));
            }
            RegistryEvent::Remove { node, done } => {
                let _ = done.send(self.remove(node));
            }
            RegistryEvent::Stop => {}
        }
    }

    fn now_ms(&self) -> u64 {
        self.clock.now().monotonic_ms
    }

    fn me(&self) -> NodeId {
        self.home.node_record.borrow().node()
    }

    /// Connects to the nodes whose records were in the log.
    fn begin(&mut self, peer_state: Vec<NodeRecord>) {
        for node_record in peer_state {
            if node_record.node() != self.me() {
                self.meet(node_record);
            }
        }
        self.reassess();
    }

    /// Asks nodes which cluster they belong to: while this node has none, or because gossip places
    /// them in another one.
    fn ask_which_cluster(&mut self, node_records: Vec<NodeRecord>) {
        for node_record in node_records {
            if node_record.node() != self.me() || self.home.identity.borrow().cluster_id.is_some() {
                let (home, node) = (Rc::clone(&self.home), node_record.node());
                tokio::task::spawn_local(dial::identify(home, node, node_record.internal));
            }
        }
    }

    /// Collects a cluster that this node could join. It waits for others, because clusters that
    /// share a token by mistake must be compared before one of them is joined.
    fn candidate(&mut self, theirs: Hello) {
        let Some(cluster) = theirs.cluster else {
            return;
        };
        if self.home.identity.borrow().cluster_id.is_some() {
            // This node has joined meanwhile.
            return;
        }
        if let Some(expected) = self.home.expected
            && expected != cluster
        {
            let refusal = HandshakeRefusal::Unexpected {
                expected,
                theirs: cluster,
            };
            tracing::error!(node = theirs.node_record.name, "not joined: {refusal}");
            return;
        }
        if let Some(Succession::New { after_ms }) =
            theirs.known.map(|known| self.home.succession(&known))
        {
            self.home.born_after(after_ms);
        }
        let candidates = self.candidates.get_or_insert_with(|| {
            let home = Rc::clone(&self.home);
            tokio::task::spawn_local(async move {
                tokio::time::sleep(CHOOSE_AFTER).await;
                home.tell(RegistryEvent::Choose);
            });
            BTreeMap::new()
        });
        let (claim, node_records) = candidates.entry(cluster).or_default();
        if theirs.claim.is_some() {
            *claim = theirs.claim;
        }
        node_records.push(theirs.node_record);
    }

    /// Joins the only candidate, or the one that outlives all others.
    fn choose(&mut self) {
        let candidates = self.candidates.take().unwrap_or_default();
        let goes_on = |(cluster, (claim, _)): &(&u64, &ClusterCandidate)| {
            let mut others = candidates.iter().filter(|(other, _)| other != cluster);
            others.all(|(other, (theirs, _))| {
                let verdict = decide((**cluster, claim.as_ref()), (*other, theirs.as_ref()));
                verdict == RivalOutcome::GoesOn
            })
        };
        if candidates.len() > 1 {
            let names: Vec<String> = candidates.keys().map(|id| format!("{id:016x}")).collect();
            let clusters = names.join(" ");
            tracing::error!(
                clusters,
                "not joined: several clusters have this token; stop all but one, or set expected_cluster_id"
            );
        }
        let Some((cluster, (_, node_records))) = candidates.iter().find(goes_on) else {
            // The seeds are asked again until an operator has decided between the clusters.
            return;
        };
        self.home.chosen.set(Some(*cluster));
        self.learn(node_records.clone());
    }

    /// Handles a rival cluster: it has the same token, so both could grant the same lock (R161
    /// (settings fixed per cluster)).
    fn met_rival(&mut self, ours: Option<ClusterClaim>, theirs: &Hello) {
        let our_cluster = self.home.identity.borrow().cluster_id;
        let (Some(our_cluster), Some(cluster)) = (our_cluster, theirs.cluster) else {
            return;
        };
        let verdict = decide(
            (our_cluster, ours.as_ref()),
            (cluster, theirs.claim.as_ref()),
        );
        let node = format!(
            "{} at {}",
            theirs.node_record.name, theirs.node_record.internal
        );
        let rival = RivalCluster {
            cluster,
            number: theirs.node_record.node().number(),
            node,
            address: theirs.node_record.internal.clone(),
            claim: theirs.claim.clone(),
            verdict,
        };
        self.heard_of_rival(rival);
    }

    /// Handles a rival cluster that another node of this cluster has met. That node may know less
    /// of our history than this one, so this node decides again.
    fn told_of_rival(&mut self, rival: RivalCluster) {
        let Some(ours) = self.home.identity.borrow().cluster_id else {
            return;
        };
        let claim = self.home.standing.borrow().claim();
        let verdict = decide((ours, Some(&claim)), (rival.cluster, rival.claim.as_ref()));
        if verdict != rival.verdict
            && let Some(node) = NodeId::new(rival.number)
        {
            // The other cluster decides by the claim that it got, so it must get this node's claim
            // as well.
            let (home, address) = (Rc::clone(&self.home), rival.address.clone());
            tokio::task::spawn_local(dial::identify(home, node, address));
        }
        self.heard_of_rival(RivalCluster { verdict, ..rival });
    }

    fn heard_of_rival(&mut self, rival: RivalCluster) {
        let Some(ours) = self.home.identity.borrow().cluster_id else {
            return;
        };
        let known = self.rivals.get(&rival.cluster);
        if self.gave_way || known.is_some_and(|known| known.verdict == rival.verdict) {
            return;
        }
        let sentence = rival.sentence(ours);
        tracing::error!("{sentence}");
        self.rivals.insert(rival.cluster, rival.clone());
        self.publish();
        self.say_all(&ControlMessage::Rival(rival.clone()));
        if rival.verdict != RivalOutcome::GoesOn {
            self.gave_way = true;
            let standing = {
                let mut standing = self.home.standing.borrow_mut();
                standing.gave_way_to = Some(rival);
                persisted_state::standing(&standing)
            };
            // The log thread writes in order: this record is written before the log ends, so the
            // next start does not serve either.
            self.home.write([standing]);
            self.home.runner.push(Job::Exclude(sentence));
        }
    }

    /// Publishes the rival clusters for operators.
    fn publish(&self) {
        let Some(ours) = self.home.identity.borrow().cluster_id else {
            return;
        };
        let rivals = self.rivals.values().map(|rival| rival.sentence(ours));
        let rivals = rivals.collect();
        self.home.known.send_modify(|known| known.rivals = rivals);
    }

    /// Counts a member that was never seen before: the cluster's history grows (see
    /// `rival_cluster.rs`).
    fn count_member(&mut self) {
        let mut standing = self.home.standing.borrow_mut();
        standing.members += 1;
        self.home.write([persisted_state::standing(&standing)]);
    }

    /// Merges node records and passes on the new ones.
    fn learn(&mut self, node_records: Vec<NodeRecord>) {
        let mut news = Vec::new();
        for node_record in node_records {
            if node_record.node() == self.me() {
                self.heard_of_myself(&node_record);
                continue;
            }
            if self.removed.contains(&node_record.member) {
                continue;
            }
            match self.pairs.get(&node_record.node()) {
                Some(pair) => {
                    let known = pair.node_record.borrow().clone();
                    // While the peer is connected, its own handshake decides about its incarnation,
                    // not gossip.
                    let other_incarnation =
                        |known: &NodeRecord| known.member != node_record.member && pair.up;
                    if known.as_ref().is_some_and(|known| {
                        !node_record.is_newer_than(known) || other_incarnation(known)
                    }) {
                        continue;
                    }
                    let is_new_incarnation =
                        known.is_some_and(|known| known.member != node_record.member);
                    pair.node_record.send_replace(Some(node_record.clone()));
                    self.note_life(&node_record);
                    if is_new_incarnation {
                        self.count_member();
                        self.came_over(node_record.node());
                    }
                }
                None => {
                    self.meet(node_record.clone());
                    self.count_member();
                    self.came_over(node_record.node());
                }
            }
            news.push(node_record);
        }
        if !news.is_empty() {
            self.home
                .write(news.iter().map(persisted_state::node_record));
            self.say_all(&ControlMessage::NodeRecords(news));
            self.reassess();
        }
    }

    /// Merges the record of an authenticated node. A node without a cluster replaces an earlier
    /// incarnation of its number, whatever the clocks said.
    fn met(&mut self, node_record: NodeRecord, belongs: BelongsToCluster) {
        let known = self.home.known_life(node_record.node());
        let compared = known.map(|known| known.compare(&node_record, belongs));
        if let Some(Succession::New { .. }) = compared
            && let Some(pair) = self.pairs.get(&node_record.node())
            && !pair.up
        {
            pair.node_record.send_replace(Some(node_record.clone()));
            self.note_life(&node_record);
            self.count_member();
            self.home
                .write([persisted_state::node_record(&node_record)]);
            self.say_all(&ControlMessage::NodeRecords(vec![node_record]));
            self.reassess();
        } else {
            self.learn(vec![node_record]);
        }
    }

    fn note_life(&self, node_record: &NodeRecord) {
        let mut incarnations = self.home.incarnations.borrow_mut();
        incarnations.insert(node_record.node(), IncarnationMark::of(node_record));
    }

    /// Checks a record of this node's own number that others pass on.
    fn heard_of_myself(&mut self, node_record: &NodeRecord) {
        let belongs = BelongsToCluster::of(self.home.identity.borrow().cluster_id);
        let checked =
            IncarnationMark::of(node_record).check(&self.home.node_record.borrow(), belongs);
        if let Err(refusal) = checked {
            self.outdated(self.me(), &refusal);
        }
    }

    /// Publishes for operators that a node is refused because of its data.
    fn problem(&self, node: NodeId, refusal: &HandshakeRefusal) {
        let sentence = refusal.to_string();
        self.home.known.send_if_modified(|known| {
            let is_news = known.problems.get(&node) != Some(&sentence);
            if is_news {
                tracing::error!("{sentence}");
                known.problems.insert(node, sentence);
            }
            is_news
        });
    }

    /// Handles the report that this node runs on outdated data. On an older copy it could vote
    /// twice in one term, so it stops. The stop is durable, because after enough restarts its start
    /// count would pass the known one.
    fn outdated(&mut self, by: NodeId, refusal: &HandshakeRefusal) {
        self.problem(by, refusal);
        if matches!(refusal, HandshakeRefusal::OlderCopy { .. }) && !self.gave_way {
            self.gave_way = true;
            let sentence = refusal.to_string();
            self.home.write([persisted_state::stopped(&sentence)]);
            self.home.runner.push(Job::Exclude(sentence));
        }
    }

    /// Forgets the rival cluster of a node that has joined this cluster.
    fn came_over(&mut self, node: NodeId) {
        let before = self.rivals.len();
        self.rivals.retain(|_, rival| rival.number != node.number());
        if self.rivals.len() < before {
            self.publish();
        }
    }

    /// Adds an unknown node and starts its dialers.
    fn meet(&mut self, node_record: NodeRecord) {
        let node = node_record.node();
        self.note_life(&node_record);
        let (sender, receiver) = watch::channel(Some(node_record));
        for channel in [Channel::Main, Channel::Bulk] {
            let home = Rc::clone(&self.home);
            tokio::task::spawn_local(dial::keep(home, node, channel, receiver.clone()));
        }
        let pair = PeerEntry {
            node_record: sender,
            out: None,
            incoming: None,
            bulk: None,
            stands: watch::channel(false).0,
            up: false,
            since_ms: self.now_ms(),
        };
        self.pairs.insert(node, pair);
    }

    fn admit(&mut self, theirs: &Hello) -> Result<Admission, String> {
        let node_record = &theirs.node_record;
        let node = node_record.node();
        if self.removed.contains(&node_record.member) {
            return Err(format!(
                "{node} was removed from the cluster; it can join again with an empty data directory"
            ));
        }
        let number = (node_record.start, theirs.connection);
        if theirs.channel == Channel::Main
            && let Some(present) = self
                .pairs
                .get(&node)
                .and_then(|pair| pair.incoming.as_ref())
        {
            if present.member != node_record.member {
                return Err(format!("another process is connected as {node}"));
            }
            // A late handshake of an older connection must not replace the newer one.
            if number <= present.number {
                return Err("a newer connection exists already".to_owned());
            }
            self.fall(node);
        }
        if let Some(known) = self.home.known_life(node) {
            // Checked again, because the newest incarnation may have changed since the handshake
            // began.
            let checked = known.check(node_record, BelongsToCluster::of(theirs.cluster));
            checked.map_err(|refusal| refusal.to_string())?;
        }
        self.met(node_record.clone(), BelongsToCluster::of(theirs.cluster));
        self.last_pass += 1;
        let id = self.last_pass;
        let pair = self
            .pairs
            .get_mut(&node)
            .ok_or("the registry does not know this node")?;
        let incoming = IncomingConnection {
            id,
            member: node_record.member,
            number,
            cancel: None,
        };
        match theirs.channel {
            Channel::Main => pair.incoming = Some(incoming),
            Channel::Bulk => pair.bulk = Some(incoming),
        }
        Ok(Admission {
            id,
            stands: pair.stands.subscribe(),
        })
    }

    fn in_up(&mut self, node: NodeId, channel: Channel, id: u64, cancel: oneshot::Sender<()>) {
        let Some(pair) = self.pairs.get_mut(&node) else {
            return;
        };
        let place = match channel {
            Channel::Main => &mut pair.incoming,
            Channel::Bulk => &mut pair.bulk,
        };
        // Otherwise it was replaced meanwhile, and dropping `cancel` ends it.
        if let Some(incoming) = place.as_mut().filter(|one| one.id == id) {
            incoming.cancel = Some(cancel);
            self.check(node);
        }
    }

    fn in_down(&mut self, node: NodeId, channel: Channel, id: u64) {
        let Some(pair) = self.pairs.get_mut(&node) else {
            return;
        };
        let is_present =
            |one: &Option<IncomingConnection>| one.as_ref().is_some_and(|one| one.id == id);
        match channel {
            Channel::Main if is_present(&pair.incoming) => self.fall(node),
            Channel::Bulk if is_present(&pair.bulk) => pair.bulk = None,
            Channel::Main | Channel::Bulk => {}
        }
    }

    fn out_up(&mut self, member: ReplicaId, channel: Channel, out: OutgoingConnection) {
        let node = member.node;
        let Some(pair) = self.pairs.get_mut(&node) else {
            return;
        };
        self.home.runner.push(Job::Connected {
            node,
            channel,
            frame_writer: out.frame_writer.clone(),
        });
        if channel == Channel::Bulk {
            return;
        }
        pair.out = Some(out);
        pair.stands.send_replace(true);
        self.introduce(node);
        self.check(node);
    }

    fn out_down(&mut self, node: NodeId, channel: Channel, connection: u64) {
        match channel {
            Channel::Bulk => self.home.runner.push(Job::Disconnected { node, channel }),
            Channel::Main => {
                let pair = self.pairs.get(&node);
                let present = pair.and_then(|pair| pair.out.as_ref());
                if present.is_some_and(|out| out.connection == connection) {
                    self.fall(node);
                }
            }
        }
    }

    /// Marks the pair as up when both directions are established.
    fn check(&mut self, node: NodeId) {
        let now = self.now_ms();
        let Some(pair) = self.pairs.get_mut(&node) else {
            return;
        };
        let cancel = pair.incoming.as_ref().and_then(|one| one.cancel.as_ref());
        if pair.up || pair.out.is_none() || cancel.is_none() {
            return;
        }
        pair.up = true;
        pair.since_ms = now;
        tracing::info!(%node, "connected");
        self.home
            .known
            .send_if_modified(|known| known.problems.remove(&node).is_some());
        self.home.runner.push(Job::Input(Input::PeerUp { node }));
        self.reassess();
    }

    /// Ends the pair because one direction was lost.
    fn fall(&mut self, node: NodeId) {
        let now = self.now_ms();
        let Some(pair) = self.pairs.get_mut(&node) else {
            return;
        };
        pair.incoming = None;
        pair.out = None;
        pair.stands.send_replace(false);
        // The node drops its frame writer, the last handle, and that ends the connection.
        self.home.runner.push(Job::Disconnected {
            node,
            channel: Channel::Main,
        });
        if std::mem::take(&mut pair.up) {
            pair.since_ms = now;
            tracing::info!(%node, "disconnected");
            self.home.runner.push(Job::Input(Input::PeerDown { node }));
            self.reassess();
        }
    }

    fn hear(&mut self, from: NodeId, bytes: &[u8]) {
        match ControlMessage::from_bytes(bytes) {
            Ok(Some(ControlMessage::NodeRecords(node_records))) => self.learn(node_records),
            Ok(Some(ControlMessage::Removed(members))) => self.bury(members),
            Ok(Some(ControlMessage::Drain(wanted))) => {
                if let Err(why) = self.drain(self.me(), wanted) {
                    tracing::warn!(%from, why, "cannot drain");
                }
            }
            Ok(Some(ControlMessage::Ask(id))) => self.report(from, id),
            Ok(Some(ControlMessage::Told(id, report))) if report.member.node == from => {
                self.status_requests.heard(id, report);
            }
            Ok(Some(ControlMessage::Edition(id, edition))) if edition.member.node == from => {
                self.status_requests.heard_edition(id, edition);
            }
            Ok(Some(ControlMessage::Claim(claim))) => self.home.merge(&claim),
            Ok(Some(ControlMessage::Rival(rival))) => self.told_of_rival(rival),
            Ok(Some(ControlMessage::Told(..) | ControlMessage::Edition(..)) | None) => {}
            Err(error) => {
                tracing::warn!(%from, %error, "a peer sent a control message that cannot be decoded")
            }
        }
    }

    /// Asks all connected nodes and this one for their reports.
    fn cluster_report(&mut self, reply: oneshot::Sender<Vec<NodeReport>>) {
        let me = self.me();
        let up = self.pairs.iter().filter(|(_, pair)| pair.up);
        let asked: BTreeSet<NodeId> = up.map(|(node, _)| *node).chain([me]).collect();
        let id = self.status_requests.begin(asked.clone(), reply);
        for node in asked {
            if node == me {
                self.report(me, id);
            } else {
                self.say(node, &ControlMessage::Ask(id));
            }
        }
        let home = Rc::clone(&self.home);
        tokio::task::spawn_local(async move {
            tokio::time::sleep(status::STATUS_TIMEOUT).await;
            home.tell(RegistryEvent::StatusDeadline(id));
        });
    }

    /// Requests the node's report and sends it to the asking registry.
    fn report(&self, to: NodeId, id: u64) {
        let home = Rc::clone(&self.home);
        tokio::task::spawn_local(async move {
            let (reply, answer) = oneshot::channel();
            home.runner.push(Job::Inspect(reply));
            if let Ok(status) = answer.await {
                let member = home.node_record.borrow().member;
                let report = NodeReport::new(member, status);
                home.tell(RegistryEvent::Reported { to, id, report });
            }
        });
    }

    /// Sends the known node records, removals and the cluster's history to a node that was just
    /// connected.
    fn introduce(&mut self, node: NodeId) {
        let known = self
            .pairs
            .values()
            .filter_map(|pair| pair.node_record.borrow().clone());
        let node_records = std::iter::once(self.home.node_record.borrow().clone())
            .chain(known)
            .collect();
        let removed = self.removed.iter().copied().collect();
        for control in [
            ControlMessage::NodeRecords(node_records),
            ControlMessage::Removed(removed),
        ] {
            self.say(node, &control);
        }
        let home = Rc::clone(&self.home);
        tokio::task::spawn_local(async move {
            if let Some(claim) = home.claim().await {
                home.tell(RegistryEvent::Claimed { to: node, claim });
            }
        });
    }

    fn say(&self, node: NodeId, control: &ControlMessage) -> bool {
        let out = self.pairs.get(&node).and_then(|pair| pair.out.as_ref());
        let outbound = OutboundMessage::Control(Bytes::from(control.to_bytes()));
        out.is_some_and(|out| out.frame_writer.send(outbound).is_ok())
    }

    fn say_all(&self, control: &ControlMessage) {
        for node in self.pairs.keys() {
            self.say(*node, control);
        }
    }

    /// Informs the node thread about the members and their state, if they have changed.
    fn reassess(&mut self) {
        let mut nodes: Vec<NodeId> = self.pairs.keys().copied().collect();
        nodes.push(self.me());
        nodes.sort_unstable();
        if nodes != self.told {
            self.told.clone_from(&nodes);
            self.home.runner.push(Job::Input(Input::Cluster { nodes }));
        }
        let mine = self.home.node_record.borrow();
        let me = NodeView {
            member: mine.member,
            up: true,
            since_ms: self.started_ms,
            draining: mine.draining,
        };
        let mut nodes = BTreeMap::from([(me.member.node, me)]);
        for (node, pair) in &self.pairs {
            if let Some(node_record) = pair.node_record.borrow().as_ref() {
                let seen = NodeView {
                    member: node_record.member,
                    up: pair.up,
                    since_ms: pair.since_ms,
                    draining: node_record.draining,
                };
                nodes.insert(*node, seen);
            }
        }
        let view = PlacementView {
            nodes,
            removed: self.removed.clone(),
        };
        if self.told_view.as_ref() != Some(&view) {
            self.told_view = Some(view.clone());
            self.home.runner.push(Job::View(view));
        }
    }

    fn nodes(&self) -> Vec<NodeInfo> {
        let now = self.now_ms();
        let info = |node_record: &NodeRecord,
                    up,
                    since_ms: u64,
                    out: Option<&OutgoingConnection>| NodeInfo {
            name: node_record.name.clone(),
            member: node_record.member,
            up,
            for_ms: now.saturating_sub(since_ms),
            draining: node_record.draining,
            internal: node_record.internal.clone(),
            public: node_record.public.clone(),
            version: out.map(|out| out.version),
        };
        let mut nodes = vec![info(
            &self.home.node_record.borrow(),
            true,
            self.started_ms,
            None,
        )];
        for pair in self.pairs.values() {
            if let Some(node_record) = pair.node_record.borrow().as_ref() {
                nodes.push(info(node_record, pair.up, pair.since_ms, pair.out.as_ref()));
            }
        }
        nodes.sort_by_key(|node| node.member);
        nodes
    }

    /// Starts or ends draining (R166 (draining a node)). Each node announces it itself, in its node
    /// record.
    fn drain(&mut self, node: NodeId, wanted: bool) -> Result<(), String> {
        if node != self.me() {
            return if self.say(node, &ControlMessage::Drain(wanted)) {
                Ok(())
            } else {
                Err(format!("{node} is not connected"))
            };
        }
        if self.home.identity.borrow().draining == wanted {
            return Ok(());
        }
        let identity = NodeIdentity {
            draining: wanted,
            ..self.home.identity.borrow().clone()
        };
        let (key, value) = identity.record();
        self.home.write([(key.to_vec(), value)]);
        *self.home.identity.borrow_mut() = identity;
        let node_record = {
            let mut node_record = self.home.node_record.borrow_mut();
            node_record.draining = wanted;
            node_record.revision += 1;
            node_record.clone()
        };
        self.home.node_record_changed.notify_one();
        self.say_all(&ControlMessage::NodeRecords(vec![node_record]));
        self.reassess();
        Ok(())
    }

    /// Removes the current incarnation of a node permanently, by an operator's command.
    fn remove(&mut self, node: NodeId) -> Result<(), String> {
        if node == self.me() {
            return Err(
                "a node cannot remove itself: send the command to another node (--url)".to_owned(),
            );
        }
        let pair = self.pairs.get(&node).ok_or("unknown node")?;
        let node_record = pair.node_record.borrow().clone().ok_or("unknown node")?;
        if pair.up && !node_record.draining {
            return Err(format!("{node} is running: drain or stop it first"));
        }
        self.bury(vec![node_record.member]);
        Ok(())
    }

    fn bury(&mut self, members: Vec<ReplicaId>) {
        let me = self.home.node_record.borrow().member;
        let news: Vec<ReplicaId> = members
            .into_iter()
            .filter(|member| *member != me && self.removed.insert(*member))
            .collect();
        if news.is_empty() {
            return;
        }
        for member in &news {
            let pair = self.pairs.get(&member.node);
            let known = pair.and_then(|pair| {
                pair.node_record
                    .borrow()
                    .as_ref()
                    .map(|node_record| node_record.member)
            });
            if known == Some(*member) {
                self.say(member.node, &ControlMessage::Removed(news.clone()));
                self.fall(member.node);
                if let Some(pair) = self.pairs.remove(&member.node) {
                    pair.node_record.send_replace(None);
                    self.home
                        .write([persisted_state::no_node_record(member.node)]);
                }
            }
        }
        let removed = news
            .iter()
            .map(|member| persisted_state::removed(member.node, &self.removed));
        self.home.write(removed);
        self.say_all(&ControlMessage::Removed(news));
        self.reassess();
    }
}
