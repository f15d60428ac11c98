//! Availability checker: while a majority of the voters of every group is healthy, every group commits
//! an entry within a bound, whatever happens to the other nodes.
//!
//! A node is healthy if it runs, can write, gets the processor, and has sound links to the other
//! healthy nodes. In the fault profile `stalled`, where all nodes replicate all groups, a node is
//! healthy if its disk does not hang, and the bound is shorter.
//!
//! The probe is a release of a path that is not held: it is written to the log and changes
//! nothing. One probe per namespace is sent every two seconds, to a random node that can write.

use tenure_core::command::Hold;
use tenure_core::policy::Mode;
use tenure_core::value::OwnerId;
use tenure_node::{
    Answer, ClientRequest, Failure, GroupId, Input, ReleaseRequest, ReplicaId, RequestId, WaitEdge,
};

use crate::fault_profile::FaultProfile;
use crate::load::path;
use crate::sim_node::HEALTHY_DISK;
use crate::simulator::{SimEvent, Simulator};
use crate::time::{SECOND, SimTime};

/// The namespaces of the probes: more than there are groups, so that every group is likely to be
/// probed.
const PLACES: [&str; 6] = ["p0:/x", "p1:/x", "p2:/x", "p3:/x", "p4:/x", "p5:/x"];
/// A disk counts as slow after one election timeout. A leadership transfer and an election take two
/// more, and clocks run up to a tenth too slow.
const BOUND: SimTime = 10 * SECOND;
/// A node is no target for a transfer for a minute after its own disk was slow. If all other nodes
/// are in that state, the node with the hung disk leads until it stops.
const BOUND_AFTER_OTHERS: SimTime = 35 * SECOND;
/// The bound in the other profiles: a node with a hung disk stops after 20 to 30 s, and a group whose
/// leader it was needs an election then.
const BOUND_ANYWHERE: SimTime = 45 * SECOND;
/// For this long a disk that hung counts as recently slow.
const RECOVERED: SimTime = 90 * SECOND;
/// Time between two rounds of probes.
const REPEAT: SimTime = 2 * SECOND;

/// State of the availability checker.
#[derive(Debug, Default)]
pub(crate) struct AvailabilityCheck {
    /// Since when a majority can write.
    majority_since: Option<SimTime>,
    /// The processes that were healthy at the last round, by node slot.
    healthy: Vec<Option<u64>>,
    /// When a probe of each namespace was last answered with success.
    answered: [SimTime; PLACES.len()],
    sent: u64,
}

/// Whether a request is an availability probe.
pub(crate) fn is_availability_probe(id: RequestId) -> bool {
    id.0 >= FIRST
}

// Above the ids of clients and of the liveness probes (`convergence.rs`).
const FIRST: u64 = u64::MAX / 2;

impl Simulator {
    /// Evaluates the answers, then sends the next round of probes. Ends with the fault phase.
    pub(crate) fn availability_probe(&mut self) {
        if !self.fault_phase {
            return;
        }
        self.at(self.now + REPEAT, SimEvent::AvailabilityProbe);
        let round = if self.plan.fault_profile == FaultProfile::Stalled {
            self.round_of_stalled()
        } else {
            self.round()
        };
        let Some((able, bound)) = round else {
            self.availability.majority_since = None;
            return;
        };
        let now = self.now;
        // A namespace is late only if it was silent for the whole time in which a majority could
        // write.
        let since = *self.availability.majority_since.get_or_insert(now);
        for (place, answered) in self.availability.answered.into_iter().enumerate() {
            let waited = now.saturating_sub(answered.max(since));
            self.checkers.count("pulse");
            if waited > bound {
                let what = format!(
                    "{}: nothing was decided for {} ms, though the node slots {able:?} of {} are healthy",
                    PLACES[place],
                    waited / 1_000,
                    self.node_slots.len()
                );
                self.checkers.object("pulse", now, what);
                return;
            }
        }
        self.send_probes(&able);
    }

    /// Returns the healthy node slots and the bound, if every group has a majority of them.
    fn round(&mut self) -> Option<(Vec<usize>, SimTime)> {
        let now = self.now;
        let nodes = self.node_slots.len();
        let is_up = |at: &usize| {
            let slot = &self.node_slots[*at];
            slot.is_up()
                && !slot.paused
                && slot.hangs_until <= now
                && slot.disk_delay == HEALTHY_DISK
                && slot.starved == 0
                && slot.rotten.is_none()
                && slot.suspects.is_empty()
        };
        let up: Vec<usize> = (0..nodes).filter(is_up).collect();
        let linked = |at: &usize| {
            let others = up.iter().filter(|other| *other != at);
            let mut links = others.flat_map(|other| [(*at, *other), (*other, *at)]);
            links.all(|(from, to)| self.network.is_healthy(now, from, to))
        };
        // A process that was restarted since the last round was not healthy all the time.
        let process = |at: usize| self.node_slots[at].process;
        let before = std::mem::take(&mut self.availability.healthy);
        let same = |at: &usize| before.get(*at).copied().flatten() == Some(process(*at));
        let able: Vec<usize> = up.iter().copied().filter(linked).collect();
        let healthy = (0..nodes).map(|at| able.contains(&at).then(|| process(at)));
        let healthy = healthy.collect();
        let steady: Vec<usize> = able.into_iter().filter(same).collect();
        self.availability.healthy = healthy;
        let groups = (0..=self.plan.cluster.group_count).map(GroupId);
        let mut all = groups.map(|group| self.has_majority(group, &steady));
        all.all(|has| has).then_some((steady, BOUND_ANYWHERE))
    }

    /// Whether a majority of the voters of a group is among these node slots, by the membership that
    /// the replica knows which has applied most.
    fn has_majority(&self, group: GroupId, steady: &[usize]) -> bool {
        let nodes = self.node_slots.iter().filter_map(|slot| slot.node.as_ref());
        let standings = nodes.flat_map(|node| node.standings());
        let newest = standings
            .filter(|one| one.group == group)
            .max_by_key(|one| one.applied);
        let is_steady = |voter: &&ReplicaId| {
            let at = voter.node.number() as usize - 1;
            steady.contains(&at) && self.node_slots[at].member.shares_disk(**voter)
        };
        newest.is_some_and(|one| {
            let halves = [&one.membership.voters, &one.membership.outgoing];
            halves.iter().all(|voters| {
                voters.is_empty() || voters.iter().filter(is_steady).count() * 2 > voters.len()
            })
        })
    }

    fn round_of_stalled(&self) -> Option<(Vec<usize>, SimTime)> {
        let now = self.now;
        let can_write =
            |at: &usize| self.node_slots[*at].is_up() && self.node_slots[*at].hangs_until <= now;
        let able: Vec<usize> = (0..self.node_slots.len()).filter(can_write).collect();
        // A disk that recovered after the previous round hung for a part of the interval.
        let hung = |at: &usize| self.node_slots[*at].hangs_until + REPEAT > now;
        let steady = able.iter().filter(|at| !hung(at)).count();
        if steady * 2 <= self.node_slots.len() {
            return None;
        }
        let recently = |at: &usize| {
            let until = self.node_slots[*at].hangs_until;
            until > 0 && until + RECOVERED > now
        };
        let bound = if (0..self.node_slots.len()).filter(recently).count() <= 1 {
            BOUND
        } else {
            BOUND_AFTER_OTHERS
        };
        Some((able, bound))
    }

    /// Sends one probe per namespace, each to a random one of these node slots.
    fn send_probes(&mut self, able: &[usize]) {
        for (number, place) in (0u64..).zip(PLACES) {
            let at = able[self.random.index(able.len())];
            self.availability.sent += 1;
            let count = PLACES.len() as u64;
            // The id modulo `count` identifies the namespace when the answer arrives.
            let id = RequestId(FIRST + self.availability.sent * count + number);
            let request = ClientRequest::Release(ReleaseRequest {
                owner: OwnerId::new("pulse").expect("a short name"),
                holds: vec![Hold {
                    path: path(place),
                    mode: Mode::Write,
                }],
                edge: WaitEdge::Keep,
                key: None,
            });
            let input = Input::Request {
                id,
                request: Box::new(request),
                timeout_ms: 5_000,
            };
            self.input(at, input);
        }
    }

    pub(crate) fn availability_answered(
        &mut self,
        id: RequestId,
        answer: &Result<Answer, Failure>,
    ) {
        let count = PLACES.len() as u64;
        let number = usize::try_from((id.0 - FIRST) % count).unwrap_or(0);
        if answer.is_ok() {
            self.availability.answered[number] = self.now;
        }
    }
}
