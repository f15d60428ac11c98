//! Coordinator: handles the calls of clients and everything else that concerns several groups.
//!
//! ```text
//!   call ──▶ operations (one group each) ──▶ forward: to this node, or to the leader's node
//!     └────▶ fan-out (one message per node, all groups confirmed) ──▶ operations on each node
//! ```
//!
//! A call is a small state machine: [`ActiveCall`] is taken out of the table, given an event, and
//! then either answered or put back. The coordinator never touches a space; only groups do.
//!
//! Everything that a call starts (an operation, a fan-out, a timer, a wait for the namespace table,
//! a policy change) is a *part* with a number that the call never uses again. A call that starts
//! over declares its earlier parts void ([`CallContext::start_over`]), and the result of a void
//! part is dropped before the call sees it. A part of a call that has ended, or a void part, is not
//! sent again. `docs/design/coordination.md` has the argument.

mod acquire;
mod auth;
mod browse;
mod deadlock;
mod events;
mod fanout;
mod forward;
mod group_reads;
mod local_read;
mod membership;
mod owner_calls;
#[cfg(test)]
mod peer_record_tests;
mod policy;
mod release;
mod replica_removal;
mod resolve;
mod snapshot_transfer;
mod subscriptions;
mod upgrade;
mod watch;

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use bytes::Bytes;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use tenure_core::namespace_table::NamespaceTable;
use tenure_core::system::SystemCommand;

use crate::budget::Urgency;
use crate::codec::{DecodeResult, Reader};
use crate::config::Config;
use crate::group_op::{GroupOp, GroupOpResult};
use crate::node::frames_item as item;
use crate::node::{Node, keep_room};
use crate::request::{AcquireRequest, Answer, ClientRequest, EffectCertainty, Failure};
use crate::{GroupId, NodeId, Output, ReplicaId, RequestId};

use forward::OpOrigin;
pub(crate) use replica_removal::{AddressedReplica, LeaderSilence};
pub(crate) use snapshot_transfer::SnapshotTransfers;

/// Identifies a call on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct CallId(u64);

/// The coordinator of this node.
pub(crate) struct Coordinator {
    next_id: u64,
    // Never iterated, so their order cannot affect determinism.
    calls: HashMap<CallId, ActiveCall, FxBuildHasher>,
    by_client: HashMap<RequestId, CallId, FxBuildHasher>,
    /// Deadlines of pending calls. Ended calls are removed lazily.
    deadlines: BinaryHeap<Reverse<(u64, CallId)>>,
    timers: BTreeSet<(u64, AwaitedPart)>,
    /// Events for calls, to be handled in this step.
    ready: Vec<(AwaitedPart, CallEvent)>,
    pub(crate) forward: forward::Forwarder,
    /// Whether the lock state of this node is near its limit.
    pub(crate) is_state_full: bool,
    resolve: resolve::NamespaceCache,
    fanouts: fanout::Fanouts,
    events: events::Events,
    watches: watch::Watches,
    policy: policy::PolicyDrivers,
    strangers: replica_removal::UnknownSenders,
    upgrades: upgrade::Upgrades,
    auth: auth::AuthCache,
    /// Whether all nodes support the message forms of rules 2. Never becomes false again.
    newer_forms: bool,
    ticks: u64,
}

/// One call of a client, or of the node itself.
struct ActiveCall {
    client: Option<RequestId>,
    deadline: u64,
    parts: CallParts,
    kind: CallKind,
}

/// Identifies one part of a call: an operation, fan-out, timer or table wait that it started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct AwaitedPart {
    call: CallId,
    part: u32,
}

/// Which parts of a call were started, and which of them still count.
#[derive(Clone, Copy, Debug, Default)]
struct CallParts {
    /// The number of the newest part. It never goes back.
    last: u32,
    /// Parts up to this number are void.
    void: u32,
}

/// The kind of a call with its progress.
enum CallKind {
    Acquire(acquire::AcquireCall),
    Release(release::ReleaseCall),
    Owner(owner_calls::OwnerCall),
    Read(group_reads::ReadCall),
    Cycle(deadlock::DetectCycleCall),
    Policy(policy::PolicyCall),
    Grants(Box<events::GrantsCall>),
    Auth(auth::AuthCall),
    Browse(browse::BrowseCall),
}

impl CallKind {
    /// Returns the request, so that the driver can free its memory.
    fn into_request(self) -> Option<Box<ClientRequest>> {
        match self {
            CallKind::Acquire(call) => Some(call.into_request()),
            CallKind::Release(call) => Some(call.into_request()),
            CallKind::Owner(call) => Some(call.into_request()),
            CallKind::Read(call) => Some(call.into_request()),
            CallKind::Auth(call) => Some(call.into_request()),
            CallKind::Cycle(_)
            | CallKind::Policy(_)
            | CallKind::Grants(_)
            | CallKind::Browse(_) => None,
        }
    }
}

/// An event for a call.
#[derive(Clone, Debug)]
pub(crate) enum CallEvent {
    /// The call starts.
    Start,
    /// One of its operations ended.
    Op(GroupOpResult),
    /// Its fan-out is complete.
    FanoutResult(Box<fanout::FanoutResult>),
    /// The namespace table has the version it waited for.
    Table,
    /// Its timer has expired.
    Timer,
    /// A policy change that it waited for has ended.
    Changed(policy::PolicyEnd),
}

/// Whether a call goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallFlow {
    On,
    Over,
}

/// What a call does next.
enum CallProgress {
    Wait,
    Done(Result<Answer, Failure>),
}

impl CallProgress {
    fn fail(failure: Failure) -> CallProgress {
        CallProgress::Done(Err(failure))
    }

    fn ok(answer: Answer) -> CallProgress {
        CallProgress::Done(Ok(answer))
    }
}

/// Returns the failure of an unsuccessful operation; `None` for a successful one.
fn failure_of(answer: &GroupOpResult) -> Option<Failure> {
    let (why, nothing_happened) = match answer {
        GroupOpResult::Busy => (
            "too many requests wait for this group: try again",
            EffectCertainty::Yes,
        ),
        GroupOpResult::NotHere { .. } => (
            "no leader could be reached: try again",
            EffectCertainty::Yes,
        ),
        GroupOpResult::Unknown => (
            "the leader was lost before it answered: the request may have been applied",
            EffectCertainty::No,
        ),
        GroupOpResult::TooLong => {
            return Some(Failure::ResourceExhausted(
                "the request or its answer is too long for one message between nodes: split the request"
                    .to_owned(),
            ));
        }
        GroupOpResult::StateFull => {
            return Some(Failure::ResourceExhausted(
                "the lock state of the node that leads this namespace is near max_state_mb: only renewals and releases are accepted until it has shrunk"
                    .to_owned(),
            ));
        }
        GroupOpResult::Applied { .. }
        | GroupOpResult::System(_)
        | GroupOpResult::Renewed(_)
        | GroupOpResult::Found(_) => return None,
    };
    Some(Failure::Unavailable {
        why,
        nothing_happened,
    })
}

/// Converts a failure for a call whose other parts may have taken effect: the answer must not claim
/// that nothing changed.
fn with_effects(failure: Failure) -> Failure {
    let why = match failure {
        // Do not advise to retry without the key: only the key connects a retry with the parts
        // already done.
        Failure::AnswersFull => {
            "the idempotency table is full: other parts were done, repeat the request later"
        }
        Failure::Unavailable { why, .. } => why,
        Failure::DeadlineExceeded => return Failure::DeadlineExceeded,
        Failure::InvalidArgument(_) => {
            "a part was refused, the idempotency key was used for a different request: other parts were done"
        }
        Failure::Aborted => {
            "the namespaces of some paths changed too often: other parts were done, repeat the request"
        }
        Failure::FailedPrecondition(_)
        | Failure::ResourceExhausted(_)
        | Failure::OverQuota { .. } => {
            "a part was refused, other parts were done: repeat the request"
        }
    };
    Failure::Unavailable {
        why,
        nothing_happened: EffectCertainty::No,
    }
}

/// Records the failure of a part. A failure with an unknown outcome is never replaced, because it
/// is the stronger statement.
fn note_failure(noted: &mut Option<Failure>, failure: Failure) {
    let is_open = matches!(
        noted,
        Some(
            Failure::DeadlineExceeded
                | Failure::Unavailable {
                    nothing_happened: EffectCertainty::No,
                    ..
                }
        )
    );
    if !is_open {
        *noted = Some(failure);
    }
}

/// The failure for an answer of the wrong kind, which only a faulty peer sends.
fn odd_answer() -> Failure {
    Failure::Unavailable {
        why: "a peer sent an answer of the wrong kind",
        nothing_happened: EffectCertainty::No,
    }
}

/// The first request number of this process. Peers repeat these numbers in their answers, so they
/// must be unique: each process starts at a different number, and answers name the incarnation that
/// asked.
fn first_number(config: &Config) -> u64 {
    config.start << 40
}

impl Coordinator {
    pub(crate) fn new(config: &Config, table: NamespaceTable) -> Coordinator {
        Coordinator {
            next_id: first_number(config),
            calls: HashMap::default(),
            by_client: HashMap::default(),
            deadlines: BinaryHeap::new(),
            timers: BTreeSet::new(),
            ready: Vec::new(),
            forward: forward::Forwarder::new(first_number(config)),
            is_state_full: false,
            resolve: resolve::NamespaceCache::new(config, table),
            fanouts: fanout::Fanouts::default(),
            events: events::Events::new(config),
            watches: watch::Watches::new(first_number(config)),
            policy: policy::PolicyDrivers::default(),
            strangers: replica_removal::UnknownSenders::new(),
            upgrades: upgrade::Upgrades::default(),
            auth: auth::AuthCache::default(),
            newer_forms: false,
            ticks: 0,
        }
    }

    /// Returns the access control table if it has changed since the last step.
    pub(crate) fn auth_news(&mut self) -> Option<std::sync::Arc<tenure_core::auth::AuthTable>> {
        self.auth.take_news()
    }

    fn next_number(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// Returns the number of Raft ticks so far.
    pub(crate) fn ticks(&self) -> u64 {
        self.ticks
    }

    pub(crate) fn waiting_calls(&self) -> usize {
        self.calls.len()
    }

    pub(crate) fn waiting_operations(&self) -> usize {
        self.forward.load()
    }

    /// Returns the next time at which a call has a timer or deadline.
    pub(crate) fn next_deadline(&self) -> u64 {
        let deadline = self.deadlines.peek();
        let deadline = deadline.map_or(u64::MAX, |Reverse((at, _))| *at);
        let timer = self.timers.first().map_or(u64::MAX, |(at, _)| *at);
        deadline.min(timer)
    }

    /// Removes the deadlines of ended calls, because most calls end long before their deadline.
    fn forget_deadlines(&mut self) {
        if self.deadlines.len() > 2 * self.calls.len() + 64 {
            let calls = &self.calls;
            self.deadlines
                .retain(|Reverse((_, id))| calls.contains_key(id));
        }
    }

    /// Whether no call has an unhandled event.
    pub(crate) fn is_idle(&self) -> bool {
        self.ready.is_empty()
    }

    fn tell(&mut self, awaited: AwaitedPart, happened: CallEvent) {
        self.ready.push((awaited, happened));
    }

    /// Whether a call still waits for this part. Must not be used while that call is being
    /// processed: it is then not in the table.
    fn is_awaited(&self, awaited: AwaitedPart) -> bool {
        let call = self.calls.get(&awaited.call);
        call.is_some_and(|call| awaited.part > call.parts.void)
    }
}

fn kind_of(request: Box<ClientRequest>) -> CallKind {
    match *request {
        ClientRequest::Acquire(AcquireRequest { deadlock, .. }) => {
            CallKind::Acquire(acquire::AcquireCall::new(request, deadlock))
        }
        ClientRequest::Release(_) => CallKind::Release(release::ReleaseCall::new(request)),
        ClientRequest::ReleaseAll { .. }
        | ClientRequest::Renew { .. }
        | ClientRequest::ForceRelease { .. }
        | ClientRequest::IsOwnerAlive { .. }
        | ClientRequest::RequestRevoke { .. }
        | ClientRequest::ListOwnerLocks { .. }
        | ClientRequest::IncrFencingToken { .. } => {
            CallKind::Owner(owner_calls::OwnerCall::new(request))
        }
        ClientRequest::ReadAuth | ClientRequest::ChangeAuth(_) => {
            CallKind::Auth(auth::AuthCall::new(request))
        }
        ClientRequest::Browse(query) => CallKind::Browse(browse::BrowseCall::new(query)),
        ClientRequest::DetectCycle { start, max_depth } => {
            CallKind::Cycle(deadlock::DetectCycleCall::detect(start, max_depth))
        }
        ClientRequest::Explain { path, mode, owner } => {
            CallKind::Cycle(deadlock::DetectCycleCall::explain(path, mode, owner))
        }
        ClientRequest::SetNamespacePolicy {
            namespace,
            algorithm,
            key,
        } => CallKind::Policy(policy::PolicyCall::new(namespace, Some(algorithm), key)),
        ClientRequest::DeleteNamespacePolicy { namespace, key } => {
            CallKind::Policy(policy::PolicyCall::new(namespace, None, key))
        }
        ClientRequest::AssertFencing { .. }
        | ClientRequest::IsBlocking { .. }
        | ClientRequest::InspectPath { .. }
        | ClientRequest::DumpLocks { .. }
        | ClientRequest::Survey { .. }
        | ClientRequest::GetNamespacePolicy { .. }
        | ClientRequest::ListNamespacePolicies { .. }
        | ClientRequest::Health
        | ClientRequest::Confirm { .. }
        | ClientRequest::SetWaitEdge { .. }
        | ClientRequest::ClearWaitEdge { .. }
        | ClientRequest::Break { .. } => CallKind::Read(group_reads::ReadCall::new(request)),
    }
}

impl Node {
    pub(crate) fn coordinator_idle(&self) -> bool {
        self.coordinator.is_idle()
    }

    /// Starts a client's call.
    pub(crate) fn call(&mut self, client: RequestId, request: Box<ClientRequest>, timeout_ms: u64) {
        if !self.has_room_for_calls(Urgency::of_request(&request)) {
            let answer = Err(Failure::Unavailable {
                why: "too many calls wait on this node: try again",
                nothing_happened: EffectCertainty::Yes,
            });
            self.answer(client, answer, Some(request));
            return;
        }
        if let Some(answer) = self.read_at_once(&request) {
            self.answer(client, Ok(answer), Some(request));
            return;
        }
        let kind = kind_of(request);
        let deadline = self.now_ms().saturating_add(timeout_ms.max(1));
        self.begin(kind, deadline, Some(client));
    }

    fn begin(&mut self, kind: CallKind, deadline: u64, client: Option<RequestId>) {
        let id = CallId(self.coordinator.next_number());
        if let Some(client) = client {
            self.coordinator.by_client.insert(client, id);
        }
        let call = ActiveCall {
            client,
            deadline,
            parts: CallParts::default(),
            kind,
        };
        if self.go_on(AwaitedPart { call: id, part: 0 }, call, CallEvent::Start) == CallFlow::On {
            self.coordinator.deadlines.push(Reverse((deadline, id)));
        }
    }

    /// Delivers an event to a call, and answers the call if it is complete.
    fn proceed(&mut self, awaited: AwaitedPart, happened: CallEvent) {
        let Some(call) = self.coordinator.calls.remove(&awaited.call) else {
            return;
        };
        // Events of void parts are dropped here, before the call sees them.
        if awaited.part > call.parts.void {
            self.go_on(awaited, call, happened);
        } else {
            self.coordinator.calls.insert(awaited.call, call);
        }
    }

    fn go_on(&mut self, told: AwaitedPart, mut call: ActiveCall, happened: CallEvent) -> CallFlow {
        let mut context = CallContext {
            id: told.call,
            deadline: call.deadline,
            told: told.part,
            parts: call.parts,
        };
        let cx = &mut context;
        let progress = match &mut call.kind {
            CallKind::Acquire(state) => self.acquire(cx, state, happened),
            CallKind::Release(state) => self.release(cx, state, happened),
            CallKind::Owner(state) => self.owner_wide(cx, state, happened),
            CallKind::Read(state) => self.read(cx, state, happened),
            CallKind::Cycle(state) => self.cycle(cx, state, happened),
            CallKind::Policy(state) => self.policy(cx, state, happened),
            CallKind::Grants(state) => self.grants(cx, state, happened),
            CallKind::Auth(state) => self.auth_call(cx, state, happened),
            CallKind::Browse(state) => self.browse(cx, state, happened),
        };
        match progress {
            CallProgress::Wait => {
                call.parts = context.parts;
                self.coordinator.calls.insert(told.call, call);
                CallFlow::On
            }
            CallProgress::Done(result) => {
                self.end(call, result);
                CallFlow::Over
            }
        }
    }

    fn end(&mut self, call: ActiveCall, result: Result<Answer, Failure>) {
        if let CallKind::Grants(state) = &call.kind {
            self.grants_ended(state);
        }
        if let Some(client) = call.client {
            self.coordinator.by_client.remove(&client);
            self.answer(client, result, call.kind.into_request());
        }
    }

    fn answer(
        &mut self,
        id: RequestId,
        answer: Result<Answer, Failure>,
        request: Option<Box<ClientRequest>>,
    ) {
        self.outputs.push(Output::Answer {
            id,
            answer,
            request,
        });
    }

    pub(crate) fn cancel(&mut self, client: RequestId) {
        if let Some(id) = self.coordinator.by_client.remove(&client) {
            self.coordinator.calls.remove(&id);
        }
    }

    /// Fires timers, and answers calls whose deadline has passed.
    pub(crate) fn coordinator_deadlines(&mut self, now_ms: u64) {
        while let Some(&(at, awaited)) = self.coordinator.timers.first()
            && at <= now_ms
        {
            self.coordinator.timers.remove(&(at, awaited));
            self.coordinator.tell(awaited, CallEvent::Timer);
        }
        while let Some(&Reverse((at, id))) = self.coordinator.deadlines.peek()
            && at <= now_ms
        {
            self.coordinator.deadlines.pop();
            if let Some(call) = self.coordinator.calls.remove(&id) {
                self.end(call, Err(Failure::DeadlineExceeded));
            }
        }
    }

    fn set_timer(&mut self, cx: &mut CallContext, in_ms: u64) {
        let at = self.now_ms() + in_ms;
        self.coordinator.timers.insert((at, cx.new_part()));
    }

    /// Submits an operation of a call. Its result arrives as [`CallEvent::Op`] for the returned
    /// part.
    fn ask(&mut self, cx: &mut CallContext, group: GroupId, op: GroupOp) -> u32 {
        let awaited = cx.new_part();
        self.submit(OpOrigin::Call(awaited), group, op, cx.deadline);
        awaited.part
    }

    fn ask_system(&mut self, cx: &mut CallContext, command: SystemCommand) -> u32 {
        let system = self.system();
        self.ask(cx, system, GroupOp::System(Box::new(command)))
    }

    /// Processes all pending call events.
    pub(crate) fn coordinator_step(&mut self) {
        let mut ready = std::mem::take(&mut self.coordinator.ready);
        for (awaited, happened) in ready.drain(..) {
            self.proceed(awaited, happened);
        }
        keep_room(ready, &mut self.coordinator.ready);
    }

    pub(crate) fn coordinator_tick(&mut self) {
        self.coordinator.ticks += 1;
        self.has_newer_forms();
        self.measure_state();
        self.coordinator.forget_deadlines();
        self.retry_parked();
        self.retry_fanouts();
        self.retry_table();
        self.retry_changes();
        if self.coordinator.ticks.is_multiple_of(10) {
            self.resend_lost();
            self.resume_changes();
            self.follow_again();
            self.activate_rules();
            self.refresh_auth();
        }
        if self.coordinator.ticks.is_multiple_of(30) {
            for node in self.peers.others(self.me.node) {
                self.announce_rules(node);
                self.announce_all(node);
            }
        }
        self.tick_transfers();
        self.tick_watches();
        self.leave_joint();
        self.hint_all_removed();
        self.ask_in_silence();
    }

    pub(crate) fn coordinator_started(&mut self) {
        for node in self.peers.others(self.me.node) {
            self.announce_rules(node);
        }
        self.system_changed();
        self.refresh_auth();
    }

    /// This node leads a group and step 1 is done: resumes everything that waited for the leader,
    /// and announces it to the peers.
    pub(crate) fn group_led(&mut self, id: GroupId) {
        let Some(group) = self.group_ref(id) else {
            return;
        };
        let term = crate::consensus::Consensus::term(&group.replica);
        let me = self.me;
        self.peers.note_leader(id, term, me);
        for node in self.peers.others(me.node) {
            self.announce(node, &[(id, term)]);
        }
        self.leader_changed(id);
        self.events_led(id);
        self.watches_led(id);
        if id == self.system() {
            self.resume_changes();
        }
        self.activate_rules_of(id);
    }

    pub(crate) fn group_not_led(&mut self, id: GroupId) {
        let me = self.me.node;
        self.peers.forget_leader(id, me);
        self.change_is_lost(id);
        self.events_not_led(id);
        self.watches_not_led(id);
    }

    pub(crate) fn leader_changed(&mut self, id: GroupId) {
        if let Some(group) = self.group_ref(id)
            && let Some(leader) = group.leader()
        {
            let term = crate::consensus::Consensus::term(&group.replica);
            self.peers.note_leader(id, term, leader);
        }
        self.unpark(id);
        self.follow_leader(id);
        self.watches_leader_changed(id);
    }

    /// Handles an item of a frame that is not a Raft message.
    pub(crate) fn receive_coordinator_item(
        &mut self,
        from: ReplicaId,
        kind: u8,
        source: &Bytes,
    ) -> DecodeResult<()> {
        let content = &mut Reader::new(source);
        match kind {
            item::FORWARD => self.receive_forward(from, content),
            item::ANSWER => self.receive_answer(from.node, content),
            item::FANOUT => self.receive_fanout(from, content),
            item::FANOUT_RESULT => self.receive_fanout_result(from.node, content),
            item::FANOUT_PAGE => self.receive_fanout_page(from.node, content),
            item::FANOUT_NEXT => self.receive_fanout_next(from, content),
            item::FANOUT_OVER => self.receive_fanout_over(from, content),
            item::FOLLOW => self.receive_follow(from.node, content),
            item::EVENTS => self.receive_events(from.node, content),
            item::WATCH => self.receive_watch(from, content),
            item::CHANGES => self.receive_changes(from.node, content),
            item::CHUNK => self.receive_chunk(from, source),
            item::CHUNK_TAKEN => self.receive_chunk_taken(from, content),
            item::REMOVED => self.receive_removed(from, content),
            item::AM_I_MEMBER => self.receive_am_i_member(from, content),
            item::IS_REPLICA_MEMBER => self.receive_am_i_member(from, content),
            item::NOT_A_MEMBER => self.receive_not_a_member(content),
            item::RULES => self.receive_rules(from.node, content),
            item::SLOW_DISK => self.receive_slow_disk(from, content),
            item::DISK => self.receive_disk(from, content),
            item::WATCH_PAGES => self.receive_watch_pages(from, content),
            item::AUTH => self.receive_auth(from, content),
            item::AUTH_TAKEN => self.receive_auth_taken(from.node, content),
            // An item of a later release.
            _ => Ok(()),
        }
    }

    pub(crate) fn coordinator_peer_up(&mut self, node: NodeId) {
        self.follow_node(node);
    }

    pub(crate) fn coordinator_peer_down(&mut self, node: NodeId) {
        self.forward_peer_down(node);
        self.fanouts_peer_down(node);
        self.events_peer_down(node);
        self.watches_peer_down(node);
    }
}

/// The call that is being processed: its id, its deadline, and the part that the current event
/// belongs to.
#[derive(Debug)]
struct CallContext {
    id: CallId,
    deadline: u64,
    told: u32,
    parts: CallParts,
}

impl CallContext {
    /// Creates a part with a number that this call has never used.
    fn new_part(&mut self) -> AwaitedPart {
        self.parts.last += 1;
        AwaitedPart {
            call: self.id,
            part: self.parts.last,
        }
    }

    /// Declares all parts started so far void.
    fn start_over(&mut self) {
        self.parts.void = self.parts.last;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::GroupEvent;
    use crate::{ClusterConfig, Limits};
    use tenure_core::policy::Algorithm;

    /// Calls end long before their deadlines; the stored deadlines must not grow with the number of
    /// ended calls.
    #[test]
    fn deadlines_of_calls_that_are_over_do_not_pile_up() {
        let node = NodeId::new(1).unwrap();
        let config = Config {
            me: ReplicaId::new(node, 1),
            cluster: ClusterConfig {
                group_count: 1,
                prefix_segments: 1,
                default_algorithm: Algorithm::RecursiveRw,
            },
            limits: Limits::default(),
            start: 1,
            seed: 1,
            nodes: vec![node],
        };
        let table = NamespaceTable::new(1, Algorithm::RecursiveRw);
        let mut coordinator = Coordinator::new(&config, table);
        for number in 0..10_000 {
            coordinator
                .deadlines
                .push(Reverse((60_000, CallId(number))));
            if number % 100 == 0 {
                coordinator.forget_deadlines();
            }
        }
        assert!(
            coordinator.deadlines.len() < 200,
            "{}",
            coordinator.deadlines.len()
        );
    }

    /// What moves with every call is small: one rare variant that is large makes all of them slow.
    #[test]
    fn what_moves_often_is_small() {
        assert!(
            size_of::<GroupOpResult>() <= 72,
            "{}",
            size_of::<GroupOpResult>()
        );
        assert!(size_of::<CallEvent>() <= 88, "{}", size_of::<CallEvent>());
        assert!(
            size_of::<CallProgress>() <= 72,
            "{}",
            size_of::<CallProgress>()
        );
        assert!(size_of::<GroupEvent>() <= 88, "{}", size_of::<GroupEvent>());
        assert!(size_of::<CallKind>() <= 224, "{}", size_of::<CallKind>());
    }
}
