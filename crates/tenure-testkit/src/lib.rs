//! Shared test helpers: this machine's values for vector templates, and processes that are alive,
//! dead, or another user's.
#![allow(
    missing_docs,
    clippy::new_without_default,
    reason = "not published; a name says enough in a test"
)]
#![allow(clippy::unwrap_used, reason = "in a test a panic is the message")]

pub mod child;
pub mod sidecar;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};

use tenure_files::internal::Here;
pub use tenure_random::SplitMix64 as Rng;

/// Time limit of a test for everything that does not depend on a timeout of the protocol.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// A user that is neither root nor the owner of anything here.
pub const OTHER_USER: u32 = 65_534;

/// A child process that runs until this value is dropped.
pub struct LiveProcess(Child);

impl LiveProcess {
    pub fn spawn() -> LiveProcess {
        LiveProcess(
            Command::new("sleep")
                .arg("1000")
                .stdout(Stdio::null())
                .spawn()
                .expect("sleep can be started"),
        )
    }

    /// Starts one as another user. Needs root, like the other tests about users.
    pub fn spawn_as_other_user() -> LiveProcess {
        let child = Command::new("sleep")
            .arg("1000")
            .uid(OTHER_USER)
            .stdout(Stdio::null())
            .spawn();
        LiveProcess(child.expect("these tests run as root, so that they can become another user"))
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    pub fn start(&self) -> u64 {
        tenure_files::internal::start_time(self.pid()).expect("it lives")
    }
}

impl Drop for LiveProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the pid of a child that has exited and was reaped.
pub fn dead_pid() -> u32 {
    let mut child = Command::new("true")
        .stdin(Stdio::null())
        .spawn()
        .expect("true can be started");
    child.wait().expect("it ends");
    child.id()
}

pub fn host() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}

/// The values for templates, and the processes behind them.
pub struct TestMachine {
    pub alive: LiveProcess,
    pub other_user: LiveProcess,
}

impl TestMachine {
    pub fn new() -> TestMachine {
        TestMachine {
            alive: LiveProcess::spawn(),
            other_user: LiveProcess::spawn_as_other_user(),
        }
    }

    /// Returns the bytes of a vector, with the placeholders of a template replaced.
    pub fn vector(&self, protocol: &str, file: &str) -> Vec<u8> {
        let path = vectors().join(protocol).join(file);
        let bytes = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        if !file.ends_with(".tmpl") {
            return bytes;
        }
        let other_user = self.other_user.pid().to_string();
        let text = String::from_utf8(bytes).expect("templates are text");
        fill(
            text.replace("@OTHER_USER_PID@", &other_user).as_bytes(),
            &self.alive,
        )
    }
}

pub fn pid_namespace() -> u64 {
    fs::metadata("/proc/self/ns/pid").expect("Linux").ino()
}

pub fn vectors() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tenure-files/tests/vectors")
}

/// Returns all files of a protocol's vectors, so that a test can check that its table is complete.
pub fn vector_files(protocol: &str) -> Vec<String> {
    let mut files: Vec<String> = fs::read_dir(vectors().join(protocol))
        .expect("the vectors are there")
        .map(|entry| entry.expect("readable").file_name())
        .map(|name| name.into_string().expect("vectors have plain names"))
        .collect();
    files.sort();
    files
}

/// Sets the modification time of a file to `age` ago.
pub fn set_age(path: &Path, age: Duration) {
    let file = fs::OpenOptions::new()
        .write(true)
        .open(path)
        .expect("the file is there");
    file.set_modified(SystemTime::now() - age)
        .expect("its time can be set");
}

pub fn make_fifo(path: &Path) {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).expect("a FIFO can be made");
}

/// Polls until a condition holds that makes no event; fails if it never does.
#[track_caller]
pub fn eventually(what: &str, mut is_true: impl FnMut() -> bool) {
    let give_up = std::time::Instant::now() + TIMEOUT;
    while !is_true() {
        assert!(
            std::time::Instant::now() < give_up,
            "never happened: {what}"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Replaces the placeholders of a vector with values of this machine and `living`.
pub fn fill(template: &[u8], living: &LiveProcess) -> Vec<u8> {
    let here = Here::now();
    let alive = living.pid();
    let mut text = String::from_utf8(template.to_vec()).expect("templates are text");
    for (placeholder, value) in [
        ("@ALIVE_PID@", alive.to_string()),
        ("@ALIVE_START@", living.start().to_string()),
        ("@ALIVE_PID_HEX@", format!("{alive:x}")),
        ("@DEAD_PID@", dead_pid().to_string()),
        ("@OWN_PID@", std::process::id().to_string()),
        ("@HOST@", here.host.clone()),
        ("@HOST_UPPER@", here.host.to_uppercase()),
        ("@BOOT@", here.boot.clone().expect("Linux")),
        ("@PIDNS@", here.pidns.expect("Linux").to_string()),
        ("@OTHER_PIDNS@", "4026539999".to_owned()),
    ] {
        text = text.replace(placeholder, &value);
    }
    assert!(!text.contains('@'), "a placeholder is left in {text}");
    text.into_bytes()
}

pub fn set_modified(path: &Path, time: SystemTime) {
    let file = fs::File::options()
        .read(true)
        .open(path)
        .expect("the file is there");
    file.set_modified(time).expect("its time can be set");
}

/// 2026-03-07T09:00:30Z, the clock of the vectors.
pub fn vector_clock() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_772_874_030)
}

/// Whether a process waits for a lock: then it has an inotify descriptor.
pub fn is_waiting(pid: u32) -> bool {
    let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else {
        return false;
    };
    descriptors
        .flatten()
        .filter_map(|entry| fs::read_link(entry.path()).ok())
        .any(|target| target.to_string_lossy().contains("inotify"))
}

/// The Rust examples of the READMEs and the guides, as doctests.
#[cfg(doctest)]
mod examples {
    #[doc = include_str!("../../../README.md")]
    struct Readme;

    #[doc = include_str!("../../tenure/README.md")]
    struct ReadmeOfTheLibrary;

    #[doc = include_str!("../../../docs/guides/library.md")]
    struct LibraryGuide;
}
