//! Runs every example as a process, against a real daemon if it needs one.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use support::Daemon;

/// Longer than any step takes.
const LONG: Duration = Duration::from_secs(60);

/// Returns the output of an example that succeeds.
fn output(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let (said, told) = (
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    );
    assert!(output.status.success(), "{command:?}: {said}{told}");
    said
}

/// A process in the election. Killed on drop.
struct Candidate {
    child: Child,
    lines: Receiver<String>,
}

impl Candidate {
    fn start(name: &str, daemon: &Daemon) -> Candidate {
        let mut child = Command::new(env!("CARGO_BIN_EXE_leader_election"))
            .arg(name)
            .env("TENURE_URL", &daemon.url)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        let (send, lines) = channel();
        std::thread::spawn(move || {
            for line in said.lines().map_while(Result::ok) {
                let _ = send.send(line);
            }
        });
        Candidate { child, lines }
    }

    /// Returns the rest of the next line with this beginning.
    fn says(&self, beginning: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(LONG);
            let line = line.unwrap_or_else(|_| panic!("no line starts with: {beginning}…"));
            if let Some(rest) = line.strip_prefix(beginning) {
                return rest.to_owned();
            }
        }
    }

    fn term(&self, name: &str) -> u64 {
        self.says(&format!("{name} leads, term ")).parse().unwrap()
    }
}

impl Drop for Candidate {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn leader_election() {
    let daemon = Daemon::start();
    let anna = Candidate::start("anna", &daemon);
    let first = anna.term("anna");
    let ben = Candidate::start("ben", &daemon);
    assert_eq!(ben.says("ben follows "), "anna");
    // A crash: the next process leads when the lease has expired.
    drop(anna);
    let second = ben.term("ben");
    assert!(first < second, "{first} {second}");
    // A release request: the leader steps down, and the next in the queue leads.
    let cleo = Candidate::start("cleo", &daemon);
    assert_eq!(cleo.says("cleo follows "), "ben");
    let client = daemon.client();
    let asked = client.ask("election:/billing/leader", Some("maintenance"));
    let executor = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let asked = executor.block_on(asked);
    assert_eq!(asked.unwrap().len(), 1);
    ben.says("ben steps down: ");
    let third = cleo.term("cleo");
    assert!(second < third, "{second} {third}");
    assert_eq!(ben.says("ben follows "), "cleo");
}

#[test]
fn bounded_concurrency() {
    let daemon = Daemon::start();
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("jobs.log");
    let run = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bounded_concurrency"));
        command.args(["2", "6"]).arg(&log);
        output(command.env("TENURE_URL", &daemon.url))
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(run);
        assert_eq!(run(), "6 jobs done\n");
        assert_eq!(other.join().unwrap(), "6 jobs done\n");
    });
    let (mut running, mut most, mut begun) = (0, 0, 0);
    for line in fs::read_to_string(&log).unwrap().lines() {
        if line.starts_with("begin ") {
            running += 1;
            begun += 1;
        } else {
            running -= 1;
        }
        most = most.max(running);
    }
    assert_eq!((begun, running, most), (12, 0, 2));
}

#[test]
fn guarded_object() {
    let daemon = Daemon::start();
    for place in ["mem:objects/counter", "objects:/counters/one"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_guarded_object"));
        let said = output(command.arg(place).env("TENURE_URL", &daemon.url));
        let (count, late) = said.split_once('\n').unwrap();
        assert_eq!(count, "count 11", "{place}");
        assert!(late.starts_with("too late: "), "{place}: {late}");
    }
}

#[test]
fn virtual_files() {
    let daemon = Daemon::start();
    let mut command = Command::new(env!("CARGO_BIN_EXE_virtual_files"));
    let said = output(command.env("TENURE_URL", &daemon.url));
    let (lists, rest) = said.split_once(' ').unwrap();
    assert_eq!(rest, "lists during 10 moves, 0 of them torn\n");
    assert!(lists.parse::<u32>().unwrap() > 0);
}
