//! Compatibility test: a follower of this release understands the recorded frames of every release.
//!
//! `compat/<release>/frames` contains all frames that a follower received while two others of that
//! release elected a leader, replicated locks and answered its requests; `frames.state` is its
//! state at the end. They are recorded once, by `cargo test -p tenure-cluster --test frames --
//! --ignored`.

#![allow(
    clippy::unwrap_used,
    reason = "a test fails where something is not as it must be"
)]

use std::path::{Path as File, PathBuf};

use bytes::{Buf, BufMut, Bytes};
use tenure_core::command::{Request, RequestKind, WaitMode};
use tenure_core::path::Path;
use tenure_core::policy::{Algorithm, Mode};
use tenure_core::value::{OwnerId, QueueTtl, Ttl};
use tenure_node::{
    AcquireAnswer, AcquireRequest, Answer, ClientRequest, ClusterConfig, Config, Deadlock, GroupId,
    Input, Limits, Node, NodeId, Output, Recovery, ReplicaId, RequestId, StepTime, StreamId,
};

const GROUPS: u32 = 3;
const ROUNDS: u64 = 400;
/// The node whose received frames are recorded.
const LISTENER: u32 = 2;

fn member(node: u32) -> ReplicaId {
    ReplicaId::new(NodeId::new(node).unwrap(), 7)
}

/// A node on a disk that never fails.
struct TestPeer {
    node: Node,
    inbox: Vec<Input>,
    /// Only the first node's clock runs fast enough for an election.
    pace_ms: u64,
    answers: Vec<Answer>,
    events: usize,
}

impl TestPeer {
    fn new(number: u32) -> TestPeer {
        let config = Config {
            me: member(number),
            cluster: ClusterConfig {
                group_count: GROUPS,
                prefix_segments: 1,
                default_algorithm: Algorithm::RecursiveRw,
            },
            limits: Limits::default(),
            start: 1,
            seed: u64::from(number),
            nodes: (1..=3).map(|node| member(node).node).collect(),
        };
        let mut recovery = Recovery::new();
        for group in 0..=GROUPS {
            recovery.born(GroupId(group), (1..=3).map(member).collect());
        }
        let (node, first) = Node::start(config, recovery, moment(0)).unwrap();
        let mut runner = TestPeer {
            node,
            inbox: Vec::new(),
            pace_ms: if number == 1 { 20 } else { 1 },
            answers: Vec::new(),
            events: 0,
        };
        runner.carry_out(first);
        let others = (1..=3).filter(|node| *node != number);
        let up = others.map(|node| Input::PeerUp {
            node: member(node).node,
        });
        runner.inbox.extend(up);
        runner
    }

    fn step(&mut self, round: u64) -> Vec<(NodeId, Bytes)> {
        let inputs = std::mem::take(&mut self.inbox);
        let outputs = self.node.step(moment(round * self.pace_ms), inputs);
        self.carry_out(outputs)
    }

    fn carry_out(&mut self, outputs: Vec<Output>) -> Vec<(NodeId, Bytes)> {
        let mut sent = Vec::new();
        for output in outputs {
            match output {
                Output::Write(batch) => self.inbox.push(Input::Persisted { mark: batch.mark }),
                Output::SaveSnapshot(saved) => self.inbox.push(Input::SnapshotSaved {
                    group: saved.group,
                    index: saved.index,
                }),
                Output::EncodeSnapshot(image) => {
                    self.inbox.push(Input::SnapshotEncoded(image.encode()));
                }
                // Everything is durable at once, so no frame waits.
                Output::Send { to, frame, .. } => sent.push((to, frame)),
                Output::Answer { answer, .. } => self.answers.push(answer.unwrap()),
                Output::Event { .. } => self.events += 1,
                Output::Stop { why } => panic!("{why}"),
                _ => {}
            }
        }
        sent
    }

    /// Returns the states of all groups in the snapshot format.
    fn state(&self) -> Vec<u8> {
        let mut state = Vec::new();
        for group in 0..=GROUPS {
            let (index, bytes) = self.node.state_of(GroupId(group)).unwrap();
            state.put_u64_le(index);
            state.put_u32_le(u32::try_from(bytes.len()).unwrap());
            state.put_slice(&bytes);
        }
        state
    }
}

fn moment(monotonic_ms: u64) -> StepTime {
    StepTime {
        monotonic_ms,
        wall_ms: 1_700_000_000_000 + monotonic_ms,
    }
}

fn acquire(id: u64, owner: &str, path: &str) -> Input {
    let request = AcquireRequest {
        owner: OwnerId::new(owner).unwrap(),
        ttl: Ttl::from_millis(3_000_000).unwrap(),
        queue_ttl: QueueTtl::from_millis(3_000_000).unwrap(),
        requests: vec![Request {
            path: Path::parse(path).unwrap(),
            mode: Mode::Write,
            state: RequestKind::New,
            permits: None,
        }],
        releases: Vec::new(),
        fence: None,
        key: None,
        wait: WaitMode::Queue,
        holder: None,
        deadlock: Deadlock::Ignore,
    };
    Input::Request {
        id: RequestId(id),
        request: Box::new(ClientRequest::Acquire(request)),
        timeout_ms: 10_000,
    }
}

fn release_all(id: u64, owner: &str) -> Input {
    Input::Request {
        id: RequestId(id),
        request: Box::new(ClientRequest::ReleaseAll {
            owner: OwnerId::new(owner).unwrap(),
            domains: Vec::new(),
            edge: tenure_node::WaitEdge::Keep,
            key: None,
        }),
        timeout_ms: 10_000,
    }
}

/// Returns the client requests to a node in a round.
fn asked(node: u32, round: u64) -> Vec<Input> {
    match (node, round) {
        (1, 200) => (0..8)
            .map(|n| acquire(n, &format!("owner-{n}"), &format!("t{n}:/a/b")))
            .collect(),
        (3, 220) => vec![acquire(20, "passer", "t1:/c"), release_all(21, "owner-5")],
        // The listener forwards requests to the leader, receives the event of its grant, and gets
        // answers.
        (LISTENER, 210) => vec![Input::Subscribe {
            id: StreamId(1),
            owner: OwnerId::new("waiter").unwrap(),
        }],
        (LISTENER, 230) => vec![
            acquire(30, "waiter", "t2:/a/b"),
            acquire(31, "guest", "t9:/x"),
        ],
        (1, 260) => vec![release_all(40, "owner-2")],
        _ => Vec::new(),
    }
}

fn recorded() -> PathBuf {
    File::new(env!("CARGO_MANIFEST_DIR")).join("../../compat")
}

/// Checks the final state of the listener and its answers.
fn check(listener: &TestPeer, state: &[u8]) {
    let status = listener.node.status();
    assert_eq!(status.unreadable_frames, 0);
    assert_eq!(status.malformed_appends, 0);
    assert_eq!(listener.state(), state);
    assert!(listener.answers.iter().any(|answer| matches!(
        answer,
        Answer::Acquire(AcquireAnswer::Granted { fence: Some(_), .. })
    )));
    assert!(
        listener
            .answers
            .iter()
            .any(|answer| matches!(answer, Answer::Acquire(AcquireAnswer::Queued { .. })))
    );
    assert_eq!(listener.answers.len(), 2, "{:?}", listener.answers);
    assert_eq!(listener.events, 1, "its turn came");
}

#[test]
fn the_frames_of_every_release_are_understood() {
    let mut releases = 0;
    for entry in std::fs::read_dir(recorded()).unwrap() {
        let release = entry.unwrap().path();
        if !release.is_dir() {
            continue;
        }
        releases += 1;
        let state = std::fs::read(release.join("frames.state")).unwrap();
        let mut frames = Bytes::from(std::fs::read(release.join("frames")).unwrap());
        let mut listener = TestPeer::new(LISTENER);
        for round in 1..=ROUNDS {
            listener.inbox.extend(asked(LISTENER, round));
            for _ in 0..frames.get_u32_le() {
                let from = member(frames.get_u32_le()).node;
                let length = frames.get_u32_le() as usize;
                let bytes = frames.split_to(length);
                listener.inbox.push(Input::Frame { from, bytes });
            }
            listener.step(round);
        }
        assert!(frames.is_empty());
        check(&listener, &state);
    }
    assert!(releases > 0);
}

#[test]
#[ignore = "writes into the repository, once for a release"]
fn record() {
    let release = recorded().join(env!("CARGO_PKG_VERSION"));
    assert!(!release.join("frames").exists(), "never changed");
    let mut runners: Vec<TestPeer> = (1..=3).map(TestPeer::new).collect();
    let mut frames = Vec::new();
    let mut under_way: Vec<(u32, NodeId, Bytes)> = Vec::new();
    for round in 1..=ROUNDS {
        let arrived = std::mem::take(&mut under_way);
        let heard: Vec<_> = arrived
            .iter()
            .filter(|(_, to, _)| to.number() == LISTENER)
            .collect();
        frames.put_u32_le(u32::try_from(heard.len()).unwrap());
        for (from, _, bytes) in heard {
            frames.put_u32_le(*from);
            frames.put_u32_le(u32::try_from(bytes.len()).unwrap());
            frames.put_slice(bytes);
        }
        for (number, runner) in (1..).zip(&mut runners) {
            runner.inbox.extend(asked(number, round));
            for (from, to, bytes) in &arrived {
                if to.number() == number {
                    runner.inbox.push(Input::Frame {
                        from: member(*from).node,
                        bytes: bytes.clone(),
                    });
                }
            }
            let sent = runner.step(round);
            under_way.extend(sent.into_iter().map(|(to, bytes)| (number, to, bytes)));
        }
    }
    let state = runners[LISTENER as usize - 1].state();
    check(&runners[LISTENER as usize - 1], &state);
    std::fs::create_dir_all(&release).unwrap();
    std::fs::write(release.join("frames"), frames).unwrap();
    std::fs::write(release.join("frames.state"), state).unwrap();
}
