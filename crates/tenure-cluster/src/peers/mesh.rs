//! The mesh: which nodes there are, which pairs of connections stand, and who is told.
//!
//! A pair is two connections, one a direction; it stands when both do, and when one breaks the
//! other is ended too. So "the connection to node 3 broke" is one thing that happens once, and the
//! node hears of it at once: followers of what node 3 led need not wait for their timeouts.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use tenure_node::{Channel, Input, NodeId, ReplicaId};
use tokio::sync::{mpsc, oneshot, watch};

use super::hello::{Hello, Refusal};
use super::outlet::{Outlet, Parcel};
use super::rival::{Claim, Rival, Verdict, decide};
use super::survey::{self, Surveys};
use super::talk::Talk;
use super::{Belongs, Home, Joined, Mark, Start, Succession, accept, book, dial};
use crate::card::Card;
use crate::driver::Clock;
use crate::identity::Identity;
use crate::inbox::Job;
use crate::reconcile::{Seen, View};
use crate::report::Report;

/// All that happens to a mesh.
pub(crate) enum Event {
    /// Somebody knows these nodes.
    Cards(Vec<Card>),
    /// A proven node that this node has reached says this of itself.
    Met {
        card: Box<Card>,
        belongs: Belongs,
    },
    /// A node is refused because of the data it runs on.
    Problem {
        node: NodeId,
        refusal: Refusal,
    },
    /// Another node knows that this node runs on data that does not count any more.
    Outdated {
        by: NodeId,
        refusal: Refusal,
    },
    /// A proven node wants to come in.
    Admit {
        theirs: Box<Hello>,
        reply: oneshot::Sender<Result<Pass, String>>,
    },
    InUp {
        node: NodeId,
        channel: Channel,
        id: u64,
        cancel: oneshot::Sender<()>,
    },
    InDown {
        node: NodeId,
        channel: Channel,
        id: u64,
    },
    OutUp {
        node: NodeId,
        incarnation: u32,
        channel: Channel,
        connection: u64,
        version: u8,
        outlet: Outlet,
    },
    OutDown {
        node: NodeId,
        channel: Channel,
        connection: u64,
    },
    /// The node thread found a queue full: the pair is given up.
    Overflow {
        node: NodeId,
    },
    Talk {
        from: NodeId,
        bytes: Bytes,
    },
    /// A peer says that this node does not fit in its cluster.
    Excluded(String),
    /// Gossip names a node that may be of another cluster.
    Foreign(Card),
    /// A proven node of a cluster, met while this node has none.
    Candidate(Box<Hello>),
    /// Every cluster that answers has done so by now.
    Choose,
    /// A proven node of another cluster, and what this node claimed in the same handshake.
    Rival {
        ours: Option<Claim>,
        theirs: Box<Hello>,
    },
    /// Somebody wants to know.
    Inspect(oneshot::Sender<Vec<NodeInfo>>),
    /// Somebody wants to know it all.
    Survey(oneshot::Sender<Vec<Report>>),
    /// This node's report for a survey of its own, or of another.
    Reported {
        to: NodeId,
        id: u64,
        report: Report,
    },
    SurveyEnds(u64),
    /// What this node knows of its cluster's history, for another node of it.
    Claimed {
        to: NodeId,
        claim: Claim,
    },
    /// An operator's orders.
    Drain {
        node: NodeId,
        wanted: bool,
        done: oneshot::Sender<Result<(), String>>,
    },
    Remove {
        node: NodeId,
        done: oneshot::Sender<Result<(), String>>,
    },
    /// The node has ended.
    Stop,
}

/// What an admitted connection needs.
pub(crate) struct Pass {
    /// Names the connection here.
    pub(crate) id: u64,
    /// Whether the other direction stands.
    pub(crate) stands: watch::Receiver<bool>,
}

/// A node as an operator sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeInfo {
    /// What it is called.
    pub name: String,
    /// Which, in which life.
    pub member: ReplicaId,
    /// Whether it is up, seen from the node that was asked.
    pub up: bool,
    /// For so long.
    pub for_ms: u64,
    /// Whether it is being emptied.
    pub draining: bool,
    /// Where peers reach it.
    pub internal: String,
    /// Where clients reach it.
    pub public: String,
    /// The version of the peer protocol that is spoken with it, while it is reached.
    pub version: Option<u8>,
}

impl NodeInfo {
    /// A node that has no peers.
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

/// Another node.
struct Pair {
    card: watch::Sender<Option<Card>>,
    /// Our connection to it: its number, and the life that answered.
    out: Option<Out>,
    incoming: Option<Incoming>,
    bulk: Option<Incoming>,
    stands: watch::Sender<bool>,
    up: bool,
    since_ms: u64,
}

struct Out {
    connection: u64,
    version: u8,
    outlet: Outlet,
}

/// A connection of its to us. Dropping `cancel` ends it.
struct Incoming {
    id: u64,
    member: ReplicaId,
    /// Which process of it, and which of its connections.
    number: (u64, u64),
    cancel: Option<oneshot::Sender<()>>,
}

struct Mesh {
    home: Rc<Home>,
    clock: Clock,
    started_ms: u64,
    pairs: BTreeMap<NodeId, Pair>,
    removed: BTreeSet<ReplicaId>,
    last_pass: u64,
    /// What was last told to the node. Windows pass without news, and the mover knows.
    told: Vec<NodeId>,
    told_view: Option<View>,
    surveys: Surveys,
    /// Clusters that this node could join, while it has none; `None` before the first is met.
    candidates: Option<BTreeMap<u64, Candidate>>,
    /// Other clusters with this cluster's token that were met.
    rivals: BTreeMap<u64, Rival>,
    /// Whether this node's cluster gave way: it says nothing more than that.
    gave_way: bool,
}

/// A cluster that this node could join: what it claims, and nodes of it.
type Candidate = (Option<Claim>, Vec<Card>);

/// Clusters that answer have done so after this long: seeds are asked three times meanwhile.
const CHOOSE_AFTER: Duration = Duration::from_secs(1);
/// What was said last leaves within this time.
const LAST_WORDS: Duration = Duration::from_millis(300);

/// Runs until told to stop.
pub(crate) async fn run(
    start: Start,
    (sender, mut events): (mpsc::UnboundedSender<Event>, mpsc::UnboundedReceiver<Event>),
) {
    let home = Home::new(&start, sender);
    let nonblocking = start
        .listener
        .set_nonblocking(true)
        .and_then(|()| start.socket.set_nonblocking(true));
    if let Err(error) = nonblocking {
        tracing::error!(%error, "sockets without an event loop");
        return;
    }
    let listener = match tokio::net::TcpListener::from_std(start.listener) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(%error, "cannot listen for peers");
            return;
        }
    };
    let mut mesh = Mesh {
        home: Rc::clone(&home),
        started_ms: start.clock.now().monotonic_ms,
        clock: start.clock,
        pairs: BTreeMap::new(),
        removed: start.book.removed.clone(),
        last_pass: 0,
        told: Vec::new(),
        told_view: None,
        surveys: Surveys::default(),
        candidates: None,
        rivals: BTreeMap::new(),
        gave_way: false,
    };
    if start.book.is_legacy {
        home.write(start.book.items());
    }
    let acceptor = tokio::task::spawn_local(accept::run(Rc::clone(&home), listener));
    let gossip = match tokio::net::UdpSocket::from_std(start.socket) {
        Ok(socket) => {
            let gossip = crate::gossip::run(Rc::clone(&home), socket, start.options);
            tokio::task::spawn_local(gossip)
        }
        Err(error) => {
            tracing::error!(%error, "cannot gossip");
            return;
        }
    };
    mesh.begin(start.book.cards);
    mesh.ask_which_cluster(start.hints);
    while let Some(event) = events.recv().await {
        if matches!(event, Event::Stop) {
            break;
        }
        mesh.handle(event);
    }
    if mesh.gave_way {
        // The other nodes of this cluster have to hear it, and connections end with this task.
        tokio::time::sleep(LAST_WORDS).await;
    }
    acceptor.abort();
    gossip.abort();
}

impl Mesh {
    fn handle(&mut self, event: Event) {
        match event {
            Event::Cards(cards) if self.home.identity.borrow().cluster_id.is_none() => {
                self.ask_which_cluster(cards);
            }
            Event::Cards(cards) => self.learn(cards),
            Event::Met { card, belongs } => self.met(*card, belongs),
            Event::Problem { node, refusal } => self.problem(node, &refusal),
            Event::Outdated { by, refusal } => self.outdated(by, &refusal),
            Event::Foreign(card) => self.ask_which_cluster(vec![card]),
            Event::Candidate(theirs) => self.candidate(*theirs),
            Event::Choose => self.choose(),
            Event::Rival { ours, theirs } => self.met_rival(ours, &theirs),
            Event::Admit { theirs, reply } => {
                let _ = reply.send(self.admit(&theirs));
            }
            Event::InUp {
                node,
                channel,
                id,
                cancel,
            } => self.in_up(node, channel, id, cancel),
            Event::InDown { node, channel, id } => self.in_down(node, channel, id),
            Event::OutUp {
                node,
                incarnation,
                channel,
                connection,
                version,
                outlet,
            } => {
                let out = Out {
                    connection,
                    version,
                    outlet,
                };
                self.out_up(ReplicaId::new(node, incarnation), channel, out);
            }
            Event::OutDown {
                node,
                channel,
                connection,
            } => self.out_down(node, channel, connection),
            Event::Overflow { node } => self.fall(node),
            Event::Talk { from, bytes } => self.hear(from, &bytes),
            Event::Excluded(why) => {
                self.home.joined.send_if_modified(|joined| {
                    let fresh = *joined == Joined::NotYet;
                    if fresh {
                        *joined = Joined::Excluded(why.clone());
                    }
                    fresh
                });
                tracing::error!(why, "this node does not fit in the cluster");
            }
            Event::Inspect(reply) => {
                let _ = reply.send(self.nodes());
            }
            Event::Survey(reply) => self.survey(reply),
            Event::Reported { to, id, report } if to == self.me() => {
                self.surveys.heard(id, report);
            }
            Event::Reported { to, id, report } => {
                self.say(to, &Talk::Edition(id, report.edition()));
                self.say(to, &Talk::Told(id, report));
            }
            Event::SurveyEnds(id) => self.surveys.end(id),
            Event::Claimed { to, claim } => {
                self.say(to, &Talk::Claim(claim));
            }
            Event::Drain { node, wanted, done } => {
                let _ = done.send(self.drain(node, wanted));
            }
            Event::Remove { node, done } => {
                let _ = done.send(self.remove(node));
            }
            Event::Stop => {}
        }
    }

    fn now_ms(&self) -> u64 {
        self.clock.now().monotonic_ms
    }

    fn me(&self) -> NodeId {
        self.home.card.borrow().node()
    }

    /// Cards that are known already.
    fn begin(&mut self, book: Vec<Card>) {
        for card in book {
            if card.node() != self.me() {
                self.meet(card);
            }
        }
        self.look();
    }

    /// Asks nodes which cluster they belong to: while this node has none, or because they seem to be of
    /// another one.
    fn ask_which_cluster(&mut self, cards: Vec<Card>) {
        for card in cards {
            if card.node() != self.me() || self.home.identity.borrow().cluster_id.is_some() {
                let (home, node) = (Rc::clone(&self.home), card.node());
                tokio::task::spawn_local(dial::identify(home, node, card.internal));
            }
        }
    }

    /// A node of a cluster that this node could join. Others may follow: clusters that share a token by
    /// mistake are compared before one of them is joined.
    fn candidate(&mut self, theirs: Hello) {
        let Some(cluster) = theirs.cluster else {
            return;
        };
        if self.home.identity.borrow().cluster_id.is_some() {
            // It has joined meanwhile.
            return;
        }
        if let Some(expected) = self.home.expected
            && expected != cluster
        {
            let refusal = Refusal::Unexpected {
                expected,
                theirs: cluster,
            };
            tracing::error!(node = theirs.card.name, "not joined: {refusal}");
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
                home.tell(Event::Choose);
            });
            BTreeMap::new()
        });
        let (claim, cards) = candidates.entry(cluster).or_default();
        if theirs.claim.is_some() {
            *claim = theirs.claim;
        }
        cards.push(theirs.card);
    }

    /// Joins the one cluster there is, or the one that goes on.
    fn choose(&mut self) {
        let candidates = self.candidates.take().unwrap_or_default();
        let goes_on = |(cluster, (claim, _)): &(&u64, &Candidate)| {
            let mut others = candidates.iter().filter(|(other, _)| other != cluster);
            others.all(|(other, (theirs, _))| {
                let verdict = decide((**cluster, claim.as_ref()), (*other, theirs.as_ref()));
                verdict == Verdict::GoesOn
            })
        };
        if candidates.len() > 1 {
            let names: Vec<String> = candidates.keys().map(|id| format!("{id:016x}")).collect();
            let clusters = names.join(" ");
            tracing::error!(clusters, "several clusters have this token");
        }
        let Some((cluster, (_, cards))) = candidates.iter().find(goes_on) else {
            // The seeds are asked again, until an operator has decided between the clusters.
            return;
        };
        self.home.chosen.set(Some(*cluster));
        self.learn(cards.clone());
    }

    /// Another cluster has the same token, so both could grant the same lock (R161).
    fn met_rival(&mut self, ours: Option<Claim>, theirs: &Hello) {
        let our_cluster = self.home.identity.borrow().cluster_id;
        let (Some(our_cluster), Some(cluster)) = (our_cluster, theirs.cluster) else {
            return;
        };
        let verdict = decide(
            (our_cluster, ours.as_ref()),
            (cluster, theirs.claim.as_ref()),
        );
        let node = format!("{} at {}", theirs.card.name, theirs.card.internal);
        let rival = Rival {
            cluster,
            number: theirs.card.node().number(),
            node,
            address: theirs.card.internal.clone(),
            claim: theirs.claim.clone(),
            verdict,
        };
        self.heard_of_rival(rival);
    }

    /// A node of this cluster has met another cluster. It may know less of this one's history than this node
    /// does, so this node decides again.
    fn told_of_rival(&mut self, rival: Rival) {
        let Some(ours) = self.home.identity.borrow().cluster_id else {
            return;
        };
        let claim = self.home.standing.borrow().claim();
        let verdict = decide((ours, Some(&claim)), (rival.cluster, rival.claim.as_ref()));
        if verdict != rival.verdict
            && let Some(node) = NodeId::new(rival.number)
        {
            // The other cluster goes by what it was told: it must hear this node's claim, too.
            let (home, address) = (Rc::clone(&self.home), rival.address.clone());
            tokio::task::spawn_local(dial::identify(home, node, address));
        }
        self.heard_of_rival(Rival { verdict, ..rival });
    }

    fn heard_of_rival(&mut self, rival: Rival) {
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
        self.say_all(&Talk::Rival(rival.clone()));
        if rival.verdict != Verdict::GoesOn {
            self.gave_way = true;
            let standing = {
                let mut standing = self.home.standing.borrow_mut();
                standing.gave_way_to = Some(rival);
                book::standing(&standing)
            };
            // The journal takes what it is given in order: it writes this before it ends, so that the
            // next start does not serve either.
            self.home.write([standing]);
            self.home.inbox.push(Job::Exclude(sentence));
        }
    }

    /// Operators see which other clusters were met.
    fn publish(&self) {
        let Some(ours) = self.home.identity.borrow().cluster_id else {
            return;
        };
        let rivals = self.rivals.values().map(|rival| rival.sentence(ours));
        let rivals = rivals.collect();
        self.home.known.send_modify(|known| known.rivals = rivals);
    }

    /// A member that was never seen before: the cluster's history grows (see `rival.rs`).
    fn count_member(&mut self) {
        let mut standing = self.home.standing.borrow_mut();
        standing.members += 1;
        self.home.write([book::standing(&standing)]);
    }

    /// Takes in cards, and passes on those that were news.
    fn learn(&mut self, cards: Vec<Card>) {
        let mut news = Vec::new();
        for card in cards {
            if card.node() == self.me() {
                self.heard_of_myself(&card);
                continue;
            }
            if self.removed.contains(&card.member) {
                continue;
            }
            match self.pairs.get(&card.node()) {
                Some(pair) => {
                    let known = pair.card.borrow().clone();
                    // Whoever is connected has said itself which life it is in.
                    let other_life = |known: &Card| known.member != card.member && pair.up;
                    if known
                        .as_ref()
                        .is_some_and(|known| !card.is_newer_than(known) || other_life(known))
                    {
                        continue;
                    }
                    let is_new_life = known.is_some_and(|known| known.member != card.member);
                    pair.card.send_replace(Some(card.clone()));
                    self.note_life(&card);
                    if is_new_life {
                        self.count_member();
                        self.came_over(card.node());
                    }
                }
                None => {
                    self.meet(card.clone());
                    self.count_member();
                    self.came_over(card.node());
                }
            }
            news.push(card);
        }
        if !news.is_empty() {
            self.home.write(news.iter().map(book::card));
            self.say_all(&Talk::Cards(news));
            self.look();
        }
    }

    /// A proven node. One that has no cluster yet takes the place of an earlier life of its number, whatever
    /// that one's clock said.
    fn met(&mut self, card: Card, belongs: Belongs) {
        let known = self.home.known_life(card.node());
        let compared = known.map(|known| known.compare(&card, belongs));
        if let Some(Succession::New { .. }) = compared
            && let Some(pair) = self.pairs.get(&card.node())
            && !pair.up
        {
            pair.card.send_replace(Some(card.clone()));
            self.note_life(&card);
            self.count_member();
            self.home.write([book::card(&card)]);
            self.say_all(&Talk::Cards(vec![card]));
            self.look();
        } else {
            self.learn(vec![card]);
        }
    }

    fn note_life(&self, card: &Card) {
        let mut incarnations = self.home.incarnations.borrow_mut();
        incarnations.insert(card.node(), Mark::of(card));
    }

    /// Others pass on a card of this node's own number.
    fn heard_of_myself(&mut self, card: &Card) {
        let belongs = Belongs::of(self.home.identity.borrow().cluster_id);
        let checked = Mark::of(card).check(&self.home.card.borrow(), belongs);
        if let Err(refusal) = checked {
            self.outdated(self.me(), &refusal);
        }
    }

    /// Operators see which nodes are refused because of their data.
    fn problem(&self, node: NodeId, refusal: &Refusal) {
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

    /// This node runs on data that does not count any more. On an older copy of its data it would vote again
    /// where it has voted, so it stops, durably: its count of starts would pass the known one some day.
    fn outdated(&mut self, by: NodeId, refusal: &Refusal) {
        self.problem(by, refusal);
        if matches!(refusal, Refusal::OlderCopy { .. }) && !self.gave_way {
            self.gave_way = true;
            let sentence = refusal.to_string();
            self.home.write([book::stopped(&sentence)]);
            self.home.inbox.push(Job::Exclude(sentence));
        }
    }

    /// A node has come into this cluster: if it was of another one, that one is not met there any more.
    fn came_over(&mut self, node: NodeId) {
        let before = self.rivals.len();
        self.rivals.retain(|_, rival| rival.number != node.number());
        if self.rivals.len() < before {
            self.publish();
        }
    }

    /// A node that was not known.
    fn meet(&mut self, card: Card) {
        let node = card.node();
        self.note_life(&card);
        let (sender, receiver) = watch::channel(Some(card));
        for channel in [Channel::Main, Channel::Bulk] {
            let home = Rc::clone(&self.home);
            tokio::task::spawn_local(dial::keep(home, node, channel, receiver.clone()));
        }
        let pair = Pair {
            card: sender,
            out: None,
            incoming: None,
            bulk: None,
            stands: watch::channel(false).0,
            up: false,
            since_ms: self.now_ms(),
        };
        self.pairs.insert(node, pair);
    }

    fn admit(&mut self, theirs: &Hello) -> Result<Pass, String> {
        let card = &theirs.card;
        let node = card.node();
        if self.removed.contains(&card.member) {
            return Err(format!(
                "{node} was removed from the cluster; it may come back with an empty data directory"
            ));
        }
        let number = (card.start, theirs.connection);
        if theirs.channel == Channel::Main
            && let Some(present) = self
                .pairs
                .get(&node)
                .and_then(|pair| pair.incoming.as_ref())
        {
            if present.member != card.member {
                return Err(format!("another process is connected as {node}"));
            }
            // Frames of an older connection may still be under way: they are not wanted any more.
            if number <= present.number {
                return Err("a newer connection is there already".to_owned());
            }
            self.fall(node);
        }
        if let Some(known) = self.home.known_life(node) {
            // It may have changed since the handshake began.
            let checked = known.check(card, Belongs::of(theirs.cluster));
            checked.map_err(|refusal| refusal.to_string())?;
        }
        self.met(card.clone(), Belongs::of(theirs.cluster));
        self.last_pass += 1;
        let id = self.last_pass;
        let pair = self.pairs.get_mut(&node).ok_or("nobody knows it")?;
        let incoming = Incoming {
            id,
            member: card.member,
            number,
            cancel: None,
        };
        match theirs.channel {
            Channel::Main => pair.incoming = Some(incoming),
            Channel::Bulk => pair.bulk = Some(incoming),
        }
        Ok(Pass {
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
        let is_present = |one: &Option<Incoming>| one.as_ref().is_some_and(|one| one.id == id);
        match channel {
            Channel::Main if is_present(&pair.incoming) => self.fall(node),
            Channel::Bulk if is_present(&pair.bulk) => pair.bulk = None,
            Channel::Main | Channel::Bulk => {}
        }
    }

    fn out_up(&mut self, member: ReplicaId, channel: Channel, out: Out) {
        let node = member.node;
        let Some(pair) = self.pairs.get_mut(&node) else {
            return;
        };
        self.home.inbox.push(Job::Connected {
            node,
            channel,
            outlet: out.outlet.clone(),
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
            Channel::Bulk => self.home.inbox.push(Job::Disconnected { node, channel }),
            Channel::Main => {
                let pair = self.pairs.get(&node);
                let present = pair.and_then(|pair| pair.out.as_ref());
                if present.is_some_and(|out| out.connection == connection) {
                    self.fall(node);
                }
            }
        }
    }

    /// Whether both directions stand now.
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
        self.home.inbox.push(Job::Input(Input::PeerUp { node }));
        self.look();
    }

    /// One direction is gone: the pair is.
    fn fall(&mut self, node: NodeId) {
        let now = self.now_ms();
        let Some(pair) = self.pairs.get_mut(&node) else {
            return;
        };
        pair.incoming = None;
        pair.out = None;
        pair.stands.send_replace(false);
        // Its queue ends with this, and with it the connection.
        self.home.inbox.push(Job::Disconnected {
            node,
            channel: Channel::Main,
        });
        if std::mem::take(&mut pair.up) {
            pair.since_ms = now;
            tracing::info!(%node, "disconnected");
            self.home.inbox.push(Job::Input(Input::PeerDown { node }));
            self.look();
        }
    }

    fn hear(&mut self, from: NodeId, bytes: &[u8]) {
        match Talk::from_bytes(bytes) {
            Ok(Some(Talk::Cards(cards))) => self.learn(cards),
            Ok(Some(Talk::Removed(members))) => self.bury(members),
            Ok(Some(Talk::Drain(wanted))) => {
                if let Err(why) = self.drain(self.me(), wanted) {
                    tracing::warn!(%from, why, "cannot drain");
                }
            }
            Ok(Some(Talk::Ask(id))) => self.report(from, id),
            Ok(Some(Talk::Told(id, report))) if report.member.node == from => {
                self.surveys.heard(id, report);
            }
            Ok(Some(Talk::Edition(id, edition))) if edition.member.node == from => {
                self.surveys.heard_edition(id, edition);
            }
            Ok(Some(Talk::Claim(claim))) => self.home.merge(&claim),
            Ok(Some(Talk::Rival(rival))) => self.told_of_rival(rival),
            Ok(Some(Talk::Told(..) | Talk::Edition(..)) | None) => {}
            Err(error) => tracing::warn!(%from, %error, "a peer said something odd"),
        }
    }

    /// Asks everybody who is up.
    fn survey(&mut self, reply: oneshot::Sender<Vec<Report>>) {
        let me = self.me();
        let up = self.pairs.iter().filter(|(_, pair)| pair.up);
        let asked: BTreeSet<NodeId> = up.map(|(node, _)| *node).chain([me]).collect();
        let id = self.surveys.begin(asked.clone(), reply);
        for node in asked {
            if node == me {
                self.report(me, id);
            } else {
                self.say(node, &Talk::Ask(id));
            }
        }
        let home = Rc::clone(&self.home);
        tokio::task::spawn_local(async move {
            tokio::time::sleep(survey::PATIENCE).await;
            home.tell(Event::SurveyEnds(id));
        });
    }

    /// Asks the node for its report.
    fn report(&self, to: NodeId, id: u64) {
        let home = Rc::clone(&self.home);
        tokio::task::spawn_local(async move {
            let (reply, answer) = oneshot::channel();
            home.inbox.push(Job::Inspect(reply));
            if let Ok(status) = answer.await {
                let member = home.card.borrow().member;
                let report = Report::new(member, status);
                home.tell(Event::Reported { to, id, report });
            }
        });
    }

    /// What a node that has just been reached should know.
    fn introduce(&mut self, node: NodeId) {
        let known = self
            .pairs
            .values()
            .filter_map(|pair| pair.card.borrow().clone());
        let cards = std::iter::once(self.home.card.borrow().clone())
            .chain(known)
            .collect();
        let removed = self.removed.iter().copied().collect();
        for talk in [Talk::Cards(cards), Talk::Removed(removed)] {
            self.say(node, &talk);
        }
        let home = Rc::clone(&self.home);
        tokio::task::spawn_local(async move {
            if let Some(claim) = home.claim().await {
                home.tell(Event::Claimed { to: node, claim });
            }
        });
    }

    fn say(&self, node: NodeId, talk: &Talk) -> bool {
        let out = self.pairs.get(&node).and_then(|pair| pair.out.as_ref());
        let parcel = Parcel::Talk(Bytes::from(talk.to_bytes()));
        out.is_some_and(|out| out.outlet.send(parcel).is_ok())
    }

    fn say_all(&self, talk: &Talk) {
        for node in self.pairs.keys() {
            self.say(*node, talk);
        }
    }

    /// Tells the node how the cluster looks.
    fn look(&mut self) {
        let mut nodes: Vec<NodeId> = self.pairs.keys().copied().collect();
        nodes.push(self.me());
        nodes.sort_unstable();
        if nodes != self.told {
            self.told.clone_from(&nodes);
            self.home.inbox.push(Job::Input(Input::Cluster { nodes }));
        }
        let mine = self.home.card.borrow();
        let me = Seen {
            member: mine.member,
            up: true,
            since_ms: self.started_ms,
            draining: mine.draining,
        };
        let mut nodes = BTreeMap::from([(me.member.node, me)]);
        for (node, pair) in &self.pairs {
            if let Some(card) = pair.card.borrow().as_ref() {
                let seen = Seen {
                    member: card.member,
                    up: pair.up,
                    since_ms: pair.since_ms,
                    draining: card.draining,
                };
                nodes.insert(*node, seen);
            }
        }
        let view = View {
            nodes,
            removed: self.removed.clone(),
        };
        if self.told_view.as_ref() != Some(&view) {
            self.told_view = Some(view.clone());
            self.home.inbox.push(Job::View(view));
        }
    }

    fn nodes(&self) -> Vec<NodeInfo> {
        let now = self.now_ms();
        let info = |card: &Card, up, since_ms: u64, out: Option<&Out>| NodeInfo {
            name: card.name.clone(),
            member: card.member,
            up,
            for_ms: now.saturating_sub(since_ms),
            draining: card.draining,
            internal: card.internal.clone(),
            public: card.public.clone(),
            version: out.map(|out| out.version),
        };
        let mut nodes = vec![info(&self.home.card.borrow(), true, self.started_ms, None)];
        for pair in self.pairs.values() {
            if let Some(card) = pair.card.borrow().as_ref() {
                nodes.push(info(card, pair.up, pair.since_ms, pair.out.as_ref()));
            }
        }
        nodes.sort_by_key(|node| node.member);
        nodes
    }

    /// R166: a node says itself that it is leaving, in its card.
    fn drain(&mut self, node: NodeId, wanted: bool) -> Result<(), String> {
        if node != self.me() {
            return if self.say(node, &Talk::Drain(wanted)) {
                Ok(())
            } else {
                Err(format!("{node} is not connected"))
            };
        }
        if self.home.identity.borrow().draining == wanted {
            return Ok(());
        }
        let identity = Identity {
            draining: wanted,
            ..self.home.identity.borrow().clone()
        };
        let (key, value) = identity.record();
        self.home.write([(key.to_vec(), value)]);
        *self.home.identity.borrow_mut() = identity;
        let card = {
            let mut card = self.home.card.borrow_mut();
            card.draining = wanted;
            card.revision += 1;
            card.clone()
        };
        self.home.card_changed.notify_one();
        self.say_all(&Talk::Cards(vec![card]));
        self.look();
        Ok(())
    }

    /// An operator's word that a node never comes back in its present life.
    fn remove(&mut self, node: NodeId) -> Result<(), String> {
        if node == self.me() {
            return Err("a node cannot remove itself: ask another one".to_owned());
        }
        let pair = self.pairs.get(&node).ok_or("no such node")?;
        let card = pair.card.borrow().clone().ok_or("no such node")?;
        if pair.up && !card.draining {
            return Err(format!("{node} is up: drain or stop it first"));
        }
        self.bury(vec![card.member]);
        Ok(())
    }

    fn bury(&mut self, members: Vec<ReplicaId>) {
        let me = self.home.card.borrow().member;
        let news: Vec<ReplicaId> = members
            .into_iter()
            .filter(|member| *member != me && self.removed.insert(*member))
            .collect();
        if news.is_empty() {
            return;
        }
        for member in &news {
            let pair = self.pairs.get(&member.node);
            let known = pair.and_then(|pair| pair.card.borrow().as_ref().map(|card| card.member));
            if known == Some(*member) {
                self.say(member.node, &Talk::Removed(news.clone()));
                self.fall(member.node);
                if let Some(pair) = self.pairs.remove(&member.node) {
                    pair.card.send_replace(None);
                    self.home.write([book::no_card(member.node)]);
                }
            }
        }
        let removed = news
            .iter()
            .map(|member| book::removed(member.node, &self.removed));
        self.home.write(removed);
        self.say_all(&Talk::Removed(news));
        self.look();
    }
}
