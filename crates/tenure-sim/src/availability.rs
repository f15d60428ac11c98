//! Availability checker for gray failures: while a majority of the nodes can write, every group
//! commits an entry within a bound, even if the disks of the other nodes hang.
//!
//! The probe is a release of a path that is not held: it is written to the log and changes
//! nothing. One probe per namespace is sent every two seconds, to a random node that can write.

use tenure_core::command::Hold;
use tenure_core::policy::Mode;
use tenure_core::value::OwnerId;
use tenure_node::{Answer, ClientRequest, Failure, Input, ReleaseRequest, RequestId, WaitEdge};

use crate::load::path;
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
/// For this long a disk that hung counts as recently slow.
const RECOVERED: SimTime = 90 * SECOND;
/// Time between two rounds of probes.
const REPEAT: SimTime = 2 * SECOND;

/// State of the availability checker.
#[derive(Debug, Default)]
pub(crate) struct AvailabilityCheck {
    /// Since when a majority can write.
    majority_since: Option<SimTime>,
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
        let now = self.now;
        let can_write =
            |at: &usize| self.node_slots[*at].is_up() && self.node_slots[*at].hangs_until <= now;
        let able: Vec<usize> = (0..self.node_slots.len()).filter(can_write).collect();
        // A disk that recovered after the previous round hung for a part of the interval.
        let hung = |at: &usize| self.node_slots[*at].hangs_until + REPEAT > now;
        let steady = able.iter().filter(|at| !hung(at)).count();
        if steady * 2 <= self.node_slots.len() {
            self.availability.majority_since = None;
            return;
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
        // A namespace is late only if it was silent for the whole time in which a majority could
        // write.
        let since = *self.availability.majority_since.get_or_insert(now);
        for (place, answered) in self.availability.answered.into_iter().enumerate() {
            let waited = now.saturating_sub(answered.max(since));
            self.checkers.count("pulse");
            if waited > bound {
                let what = format!(
                    "{}: nothing was decided for {} ms, though {steady} of {} nodes can write",
                    PLACES[place],
                    waited / 1_000,
                    self.node_slots.len()
                );
                self.checkers.object("pulse", now, what);
                return;
            }
        }
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
