//! Access control table: this node's copy, and the call that changes the table.
//!
//! ```text
//!   change ─▶ system group ─▶ table to every node ─▶ each confirms ─▶ answer, with the nodes that did not
//! ```
//!
//! Each node judges its clients by its own copy, so that a lock operation does not depend on the
//! system group. A change is answered after every reachable node has confirmed the new version:
//! from then on no node judges by the older one, and a revocation holds for every call that begins
//! after the answer. The answer names the nodes that did not confirm. Such a node may still judge
//! by its older copy until it hears from the cluster again.
//!
//! A node that has just started has no copy until it has read the table from the system group: its
//! own replica of the system group may be behind.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tenure_core::auth::{AuthCommand, AuthTable};
use tenure_core::command::Acquire;
use tenure_core::limits::Quota;
use tenure_core::system::{SystemCommand, SystemOutcome};

use super::forward::OpOrigin;
use super::{CallContext, CallEvent, CallId, CallProgress, failure_of, odd_answer};
use crate::codec::{DecodeResult, Reader, from_bytes, to_bytes};
use crate::coordinator::AwaitedPart;
use crate::group_op::{GroupOp, GroupOpResult, GroupQuery, QueryResult};
use crate::node::Node;
use crate::node::frames_item as item;
use crate::request::{Answer, ClientRequest, Failure};
use crate::{NodeId, ReplicaId};

/// How long a change waits for the confirmations of nodes that seem to be up.
const CONFIRM_MS: u64 = 3_000;
/// A node without an answer gets the table again after this time.
const RESEND_MS: u64 = 300;
/// A change that found no leader is repeated after this time.
const RETRY_MS: u64 = 100;
/// An unanswered read of the table is repeated after this time.
const READ_TIMEOUT_MS: u64 = 5_000;

/// This node's copy of the table.
#[derive(Default)]
pub(crate) struct AuthCache {
    /// `None` until it was read from the system group once.
    table: Option<Arc<AuthTable>>,
    /// Whether the driver has not got the present copy yet.
    is_new: bool,
    /// Whether a read is under way.
    asked: bool,
    /// The changes that wait for confirmations.
    spreads: BTreeMap<CallId, Spread>,
}

/// The confirmations that a change waits for.
struct Spread {
    awaited: AwaitedPart,
    version: u64,
    open: BTreeSet<NodeId>,
}

impl AuthCache {
    fn version(&self) -> Option<u64> {
        self.table.as_ref().map(|table| table.version())
    }

    /// Returns the quotas that apply to an acquire.
    pub(crate) fn quota(&self, acquire: &Acquire) -> Option<Quota> {
        let table = self.table.as_ref()?;
        table.quota(acquire.owner.as_str(), &acquire.route.namespace)
    }

    fn take(&mut self, table: AuthTable) {
        if self.version().is_none_or(|known| known < table.version()) {
            self.table = Some(Arc::new(table));
            self.is_new = true;
        }
    }

    /// Returns the copy if it has changed since the last time.
    pub(crate) fn take_news(&mut self) -> Option<Arc<AuthTable>> {
        let table = self.table.as_ref()?;
        std::mem::take(&mut self.is_new).then(|| Arc::clone(table))
    }
}

/// A read or a change of the table.
pub(super) struct AuthCall {
    request: Box<ClientRequest>,
    phase: AuthPhase,
}

enum AuthPhase {
    Start,
    Changing,
    /// Reads the table: for the client, or to send it to the other nodes.
    Reading,
    Confirming {
        version: u64,
        until: u64,
        unreachable: Vec<NodeId>,
    },
}

impl AuthCall {
    pub(super) fn new(request: Box<ClientRequest>) -> AuthCall {
        AuthCall {
            request,
            phase: AuthPhase::Start,
        }
    }

    pub(super) fn into_request(self) -> Box<ClientRequest> {
        self.request
    }

    fn change(&self) -> Option<&AuthCommand> {
        match &*self.request {
            ClientRequest::ChangeAuth(command) => Some(command),
            _ => None,
        }
    }
}

impl Node {
    pub(super) fn auth_call(
        &mut self,
        cx: &mut CallContext,
        call: &mut AuthCall,
        happened: CallEvent,
    ) -> CallProgress {
        match happened {
            CallEvent::Start | CallEvent::Table | CallEvent::Timer => match &call.phase {
                AuthPhase::Confirming { .. } => self.confirming(cx, call),
                // The change is made, and must not be made again.
                AuthPhase::Reading => self.read_auth(cx, call),
                AuthPhase::Start | AuthPhase::Changing => self.auth_start(cx, call),
            },
            // No leader, or a leader whose machine is not by rules 2 yet: nothing has changed.
            CallEvent::Op(GroupOpResult::NotHere { .. }) => {
                if matches!(call.phase, AuthPhase::Changing) {
                    call.phase = AuthPhase::Start;
                }
                self.set_timer(cx, RETRY_MS);
                CallProgress::Wait
            }
            CallEvent::Op(answer) => match failure_of(&answer) {
                Some(failure) => CallProgress::fail(failure),
                None => self.auth_answer(cx, call, answer),
            },
            CallEvent::FanoutResult(_) | CallEvent::Changed(_) => CallProgress::Wait,
        }
    }

    fn auth_start(&mut self, cx: &mut CallContext, call: &mut AuthCall) -> CallProgress {
        if !self.knows_forms() {
            self.await_table(cx, 0);
            return CallProgress::Wait;
        }
        if !self.has_newer_forms() {
            return CallProgress::fail(Failure::FailedPrecondition(
                "permissions need a newer release on every node: upgrade all nodes first"
                    .to_owned(),
            ));
        }
        match call.change() {
            Some(command) => {
                let command = SystemCommand::Auth(Box::new(command.clone()));
                call.phase = AuthPhase::Changing;
                self.ask_system(cx, command);
                CallProgress::Wait
            }
            None => self.read_auth(cx, call),
        }
    }

    fn read_auth(&mut self, cx: &mut CallContext, call: &mut AuthCall) -> CallProgress {
        call.phase = AuthPhase::Reading;
        let query = GroupQuery::Auth { known: None };
        let system = self.system();
        self.ask(cx, system, GroupOp::Read(query));
        CallProgress::Wait
    }

    fn auth_answer(
        &mut self,
        cx: &mut CallContext,
        call: &mut AuthCall,
        answer: GroupOpResult,
    ) -> CallProgress {
        match (&call.phase, answer) {
            (AuthPhase::Changing, GroupOpResult::System(SystemOutcome::Auth(result))) => {
                match result {
                    Ok(_) => self.read_auth(cx, call),
                    Err(refusal) => {
                        CallProgress::fail(Failure::FailedPrecondition(refusal.to_string()))
                    }
                }
            }
            (AuthPhase::Reading, GroupOpResult::Found(found)) => {
                let QueryResult::Auth(Some(table)) = *found else {
                    return CallProgress::fail(odd_answer());
                };
                if call.change().is_none() {
                    return CallProgress::ok(Answer::Auth(Box::new(table)));
                }
                self.spread(cx, call, table);
                self.confirming(cx, call)
            }
            _ => CallProgress::fail(odd_answer()),
        }
    }

    /// Sends the changed table to every node.
    fn spread(&mut self, cx: &mut CallContext, call: &mut AuthCall, table: AuthTable) {
        let version = table.version();
        self.coordinator.auth.take(table);
        let others = self.peers.others(self.me.node);
        let (unreachable, open) = others
            .into_iter()
            .partition::<Vec<_>, _>(|node| self.peers.is_down(*node));
        call.phase = AuthPhase::Confirming {
            version,
            until: cx.deadline.min(self.now_ms() + CONFIRM_MS),
            unreachable,
        };
        let spread = Spread {
            awaited: cx.new_part(),
            version,
            open: open.into_iter().collect(),
        };
        self.coordinator.auth.spreads.insert(cx.id, spread);
        self.send_auth(cx.id);
    }

    fn confirming(&mut self, cx: &mut CallContext, call: &mut AuthCall) -> CallProgress {
        let AuthPhase::Confirming {
            version,
            until,
            unreachable,
        } = &mut call.phase
        else {
            return CallProgress::fail(odd_answer());
        };
        let open = self.coordinator.auth.spreads.get(&cx.id);
        let is_over = open.is_none_or(|spread| spread.open.is_empty());
        let now_ms = self.turn.now_ms;
        // One tick before the deadline of the call: the answer must still reach the client.
        if is_over || now_ms + RESEND_MS >= *until {
            let open = self.coordinator.auth.spreads.remove(&cx.id);
            unreachable.extend(open.into_iter().flat_map(|spread| spread.open));
            unreachable.sort_unstable();
            return CallProgress::ok(Answer::AuthChanged {
                version: *version,
                unconfirmed: std::mem::take(unreachable),
            });
        }
        self.send_auth(cx.id);
        self.set_timer(cx, RESEND_MS);
        CallProgress::Wait
    }

    fn send_auth(&mut self, call: CallId) {
        let Some(spread) = self.coordinator.auth.spreads.get(&call) else {
            return;
        };
        let Some(table) = self.coordinator.auth.table.clone() else {
            return;
        };
        let open: Vec<NodeId> = spread.open.iter().copied().collect();
        let bytes = to_bytes(&*table);
        for node in open {
            self.frames().say(node, item::AUTH, |out| {
                out.number(call.0);
                out.slice(&bytes);
            });
        }
    }

    /// Takes a table from the node that changed it, and confirms.
    pub(crate) fn receive_auth(
        &mut self,
        from: ReplicaId,
        content: &mut Reader<'_>,
    ) -> DecodeResult<()> {
        let call = content.number()?;
        let table: AuthTable = from_bytes(content.slice()?)?;
        content.finish()?;
        let version = table.version();
        // The driver gets the table as an output of this step, before the confirmation leaves.
        self.coordinator.auth.take(table);
        self.frames().say(from.node, item::AUTH_TAKEN, |out| {
            out.number(u64::from(from.incarnation));
            out.number(call);
            out.number(version);
        });
        Ok(())
    }

    pub(crate) fn receive_auth_taken(
        &mut self,
        from: NodeId,
        content: &mut Reader<'_>,
    ) -> DecodeResult<()> {
        let incarnation = content.number()?;
        let call = CallId(content.number()?);
        let version = content.number()?;
        content.finish()?;
        if incarnation != u64::from(self.me.incarnation) {
            return Ok(());
        }
        if let Some(spread) = self.coordinator.auth.spreads.get_mut(&call)
            && version >= spread.version
            && spread.open.remove(&from)
            && spread.open.is_empty()
        {
            let awaited = spread.awaited;
            self.coordinator.tell(awaited, CallEvent::Timer);
        }
        Ok(())
    }

    /// Takes the table of the system group's replica on this node. A node that has just started
    /// reads it from the leader first.
    pub(crate) fn auth_applied(&mut self) {
        let Some(known) = self.coordinator.auth.version() else {
            return;
        };
        let system = self.system();
        let Some(group) = self.group_ref(system) else {
            return;
        };
        if let Some(machine) = group.machine.system()
            && machine.auth().version() > known
        {
            let table = machine.auth().clone();
            self.coordinator.auth.take(table);
        }
    }

    /// Reads the table where nothing else brings it: on a node that has just started, or that has
    /// no replica of the system group.
    pub(crate) fn refresh_auth(&mut self) {
        // A call that ended early, for example at its deadline, leaves its entry behind.
        let calls = &self.coordinator.calls;
        let spreads = &mut self.coordinator.auth.spreads;
        spreads.retain(|call, _| calls.contains_key(call));
        let known = self.coordinator.auth.version();
        let is_replicated = self.group_ref(self.system()).is_some();
        if self.coordinator.auth.asked || (known.is_some() && is_replicated) {
            return;
        }
        if !self.knows_forms() || !self.has_newer_forms() {
            return;
        }
        self.coordinator.auth.asked = true;
        let (system, expires) = (self.system(), self.now_ms() + READ_TIMEOUT_MS);
        let query = GroupQuery::Auth { known };
        self.submit(OpOrigin::Auth, system, GroupOp::Read(query), expires);
    }

    pub(crate) fn auth_read(&mut self, answer: GroupOpResult) {
        self.coordinator.auth.asked = false;
        if let GroupOpResult::Found(found) = answer
            && let QueryResult::Auth(Some(table)) = *found
        {
            self.coordinator.auth.take(table);
        }
    }
}
