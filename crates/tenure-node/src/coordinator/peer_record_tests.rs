//! Round-trip tests of the messages between nodes; no input makes a decoder panic.

use std::num::NonZeroU32;

use tenure_core::command::{Command, Expire, Hold, ReleaseCause, RenewLease, Route};
use tenure_core::deadlock::WaitPosition;
use tenure_core::event::{ChangeKind, Event, EventKind, LockChange};
use tenure_core::namespace_table::{AffectedGroups, NamespaceTable};
use tenure_core::outcome::{AcquireOutcome, Blocker, Conflict, Outcome, Renewed};
use tenure_core::path::{Namespace, Path};
use tenure_core::policy::{Algorithm, BlockReason, Missing, Mode, Reason};
use tenure_core::query::{
    DumpCursor, DumpPage, Explanation, FenceCheck, HeldLock, HoldView, Inspection, SurveyPage,
    WaiterView, WaitsFor,
};
use tenure_core::system::{
    AfterChange, ChangeEnd, ChangeView, Edge, KeyClaim, KeyWork, RepeatedKey, SystemCall,
    SystemCommand, SystemOutcome,
};
use tenure_core::value::{Fence, Holder, Key, OwnerId, Ttl};
use xxhash_rust::xxh3::xxh3_64;

use super::fanout::{Fanout, FanoutOp, FanoutResult};
use super::watch::{WatchMessage, WatchMessageKind};
use crate::codec::{from_bytes, to_bytes};
use crate::group_op::{GroupOp, GroupOpResult, GroupQuery, QueryResult};
use crate::group_set::GroupSet;
use crate::{GroupId, NodeId, ReplicaId};
use tenure_random::SplitMix64;

fn owner(name: &str) -> OwnerId {
    OwnerId::new(name).unwrap()
}

fn path() -> Path {
    Path::parse("t:/a/b").unwrap()
}

fn ns() -> Namespace {
    Namespace::parse("t:/a").unwrap()
}

fn fence() -> Fence {
    Fence::from_number(300).unwrap()
}

fn route() -> Route {
    Route {
        namespace: ns(),
        algorithm: Algorithm::PointRw,
        version: 4,
    }
}

fn queries() -> Vec<GroupQuery> {
    vec![
        GroupQuery::Assert {
            owner: owner("amy"),
            fence: fence(),
            paths: vec![(route(), path())],
        },
        GroupQuery::Inspect {
            route: route(),
            path: path(),
        },
        GroupQuery::Blocking {
            route: route(),
            owner: owner("amy"),
            path: path(),
            reason: BlockReason::Queued,
        },
        GroupQuery::Explain {
            route: route(),
            owner: owner("amy"),
            path: path(),
            mode: Mode::ReadTree,
        },
        GroupQuery::Dump {
            after: Some(DumpCursor(7)),
            page: 9,
        },
        GroupQuery::Edge {
            owner: owner("amy"),
        },
        GroupQuery::Table { known: Some(3) },
        GroupQuery::Policy { namespace: ns() },
        GroupQuery::Policies {
            after: Some(ns()),
            page: 5,
        },
        GroupQuery::Nothing,
        GroupQuery::Born {
            namespace: ns(),
            owner: owner("amy"),
        },
        GroupQuery::Change { change: 12 },
        GroupQuery::Claimed {
            claim: Box::new(KeyClaim {
                call: SystemCall::Release,
                key: Key::new("k1").unwrap().unwrap(),
                fingerprint: 1 << 90,
            }),
        },
        GroupQuery::Ended { change: 12 },
        GroupQuery::Auth { known: Some(4) },
        GroupQuery::Survey {
            below: Some(path()),
            after: Some(DumpCursor(7)),
            page: 9,
        },
    ]
}

fn ops() -> Vec<GroupOp> {
    let mut ops: Vec<GroupOp> = queries().into_iter().map(GroupOp::Read).collect();
    ops.push(GroupOp::Command(Command::Expire(Expire {
        namespace: ns(),
        owner: owner("amy"),
        epoch: 77,
    })));
    ops.push(GroupOp::System(Box::new(SystemCommand::Finish {
        change: 3,
    })));
    ops.push(GroupOp::Renew(RenewLease {
        namespace: ns(),
        owner: owner("amy"),
        ttl: Ttl::from_millis(5).unwrap(),
    }));
    ops
}

fn blocker() -> Blocker {
    Blocker {
        owner: owner("bob"),
        path: path(),
        mode: Mode::Write,
        fence: Some(fence()),
        held_ms: 12,
        holder: None,
    }
}

fn findings() -> Vec<QueryResult> {
    let conflict = Conflict {
        reason: Reason::WriteLocked,
        path: path(),
        blocker: Some(blocker()),
    };
    let lock = HeldLock {
        owner: owner("amy"),
        namespace: ns(),
        path: path(),
        mode: Mode::Write,
        fence: Some(fence()),
    };
    vec![
        QueryResult::Assert(None),
        QueryResult::Auth(Some(tenure_core::auth::AuthTable::default())),
        QueryResult::Claimed {
            rules: 2,
            before: Some(RepeatedKey::Open),
            work: Some(KeyWork::Change(7)),
        },
        QueryResult::Ended(Some(ChangeEnd::Refused {
            live: (path(), owner("amy")),
        })),
        QueryResult::Assert(Some((3, FenceCheck::StaleFence { current: fence() }))),
        QueryResult::Inspect(Inspection {
            writer: Some(owner("amy")),
            readers: vec![owner("bob")],
            permit_holders: Vec::new(),
            fence: Some(fence()),
            waiters: 2,
        }),
        QueryResult::Blocking(true),
        QueryResult::Explain {
            explanation: Explanation {
                namespace: ns(),
                algorithm: Algorithm::Semaphore,
                conflict: Some(conflict),
                blockers: vec![blocker()],
                ahead: vec![WaiterView {
                    waiter: 4,
                    owner: owner("cid"),
                    path: path(),
                    mode: Mode::Read,
                    waited_ms: 9,
                    holder: None,
                }],
                position: 2,
            },
            left: vec![None, Some(8)],
        },
        QueryResult::Survey(SurveyPage {
            holds: vec![HoldView {
                lock: lock.clone(),
                held_ms: Some(3),
                left_ms: Some(4),
                holder: None,
                permits: NonZeroU32::new(3),
            }],
            waiters: Some(Vec::new()),
            next: None,
        }),
        QueryResult::Dump(DumpPage {
            locks: vec![lock],
            next: Some(DumpCursor(1)),
        }),
        QueryResult::Edge(Some(Edge {
            blocker: owner("bob"),
            why: Some((path(), BlockReason::ReadLocked)),
        })),
        QueryResult::Table(Some(NamespaceTable::restore(
            1,
            Algorithm::RecursiveRw,
            9,
            [(ns(), Algorithm::PointWrite)],
        ))),
        QueryResult::Table(None),
        QueryResult::Policy {
            algorithm: Algorithm::PointRw,
            explicit: true,
        },
        QueryResult::Policies {
            rows: vec![(ns(), Algorithm::PointRw)],
            done: false,
        },
        QueryResult::Born(Some(4)),
        QueryResult::Outdated { version: 8 },
        QueryResult::Nothing,
        QueryResult::Change(None),
        QueryResult::Change(Some(ChangeView {
            change: 1,
            region: tenure_core::command::Region {
                root: ns(),
                except: Vec::new(),
            },
            reach: AffectedGroups::AllGroups,
            command: Command::Tick,
            then: AfterChange::FinishRefused {
                live: (path(), owner("amy")),
            },
        })),
    ]
}

fn answers() -> Vec<GroupOpResult> {
    let mut answers: Vec<GroupOpResult> = findings()
        .into_iter()
        .map(|found| GroupOpResult::Found(Box::new(found)))
        .collect();
    answers.extend([
        GroupOpResult::Applied {
            outcome: Outcome::Acquire(AcquireOutcome::Granted {
                fence: Some(fence()),
            }),
            lease_left_ms: Some(5),
        },
        GroupOpResult::System(SystemOutcome::Done),
        GroupOpResult::Renewed(Ok(Renewed {
            asked: true,
            born: 6,
        })),
        GroupOpResult::Renewed(Err(Missing::OwnerSet)),
        GroupOpResult::NotHere {
            leader: Some(ReplicaId::new(NodeId::new(3).unwrap(), 9)),
        },
        GroupOpResult::Busy,
        GroupOpResult::Unknown,
        GroupOpResult::TooLong,
        GroupOpResult::StateFull,
    ]);
    answers
}

fn hold() -> Hold {
    Hold {
        path: Path::parse("t:/a/b").unwrap(),
        mode: Mode::Read,
    }
}

fn fanout_result() -> FanoutResult {
    FanoutResult {
        groups: [GroupId(1), GroupId(300)].into_iter().collect(),
        renewed: vec![(ns(), 8)],
        asked: true,
        alive: true,
        browsed: None,
        locks: Vec::new(),
        edges: vec![(
            owner("amy"),
            WaitsFor {
                place: WaitPosition {
                    namespace: ns(),
                    waiter: 8,
                },
                owners: vec![owner("bob")],
            },
        )],
        grants: vec![Event {
            sequence: 1,
            id: 2,
            owner: owner("amy"),
            namespace: Some(ns()),
            kind: EventKind::Grant {
                fence: Some(fence()),
            },
        }],
        highest: Some(fence()),
        unknown: false,
        planned: vec![(3, 8), (300, 9)],
        released: vec![hold()],
        too_long: false,
    }
}

fn fanouts() -> Vec<Fanout> {
    [
        FanoutOp::Renew(Ttl::from_millis(9).unwrap()),
        FanoutOp::ReleaseAll(ReleaseCause::Owner),
        FanoutOp::ReleaseAll(ReleaseCause::Killed),
        FanoutOp::Ask,
        FanoutOp::Alive,
        FanoutOp::List,
        FanoutOp::WaitsFor {
            owners: vec![owner("amy")],
        },
        FanoutOp::Grants,
        FanoutOp::Highest,
        FanoutOp::Plan,
        FanoutOp::Released {
            key: Key::new("k1").unwrap().unwrap(),
            fingerprint: 1 << 100,
            holds: vec![hold()],
        },
    ]
    .map(|what| Fanout::about(owner("amy"), what))
    .into()
}

fn word() -> WatchMessage {
    WatchMessage {
        number: 4,
        group: GroupId(3),
        term: 4,
        count: 9,
        kind: WatchMessageKind::Changed,
        changes: vec![LockChange {
            namespace: ns(),
            kind: ChangeKind::Policy {
                algorithm: Algorithm::PointRw,
            },
            owner: None,
            path: Some(path()),
            mode: Some(Mode::Read),
            fence: None,
            holder: Some(Holder::default()),
        }],
    }
}

/// Encodings of all of them.
fn samples() -> Vec<Vec<u8>> {
    let mut samples: Vec<Vec<u8>> = ops().iter().map(to_bytes).collect();
    samples.extend(answers().iter().map(to_bytes));
    samples.push(to_bytes(&fanout_result()));
    samples.push(to_bytes(&FanoutResult::default()));
    samples.push(to_bytes(&word()));
    samples.push(to_bytes(&fanout_result().grants));
    for fanout in fanouts() {
        samples.push(to_bytes(&(fanout, GroupSet::from_iter([GroupId(5)]))));
    }
    samples
}

#[test]
fn everything_between_nodes_is_read_back() {
    for op in ops() {
        assert_eq!(from_bytes(&to_bytes(&op)), Ok(op));
    }
    for answer in answers() {
        assert_eq!(from_bytes(&to_bytes(&answer)), Ok(answer));
    }
    let groups: GroupSet = [GroupId(0), GroupId(256)].into_iter().collect();
    for fanout in fanouts() {
        let sent = (fanout, groups.clone());
        assert_eq!(from_bytes(&to_bytes(&sent)), Ok(sent));
    }
    for result in [fanout_result(), FanoutResult::default()] {
        assert_eq!(from_bytes(&to_bytes(&result)), Ok(result));
    }
    let events = fanout_result().grants;
    assert_eq!(from_bytes(&to_bytes(&events)), Ok(events));
    assert_eq!(from_bytes(&to_bytes(&word())), Ok(word()));
}

/// Nodes of other releases read these bytes: they change only with a new number for the record.
#[test]
fn the_bytes_between_nodes_stay_as_they_are() {
    let samples = samples();
    let bytes = samples.concat();
    assert_eq!(
        (samples.len(), xxh3_64(&bytes)),
        (63, 0x6a0a_ecc1_fac1_2999)
    );
}

/// Cut off or changed anywhere: refused or read as something else, never a panic.
#[test]
fn no_bytes_make_a_node_panic() {
    let mut random = SplitMix64::new(5);
    for sample in samples() {
        for at in 0..sample.len() {
            let mut bytes = sample.clone();
            bytes[at] = random.next() as u8;
            for bytes in [&bytes[..], &sample[..at]] {
                let _ = from_bytes::<GroupOp>(bytes);
                let _ = from_bytes::<GroupOpResult>(bytes);
                let _ = from_bytes::<(Fanout, GroupSet)>(bytes);
                let _ = from_bytes::<FanoutResult>(bytes);
                let _ = from_bytes::<Vec<Event>>(bytes);
                let _ = from_bytes::<WatchMessage>(bytes);
            }
        }
    }
}
