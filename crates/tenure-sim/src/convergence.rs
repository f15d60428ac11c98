//! Convergence phase: liveness checks after the fault phase.
//!
//! All faults are healed. Then the cluster must make progress, free the locks of dead owners, and
//! reach the same state on all replicas. Until here the checkers verify safety only.

use std::collections::{BTreeMap, BTreeSet};

use tenure_core::command::{Request, RequestKind, WaitMode};
use tenure_core::policy::Mode;
use tenure_core::value::{OwnerId, QueueTtl, Ttl};
use tenure_node::{
    AcquireAnswer, AcquireRequest, Answer, ClientRequest, Deadlock, Failure, GroupId, Input,
    Membership, ReplicaId, RequestId,
};

use crate::check::{Fact, Violation};
use crate::fault_profile::FaultProfile;
use crate::faults::lose_change_of;
use crate::load::{PATHS, path};
use crate::simulator::{SimEvent, Simulator};
use crate::time::{MILLISECOND, SECOND, SimTime};

/// Elections, restarts and membership changes end within this time after the last fault.
const SETTLE: SimTime = 30 * SECOND;
/// Within this time without faults the lock clients must get locks.
const PROGRESS: SimTime = 40 * SECOND;
/// A membership change of every group takes at most this long without faults: the operator acts every
/// few seconds, and a change has up to three steps.
const MEMBERSHIPS: SimTime = 60 * SECOND;
/// For this long leaderships are transferred in the convergence phase.
const STIRRED: SimTime = 30 * SECOND;
/// Interval between two inspections of what dead owners still hold.
const LOOK: SimTime = 10 * SECOND;

/// The held paths with their owners, and one path that has a waiter.
type HeldPaths = (BTreeSet<(&'static str, OwnerId)>, Option<&'static str>);

impl Simulator {
    /// Executes the whole run: the fault phase, then the checks of the convergence phase in order.
    pub(crate) fn live(&mut self) -> Result<(), Violation> {
        let fault_phase = self.plan.fault_phase;
        self.run_until(fault_phase)?;
        self.heal();
        self.operator.restore();
        self.run_until(self.now + SETTLE)?;
        if self.waits_for_operator() {
            // Safety is asked for all the same: nothing may be decided without a sound majority.
            self.counts.operator_waits += 1;
            return self.run_until(self.now + PROGRESS);
        }
        self.lose_changes()?;
        self.checkers.see(self.now, &Fact::ConvergencePhase);
        self.progress()?;
        self.memberships_change()?;
        self.leaders_change()?;
        self.the_dead_are_gone()?;
        self.everything_is_free()?;
        self.replicas_agree()
    }

    /// Whether a group has no leader and cannot have one, because suspect replicas take no part in elections and
    /// too few of its voters are left without them (docs/formats/log.md). Then `tenure cluster recover` helps, which
    /// is not simulated.
    fn waits_for_operator(&self) -> bool {
        (0..self.operator.wanted.len())
            .map(|at| GroupId(u32::try_from(at).unwrap_or(0)))
            .any(|group| self.leader(group).is_none() && !self.has_sound_majority(group))
    }

    /// Whether the voters of a group that lost neither their disk nor the end of their log are a majority, by the
    /// membership that the replica knows which has applied most.
    fn has_sound_majority(&self, group: GroupId) -> bool {
        let nodes = self.node_slots.iter().filter_map(|slot| slot.node.as_ref());
        let replicas = nodes.flat_map(|node| node.status().groups);
        let newest = replicas
            .filter(|one| one.group == group)
            .max_by_key(|one| one.applied);
        let is_sound = |voter: &&ReplicaId| {
            let slot = &self.node_slots[voter.node.number() as usize - 1];
            slot.member.shares_disk(**voter) && !slot.suspects.contains(&group)
        };
        newest.is_none_or(|one| {
            let Membership {
                voters, outgoing, ..
            } = one.membership;
            [voters, outgoing].iter().all(|voters| {
                voters.is_empty() || voters.iter().filter(is_sound).count() * 2 > voters.len()
            })
        })
    }

    /// Where replicas come and go: every group loses a membership change with a leadership, and has the
    /// same leader again. [`Simulator::memberships_change`] must succeed afterwards. Other faults would
    /// change the leader, which hides a change that is stuck.
    fn lose_changes(&mut self) -> Result<(), Violation> {
        if self.plan.fault_profile != FaultProfile::Returning {
            return Ok(());
        }
        for at in 0..self.operator.wanted.len() {
            let mut random = self.random.split();
            let group = GroupId(u32::try_from(at).unwrap_or(0));
            lose_change_of(self, group, &mut random);
            self.run_until(self.now + 8 * SECOND)?;
        }
        self.run_until(self.now + SETTLE)
    }

    /// The queue is never stuck: clients get what they ask for.
    fn progress(&mut self) -> Result<(), Violation> {
        // An owner that died in the fault phase may block others until its lease ends.
        self.run_until(self.now + self.plan.dead_after())?;
        for client in &mut self.clients {
            client.take_grants();
        }
        self.run_until(self.now + PROGRESS)?;
        let mut grants = 0;
        for client in &mut self.clients {
            grants += client.take_grants();
        }
        let lockers = self
            .clients
            .iter()
            .filter(|client| client.is_locker())
            .count();
        if grants * 3 < lockers as u64 {
            return Err(self.objection(
                "liveness",
                format!(
                    "{lockers} clients got {grants} locks in {} s without faults",
                    PROGRESS / SECOND
                ),
            ));
        }
        Ok(())
    }

    /// Every leader makes the membership changes that the operator wants, there and back.
    fn memberships_change(&mut self) -> Result<(), Violation> {
        self.memberships_are_as_wanted()?;
        for group in 0..self.operator.wanted.len() {
            self.operator.replace_one(group, self.plan.nodes);
        }
        self.memberships_are_as_wanted()?;
        self.operator.restore();
        self.memberships_are_as_wanted()
    }

    /// Waits until every group has exactly the wanted voters.
    fn memberships_are_as_wanted(&mut self) -> Result<(), Violation> {
        let end = self.now + MEMBERSHIPS;
        let mut last = None;
        while self.now < end {
            let groups = (0..self.operator.wanted.len()).map(|at| u32::try_from(at).unwrap_or(0));
            last = groups.map(GroupId).find(|group| !self.is_as_wanted(*group));
            if last.is_none() {
                self.checkers.count("membership");
                return Ok(());
            }
            self.run_until(self.now + SECOND)?;
        }
        let what = format!(
            "{last:?} has other voters than the operator wants, {} s after it asked for them",
            MEMBERSHIPS / SECOND
        );
        Err(self.objection("membership", what))
    }

    fn is_as_wanted(&self, group: GroupId) -> bool {
        let Some((_, membership)) = self.leader(group) else {
            return false;
        };
        let wanted = &self.operator.wanted[group.0 as usize];
        let voters = membership.voters.iter();
        let slots = voters.filter(|voter| {
            let at = voter.node.number() as usize - 1;
            wanted.contains(&at) && self.node_slots[at].member.shares_disk(**voter)
        });
        !membership.is_joint()
            && membership.learners.is_empty()
            && membership.voters.len() == wanted.len()
            && slots.count() == wanted.len()
    }

    /// Leadership transfers with a slow link between two nodes. The checkers must report nothing.
    fn leaders_change(&mut self) -> Result<(), Violation> {
        self.stirring = true;
        self.at(self.now, SimEvent::Stir);
        let one = self.random.index(self.node_slots.len());
        let other = (one + 1) % self.node_slots.len();
        let far = self.random.between(20, 300) * MILLISECOND;
        self.network.link(one, other).delay = (far / 2, far);
        self.network.link(other, one).delay = (far / 2, far);
        self.run_until(self.now + STIRRED)?;
        self.network.heal();
        self.stirring = false;
        Ok(())
    }

    /// Transfers the leadership of a random group.
    pub(crate) fn stir(&mut self) {
        let group = self.random.index(self.operator.wanted.len());
        let group = GroupId(u32::try_from(group).unwrap_or(0));
        if let Some((at, membership)) = self.leader(group) {
            let to = membership.voters[self.random.index(membership.voters.len())];
            self.input(at, Input::Transfer { group, to });
        }
    }

    /// All clients die at once. No owner holds a path for longer than a lease, no waiter outlives
    /// its queue time, and then everything is free.
    ///
    /// The server cannot tell a dead waiter from a live one. While the dead waiter is queued, it is
    /// granted what becomes free, each time for a new lease. So everything is free one queue time
    /// plus one lease after the clients died, no matter how many of them waited.
    fn the_dead_are_gone(&mut self) -> Result<(), Violation> {
        for client in &mut self.clients {
            client.retire();
        }
        self.checkers.see(self.now, &Fact::AllDie);
        self.trace.say(
            self.now,
            format_args!("world"),
            format_args!("all clients die"),
        );
        let died = self.now;
        let lease = self.plan.dead_after();
        let lines_end = died + self.plan.place_after();
        let mut since: BTreeMap<(&str, OwnerId), SimTime> = BTreeMap::new();
        loop {
            let (held, waiting) = self.look_around()?;
            since.retain(|hold, _| held.contains(hold));
            for (text, owner) in &held {
                let first = *since.entry((text, owner.clone())).or_insert(self.now);
                if self.now > first + lease || self.now > lines_end + LOOK + lease {
                    let what = format!(
                        "{owner}, dead since {} s, holds {text} for {} s",
                        (self.now - died) / SECOND,
                        (self.now - first) / SECOND
                    );
                    return Err(self.objection("liveness", what));
                }
            }
            if self.now > lines_end {
                if let Some(text) = waiting {
                    let what = format!(
                        "dead owners wait for {text}, {} s after their death",
                        (self.now - died) / SECOND
                    );
                    return Err(self.objection("liveness", what));
                }
                if held.is_empty() {
                    return Ok(());
                }
            }
            self.run_until(self.now + LOOK)?;
        }
    }

    /// Reads the holders of all paths, and a path that has a waiter.
    fn look_around(&mut self) -> Result<HeldPaths, Violation> {
        let (mut held, mut waiting) = (BTreeSet::new(), None);
        for text in PATHS {
            let answer = self.probe(ClientRequest::InspectPath { path: path(text) })?;
            let Answer::Inspect(found) = answer else {
                return Err(
                    self.objection("liveness", format!("an inspection was answered {answer:?}"))
                );
            };
            let holders = found.writer.iter().chain(&found.readers);
            let holders = holders.chain(&found.permit_holders);
            held.extend(holders.map(|owner| (text, owner.clone())));
            if found.waiters > 0 {
                waiting = Some(text);
            }
        }
        Ok((held, waiting))
    }

    /// Every path can be acquired, with a fence larger than all earlier ones.
    fn everything_is_free(&mut self) -> Result<(), Violation> {
        for (number, text) in PATHS.into_iter().enumerate() {
            // Semaphores have no fence (R54 permits have no token).
            if text.starts_with('s') {
                continue;
            }
            let request = AcquireRequest {
                owner: OwnerId::new(&format!("probe-{number}")).expect("a short name"),
                ttl: Ttl::from_millis(1_000).expect("a length of ours"),
                queue_ttl: QueueTtl::from_millis(1_000).expect("a length of ours"),
                requests: vec![Request {
                    path: path(text),
                    mode: Mode::Write,
                    state: RequestKind::New,
                    permits: None,
                }],
                releases: Vec::new(),
                fence: None,
                key: None,
                wait: WaitMode::No,
                holder: None,
                deadlock: Deadlock::Ignore,
            };
            let answer = self.probe(ClientRequest::Acquire(request))?;
            let known = self
                .checkers
                .highest(&path(text))
                .max(self.highest_before(text));
            match answer {
                Answer::Acquire(AcquireAnswer::Granted {
                    fence: Some(fence), ..
                }) if fence.number() > known => {}
                other => {
                    let what =
                        format!("{text}, free and last fenced at {known}, was answered {other:?}");
                    return Err(self.objection("liveness", what));
                }
            }
            // The probe's lease of 1 s ends before the next path, which may overlap with this one.
            self.run_until(self.now + 3 * SECOND)?;
        }
        Ok(())
    }

    /// The cluster that an operator restores from states of different moments, and what it knows of
    /// the old one: no fence may repeat, no region may stay frozen, no owner may hold its paths longer
    /// than a lease.
    pub(crate) fn live_restored(&mut self) -> Result<(), Violation> {
        self.heal();
        self.run_until(self.now + SETTLE)?;
        self.the_dead_are_gone()?;
        self.everything_is_free()?;
        self.memberships_are_as_wanted()?;
        self.replicas_agree()?;
        self.checkers.count("restored");
        Ok(())
    }

    /// All replicas of a group have applied the same index and have the same state, and no removed
    /// replica remains: R166 (draining a node).
    fn replicas_agree(&mut self) -> Result<(), Violation> {
        let mut last = String::new();
        // Replicas apply the last entries at slightly different times, so the comparison is
        // retried.
        for _ in 0..20 {
            self.run_until(self.now + SECOND)?;
            match self.compare().and_then(|()| self.nothing_is_left_over()) {
                Ok(()) => return Ok(()),
                Err(what) => last = what,
            }
        }
        Err(self.objection("converge", last))
    }

    /// Compares index and state of all replicas that the operator wants.
    fn compare(&self) -> Result<(), String> {
        let mut states: BTreeMap<GroupId, (u64, Vec<u8>)> = BTreeMap::new();
        for (at, wanted) in self.operator.wanted.iter().enumerate() {
            let group = GroupId(u32::try_from(at).unwrap_or(0));
            for node_slot in wanted {
                let node = self.node_slots[*node_slot]
                    .node
                    .as_ref()
                    .ok_or(format!("node slot {node_slot} is down"))?;
                let (index, state) = node
                    .state_of(group)
                    .ok_or(format!("node slot {node_slot} has no {group}"))?;
                match states.get(&group) {
                    None => {
                        states.insert(group, (index, state.to_vec()));
                    }
                    Some((first, _)) if *first != index => {
                        return Err(format!(
                            "{group}: node slot {node_slot} is at {index}, another at {first}"
                        ));
                    }
                    Some((_, first)) if *first != state => {
                        return Err(format!(
                            "{group}: the state of node slot {node_slot} differs at {index}"
                        ));
                    }
                    Some(_) => {}
                }
            }
        }
        Ok(())
    }

    /// No node has a replica that is not a member of its group.
    fn nothing_is_left_over(&self) -> Result<(), String> {
        for (node_slot, node) in self
            .node_slots
            .iter()
            .map(|node_slot| &node_slot.node)
            .enumerate()
        {
            for group in node.iter().flat_map(|node| node.status().groups) {
                let id = group.group;
                let Some((_, membership)) = self.leader(id) else {
                    return Err(format!("{id} has no leader"));
                };
                if !membership.everybody().contains(&group.member) {
                    return Err(format!(
                        "node slot {node_slot} has a replica of {id}: it was removed"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Sends a request to random nodes until one answers with success, for at most 20 s.
    fn probe(&mut self, request: ClientRequest) -> Result<Answer, Violation> {
        let end = self.now + 20 * SECOND;
        let mut last = None;
        // The ids start again with every probe. No answer to an earlier use of an id can still
        // arrive: a request times out after 3 s, and its id is abandoned only after 4 s.
        let mut number = u64::MAX / 4;
        while self.now < end {
            let node_slot = self.random.index(self.node_slots.len());
            number += 1;
            let id = RequestId(number);
            self.probes.remove(&id);
            let input = Input::Request {
                id,
                request: Box::new(request.clone()),
                timeout_ms: 3_000,
            };
            self.input(node_slot, input);
            let give_up = self.now + 4 * SECOND;
            while self.now < give_up && !self.probes.contains_key(&id) {
                self.run_until(self.now + SECOND / 50)?;
            }
            match self.probes.remove(&id) {
                Some(Ok(answer)) => return Ok(answer),
                other => last = other,
            }
        }
        Err(self.objection(
            "liveness",
            format!("no answer without faults to {request:?}; last: {last:?}"),
        ))
    }

    fn objection(&mut self, checker: &'static str, what: String) -> Violation {
        Violation {
            checker,
            at: self.now,
            what,
        }
    }
}

/// Answers that arrived for [`Simulator::probe`].
pub(crate) type ProgressProbes = BTreeMap<RequestId, Result<Answer, Failure>>;

/// Whether a request is a liveness probe.
pub(crate) fn is_probe(id: RequestId) -> bool {
    (u64::MAX / 4..u64::MAX / 2).contains(&id.0)
}
