//! Start of the heartbeat thread. A test binary of its own, because there is one heartbeat thread
//! per process.

#![allow(
    clippy::unwrap_used,
    reason = "a test may hope; its panic is the report"
)]

use std::time::Duration;

use tenure_files::internal::rest as pause;
use tenure_files::sidecar::Heartbeat;
use tenure_testkit::eventually;
use tenure_testkit::sidecar::{SidecarFixture, manager};

fn is_running() -> bool {
    std::fs::read_dir("/proc/self/task")
        .unwrap()
        .filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok())
        .any(|name| name.trim() == "tenure-heart")
}

/// K33: a hold that began during a `HeartbeatPause` gets its heartbeats after the pause.
#[test]
fn a_heart_begins_after_its_rest() {
    let fixture = SidecarFixture::new();
    let (rest, second) = (pause(), pause());
    let beating = fixture
        .once()
        .heartbeat(Heartbeat::Every(Duration::from_millis(100)));
    let held = manager("h").acquire(&beating).unwrap();
    drop(second);
    assert!(!is_running());
    drop(rest);
    eventually("the thread runs", is_running);
    eventually("two beats", || {
        let beat = fixture.identity().beat;
        beat.is_some_and(|beat| beat.parse::<u64>().unwrap() >= 2)
    });
    held.release().unwrap();
}
