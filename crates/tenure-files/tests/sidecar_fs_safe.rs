//! Interoperability with the original: the real `@openclaw/fs-safe` packages from npm, one per
//! generation, against Tenure, in both directions.
//!
//! G1 is 0.1.2: it deletes by name a lock that looks old, and releases by name. G2 is 0.4.1: it
//! compares first, and removes stale locks only on approval. G3 is 0.5.0: it also makes a guard.
//! The packages are installed once into `.cache` at the root of the repository; `npm` and `node`
//! are needed.

#![allow(
    clippy::unwrap_used,
    reason = "a test may hope; its panic is the report"
)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use tenure_files::Class;
use tenure_files::Clock;
use tenure_files::Durability;
use tenure_files::internal::Dir;
use tenure_files::internal::leftovers;
use tenure_files::sidecar::{Manager, Options, Retry, StalePolicy};
use tenure_testkit::child::{Player, say};

const G1: &str = "0.1.2";
const G2: &str = "0.4.1";
const G3: &str = "0.5.0";
/// The newest of the third generation.
const NEWEST: &str = "0.21.0";

/// The directory into which the package of this version is installed.
fn package(version: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/fs-safe");
    let home = root.join(version);
    std::fs::create_dir_all(&home).unwrap();
    let once = std::fs::File::create(root.join(format!("{version}.installing"))).unwrap();
    once.lock().unwrap();
    if !home
        .join("node_modules/@openclaw/fs-safe/dist/sidecar-lock.js")
        .exists()
    {
        let installed = Command::new("npm")
            .args([
                "install",
                "--no-save",
                "--no-audit",
                "--no-fund",
                "--ignore-scripts",
            ])
            .arg("--prefix")
            .arg(&home)
            .arg(format!("@openclaw/fs-safe@{version}"))
            .stdout(Stdio::null())
            .status()
            .expect("npm is needed for the interoperability tests");
        assert!(
            installed.success(),
            "npm could not install @openclaw/fs-safe@{version}"
        );
    }
    home
}

fn original(version: &str, mode: &str, target: &Path, rest: &[&str]) -> Player {
    let worker = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fs_safe/worker.mjs");
    let mut command = Command::new("node");
    command
        .arg(worker)
        .arg(package(version))
        .arg(mode)
        .arg(target)
        .args(rest);
    Player::of(command)
}

struct OriginalFixture {
    temp: tempfile::TempDir,
    target: PathBuf,
    lock: PathBuf,
}

impl OriginalFixture {
    fn new() -> OriginalFixture {
        let temp = tempfile::tempdir().unwrap();
        let target = temp.path().canonicalize().unwrap().join("state.json");
        OriginalFixture {
            lock: target.with_file_name("state.json.lock"),
            target,
            temp,
        }
    }
    fn options(&self) -> Options {
        Options::new(&self.target).durability(Durability::Fast)
    }
    fn once(&self) -> Options {
        self.options().retry(Retry::none())
    }
    fn lines(&self, name: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.temp.path().join(name)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

/// One after the other: each side excludes the other, waits for it, and gets the lock after it.
#[test]
fn one_at_a_time_both_sides_keep_each_other_out() {
    for version in [G1, G2, G3, NEWEST] {
        let fixture = OriginalFixture::new();
        let locks = Manager::new("ours");

        let held = locks.acquire(&fixture.options()).unwrap();
        original(version, "try", &fixture.target, &[]).expect("file_lock_timeout");
        let mut waiting = original(version, "hold", &fixture.target, &[]);
        held.verify_still_held().unwrap();
        held.release().unwrap();
        waiting.expect("held");

        let error = locks.acquire(&fixture.once()).unwrap_err();
        assert_eq!(error.class(), Class::Timeout, "{version}");
        assert_eq!(
            error.blocker().unwrap().pid,
            Some(waiting.pid()),
            "{version}"
        );
        let options = fixture.options();
        let ours = std::thread::spawn(move || Manager::new("ours").acquire(&options).unwrap());
        waiting.tell("release");
        let held = ours.join().unwrap();
        held.verify_still_held().unwrap();
        held.release().unwrap();
        waiting.expect("released");
        assert!(!fixture.lock.exists(), "{version}");

        original(version, "try", &fixture.target, &[]).expect("taken");
    }
}

/// S19.3 (order of sidecar tests): an original that was killed is proven dead and replaced, without
/// waiting for its age; a stopped one is not.
#[test]
fn a_killed_original_is_replaced() {
    for version in [G1, G2, G3, NEWEST] {
        let fixture = OriginalFixture::new();
        let holder = original(version, "hold", &fixture.target, &[]);
        holder.expect("held");
        holder.signal(rustix::process::Signal::STOP);
        let refused = Manager::new("ours").acquire(&fixture.once());
        assert_eq!(refused.unwrap_err().class(), Class::Timeout, "{version}");
        holder.kill();
        Manager::new("ours")
            .acquire(&fixture.once())
            .unwrap()
            .release()
            .unwrap();
        assert!(!fixture.lock.exists(), "{version}");
    }
}

/// S11 (no creation date with heartbeats), S24: with heartbeats, a Tenure lock older than the stale
/// time is not stale for any generation.
#[test]
fn a_beating_lock_is_never_stale_for_an_original() {
    let fixture = OriginalFixture::new();
    let beating = fixture
        .options()
        .heartbeat(tenure_files::sidecar::Heartbeat::Every(
            Duration::from_millis(100),
        ));
    let held = Manager::new("ours").acquire(&beating).unwrap();
    tenure_testkit::set_modified(&fixture.lock, SystemTime::now() - Duration::from_secs(600));
    while std::fs::metadata(&fixture.lock)
        .unwrap()
        .modified()
        .unwrap()
        .elapsed()
        .unwrap()
        > Duration::from_secs(10)
    {
        std::thread::sleep(Duration::from_millis(10));
    }
    for version in [G1, G2, G3, NEWEST] {
        original(version, "try", &fixture.target, &[]).expect("file_lock_timeout");
    }
    held.verify_still_held().unwrap();
    held.release().unwrap();
}

/// Not a test: entry point of the child processes of this file.
#[test]
fn child() {
    tenure_testkit::child::play(&[("contend", contend)]);
}

/// The same sections as the worker of the original, with Tenure's lock.
fn contend(target: &Path) {
    let count: u32 = std::env::var("TENURE_TEST_COUNT").unwrap().parse().unwrap();
    let dwell: u64 = std::env::var("TENURE_TEST_DWELL_MS")
        .unwrap()
        .parse()
        .unwrap();
    let dwell = Duration::from_millis(dwell);
    let section = Section {
        directory: target.parent().unwrap().to_owned(),
    };
    let locks = Manager::new("contend");
    let retry = Retry {
        min_timeout: Duration::from_millis(1),
        max_timeout: Duration::from_millis(4),
        randomize: true,
        ..Retry::default()
    };
    // An original that is killed while it makes its lock or its guard leaves no proof. Therefore
    // remove an empty record after 3 s and an unchanged guard after 10 s, and nothing else.
    let options = Options::new(target)
        .durability(Durability::Fast)
        .retry(retry)
        .timeout(Duration::from_secs(60))
        .stale(Duration::from_secs(3))
        .recovery(StalePolicy::RemoveIfUnchanged)
        .approve(|candidate| candidate.payload.is_none())
        .guard_stale(Duration::from_secs(1));
    let mut n = 0;
    while n < count {
        let me = format!("tenure {} {n}", std::process::id());
        let guard = match locks.acquire(&options) {
            Ok(guard) => guard,
            // K26: this process displaced a lock and reports it; the name counts as held.
            Err(error) if error.class() == Class::Compromised => {
                section.append("displaced", &error.to_string());
                continue;
            }
            // A slow but live original: its lock must not be removed.
            Err(error) if error.class() == Class::Stale => continue,
            Err(error) => {
                section.append("failures", &format!("{me}: {error}"));
                std::process::exit(1);
            }
        };
        section.enter(&me);
        let next = section.read("counter").parse().unwrap_or(0) + 1;
        section.count(next);
        section.append("log", &format!("{me} {next}"));
        // Hold the lock long enough that the loss of a lock becomes an overlap.
        std::thread::sleep(dwell);
        section.leave(&me);
        match guard.release() {
            Ok(()) => {}
            Err(error) if error.class() == Class::Compromised => section.append("noticed", &me),
            Err(error) => section.append("failures", &format!("{me}: {error}")),
        }
        n += 1;
    }
    say("done");
}

struct Section {
    directory: PathBuf,
}

impl Section {
    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }
    fn append(&self, name: &str, line: &str) {
        use std::io::Write;
        let mut file = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.path(name))
            .unwrap();
        file.write_all(format!("{line}\n").as_bytes()).unwrap();
    }
    /// Writes in place with one call: a kill in between must not lose the count.
    fn count(&self, number: u64) {
        use std::os::unix::fs::FileExt;
        let path = self.path("counter");
        let file = std::fs::File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path)
            .unwrap();
        file.write_all_at(format!("{number:010}").as_bytes(), 0)
            .unwrap();
    }
    /// Reports a double hold if the previous process in `inside` still runs. A process that was
    /// killed there gets 200 ms: its lock is free a little before its process is gone.
    fn enter(&self, me: &str) {
        let before = self.read("inside");
        if !before.is_empty() && before != me {
            let pid = before.split(' ').nth(1).unwrap_or("0").to_owned();
            let until = Instant::now() + Duration::from_millis(200);
            while Instant::now() < until && runs(&pid) && self.read("inside") == before {}
            if runs(&pid) {
                self.append("doubles", &format!("{before} ; {me} ; {}", self.whose()));
            }
        }
        // Replace the file in one step: two processes inside at the same time must not mix their
        // names.
        let own = self.path(&format!("inside-{}", std::process::id()));
        std::fs::write(&own, me).unwrap();
        std::fs::rename(&own, self.path("inside")).unwrap();
    }
    /// Whether the lock file is ours: it tells which of two holders lost its lock.
    fn whose(&self) -> &'static str {
        let record: Option<serde_json::Value> =
            serde_json::from_str(&self.read("state.json.lock")).ok();
        let pid = record.and_then(|record| record.get("pid")?.as_u64());
        if pid == Some(std::process::id().into()) {
            "mine"
        } else {
            "not mine"
        }
    }
    fn leave(&self, me: &str) {
        if self.read("inside") == me {
            let _ = std::fs::remove_file(self.path("inside"));
        } else {
            self.append("overlaps", me);
        }
    }
}

fn runs(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat
        .rsplit(')')
        .next()
        .and_then(|rest| rest.trim_start().chars().next());
    state.is_some_and(|state| state != 'Z' && state != 'X')
}

/// A run of two original and two Tenure processes on one lock.
struct Contest {
    version: &'static str,
    policy: &'static str,
    /// Sections per process.
    count: u32,
    /// Processes killed with SIGKILL and started again.
    kills: u32,
    /// How long each process works under the lock.
    dwell_ms: u32,
}

impl Contest {
    fn new(version: &'static str, policy: &'static str, kills: u32) -> Contest {
        Contest {
            version,
            policy,
            count: 510,
            kills,
            dwell_ms: 0,
        }
    }

    fn player(&self, fixture: &OriginalFixture, index: usize) -> Player {
        let (count, dwell) = (self.count.to_string(), self.dwell_ms.to_string());
        if index.is_multiple_of(2) {
            let rest = [count.as_str(), self.policy, &dwell];
            return original(self.version, "contend", &fixture.target, &rest);
        }
        let environment = [
            ("TENURE_TEST_COUNT", &*count),
            ("TENURE_TEST_DWELL_MS", &dwell),
        ];
        Player::with("contend", &fixture.target, &environment)
    }

    fn run(&self) -> OriginalFixture {
        let fixture = OriginalFixture::new();
        let mut players: Vec<Player> = (0..4).map(|index| self.player(&fixture, index)).collect();
        let section = Section {
            directory: fixture.temp.path().to_owned(),
        };
        for kill in 0..self.kills {
            // Not a wait for an event: the interval between kills.
            std::thread::sleep(Duration::from_millis(40 + u64::from(kill * 7919 % 60)));
            let index = kill as usize % players.len();
            let fresh = self.player(&fixture, index);
            let killed = std::mem::replace(&mut players[index], fresh);
            section.append("killed", &killed.pid().to_string());
            killed.kill();
        }
        for player in &players {
            let word = player.hear_within(Duration::from_secs(100));
            let failures = fixture.lines("failures");
            assert_eq!(word.as_deref(), Some("done"), "{self:?}: {failures:?}");
        }
        fixture
    }

    /// No two processes inside at the same time, no number used twice, and the counter matches the
    /// sections.
    fn must_exclude(&self) {
        let fixture = self.run();
        assert_eq!(fixture.lines("doubles"), [""; 0], "{self:?}");
        assert_eq!(fixture.lines("overlaps"), [""; 0], "{self:?}");
        assert_eq!(fixture.lines("noticed"), [""; 0], "{self:?}");
        let log = fixture.lines("log");
        let numbers: BTreeSet<u64> = log
            .iter()
            .map(|line| line.rsplit(' ').next().unwrap().parse().unwrap())
            .collect();
        assert_eq!(
            numbers.len(),
            log.len(),
            "{self:?}: a number was given twice"
        );
        let counter: u64 = fixture.lines("counter")[0].parse().unwrap();
        let finished = log.len() as u64;
        assert!(finished >= 2000, "{self:?}: only {finished} sections");
        assert!(
            (finished..=finished + u64::from(self.kills)).contains(&counter),
            "{self:?}: {counter} counted, {finished} logged"
        );
        assert!(log.iter().any(|line| line.starts_with("original")));
        assert!(log.iter().any(|line| line.starts_with("tenure")));
        // A Tenure process that is killed between the two steps of a removal leaves a private file
        // (K20: remove leftover private files).
        let later = Clock::fixed(SystemTime::now() + Duration::from_secs(120));
        let cleaned = leftovers(&Dir::open(fixture.temp.path()).unwrap(), later).unwrap();
        assert!(
            cleaned.len() <= self.kills as usize,
            "{self:?}: {cleaned:?}"
        );
        let left: Vec<String> = std::fs::read_dir(fixture.temp.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.starts_with('.') || name.contains(".lock"))
            .collect();
        assert_eq!(left, [""; 0], "{self:?}");
    }

    /// If originals delete by name, double holds happen. Every Tenure process that lost its lock
    /// while inside must have detected it.
    fn must_notice(&self) {
        let fixture = self.run();
        let noticed: BTreeSet<String> = fixture.lines("noticed").into_iter().collect();
        let doubles = fixture.lines("doubles");
        // Only if the lock file is the second process's did the first one lose its lock. Otherwise
        // the second lost its lock before it entered.
        let robbed: Vec<&str> = doubles
            .iter()
            .filter(|line| line.starts_with("tenure") && line.ends_with("; mine"))
            .filter_map(|line| line.split(" ; ").next())
            .collect();
        eprintln!(
            "{self:?}: {} sections, {} double holds, {} of them of a Tenure, {} noticed by it",
            fixture.lines("log").len(),
            doubles.len(),
            robbed.len(),
            noticed.len()
        );
        let killed = fixture.lines("killed");
        for victim in robbed {
            if killed
                .iter()
                .any(|pid| victim.split(' ').nth(1) == Some(pid))
            {
                continue; // It may have been killed before its check.
            }
            assert!(
                noticed.contains(victim),
                "{self:?}: {victim} was robbed and did not notice"
            );
        }
    }
}

impl std::fmt::Debug for Contest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "fs-safe {} ({}, {} kills)",
            self.version, self.policy, self.kills
        )
    }
}

#[test]
fn g2_under_contention() {
    Contest::new(G2, "default", 0).must_exclude();
}

#[test]
fn g2_with_sigkill() {
    Contest::new(G2, "default", 16).must_exclude();
}

#[test]
fn g3_under_contention() {
    Contest::new(G3, "default", 0).must_exclude();
}

#[test]
fn g3_with_sigkill() {
    Contest::new(G3, "default", 16).must_exclude();
}

#[test]
fn g3_with_approved_removal() {
    Contest::new(G3, "approve", 16).must_exclude();
}

/// S23: G1 deletes locks by name; double holds are counted, and every Tenure process that lost its
/// lock detects it (K34: detect a lost lock).
#[test]
fn g1_robs_and_is_noticed() {
    Contest {
        count: 300,
        dwell_ms: 1,
        ..Contest::new(G1, "default", 0)
    }
    .must_notice();
}

/// S23: the same for G2 with approved removal.
#[test]
fn g2_with_approved_removal_robs_and_is_noticed() {
    Contest {
        count: 300,
        dwell_ms: 1,
        ..Contest::new(G2, "approve", 16)
    }
    .must_notice();
}
