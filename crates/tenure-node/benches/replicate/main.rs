//! What does a replicated command cost? Three nodes in one process, on real logs with fsync.
//!
//! `cargo bench -p tenure-node --bench replicate -- [--json] [--seconds N] [--locks N] [--shape 1x64] [--trace]`
//!
//! `--trace` prints what every thread did and when: a round, from the calls to their answers.
//!
//! | figure | meaning |
//! |---|---|
//! | commands/s, µs CPU per command | acquire and release in turn, so many groups × so many in flight, all three nodes together |
//! | idle | CPU share of one core and memory of three nodes with 256 groups and nothing to do |
//! | recovery | from process start to serving, one node that holds so many locks |

#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a benchmark has threads, a clock and something to say"
)]

mod driver;
mod trace;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use driver::{DriverMessage, Load, Running, Setup};
use tenure_core::command::{Hold, Request, RequestKind, WaitMode};
use tenure_core::path::{Namespace, Path};
use tenure_core::policy::Mode;
use tenure_core::value::{OwnerId, QueueTtl, Ttl};
use tenure_node::*;

struct Arguments {
    json: bool,
    seconds: u64,
    locks: u64,
    trace: bool,
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str, default: u64| {
        let at = words.iter().position(|word| word == name);
        at.and_then(|at| words.get(at + 1)?.parse().ok())
            .unwrap_or(default)
    };
    let arguments = Arguments {
        json: words.iter().any(|word| word == "--json"),
        seconds: value("--seconds", 4),
        locks: value("--locks", 1_000_000),
        trace: words.iter().any(|word| word == "--trace"),
    };
    let mut figures: Vec<(String, f64, &str)> = Vec::new();
    for (groups, in_flight) in [(1, 64), (256, 1), (256, 16)] {
        let name = format!("{groups}x{in_flight}");
        if words.iter().any(|word| word == "--shape") && !words.contains(&name) {
            continue;
        }
        let (rate, cpu) = throughput(groups, in_flight, &arguments);
        let name = format!("{groups} x {in_flight}");
        figures.push((format!("{name}: commands"), rate, "1/s"));
        figures.push((format!("{name}: cpu per command"), cpu, "us"));
    }
    if !words.iter().any(|word| word == "--shape") {
        let (share, bytes) = idle(arguments.seconds.max(3));
        figures.push(("256 idle groups: cpu of a core".to_owned(), share, "%"));
        figures.push((
            "256 idle groups: memory, three nodes".to_owned(),
            bytes,
            "MB",
        ));
    }
    if arguments.locks > 0 {
        let (seconds, bytes) = recovery(arguments.locks);
        let name = format!("{} held locks", arguments.locks);
        figures.push((format!("{name}: recovery"), seconds, "s"));
        figures.push((format!("{name}: memory after it"), bytes, "MB"));
    }
    for (name, figure, unit) in figures {
        if arguments.json {
            println!(
                r#"{{"bench":"replicate","name":"{name}","value":{figure:.2},"unit":"{unit}"}}"#
            );
        } else {
            println!("{name:48} {figure:12.2} {unit}");
        }
    }
}

fn member(number: u32) -> ReplicaId {
    ReplicaId::new(NodeId::new(number).expect("not zero"), 1)
}

/// So many nodes that all replicate so many groups, in directories of their own.
fn cluster(nodes: u32, groups: u32, root: &std::path::Path, start: u64) -> Vec<Running> {
    let members: Vec<ReplicaId> = (1..=nodes).map(member).collect();
    let ids: Vec<NodeId> = members.iter().map(|one| one.node).collect();
    let boxes: Vec<_> = members.iter().map(|_| channel()).collect();
    let senders: Vec<_> = ids
        .iter()
        .zip(&boxes)
        .map(|(node, (sender, _))| (*node, sender.clone()))
        .collect();
    let mut running = Vec::new();
    for (me, (sender, inbox)) in members.iter().zip(boxes) {
        let setup = Setup {
            member: *me,
            nodes: ids.clone(),
            groups,
            born: members.clone(),
            directory: root.join(format!("node-{}", me.node.number())),
            start,
        };
        running.push(driver::run(setup, inbox, sender, senders.clone()));
    }
    running
}

/// A namespace that each group decides.
fn namespaces(groups: u32) -> Vec<String> {
    let mut names = vec![None; groups as usize];
    let mut left = groups;
    for number in 0u64.. {
        let name = format!("t:/{number}");
        let namespace = Namespace::parse(&name).expect("a valid name");
        let slot = &mut names[placement::group_of(&namespace, groups).0 as usize];
        if slot.is_none() {
            *slot = Some(name);
            left -= 1;
            if left == 0 {
                break;
            }
        }
    }
    names.into_iter().flatten().collect()
}

fn acquire(owner: &OwnerId, path: &Path, ttl: u64) -> ClientRequest {
    ClientRequest::Acquire(AcquireRequest {
        owner: owner.clone(),
        ttl: Ttl::from_millis(ttl).expect("a valid ttl"),
        queue_ttl: QueueTtl::from_millis(0).expect("the default"),
        requests: vec![Request {
            path: path.clone(),
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
    })
}

fn release(owner: &OwnerId, path: &Path) -> ClientRequest {
    ClientRequest::Release(ReleaseRequest {
        owner: owner.clone(),
        holds: vec![Hold {
            path: path.clone(),
            mode: Mode::Write,
        }],
        edge: WaitEdge::Keep,
        key: None,
    })
}

/// Every node gets the load of the groups that it leads.
fn throughput(groups: u32, in_flight: usize, arguments: &Arguments) -> (f64, f64) {
    let directory = tempfile::tempdir().expect("a place for logs");
    let running = cluster(3, groups, directory.path(), 1);
    std::thread::sleep(Duration::from_secs(4));
    let count = Arc::new(AtomicU64::new(0));
    let names = namespaces(groups);
    let slots: Vec<(OwnerId, Path)> = names
        .iter()
        .flat_map(|name| (0..in_flight).map(move |slot| (name.clone(), slot)))
        .map(|(name, slot)| {
            let owner = OwnerId::new(&format!("owner-{slot}")).expect("a valid owner");
            let path = Path::parse(&format!("{name}/slot-{slot}")).expect("a valid path");
            (owner, path)
        })
        .collect();
    let of_slot = (0..groups).flat_map(|group| std::iter::repeat_n(GroupId(group), in_flight));
    let of_slot: Vec<GroupId> = of_slot.collect();
    let next = Arc::new(move |slot: usize, number: u64| {
        let (owner, path): &(OwnerId, Path) = &slots[slot];
        if number.is_multiple_of(2) {
            acquire(owner, path, 60_000)
        } else {
            release(owner, path)
        }
    });
    for node in &running {
        let load = Load {
            slots: of_slot.clone(),
            next: next.clone(),
            count: Arc::clone(&count),
        };
        let _ = node.inbox.send(DriverMessage::Load(load));
    }
    std::thread::sleep(Duration::from_secs(1));
    let (before, cpu_before, since) = (count.load(Ordering::Relaxed), cpu(), Instant::now());
    if arguments.trace {
        trace::begin();
    }
    std::thread::sleep(Duration::from_secs(arguments.seconds));
    let done = (count.load(Ordering::Relaxed) - before) as f64;
    let (used, passed) = (cpu() - cpu_before, since.elapsed());
    if arguments.trace {
        trace::end(&format!("{groups} x {in_flight}"));
    }
    for node in running {
        node.stop();
    }
    (done / passed.as_secs_f64(), used * 1e6 / done.max(1.0))
}

fn idle(seconds: u64) -> (f64, f64) {
    let directory = tempfile::tempdir().expect("a place for logs");
    let running = cluster(3, 256, directory.path(), 1);
    std::thread::sleep(Duration::from_secs(4));
    let (before, since) = (cpu(), Instant::now());
    std::thread::sleep(Duration::from_secs(seconds));
    let share = (cpu() - before) / since.elapsed().as_secs_f64() * 100.0;
    let bytes = memory();
    for node in running {
        node.stop();
    }
    (share, bytes)
}

/// One node holds so many locks, ends, and starts again.
fn recovery(locks: u64) -> (f64, f64) {
    let directory = tempfile::tempdir().expect("a place for logs");
    let running = cluster(1, 16, directory.path(), 1);
    let count = Arc::new(AtomicU64::new(0));
    let next = |slot: usize, number: u64| {
        let owner = OwnerId::new(&format!("owner-{}", slot % 1_000)).expect("a valid owner");
        let text = format!("tenant:/{}/item/{slot}-{number}", slot % 500);
        let path = Path::parse(&text).expect("a valid path");
        acquire(&owner, &path, 600_000)
    };
    std::thread::sleep(Duration::from_millis(300));
    let load = Load {
        slots: vec![GroupId(0); 4_096],
        next: Arc::new(next),
        count: Arc::clone(&count),
    };
    let _ = running[0].inbox.send(DriverMessage::Load(load));
    while count.load(Ordering::Relaxed) < locks {
        std::thread::sleep(Duration::from_millis(20));
    }
    let held = count.load(Ordering::Relaxed);
    for node in running {
        node.stop();
    }
    let since = Instant::now();
    let running = cluster(1, 16, directory.path(), 2);
    let seconds = since.elapsed().as_secs_f64();
    let bytes = memory();
    let mut found = 0;
    for node in running {
        // A lone voter leads as soon as its first entry is durable.
        std::thread::sleep(Duration::from_millis(300));
        let status = node.stop().status();
        let counts = status.groups.iter().filter_map(|group| group.counts);
        found += counts.map(|counts| counts.claims).sum::<u64>();
        assert!(status.groups.iter().all(|group| group.serves));
    }
    assert!(found >= held, "{found} of {held} locks came back");
    (seconds, bytes)
}

/// Seconds of CPU that this process has used.
fn cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    let ticks = |at: usize| fields.get(at).and_then(|text| text.parse::<f64>().ok());
    (ticks(11).unwrap_or(0.0) + ticks(12).unwrap_or(0.0)) / 100.0
}

/// Megabytes of memory that this process has.
fn memory() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kilobytes = line
        .and_then(|line| line.split_whitespace().nth(1)?.parse::<f64>().ok())
        .unwrap_or(0.0);
    kilobytes / 1024.0
}
