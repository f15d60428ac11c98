//! Runs the shell examples as a reader would.

#![allow(
    clippy::unwrap_used,
    reason = "a test fails where something is not as it must be"
)]

mod support;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use support::Daemon;

/// A script of `examples/sh`, with our `tenure` first in the path, in a directory.
fn example(name: &str, dir: &Path) -> Command {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/sh");
    let binary = Path::new(env!("CARGO_BIN_EXE_tenure"));
    let path = format!(
        "{}:{}",
        binary.parent().unwrap().display(),
        std::env::var("PATH").unwrap()
    );
    let mut command = Command::new(script.join(name));
    command
        .current_dir(dir)
        .env("PATH", path)
        .stdin(Stdio::null());
    command
}

/// What it prints when it succeeds.
fn output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {told}");
    String::from_utf8(output.stdout).unwrap()
}

/// The first job tries to start a second one, which exits. The next run works like the first.
#[test]
fn cron_singleton() {
    let dir = tempfile::tempdir().unwrap();
    let script = example("cron-singleton.sh", dir.path());
    let inner = format!(
        "echo first >> log; '{}' ./job sh -c 'echo never >> log'",
        script.get_program().to_str().unwrap()
    );
    let job = |text: &str| {
        let mut command = example("cron-singleton.sh", dir.path());
        command.args(["./job", "sh", "-c", text]);
        command
    };
    output(&mut job(&inner));
    output(&mut job("echo second >> log"));
    let log = fs::read_to_string(dir.path().join("log")).unwrap();
    assert_eq!(log, "first\nsecond\n");
    // The job's own failure is not hidden.
    assert_eq!(job("exit 3").status().unwrap().code(), Some(3));
    let without = example("cron-singleton.sh", dir.path()).output();
    assert_eq!(without.unwrap().status.code(), Some(2));
}

/// Four deploys at once: each switches alone, and the fence grows from one to the next.
#[test]
fn deploy_lock() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&dir.path().join("data"));
    let deploy = |version: &str, switch: &str| {
        let mut command = example("deploy-lock.sh", dir.path());
        command
            .args(["web", version, "sh", "-c", switch])
            .env("TENURE_URL", format!("tenure://{}", daemon.grpc));
        command
    };
    // `mkdir` succeeds only once: a deploy that finds the directory is not alone.
    let switch = "mkdir switching && echo $TENURE_FENCE $VERSION >> log && rmdir switching";
    std::thread::scope(|scope| {
        for version in ["1.0", "1.1", "1.2", "1.3"] {
            scope.spawn(move || {
                let said = output(&mut deploy(version, switch));
                assert!(said.ends_with(&format!("web is {version}\n")), "{said}");
            });
        }
    });
    let log = fs::read_to_string(dir.path().join("log")).unwrap();
    let fences: Vec<u64> = log
        .lines()
        .map(|line| line.split(' ').next().unwrap().parse().unwrap())
        .collect();
    assert_eq!(fences.len(), 4, "{log}");
    assert!(fences.is_sorted_by(|one, next| one < next), "{log}");
    assert_eq!(deploy("2.0", "exit 7").status().unwrap().code(), Some(7));
}
