//! Fixture for sidecar tests.

#![allow(
    clippy::unwrap_used,
    reason = "a test may hope; its panic is the report"
)]

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use tenure_files::Class;
use tenure_files::Durability;
use tenure_files::Identity;
use tenure_files::sidecar::{
    AcquireStep, Heartbeat, Manager, Options, Payload, Retry, SidecarGuard,
};

/// A target in a temporary directory.
pub struct SidecarFixture {
    _temp: tempfile::TempDir,
    pub target: PathBuf,
    pub lock: PathBuf,
    pub guard: PathBuf,
}

impl SidecarFixture {
    pub fn new() -> SidecarFixture {
        let temp = tempfile::tempdir().unwrap();
        let target = temp.path().canonicalize().unwrap().join("state.json");
        SidecarFixture {
            lock: target.with_file_name("state.json.lock"),
            guard: target.with_file_name("state.json.lock.reclaim"),
            _temp: temp,
            target,
        }
    }
    pub fn options(&self) -> Options {
        Options::new(&self.target).durability(Durability::Fast)
    }
    pub fn once(&self) -> Options {
        self.options().retry(Retry::none())
    }
    pub fn payload(&self) -> Payload {
        serde_json::from_slice(&std::fs::read(&self.lock).unwrap()).unwrap()
    }
    pub fn identity(&self) -> Identity {
        Identity::in_record(&self.payload()).unwrap()
    }
    /// The record of a dead Tenure process, with a free flock.
    pub fn put_dead_lock(&self) {
        let guard = manager("dead")
            .acquire(&self.once().heartbeat(Heartbeat::Off))
            .unwrap();
        guard.leave();
    }
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(self.target.parent().unwrap())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

pub fn manager(key: &str) -> Manager {
    Manager::new(key)
}

pub fn class(result: tenure_files::Result<SidecarGuard>) -> Class {
    result.expect_err("it must not be acquired").class()
}

pub fn map(value: serde_json::Value) -> Payload {
    value.as_object().unwrap().clone()
}

/// Runs `action` once, when `point` is first reached.
pub fn at(
    point: AcquireStep,
    action: impl Fn() + Send + Sync + 'static,
) -> impl Fn(AcquireStep) + Send + Sync {
    let done = AtomicBool::new(false);
    move |reached| {
        if reached == point && !done.swap(true, Ordering::SeqCst) {
            action();
        }
    }
}
