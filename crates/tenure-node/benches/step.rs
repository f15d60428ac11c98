//! What does a command cost in the node alone? No thread, no disk, no socket: only [`Node::step`].
//!
//! `cargo bench -p tenure-node --bench step -- [--json] [--only WORD] [--units N]`
//!
//! For each line: nanoseconds, allocations and bytes allocated per unit, making the request and
//! dropping the answer included. A fixed number of units makes instruction counts comparable:
//! `valgrind --tool=callgrind … --only "pairs, lone" --units 20000`.

#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a benchmark has a clock and something to say"
)]

use std::alloc::{GlobalAlloc, Layout, System as Heap};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tenure_core::command::{Hold, Request, RequestKind, WaitMode};
use tenure_core::path::Path;
use tenure_core::policy::{Algorithm, Mode};
use tenure_core::value::{Fence, OwnerId, QueueTtl, Ttl};
use tenure_node::*;

/// Counts what is allocated.
struct Counting;

static CALLS: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);

#[allow(
    unsafe_code,
    reason = "an allocator cannot be written without; it only counts"
)]
// SAFETY: every call is handed to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { Heap.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { Heap.dealloc(pointer, layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        CALLS.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(size as u64, Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { Heap.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const GROUPS: u32 = 256;
/// Like the load of `tenure bench`.
const NAMESPACES: u64 = 16;
const IN_FLIGHT: u64 = 64;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let after = |name: &str| {
        let at = words.iter().position(|word| word == name)?;
        words.get(at + 1).cloned()
    };
    let json = words.iter().any(|word| word == "--json");
    let only = after("--only").unwrap_or_default();
    let units = after("--units").and_then(|text| text.parse().ok());
    let units: u64 = units.unwrap_or(200_000);
    for (name, nodes, per_unit, next) in [
        ("pairs, lone voter", 1, 2, pair as Next),
        ("pairs, three nodes", 3, 2, pair),
        ("renewals, lone voter", 1, 1, renewal),
        ("renewals in a domain, lone voter", 1, 1, domain_renewal),
        ("reads, lone voter", 1, 1, assertion),
    ] {
        if !name.contains(&only) {
            continue;
        }
        let mut cluster = Cluster::start(nodes);
        cluster.hold();
        cluster.run(next, per_unit * IN_FLIGHT * 4);
        let (calls, bytes) = counted();
        let since = Instant::now();
        let done = cluster.run(next, units * per_unit) as f64 / per_unit as f64;
        let spent = since.elapsed().as_nanos() as f64;
        let (calls, bytes) = (counted().0 - calls, counted().1 - bytes);
        for (figure, value) in [
            ("ns", spent / done),
            ("allocations", calls as f64 / done),
            ("bytes", bytes as f64 / done),
        ] {
            if json {
                println!(
                    r#"{{"bench":"step","name":"{name}","value":{value:.1},"unit":"{figure}"}}"#
                );
            } else {
                println!("{name:36} {value:12.1} {figure}");
            }
        }
    }
}

fn counted() -> (u64, u64) {
    (CALLS.load(Ordering::Relaxed), BYTES.load(Ordering::Relaxed))
}

/// The next request of a slot: which slot, and how many it has had.
type Next = fn(u64, u64) -> ClientRequest;

fn owner(slot: u64) -> OwnerId {
    OwnerId::new(&format!("owner-{slot:08}")).expect("a valid owner")
}

fn path(text: &str) -> Path {
    Path::parse(text).expect("a valid path")
}

/// Acquires a path that was never locked before, then releases it.
fn pair(slot: u64, number: u64) -> ClientRequest {
    let namespace = slot % NAMESPACES;
    let path = path(&format!("bench:/n{namespace}/{slot}/{}", number / 2));
    if number.is_multiple_of(2) {
        acquire(owner(slot), path)
    } else {
        ClientRequest::Release(ReleaseRequest {
            owner: owner(slot),
            holds: vec![Hold {
                path,
                mode: Mode::Write,
            }],
            edge: WaitEdge::Keep,
            key: None,
        })
    }
}

fn acquire(owner: OwnerId, path: Path) -> ClientRequest {
    ClientRequest::Acquire(AcquireRequest {
        owner,
        ttl: Ttl::from_millis(60_000).expect("a valid ttl"),
        queue_ttl: QueueTtl::from_millis(0).expect("the default"),
        requests: vec![Request {
            path,
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
    })
}

fn held(slot: u64) -> Path {
    path(&format!("bench:/n{}/held/{slot}", slot % NAMESPACES))
}

fn renewal(slot: u64, _number: u64) -> ClientRequest {
    ClientRequest::Renew {
        owner: owner(1_000 + slot),
        ttl: Ttl::from_millis(60_000).expect("a valid ttl"),
        domains: Vec::new(),
        key: None,
    }
}

fn domain_renewal(slot: u64, _number: u64) -> ClientRequest {
    let domain = format!("bench:/n{}", slot % NAMESPACES);
    ClientRequest::Renew {
        owner: owner(1_000 + slot),
        ttl: Ttl::from_millis(60_000).expect("a valid ttl"),
        domains: vec![tenure_core::path::Namespace::parse(&domain).expect("a valid name")],
        key: None,
    }
}

fn assertion(slot: u64, _number: u64) -> ClientRequest {
    ClientRequest::AssertFencing {
        owner: owner(1_000 + slot),
        fence: Fence::from_number(1),
        paths: vec![held(slot)],
    }
}

/// Nodes in one thread whose disks are instant and whose frames are never lost.
struct Cluster {
    nodes: Vec<(NodeId, Node)>,
    inputs: Vec<Vec<Input>>,
    now: u64,
}

impl Cluster {
    fn start(count: u32) -> Cluster {
        let member = |number| ReplicaId::new(NodeId::new(number).expect("not zero"), 1);
        let members: Vec<ReplicaId> = (1..=count).map(member).collect();
        let mut cluster = Cluster {
            nodes: Vec::new(),
            inputs: members.iter().map(|_| Vec::new()).collect(),
            now: 1_000,
        };
        for (at, me) in members.iter().enumerate() {
            let mut recovery = Recovery::new();
            for group in 0..=GROUPS {
                recovery.born(GroupId(group), members.clone());
            }
            let config = Config {
                me: *me,
                cluster: ClusterConfig {
                    group_count: GROUPS,
                    prefix_segments: 1,
                    default_algorithm: Algorithm::RecursiveRw,
                },
                limits: Limits::default(),
                start: 1,
                seed: 7 + u64::from(me.node.number()),
                nodes: members.iter().map(|member| member.node).collect(),
            };
            let (node, outputs) =
                Node::start(config, recovery, cluster.moment()).expect("an empty disk");
            cluster.nodes.push((me.node, node));
            let mut answers = Vec::new();
            cluster.take(at, outputs, &mut answers);
        }
        let served = |cluster: &Cluster| {
            let mut serving = 0;
            for (_, node) in &cluster.nodes {
                let groups = node.status().groups;
                serving += groups.iter().filter(|group| group.serves).count();
            }
            serving == GROUPS as usize + 1
        };
        while !served(&cluster) {
            cluster.now += 100;
            cluster.turn();
        }
        cluster
    }

    fn moment(&self) -> StepTime {
        StepTime {
            monotonic_ms: self.now,
            wall_ms: 1_700_000_000_000 + self.now,
        }
    }

    /// Steps every node once. Returns what was answered.
    fn turn(&mut self) -> Vec<(RequestId, Answer)> {
        let mut answers = Vec::new();
        for at in 0..self.nodes.len() {
            let inputs = std::mem::take(&mut self.inputs[at]);
            let moment = self.moment();
            let outputs = self.nodes[at].1.step(moment, inputs);
            self.take(at, outputs, &mut answers);
        }
        answers
    }

    fn take(&mut self, at: usize, outputs: Vec<Output>, answers: &mut Vec<(RequestId, Answer)>) {
        let from = self.nodes[at].0;
        let mut held = VecDeque::new();
        for output in outputs {
            match output {
                Output::Write(batch) => {
                    self.inputs[at].push(Input::Persisted { mark: batch.mark });
                }
                Output::Send { to, frame, .. } => held.push_back((to, frame)),
                Output::Answer { id, answer, .. } => {
                    answers.push((id, answer.expect("nothing fails in a benchmark")));
                }
                Output::SaveSnapshot(SnapshotImage { group, index, .. }) => {
                    self.inputs[at].push(Input::SnapshotSaved { group, index });
                }
                Output::EncodeSnapshot(image) => {
                    self.inputs[at].push(Input::SnapshotEncoded(image.encode()));
                }
                Output::Stop { why } => panic!("{why}"),
                Output::Changed { .. }
                | Output::Event { .. }
                | Output::Change { .. }
                | Output::Auth(_)
                | Output::Closed { .. } => {}
            }
        }
        for (to, bytes) in held {
            let to = (to.number() - 1) as usize;
            self.inputs[to].push(Input::Frame { from, bytes });
        }
    }

    fn ask(&mut self, id: u64, request: ClientRequest) {
        self.inputs[0].push(Input::Request {
            id: RequestId(id),
            request: Box::new(request),
            timeout_ms: 60_000,
        });
    }

    /// One hold a slot, for what needs one.
    fn hold(&mut self) {
        for slot in 0..IN_FLIGHT {
            self.ask(slot, acquire(owner(1_000 + slot), held(slot)));
        }
        let mut left = IN_FLIGHT;
        while left > 0 {
            left -= self.turn().len() as u64;
        }
    }

    /// Keeps a request of each slot under way until so many are answered; then waits for the rest.
    fn run(&mut self, next: Next, wanted: u64) -> u64 {
        let mut had = [0; IN_FLIGHT as usize];
        for slot in 0..IN_FLIGHT {
            self.ask(slot, next(slot, 0));
        }
        let (mut asked, mut done) = (IN_FLIGHT, 0);
        let mut turns = 0u64;
        while done < asked {
            turns += 1;
            // About a turn per tenth of a millisecond.
            self.now += u64::from(turns.is_multiple_of(10));
            for (id, answer) in self.turn() {
                assert!(
                    !matches!(answer, Answer::Acquire(AcquireAnswer::Queued { .. })),
                    "there is no contention"
                );
                done += 1;
                if asked < wanted {
                    asked += 1;
                    let number = &mut had[usize::try_from(id.0).expect("a slot")];
                    *number += 1;
                    self.ask(id.0, next(id.0, *number));
                }
            }
        }
        done
    }
}
