//! What nodes say to each other is read back, and no bytes make a node panic.

use tenure_core::command::{Command, Expire, RenewLease, Route};
use tenure_core::event::EventKind;
use tenure_core::namespace_table::NamespaceTable;
use tenure_core::outcome::{AcquireOutcome, Blocker, Conflict, Outcome, Renewed};
use tenure_core::path::Namespace;
use tenure_core::policy::{Algorithm, BlockReason, Missing, Mode, Reason};
use tenure_core::system::{Edge, SystemCommand, SystemOutcome};
use tenure_core::value::{Fence, OwnerId, Ttl};

use super::*;
use crate::NodeId;
use crate::random::Random;

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

fn queries() -> Vec<Query> {
    vec![
        Query::Assert {
            owner: owner("amy"),
            fence: fence(),
            paths: vec![(route(), path())],
        },
        Query::Inspect {
            route: route(),
            path: path(),
        },
        Query::Blocking {
            route: route(),
            owner: owner("amy"),
            path: path(),
            reason: BlockReason::Queued,
        },
        Query::Explain {
            route: route(),
            owner: owner("amy"),
            path: path(),
            mode: Mode::ReadTree,
        },
        Query::Dump {
            after: Some(DumpCursor(7)),
            page: 9,
        },
        Query::Edge {
            owner: owner("amy"),
        },
        Query::Table { known: Some(3) },
        Query::Policy { namespace: ns() },
        Query::Policies {
            after: Some(ns()),
            page: 5,
        },
        Query::Nothing,
        Query::Born {
            namespace: ns(),
            owner: owner("amy"),
        },
        Query::Change { change: 12 },
    ]
}

fn ops() -> Vec<Op> {
    let mut ops: Vec<Op> = queries().into_iter().map(Op::Read).collect();
    ops.push(Op::Command(Command::Expire(Expire {
        namespace: ns(),
        owner: owner("amy"),
        epoch: 77,
    })));
    ops.push(Op::System(Box::new(SystemCommand::Finish { change: 3 })));
    ops.push(Op::Renew(RenewLease {
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

fn findings() -> Vec<Found> {
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
        Found::Assert(None),
        Found::Assert(Some((3, FenceCheck::StaleFence { current: fence() }))),
        Found::Inspect(Inspection {
            writer: Some(owner("amy")),
            readers: vec![owner("bob")],
            permit_holders: Vec::new(),
            fence: Some(fence()),
            waiters: 2,
        }),
        Found::Blocking(true),
        Found::Explain {
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
        Found::Dump(DumpPage {
            locks: vec![lock],
            next: Some(DumpCursor(1)),
        }),
        Found::Edge(Some(Edge {
            blocker: owner("bob"),
            why: Some((path(), BlockReason::ReadLocked)),
        })),
        Found::Table(Some(NamespaceTable::restore(
            1,
            Algorithm::RecursiveRw,
            9,
            [(ns(), Algorithm::PointWrite)],
        ))),
        Found::Table(None),
        Found::Policy {
            algorithm: Algorithm::PointRw,
            explicit: true,
        },
        Found::Policies {
            rows: vec![(ns(), Algorithm::PointRw)],
            done: false,
        },
        Found::Born(Some(4)),
        Found::Outdated { version: 8 },
        Found::Nothing,
        Found::Change(None),
        Found::Change(Some(ChangeView {
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

fn answers() -> Vec<OpAnswer> {
    let mut answers: Vec<OpAnswer> = findings()
        .into_iter()
        .map(|found| OpAnswer::Found(Box::new(found)))
        .collect();
    answers.extend([
        OpAnswer::Applied {
            outcome: Outcome::Acquire(AcquireOutcome::Granted {
                fence: Some(fence()),
            }),
            lease_left_ms: Some(5),
        },
        OpAnswer::System(SystemOutcome::Done),
        OpAnswer::Renewed(Ok(Renewed {
            asked: true,
            born: 6,
        })),
        OpAnswer::Renewed(Err(Missing::OwnerSet)),
        OpAnswer::NotHere {
            leader: Some(Member::new(NodeId::new(3).unwrap(), 9)),
        },
        OpAnswer::Busy,
        OpAnswer::Unknown,
        OpAnswer::TooLong,
    ]);
    answers
}

fn swept() -> Swept {
    Swept {
        groups: [GroupId(1), GroupId(300)].into_iter().collect(),
        renewed: vec![(ns(), 8)],
        asked: true,
        alive: true,
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
        released: vec![Path::parse("t:/a/b").unwrap()],
        too_long: false,
    }
}

fn sweeps() -> Vec<Sweep> {
    [
        What::Renew(Ttl::from_millis(9).unwrap()),
        What::ReleaseAll(ReleaseCause::Owner),
        What::ReleaseAll(ReleaseCause::Killed),
        What::Ask,
        What::Alive,
        What::List,
        What::WaitsFor {
            owners: vec![owner("amy")],
        },
        What::Grants,
        What::Highest,
    ]
    .map(|what| Sweep::about(owner("amy"), what))
    .into()
}

fn word() -> Word {
    Word {
        number: 4,
        group: GroupId(3),
        term: 4,
        count: 9,
        kind: WordKind::Changed,
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

#[test]
fn everything_between_nodes_is_read_back() {
    for op in ops() {
        assert_eq!(decode_op(&encode_op(&op)), Ok(op));
    }
    for answer in answers() {
        assert_eq!(decode_answer(&encode_answer(&answer)), Ok(answer));
    }
    let groups: GroupSet = [GroupId(0), GroupId(256)].into_iter().collect();
    for sweep in sweeps() {
        let bytes = encode_sweep(&sweep, &groups);
        assert_eq!(decode_sweep(&bytes), Ok((sweep, groups.clone())));
    }
    assert_eq!(decode_swept(&encode_swept(&swept())), Ok(swept()));
    let events = swept().grants;
    assert_eq!(decode_events(&encode_events(&events)), Ok(events));
    assert_eq!(decode_word(&encode_word(&word())), Ok(word()));
}

/// Cut off or changed anywhere: refused or read as something else, never a panic.
#[test]
fn no_bytes_make_a_node_panic() {
    let mut random = Random::new(5);
    let mut samples: Vec<Bytes> = ops().iter().map(encode_op).collect();
    samples.extend(answers().iter().map(encode_answer));
    samples.push(encode_swept(&swept()));
    samples.push(encode_word(&word()));
    samples.push(encode_events(&swept().grants));
    for sweep in sweeps() {
        samples.push(encode_sweep(&sweep, &GroupSet::from_iter([GroupId(5)])));
    }
    for sample in samples {
        for at in 0..sample.len() {
            let mut bytes = sample.to_vec();
            bytes[at] = random.next() as u8;
            for bytes in [&bytes[..], &sample[..at]] {
                let _ = decode_op(bytes);
                let _ = decode_answer(bytes);
                let _ = decode_sweep(bytes);
                let _ = decode_swept(bytes);
                let _ = decode_events(bytes);
                let _ = decode_word(bytes);
            }
        }
    }
}
