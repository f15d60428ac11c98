//! RPC table: one row for each RPC of `pathlockd.v1.PathLock`; all transports are derived from it.
//!
//! ```text
//!   gRPC message ──┐                                                ┌──▶ gRPC message
//!   JSON body ─────┼─parse─▶ ValidCall ─▶ node ─▶ Outcome ─respond──┼──▶ JSON body
//!   Session op ────┘                                                └──▶ Session result
//! ```
//!
//! To add an RPC: its lines in the proto file, one row here, and a pair of pure functions in
//! `handlers/`. The first validates the message and makes the node's request of it, the second
//! makes the response message of the node's answer. gRPC, JSON, Session, OpenAPI, telemetry and the
//! audit log read the row.

use std::time::Duration;

use bytes::Bytes;
use prost::{DecodeError, Message};
use serde::Serialize;
use tenure_cluster::Handle;
use tenure_core::auth::Verb;
use tenure_node::{Answer, ClientRequest};
use tenure_wire::json::JsonObject;
use tenure_wire::v1;
use tenure_wire::v1::session_request::Op;
use tenure_wire::v1::session_response::Result as OpResult;

use crate::audit::{Audit, AuditRecord};
use crate::auth::{self, Caller};
use crate::handlers::{
    HEALTH_TIMEOUT, acquire, admin_release, browse, deadlock, done, explain, fence, inspect,
    internal, policy, release, renew,
};
use crate::status::Failure;
use crate::transport::framing;

/// Whether an RPC changes state. Only RPCs that do not may run in early data (0-RTT) of HTTP/3,
/// because early data can be replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The RPC changes nothing.
    Reads,
    /// The RPC may change state.
    Writes,
}

/// Size class of an RPC's response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// A few fields.
    Short,
    /// A list. The number of unread long responses per connection is limited.
    Long,
}

/// A call of any transport whose message is decoded and validated.
#[derive(Debug)]
pub(crate) struct ValidCall {
    /// Boxed where it is made: the node takes a box, and on its way there a call is moved often.
    pub(crate) request: Box<ClientRequest>,
    pub(crate) facts: Facts,
}

impl From<ClientRequest> for ValidCall {
    fn from(request: ClientRequest) -> ValidCall {
        ValidCall {
            request: Box::new(request),
            facts: Facts::default(),
        }
    }
}

/// The validated call, or the failure that names the rule the message breaks.
pub(crate) type Checked = Result<ValidCall, Failure>;

/// The parts of a request that are needed again when the node has answered.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    /// The prefix of a list, and whether only exactly it is wanted. Boxed as `audit` is.
    pub(crate) list: Option<Box<(String, bool)>>,
    /// Whether the client knows the mode READ_TREE (E6 shared lock on a subtree).
    pub(crate) read_tree: bool,
    /// Boxed because few calls are audited, and every call in flight has room for it.
    pub(crate) audit: Option<Box<AuditRecord>>,
}

/// A finished call: the input from which the response message is made.
pub(crate) struct Outcome<'a> {
    pub(crate) answer: Result<Answer, Failure>,
    pub(crate) facts: Facts,
    /// Who gets the answer: it shows only what this caller may observe. Borrowed, because all
    /// connections of a principal share one counter of references, and counting it for every call
    /// costs the processors more than all of the permission check.
    pub(crate) caller: &'a Caller,
    pub(crate) node: &'a Handle,
}

impl<'a> Outcome<'a> {
    /// Splits the answer from the caller that gets it.
    pub(crate) fn open(self) -> Result<(Answer, &'a Caller), Failure> {
        Ok((self.answer?, self.caller))
    }
}

/// One row of the table: an RPC.
#[derive(Debug)]
pub struct Row {
    /// The RPC of this row.
    pub rpc: Rpc,
    /// The permission that it needs. An operation of a session needs the permission of its own row.
    pub verb: Verb,
    /// How it is called. `None` for streaming RPCs.
    pub unary: Option<Unary>,
}

/// An RPC with one request and one response.
#[derive(Debug)]
pub struct Unary {
    /// The RPC.
    pub rpc: Rpc,
    /// Its URL for JSON over HTTP.
    pub url: &'static str,
    /// Whether it may run in early data.
    pub effect: Effect,
    /// Size class of its response.
    pub length: Length,
    /// Whether calls are written to the audit log, and at which level.
    pub audit: Audit,
    /// Its request and response messages, as the proto file names them.
    pub messages: (&'static str, &'static str),
    /// Decodes and validates a protobuf message.
    pub(crate) parse: fn(&Caller, &[u8]) -> Result<Checked, DecodeError>,
    /// Decodes and validates a JSON body.
    pub(crate) parse_json: fn(&Caller, &[u8]) -> serde_json::Result<Checked>,
    /// Encodes the answer as a gRPC message with its length prefix.
    pub(crate) respond: fn(Outcome<'_>) -> Result<Bytes, Failure>,
    /// Encodes the answer as a JSON body.
    pub(crate) respond_json: fn(Outcome<'_>) -> Result<Vec<u8>, Failure>,
}

impl Unary {
    /// Returns the time limit of the node for a call whose caller allows `left`.
    pub(crate) fn timeout(&self, left: Duration) -> Duration {
        match self.rpc {
            Rpc::Health => left.min(HEALTH_TIMEOUT),
            _ => left,
        }
    }
}

/// Validates a message, judges whether the caller may make this call, and gives its audit record the
/// level of the row.
fn check<M, A: Into<ValidCall>>(
    caller: &Caller,
    name: &'static str,
    verb: Verb,
    audit: Audit,
    parse: impl FnOnce(&Caller, M) -> Result<A, Failure>,
    message: M,
) -> Checked {
    let mut asked = match parse(caller, message) {
        Ok(asked) => asked.into(),
        // Parsing refuses owner ids of other principals.
        Err(refused) => {
            caller.record_denied(name, &refused);
            return Err(refused);
        }
    };
    let mut audit = audit;
    if asked.facts.audit.is_none()
        && let Some((owner, action)) = auth::acts_as_another(caller, &asked.request)
    {
        audit = Audit::Warn;
        let record = AuditRecord::new(action, owner.as_str().to_owned());
        asked.facts.audit = Some(Box::new(record));
    }
    if let Some(record) = &mut asked.facts.audit {
        record.audit = audit;
        record.caller = Some(caller.clone());
    }
    let mut judged = auth::judge(caller, verb, &asked.request);
    if audit == Audit::Warn && judged.is_ok() {
        judged = caller.recordable();
    }
    if judged.is_ok() {
        judged = auth::take_call(caller, &asked.request);
    }
    if let Err(denied) = judged {
        match asked.facts.audit {
            Some(record) => (*record).end::<()>(&Err(denied.clone())),
            None => caller.record_denied(name, &denied),
        }
        return Err(denied);
    }
    Ok(asked)
}

/// Makes the response message and writes the audit record of the call, if it has one.
fn finish<M>(
    respond: impl FnOnce(Outcome<'_>) -> Result<M, Failure>,
    mut outcome: Outcome<'_>,
) -> Result<M, Failure> {
    let record = outcome.facts.audit.take();
    if let Err(failure) = &outcome.answer
        && let Some(limit) = failure.quota
    {
        outcome.caller.limits().count_refusal(limit);
    }
    let result = respond(outcome);
    if let Some(record) = record {
        (*record).end(&result);
    }
    result
}

fn to_json(message: &impl Serialize) -> Result<Vec<u8>, Failure> {
    serde_json::to_vec(message).map_err(|error| internal(&error))
}

/// A message of a session, whose large variants are in a box.
trait Unboxed<M> {
    fn unboxed(self) -> M;
}

impl<M> Unboxed<M> for M {
    fn unboxed(self) -> M {
        self
    }
}

impl<M> Unboxed<M> for Box<M> {
    fn unboxed(self) -> M {
        *self
    }
}

macro_rules! rpcs {
    ($(
        $name:ident $verb:ident $(
            $url:literal $effect:ident $length:ident $audit:ident
            $request:ident $parse:path => $response:ident $respond:path $(, in session as $op:ident)?
        )?
    ;)+) => {
        /// The RPCs of the service.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs, reason = "the proto file documents them")]
        pub enum Rpc { $($name),+ }

        impl Rpc {
            /// All RPCs, in the order of the proto file.
            pub const ALL: &[Rpc] = &[$(Rpc::$name),+];

            /// Returns the name in the proto file.
            pub fn name(self) -> &'static str {
                match self { $(Rpc::$name => stringify!($name)),+ }
            }

            /// Returns service and name, used as the name of a span.
            pub fn full_name(self) -> &'static str {
                match self { $(Rpc::$name => concat!("pathlockd.v1.PathLock/", stringify!($name))),+ }
            }

            /// Returns the RPC of this name in the proto file.
            pub(crate) fn named(name: &str) -> Option<Rpc> {
                match name { $(stringify!($name) => Some(Rpc::$name),)+ _ => None }
            }

            /// Returns the row of this RPC.
            pub fn row(self) -> &'static Row {
                match self { $(Rpc::$name => {
                    static ROW: Row = Row {
                        rpc: Rpc::$name,
                        verb: Verb::$verb,
                        unary: rpcs!(@unary $name $verb $(
                            $url $effect $length $audit $request $parse => $response $respond
                        )?),
                    };
                    &ROW
                }),+ }
            }
        }

        /// Validates an operation of a session; also returns its RPC.
        pub(crate) fn parse_operation(caller: &Caller, op: Op) -> (Rpc, Checked) {
            match op {
                $($($(Op::$op(message) => (
                    Rpc::$name,
                    check::<v1::$request, _>(
                        caller, stringify!($name), Verb::$verb, Audit::$audit, $parse,
                        message.unboxed(),
                    ),
                ),)?)?)+
            }
        }

        /// Makes the result of an operation of a session.
        pub(crate) fn respond_operation(rpc: Rpc, outcome: Outcome<'_>) -> Result<OpResult, Failure> {
            match rpc {
                $($($(Rpc::$name => {
                    finish($respond, outcome).map(|message: v1::$response| OpResult::$op(message.into()))
                })?)?)+
                _ => Err(internal(&"no operation of a session")),
            }
        }
    };
    (@unary $name:ident $verb:ident) => { None };
    (@unary $name:ident $verb:ident $url:literal $effect:ident $length:ident $audit:ident
        $request:ident $parse:path => $response:ident $respond:path) => {
        Some(Unary {
            rpc: Rpc::$name,
            url: $url,
            effect: Effect::$effect,
            length: Length::$length,
            audit: Audit::$audit,
            messages: (stringify!($request), stringify!($response)),
            parse: |caller, bytes| {
                let message = v1::$request::decode(bytes)?;
                Ok(check(caller, stringify!($name), Verb::$verb, Audit::$audit, $parse, message))
            },
            parse_json: |caller, bytes| {
                let message: JsonObject<v1::$request> = serde_json::from_slice(bytes)?;
                Ok(check(caller, stringify!($name), Verb::$verb, Audit::$audit, $parse, message.0))
            },
            respond: |outcome| {
                let message: v1::$response = finish($respond, outcome)?;
                Ok(framing::encode(&message))
            },
            respond_json: |outcome| {
                let message: v1::$response = finish($respond, outcome)?;
                to_json(&message)
            },
        })
    };
}

rpcs! {
    Acquire Lock "/v1/acquire" Writes Short No
        AcquireRequest acquire::acquire => AcquireResponse acquire::acquired, in session as Acquire;
    SetNamespacePolicy Policy "/v1/setNamespacePolicy" Writes Short Warn
        SetNamespacePolicyRequest policy::set => SetNamespacePolicyResponse done;
    GetNamespacePolicy Observe "/v1/getNamespacePolicy" Reads Short No
        GetNamespacePolicyRequest policy::get => GetNamespacePolicyResponse policy::got;
    DeleteNamespacePolicy Policy "/v1/deleteNamespacePolicy" Writes Short Warn
        DeleteNamespacePolicyRequest policy::delete => DeleteNamespacePolicyResponse done;
    AcquireStream Lock;
    Release Share "/v1/release" Writes Short No
        ReleaseLocksRequest release::release => ReleaseResponse done, in session as Release;
    ReleaseAll Share "/v1/releaseAll" Writes Short No
        ReleaseAllRequest release::release_all => ReleaseResponse done, in session as ReleaseAll;
    Renew Share "/v1/renew" Writes Short No
        RenewRequest renew::renew => RenewResponse renew::renewed, in session as Renew;
    ForceRelease Break "/v1/forceRelease" Writes Short Warn
        ForceReleaseRequest admin_release::force_release => ForceReleaseResponse done;
    AssertFencing Observe "/v1/assertFencing" Reads Short No
        AssertFencingRequest fence::assert_fencing => AssertFencingResponse fence::asserted,
        in session as AssertFencing;
    DetectCycle Observe "/v1/detectCycle" Reads Short No
        DetectCycleRequest deadlock::detect_cycle => DetectCycleResponse deadlock::detected;
    IsBlocking Observe "/v1/isBlocking" Reads Short No
        IsBlockingRequest deadlock::is_blocking => IsBlockingResponse deadlock::blocking;
    IncrFencingToken Fence "/v1/incrFencingToken" Writes Short No
        IncrFencingTokenRequest fence::incr_fencing_token => IncrFencingTokenResponse fence::incremented;
    SetWaitEdge Share "/v1/setWaitEdge" Writes Short No
        SetWaitEdgeRequest deadlock::set_wait_edge => SetWaitEdgeResponse done;
    ClearWaitEdge Share "/v1/clearWaitEdge" Writes Short No
        ClearWaitEdgeRequest deadlock::clear_wait_edge => ClearWaitEdgeResponse done;
    IsOwnerAlive Observe "/v1/isOwnerAlive" Reads Short No
        IsOwnerAliveRequest renew::is_owner_alive => IsOwnerAliveResponse renew::alive;
    RequestRevoke Ask "/v1/requestRevoke" Writes Short Info
        RequestRevokeRequest admin_release::request_revoke => RequestRevokeResponse done;
    InspectPath Observe "/v1/inspectPath" Reads Short No
        InspectPathRequest inspect::inspect_path => InspectPathResponse inspect::inspected;
    ListOwnerLocks Observe "/v1/listOwnerLocks" Reads Long No
        ListOwnerLocksRequest inspect::list_owner_locks => ListOwnerLocksResponse inspect::listed;
    DumpLocks Observe "/v1/dumpLocks" Reads Long No
        DumpLocksRequest inspect::dump_locks => DumpLocksResponse inspect::dumped;
    Subscribe Observe;
    Health Status "/v1/health" Reads Short No
        HealthRequest inspect::health => HealthResponse inspect::healthy;
    Explain Observe "/v1/explain" Reads Long No
        ExplainRequest explain::explain => ExplainResponse explain::explained;
    Watch Observe;
    Break Break "/v1/break" Writes Short Warn
        BreakRequest admin_release::break_hold => BreakResponse admin_release::broken;
    Session Observe;
    ListNamespacePolicies Observe "/v1/listNamespacePolicies" Reads Long No
        ListNamespacePoliciesRequest policy::list => ListNamespacePoliciesResponse policy::listed;
    ListChildren Observe "/v1/listChildren" Reads Long No
        ListChildrenRequest browse::children => ListChildrenResponse browse::children_listed;
    ListWaits Observe "/v1/listWaits" Reads Long No
        ListWaitsRequest browse::waits => ListWaitsResponse browse::waits_listed;
    History Observe "/v1/history" Reads Long No
        HistoryRequest browse::history => HistoryResponse browse::history_listed;
}

impl Rpc {
    /// Iterates over the RPCs with one request and one response.
    pub fn unary() -> impl Iterator<Item = &'static Unary> {
        Rpc::ALL.iter().filter_map(|rpc| rpc.row().unary.as_ref())
    }

    /// Returns the RPC of a URL.
    pub(crate) fn at(url: &str) -> Option<&'static Unary> {
        Rpc::unary().find(|unary| unary.url == url)
    }
}

#[cfg(test)]
mod tests {
    use prost_types::FileDescriptorSet;

    use super::*;

    /// The table and the proto file agree on every RPC: name, order, messages, streaming.
    #[test]
    fn every_rpc_of_the_proto_file_has_its_row() {
        let set = FileDescriptorSet::decode(tenure_wire::DESCRIPTORS).unwrap();
        let declared = set.file[0].service[0].method.iter().map(|method| {
            let message = |name: &str| name.rsplit('.').next().unwrap().to_owned();
            let is_unary = !method.client_streaming() && !method.server_streaming();
            let messages = (message(method.input_type()), message(method.output_type()));
            (method.name().to_owned(), is_unary.then_some(messages))
        });
        let rows = Rpc::ALL.iter().map(|rpc| {
            let unary = rpc.row().unary.as_ref();
            let messages = unary.map(|unary| unary.messages);
            let messages = messages.map(|(one, other)| (one.to_owned(), other.to_owned()));
            (rpc.name().to_owned(), messages)
        });
        assert_eq!(rows.collect::<Vec<_>>(), declared.collect::<Vec<_>>());
    }

    /// A row is found by its RPC, its name and its URL, and the URL is made of the name.
    #[test]
    fn a_row_is_found_by_every_name_of_its_rpc() {
        for rpc in Rpc::ALL {
            assert_eq!(rpc.row().rpc, *rpc);
            assert_eq!(Rpc::named(rpc.name()), Some(*rpc));
            let Some(unary) = &rpc.row().unary else {
                continue;
            };
            assert_eq!(unary.rpc, *rpc);
            assert_eq!(Rpc::at(unary.url).map(|found| found.rpc), Some(*rpc));
            let name = unary.url.strip_prefix("/v1/").unwrap();
            assert!(name.eq_ignore_ascii_case(rpc.name()), "{name}");
        }
        assert_eq!(Rpc::named("acquire"), None);
    }

    /// Observing verbs change nothing, and every RPC that affects the hold of another owner is
    /// audited.
    #[test]
    fn every_row_names_the_verb_that_fits_its_effect() {
        for unary in Rpc::unary() {
            let verb = unary.rpc.row().verb;
            let looks = matches!(verb, Verb::Observe | Verb::Status);
            assert_eq!(looks, unary.effect == Effect::Reads, "{:?}", unary.rpc);
            // A policy change ends holds.
            let acts_on_others = matches!(verb, Verb::Ask | Verb::Break | Verb::Policy);
            assert_eq!(acts_on_others, unary.audit != Audit::No, "{:?}", unary.rpc);
        }
        assert_eq!(Rpc::AcquireStream.row().verb, Verb::Lock);
        for rpc in [Rpc::Subscribe, Rpc::Watch, Rpc::Session] {
            assert_eq!(rpc.row().verb, Verb::Observe);
        }
    }

    /// An audited RPC makes an audit record, and its level is the one in the row.
    #[test]
    fn an_audited_row_makes_a_record() {
        let asked = [
            (
                Rpc::SetNamespacePolicy,
                r#"{"namespace": "t:/a", "algorithm": "LOCK_ALGORITHM_SEMAPHORE"}"#,
            ),
            (Rpc::DeleteNamespacePolicy, r#"{"namespace": "t:/a"}"#),
            (Rpc::ForceRelease, r#"{"victimId": "amy"}"#),
            (Rpc::RequestRevoke, r#"{"ownerId": "amy"}"#),
            (
                Rpc::Break,
                r#"{"path": "t:/a", "ownerId": "amy", "fence": 7}"#,
            ),
        ];
        let audited = Rpc::unary().filter(|unary| unary.audit != Audit::No);
        let audited: Vec<Rpc> = audited.map(|unary| unary.rpc).collect();
        assert_eq!(audited, asked.map(|(rpc, _)| rpc));
        for (rpc, body) in asked {
            let unary = rpc.row().unary.as_ref().unwrap();
            let asked = (unary.parse_json)(&Caller::local(), body.as_bytes())
                .unwrap()
                .unwrap();
            let record = asked.facts.audit.unwrap();
            assert_eq!(record.audit, unary.audit);
            match &record.namespace {
                Some(namespace) => assert_eq!(namespace, "t:/a"),
                None => assert_eq!(record.victim, "amy"),
            }
        }
    }

    /// A message means the same in both of its encodings.
    #[test]
    fn both_encodings_of_a_message_ask_the_same() {
        let renew = Rpc::Renew.row().unary.as_ref().unwrap();
        let message = v1::RenewRequest {
            owner_id: "amy".to_owned(),
            ttl_ms: 1000,
            ..Default::default()
        };
        let body = serde_json::to_vec(&message).unwrap();
        let one = (renew.parse)(&Caller::local(), &message.encode_to_vec()).unwrap();
        let other = (renew.parse_json)(&Caller::local(), &body).unwrap();
        assert_eq!(format!("{one:?}"), format!("{other:?}"));
        assert!(one.is_ok());
        assert!((renew.parse)(&Caller::local(), &[0xff]).is_err());
        assert!((renew.parse_json)(&Caller::local(), b"[]").is_err());
        assert!(
            (renew.parse)(&Caller::local(), &[]).unwrap().is_err(),
            "an owner is wanted"
        );
    }
}
