//! What several test files share: directories, processes that live and die on command, and the
//! placeholders of the vectors.

#![allow(
    clippy::unwrap_used,
    reason = "a test may hope; its panic is the report"
)]
#![allow(dead_code, reason = "each test file uses its part")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};

use tenure_files::identity::Here;
use tenure_files::process::start_time;

/// A process that lives until it is dropped.
pub(crate) struct Living(Child);

impl Living {
    pub(crate) fn new() -> Living {
        let child = Command::new("sleep")
            .arg("600")
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        Living(child)
    }
    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Living {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The pid of a child that has ended and was waited for.
pub(crate) fn dead_pid() -> u32 {
    let mut child = Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    child.id()
}

/// Fills the placeholders of a vector.
pub(crate) fn fill(template: &[u8], living: &Living) -> Vec<u8> {
    let here = Here::now();
    let alive = living.pid();
    let mut text = String::from_utf8(template.to_vec()).expect("templates are text");
    for (placeholder, value) in [
        ("@ALIVE_PID@", alive.to_string()),
        ("@ALIVE_START@", start_time(alive).unwrap().to_string()),
        ("@ALIVE_PID_HEX@", format!("{alive:x}")),
        ("@DEAD_PID@", dead_pid().to_string()),
        ("@OWN_PID@", std::process::id().to_string()),
        ("@HOST@", here.host.clone()),
        ("@HOST_UPPER@", here.host.to_uppercase()),
        ("@BOOT@", here.boot.clone().unwrap()),
        ("@PIDNS@", here.pidns.unwrap().to_string()),
        ("@OTHER_PIDNS@", "4026539999".to_owned()),
    ] {
        text = text.replace(placeholder, &value);
    }
    assert!(!text.contains('@'), "a placeholder is left in {text}");
    text.into_bytes()
}

pub(crate) fn set_modified(path: &Path, time: SystemTime) {
    std::fs::File::options()
        .read(true)
        .open(path)
        .unwrap()
        .set_modified(time)
        .unwrap();
}

/// 2026-03-07T09:00:30Z, the clock of the vectors.
pub(crate) fn vector_clock() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_772_874_030)
}

pub(crate) fn vectors() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors")
}
