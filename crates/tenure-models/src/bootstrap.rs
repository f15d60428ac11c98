//! How a cluster begins: who founds, who joins, and what happens when two clusters have one token.
//!
//! The decision of a start follows `tenure-cluster/src/bootstrap.rs` and `bootstrap/discovery.rs`, joining and meeting follow
//! `peers/registry.rs`. The decision between two clusters is the shipped one (`peers/rival_cluster.rs`).
//!
//! A look lasts as long as the slowest member takes to dial the node or to name itself to its seeds. So a member that runs
//! during the whole look, reaches the node and has its address (or is named as a seed) is heard; one that comes or goes
//! meanwhile may be heard or not. A node that looks answers that it has no cluster and wants to create one. Of two such nodes
//! that reach each other the one with the higher number goes on looking until it hears the other one as a member, or until
//! the other one is gone. A look lasts longer than the creation of a cluster, so that a node which creates one while a lower
//! number begins its look has done so before the look.
//!
//! Three nodes, one operator that starts, wipes, orders `init`, `keep` and `rejoin` and repeats that, and a network that may
//! cut node 0 off.
//!
//! Properties:
//!
//! 1. A node founds no cluster while a member of one with its token is reachable for the whole look.
//! 2. A node that names seeds founds no cluster without an order while another node's disk belongs to one.
//! 3. Two clusters that meet do not both continue, and one that has stopped serves again only by an order.
//! 4. Two clusters that can reach each other do not stay so (checked as: a state without such a pair is reachable).
//! 5. Two nodes that reach each other and stay up do not both found, also if both are ordered to at the same moment
//!    ([`Bootstrap::strict`]).

use rival_cluster::{ClusterClaim, ClusterHistory, RivalOutcome};

use crate::explore::Model;

#[allow(
    dead_code,
    unreachable_pub,
    reason = "the shipped file: the model needs the decision only"
)]
#[path = "../../tenure-cluster/src/peers/rival_cluster.rs"]
mod rival_cluster;

const NODES: usize = 3;

/// A protection that is taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// A founder asks its seeds only, and does not listen for members.
    DoesNotListen,
    /// A founder takes seeds that do not answer for seeds without a cluster.
    SilentSeedsCountAsNone,
    /// That a cluster has stopped for another one is not written.
    GivingWayIsForgotten,
    /// Each side compares with its history of a later moment than the other side does.
    HistoriesOfTwoMoments,
    /// Of two nodes that look, the higher number does not wait for the lower one.
    HigherNumberDoesNotWait,
}

/// What a node's configuration says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Whether it has a token.
    pub token: bool,
    /// Whether it founds a cluster if there is none.
    pub bootstrap: bool,
    /// The nodes that it names, as bits.
    pub seeds: u8,
}

/// A scene.
#[derive(Clone, Copy, Debug)]
pub struct Bootstrap {
    /// One per node.
    pub settings: [Settings; NODES],
    /// How often the operator orders `init`.
    pub inits: u8,
    /// How often a disk is wiped.
    pub wipes: u8,
    /// How often a process ends.
    pub stops: u8,
    /// How often node 0 is cut off.
    pub cuts: u8,
    /// How often the operator decides by `keep` or `rejoin`.
    pub decisions: u8,
    /// Whether two serving clusters that reach each other are a fault at once.
    pub strict: bool,
    /// A protection that is taken out.
    pub mistake: Option<Mistake>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Order {
    None,
    /// It waits, and was never in a cluster.
    Waits,
    /// It was in a cluster.
    Rejoin,
    Found,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Process {
    Down,
    /// Members that were there all the time; seeds that had no cluster all the time, and those that had none at some time.
    Looking {
        heard: u8,
        answered: u8,
        perhaps: u8,
    },
    Waiting,
    Running,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Node {
    process: Process,
    cluster: Option<u8>,
    members: u8,
    applied: u8,
    /// Clusters that an operator gave up for this one, as bits.
    supersedes: u8,
    gave_way: Option<u8>,
    /// Whether it has stopped for another cluster, written or not, until an operator decides.
    stopped: bool,
    /// Nodes that it knows, as bits.
    book: u8,
    order: Order,
    set_aside: bool,
}

/// State of the model: nodes with their disks, messages under way, and the operator's remaining steps.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    nodes: [Node; NODES],
    cut: bool,
    clusters: u8,
    inits: u8,
    wipes: u8,
    stops: u8,
    cuts: u8,
    decisions: u8,
    fault: Option<&'static str>,
}

/// A step.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names are what a reader of a path sees")]
pub enum Step {
    Starts(usize),
    FindsAClusterAndWaits(usize),
    Founds(usize),
    RefusesToFound(usize),
    Joins(usize, u8),
    Meet(usize, usize),
    MeetAndOneOfThemHears(usize, usize),
    AppliesMore(usize),
    Stops(usize),
    DiskIsWiped(usize),
    OperatorOrdersInit(usize),
    OperatorOrdersKeep(usize),
    OperatorOrdersRejoin(usize),
    NodeZeroIsCutOff,
    NodeZeroIsBack,
}

const EMPTY: Node = Node {
    process: Process::Down,
    cluster: None,
    members: 0,
    applied: 0,
    supersedes: 0,
    gave_way: None,
    stopped: false,
    book: 0,
    order: Order::None,
    set_aside: false,
};

fn bit(node: usize) -> u8 {
    1 << node
}

fn claim(node: &Node, later: bool) -> ClusterClaim {
    ClusterClaim {
        history: ClusterHistory {
            members: u64::from(node.members),
            applied: u64::from(node.applied) + u64::from(later),
        },
        supersedes: (0..8)
            .filter(|cluster| node.supersedes & (1 << cluster) != 0)
            .collect(),
    }
}

impl Bootstrap {
    fn linked(&self, state: &State, one: usize, two: usize) -> bool {
        let tokens = self.settings[one].token && self.settings[two].token;
        tokens && !(state.cut && (one == 0) != (two == 0))
    }

    /// Whether one of two nodes has the address of the other.
    fn in_contact(&self, state: &State, one: usize, two: usize) -> bool {
        let knows = |one: usize, two: usize| {
            (self.settings[one].seeds | state.nodes[one].book) & bit(two) != 0
        };
        self.linked(state, one, two) && (knows(one, two) || knows(two, one))
    }

    fn is_serving(node: &Node) -> bool {
        node.process == Process::Running && node.cluster.is_some()
    }

    /// Members that a node which looks hears of now.
    fn members(&self, state: &State, node: usize) -> u8 {
        let is_one = |other: &usize| {
            *other != node
                && Bootstrap::is_serving(&state.nodes[*other])
                && self.in_contact(state, node, *other)
                && (self.mistake != Some(Mistake::DoesNotListen)
                    || self.settings[node].seeds & bit(*other) != 0)
        };
        (0..NODES).filter(is_one).map(bit).sum()
    }

    /// Whether a node with a lower number that is reached looks, too.
    fn comes_after_another(&self, state: &State, node: usize) -> bool {
        let looks = |other: usize| matches!(state.nodes[other].process, Process::Looking { .. });
        self.mistake != Some(Mistake::HigherNumberDoesNotWait)
            && (0..node).any(|other| looks(other) && self.in_contact(state, node, other))
    }

    /// Seeds of a node that answer now that they have no cluster.
    fn answering(&self, state: &State, node: usize) -> u8 {
        let answers = |seed: &usize| {
            let there = matches!(
                state.nodes[*seed].process,
                Process::Waiting | Process::Looking { .. }
            );
            self.settings[node].seeds & bit(*seed) != 0
                && (*seed == node || there && self.linked(state, node, *seed))
        };
        (0..NODES).filter(answers).map(bit).sum()
    }

    /// What was there all the time is what is there still.
    fn look_on(&self, state: &mut State) {
        for node in 0..NODES {
            let (members, answering) = (self.members(state, node), self.answering(state, node));
            if let Process::Looking {
                heard,
                answered,
                perhaps,
            } = &mut state.nodes[node].process
            {
                *heard &= members;
                *answered &= answering;
                *perhaps |= answering;
            }
        }
    }

    fn found(&self, state: &mut State, node: usize) {
        let there = |other: &usize| {
            *other != node
                && Bootstrap::is_serving(&state.nodes[*other])
                && self.in_contact(state, node, *other)
        };
        let all_the_time = match state.nodes[node].process {
            Process::Looking { heard, .. } => heard,
            _ => 0,
        };
        let ordered = state.nodes[node].order == Order::Found;
        if (0..NODES).filter(there).any(|other| {
            all_the_time & bit(other) != 0 || self.mistake == Some(Mistake::DoesNotListen)
        }) {
            state.fault = Some("a node founds a cluster although a member of one reaches it");
        }
        let others = state.nodes.iter().any(|other| other.cluster.is_some());
        if others && !ordered && self.settings[node].seeds & !bit(node) != 0 {
            state.fault = Some("a second cluster is founded without an order");
        }
        // Those that wait for this node listen until it answers as a member.
        for later in node + 1..NODES {
            let is_awaited = self.mistake != Some(Mistake::HigherNumberDoesNotWait)
                && self.in_contact(state, node, later);
            if let Process::Looking { heard, .. } = &mut state.nodes[later].process
                && is_awaited
            {
                *heard |= bit(node);
            }
        }
        let cluster = state.clusters;
        state.clusters += 1;
        state.nodes[node] = Node {
            process: Process::Running,
            cluster: Some(cluster),
            members: 1,
            applied: 1,
            ..EMPTY
        };
    }

    fn wait(state: &mut State, node: usize) {
        let node = &mut state.nodes[node];
        node.process = Process::Waiting;
        if node.order != Order::Rejoin {
            node.order = Order::Waits;
        }
    }

    /// The start of a process, as `bootstrap::decide` goes on.
    fn start(&self, state: &State, node: usize) -> Option<State> {
        let mut after = state.clone();
        let here = &state.nodes[node];
        let settings = self.settings[node];
        if here.cluster.is_some() {
            if here.gave_way.is_some() {
                return None;
            }
            after.nodes[node].process = Process::Running;
            if here.stopped {
                after.fault = Some("a cluster that has stopped serves again without an order");
            }
            return Some(after);
        }
        if !settings.token {
            if here.order == Order::Rejoin || here.set_aside {
                return None;
            }
            self.found(&mut after, node);
            return Some(after);
        }
        let ordered = here.order == Order::Found;
        if here.order == Order::Rejoin || !settings.bootstrap && !ordered {
            Bootstrap::wait(&mut after, node);
            return Some(after);
        }
        after.nodes[node].process = Process::Looking {
            heard: self.members(state, node),
            answered: self.answering(state, node),
            perhaps: self.answering(state, node),
        };
        Some(after)
    }

    /// The end of a look.
    fn looked(&self, state: &State, node: usize, steps: &mut Vec<(Step, State)>) {
        let Process::Looking {
            heard,
            answered,
            perhaps,
        } = state.nodes[node].process
        else {
            return;
        };
        if heard != 0 || self.members(state, node) != 0 {
            let mut after = state.clone();
            Bootstrap::wait(&mut after, node);
            steps.push((Step::FindsAClusterAndWaits(node), after));
        }
        if heard != 0 || self.comes_after_another(state, node) {
            return;
        }
        let ordered = state.nodes[node].order == Order::Found;
        let ignores = self.mistake == Some(Mistake::SilentSeedsCountAsNone);
        let seeds = self.settings[node].seeds;
        for answered in [answered, perhaps] {
            let mut after = state.clone();
            let silent = seeds & !answered;
            if state.nodes[node].set_aside || silent != 0 && !ordered && !ignores {
                after.nodes[node].process = Process::Down;
                steps.push((Step::RefusesToFound(node), after));
            } else {
                self.found(&mut after, node);
                steps.push((Step::Founds(node), after));
            }
        }
    }

    /// A node without a cluster joins the one that there is, or the one of several that goes on.
    fn join(&self, state: &State, node: usize, steps: &mut Vec<(Step, State)>) {
        let reachable: Vec<usize> = (0..NODES)
            .filter(|other| {
                *other != node
                    && Bootstrap::is_serving(&state.nodes[*other])
                    && self.in_contact(state, node, *other)
            })
            .collect();
        for by in &reachable {
            let there = state.nodes[*by];
            let Some(cluster) = there.cluster else {
                continue;
            };
            let goes_on = reachable.iter().all(|other| {
                let other = &state.nodes[*other];
                let number = other.cluster.unwrap_or(cluster);
                let ours = (u64::from(cluster), Some(&claim(&there, false)));
                let theirs = (u64::from(number), Some(&claim(other, false)));
                number == cluster || rival_cluster::decide(ours, theirs) == RivalOutcome::GoesOn
            });
            if !goes_on {
                continue;
            }
            let mut after = state.clone();
            let is_new = there.book & bit(node) == 0;
            let members = there.members + u8::from(is_new);
            after.nodes[node] = Node {
                process: Process::Running,
                cluster: Some(cluster),
                members,
                applied: there.applied,
                supersedes: there.supersedes,
                gave_way: None,
                stopped: false,
                book: there.book | bit(*by),
                order: Order::None,
                set_aside: state.nodes[node].set_aside,
            };
            // All members that are there hear of it.
            for other in 0..NODES {
                let mate = after.nodes[other].cluster == Some(cluster);
                if mate && other != node && self.linked(state, *by, other) {
                    after.nodes[other].book |= bit(node);
                    after.nodes[other].members = members;
                }
            }
            steps.push((Step::Joins(node, cluster), after));
        }
    }

    /// What a node concludes when it meets one of another cluster.
    fn judge(&self, state: &State, node: usize, met: usize) -> Option<u8> {
        let (ours, theirs) = (&state.nodes[node], &state.nodes[met]);
        let (our_cluster, their_cluster) = (ours.cluster?, theirs.cluster?);
        let later = self.mistake == Some(Mistake::HistoriesOfTwoMoments);
        let verdict = rival_cluster::decide(
            (u64::from(our_cluster), Some(&claim(ours, later))),
            (u64::from(their_cluster), Some(&claim(theirs, false))),
        );
        (verdict != RivalOutcome::GoesOn).then_some(their_cluster)
    }

    /// A node stops for another cluster, and tells the others of its own.
    fn give_way(&self, state: &mut State, node: usize, to: u8) {
        let ours = state.nodes[node].cluster;
        for other in 0..NODES {
            let mate = &state.nodes[other];
            let told = other == node
                || mate.cluster == ours
                    && Bootstrap::is_serving(mate)
                    && self.linked(state, node, other)
                    && mate.supersedes & (1 << to) == 0;
            if told {
                let mate = &mut state.nodes[other];
                mate.process = Process::Down;
                mate.stopped = true;
                if self.mistake != Some(Mistake::GivingWayIsForgotten) {
                    mate.gave_way = Some(to);
                }
            }
        }
    }

    fn meet(&self, state: &State, one: usize, two: usize, steps: &mut Vec<(Step, State)>) {
        let (first, second) = (self.judge(state, one, two), self.judge(state, two, one));
        let mut after = state.clone();
        if first.is_none() && second.is_none() {
            after.fault = Some("two clusters meet, and both go on");
        }
        if let Some(to) = first {
            self.give_way(&mut after, one, to);
        }
        if let Some(to) = second {
            self.give_way(&mut after, two, to);
        }
        if after != *state {
            steps.push((Step::Meet(one, two), after));
        }
        for (node, to, met) in [(one, first, two), (two, second, one)] {
            if let Some(to) = to {
                let mut after = state.clone();
                self.give_way(&mut after, node, to);
                steps.push((Step::MeetAndOneOfThemHears(node, met), after));
            }
        }
    }

    fn operate(&self, state: &State, node: usize, steps: &mut Vec<(Step, State)>) {
        let here = state.nodes[node];
        let down = here.process == Process::Down;
        if down && let Some(after) = self.start(state, node) {
            steps.push((Step::Starts(node), after));
        }
        if !down && state.stops > 0 {
            let mut after = state.clone();
            after.stops -= 1;
            after.nodes[node].process = Process::Down;
            steps.push((Step::Stops(node), after));
        }
        if down && state.wipes > 0 && here != EMPTY {
            let mut after = state.clone();
            after.wipes -= 1;
            after.nodes[node] = EMPTY;
            steps.push((Step::DiskIsWiped(node), after));
        }
        let may_init = here.cluster.is_none()
            && matches!(here.order, Order::None | Order::Waits)
            && !here.set_aside
            && (down || here.process == Process::Waiting);
        if state.inits > 0 && may_init {
            let mut after = state.clone();
            after.inits -= 1;
            after.nodes[node].order = Order::Found;
            // A daemon that waits begins anew.
            after.nodes[node].process = Process::Down;
            steps.push((Step::OperatorOrdersInit(node), after));
        }
        if down
            && state.decisions > 0
            && let Some(to) = here.gave_way
        {
            let mut after = state.clone();
            after.decisions -= 1;
            after.nodes[node].gave_way = None;
            after.nodes[node].stopped = false;
            after.nodes[node].supersedes |= 1 << to;
            steps.push((Step::OperatorOrdersKeep(node), after));
            let mut after = state.clone();
            after.decisions -= 1;
            after.nodes[node] = Node {
                order: Order::Rejoin,
                set_aside: true,
                book: here.book,
                ..EMPTY
            };
            steps.push((Step::OperatorOrdersRejoin(node), after));
        }
    }

    /// Two nodes that serve for different clusters and reach each other.
    fn rivals(&self, state: &State) -> bool {
        let pairs = (0..NODES).flat_map(|one| (0..one).map(move |two| (one, two)));
        let serve = |node: usize| Bootstrap::is_serving(&state.nodes[node]);
        pairs.into_iter().any(|(one, two)| {
            serve(one)
                && serve(two)
                && state.nodes[one].cluster != state.nodes[two].cluster
                && self.in_contact(state, one, two)
        })
    }
}

impl Model for Bootstrap {
    type State = State;
    type Step = Step;

    fn first(&self) -> Vec<State> {
        vec![State {
            nodes: [EMPTY; NODES],
            cut: false,
            clusters: 0,
            inits: self.inits,
            wipes: self.wipes,
            stops: self.stops,
            cuts: self.cuts,
            decisions: self.decisions,
            fault: None,
        }]
    }

    fn next(&self, state: &State, steps: &mut Vec<(Step, State)>) {
        let begin = steps.len();
        for node in 0..NODES {
            self.operate(state, node, steps);
            let here = state.nodes[node];
            match here.process {
                Process::Looking { .. } => self.looked(state, node, steps),
                Process::Waiting => self.join(state, node, steps),
                Process::Running if here.cluster.is_some() && here.applied < 2 => {
                    let mut after = state.clone();
                    after.nodes[node].applied += 1;
                    steps.push((Step::AppliesMore(node), after));
                }
                Process::Running | Process::Down => {}
            }
            for other in 0..node {
                let serve = |node: usize| Bootstrap::is_serving(&state.nodes[node]);
                let rivals = state.nodes[node].cluster != state.nodes[other].cluster;
                if serve(node) && serve(other) && rivals && self.in_contact(state, node, other) {
                    self.meet(state, node, other, steps);
                }
            }
        }
        if state.cut {
            let mut after = state.clone();
            after.cut = false;
            steps.push((Step::NodeZeroIsBack, after));
        } else if state.cuts > 0 {
            let mut after = state.clone();
            after.cuts -= 1;
            after.cut = true;
            steps.push((Step::NodeZeroIsCutOff, after));
        }
        for (_, after) in &mut steps[begin..] {
            self.look_on(after);
        }
    }

    fn check(&self, state: &State) -> Result<(), String> {
        if let Some(fault) = state.fault {
            return Err(fault.to_owned());
        }
        if self.strict && self.rivals(state) {
            return Err("two clusters serve and reach each other".to_owned());
        }
        Ok(())
    }

    fn is_goal(&self, state: &State) -> Option<bool> {
        Some(!self.rivals(state))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explore::{explore, is_full};

    const JOINS: Settings = Settings {
        token: true,
        bootstrap: false,
        seeds: 0b111,
    };

    /// Node 0 founds, and all nodes name all.
    fn with_seeds(mistake: Option<Mistake>) -> Bootstrap {
        let founder = Settings {
            bootstrap: true,
            ..JOINS
        };
        Bootstrap {
            settings: [founder, JOINS, JOINS],
            inits: 0,
            wipes: 1,
            stops: if is_full() { 3 } else { 2 },
            cuts: 1,
            decisions: 1,
            strict: true,
            mistake,
        }
    }

    /// Node 0 founds and names no seed; the others name it.
    fn without_seeds(mistake: Option<Mistake>) -> Bootstrap {
        let founder = Settings {
            bootstrap: true,
            seeds: 0,
            ..JOINS
        };
        let joins = Settings {
            seeds: 0b001,
            ..JOINS
        };
        Bootstrap {
            settings: [founder, joins, joins],
            strict: false,
            ..with_seeds(mistake)
        }
    }

    /// The operator orders `init` on two nodes.
    fn two_inits(mistake: Option<Mistake>) -> Bootstrap {
        Bootstrap {
            settings: [JOINS; NODES],
            inits: 2,
            wipes: u8::from(is_full()),
            strict: false,
            ..with_seeds(mistake)
        }
    }

    fn holds(name: &str, model: &Bootstrap) {
        let report = explore(model, 60_000_000);
        eprintln!("bootstrap, {name}: {report}");
        assert_eq!(report.fault, None);
    }

    fn finds(model: &Bootstrap, part: &str) {
        let report = explore(model, 60_000_000);
        eprintln!("bootstrap, {:?}: {report}", model.mistake);
        let fault = report.fault.expect("the mistake is found");
        assert!(fault.why.contains(part), "{}", fault.why);
    }

    /// R161, R167.
    #[test]
    fn where_seeds_are_named_there_is_one_cluster() {
        holds("seeds", &with_seeds(None));
    }

    #[test]
    fn without_seeds_two_clusters_do_not_stay() {
        holds("no seeds", &without_seeds(None));
    }

    #[test]
    fn two_orders_to_found_do_not_leave_two_clusters() {
        holds("two inits", &two_inits(None));
    }

    /// The same while all nodes stay up and reach each other.
    fn two_inits_at_once(mistake: Option<Mistake>) -> Bootstrap {
        Bootstrap {
            strict: true,
            cuts: 0,
            stops: 0,
            wipes: 0,
            ..two_inits(mistake)
        }
    }

    /// R167.
    #[test]
    fn two_orders_to_found_at_once_make_one_cluster() {
        holds("two inits at once", &two_inits_at_once(None));
    }

    #[test]
    fn two_founders_that_do_not_wait_make_two_clusters() {
        let model = two_inits_at_once(Some(Mistake::HigherNumberDoesNotWait));
        finds(&model, "serve");
    }

    #[test]
    fn a_node_without_a_token_starts_alone() {
        let alone = Settings {
            token: false,
            bootstrap: true,
            seeds: 0,
        };
        let model = Bootstrap {
            settings: [alone; NODES],
            ..with_seeds(None)
        };
        for node in 0..NODES {
            let started = model.start(&model.first()[0], node).unwrap();
            assert_eq!(started.nodes[node].process, Process::Running);
            assert!(started.nodes[node].cluster.is_some());
        }
        holds("no token", &model);
    }

    #[test]
    fn a_founder_that_does_not_listen_founds_a_second_cluster() {
        finds(&without_seeds(Some(Mistake::DoesNotListen)), "reaches it");
    }

    #[test]
    fn silent_seeds_must_not_count_as_none() {
        let model = with_seeds(Some(Mistake::SilentSeedsCountAsNone));
        finds(&model, "second cluster");
    }

    #[test]
    fn a_cluster_that_forgets_that_it_gave_way_is_met_again() {
        let model = Bootstrap {
            strict: false,
            ..two_inits(Some(Mistake::GivingWayIsForgotten))
        };
        finds(&model, "serves again");
    }

    #[test]
    fn histories_of_two_moments_let_both_go_on() {
        let model = two_inits(Some(Mistake::HistoriesOfTwoMoments));
        finds(&model, "both go on");
    }
}
