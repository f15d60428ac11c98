//! Fault injection on a real cluster in network namespaces.
//!
//! Every node is a process in its own network namespace. Clients outside keep acquiring, renewing,
//! queueing and releasing while [`faults`] kill, stop, disconnect and slow down the nodes.
//! [`checkers`] know nothing of the faults: they compare earlier answers to clients with later
//! ones. [`histories`] are calls that [`linearizability`] checks as a whole. At the end all faults are healed, and every waiter must be granted its lock.
//!
//! `TENURE_TRIAL_SECONDS` sets the duration of the faults (default 120 s), `TENURE_TRIAL_SEED`
//! their order, `TENURE_TRIAL_GROUPS` the number of groups (default 16).

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails where something is not as it must be, and says what it saw"
)]

mod checkers;
mod clients;
mod faults;
mod histories;
mod linearizability;
mod net;
mod nodes;
mod relay;

use std::sync::Arc;
use std::time::{Duration, Instant};

use checkers::Checkers;
use clients::Load;
use faults::Fault;
use nodes::Cluster;
use tenure_random::SplitMix64;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

/// Three nodes (R163 any node serves any client to R166 draining a node, R152 acknowledged means
/// durable): no lock is granted twice, and nothing acknowledged is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_nodes_under_faults() {
    let seconds = setting("TENURE_TRIAL_SECONDS", 120);
    trial(3, Duration::from_secs(seconds)).await;
}

/// Five nodes, in the slow suite.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "slow: ten minutes of faults; TENURE_TRIAL_SECONDS=600 cargo test -p tenure-cli --test fault_injection -- --ignored five"]
async fn five_nodes_under_faults() {
    let seconds = setting("TENURE_TRIAL_SECONDS", 600);
    trial(5, Duration::from_secs(seconds)).await;
}

async fn trial(size: u32, lasting: Duration) {
    let seed = setting("TENURE_TRIAL_SEED", 1);
    let mut random = SplitMix64::new(seed);
    let mut cluster = Cluster::start(size).await;
    println!("{size} nodes, {}, seed {seed}", cluster.net.describe());
    let checkers = Arc::new(Checkers::default());
    let load = Load::start(cluster.addresses(), Arc::clone(&checkers)).await;
    let begun = Instant::now();
    let mut done: Vec<(&'static str, u32)> = Vec::new();
    while begun.elapsed() < lasting {
        let fault = Fault::choose(&mut random, &cluster);
        println!("{:6.1} s  {fault}", begun.elapsed().as_secs_f64());
        fault.inflict(&mut cluster, &mut random).await;
        match done.iter_mut().find(|(name, _)| *name == fault.name()) {
            Some((_, count)) => *count += 1,
            None => done.push((fault.name(), 1)),
        }
        checkers.say();
    }
    cluster.heal().await;
    load.settle(&cluster).await;
    checkers.say();
    println!("faults: {done:?}, {} bytes late", cluster.net.delayed());
    let delays = done.iter().any(|(name, _)| *name == Fault::Delay.name());
    assert!(
        !delays || cluster.net.delayed() > 0,
        "nothing took the detour"
    );
    println!("{}", checkers.summary());
    println!("replicas left over: {}", cluster.leftovers());
    assert!(checkers.grants() > 100, "the load did nothing");
    assert!(checkers.stories() > 10, "the histories have few stories");
}

/// After SIGKILL of any node all namespaces serve again. The time is printed, not checked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement: cargo test -p tenure-cli --release --test fault_injection -- --ignored --nocapture failover"]
async fn failover() {
    for (name, blow) in [
        ("SIGKILL", Fault::Kill),
        ("SIGSTOP", Fault::Freeze),
        ("partition", Fault::CutOff),
    ] {
        let mut times = Vec::new();
        let mut cluster = Cluster::start(3).await;
        for round in 0..10u32 {
            let victim = round % 3;
            let took = clients::outage(&mut cluster, victim, &blow).await;
            times.push(took);
            cluster.heal().await;
        }
        times.sort();
        println!(
            "{name}: 64 namespaces served again after {:?} (median of 10; best {:?}, worst {:?})",
            times[5], times[0], times[9]
        );
    }
}

/// Time to move replicas under load. It is printed, not checked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement: cargo test -p tenure-cli --release --test fault_injection -- --ignored --nocapture moves"]
async fn moves() {
    let mut cluster = Cluster::start(3).await;
    let checkers = Arc::new(Checkers::default());
    let load = Load::start(cluster.addresses(), Arc::clone(&checkers)).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    for round in 0..3 {
        let joined = cluster.join().await;
        let left = cluster.leave(round).await;
        cluster.settled().await;
        let victim = cluster.members()[0];
        let replaced = cluster.replace(victim).await;
        println!(
            "a node had its replicas after {joined:.1?}, another had left after {left:.1?}, \
             a wiped one was back after {replaced:.1?}"
        );
    }
    load.settle(&cluster).await;
    checkers.say();
    println!("{}", checkers.summary());
}
