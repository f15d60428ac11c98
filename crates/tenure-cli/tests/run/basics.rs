//! Basic cases of `tenure run`.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::shell::eventually;

fn tenure(dir: &TempDir, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
    command
        .arg("run")
        .args(arguments)
        .current_dir(dir.path())
        .stdin(Stdio::null());
    command
}

fn code(dir: &TempDir, arguments: &[&str]) -> Option<i32> {
    tenure(dir, arguments)
        .stderr(Stdio::null())
        .status()
        .unwrap()
        .code()
}

/// A holder that has printed "held" and sleeps.
fn holder(
    dir: &TempDir,
    options: &[&str],
    script: &str,
) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut arguments = options.to_vec();
    arguments.extend(["f", "--", "sh", "-c", script]);
    let mut child = tenure(dir, &arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    assert_eq!(line.trim(), "held");
    (child, lines)
}

fn kill(signal: &str, pid: u32) {
    let status = Command::new("kill")
        .args([signal, &pid.to_string()])
        .status()
        .unwrap();
    assert!(status.success());
}

fn is_alive(pid: &str) -> bool {
    // A zombie has no executable any more.
    fs::read_link(Path::new("/proc").join(pid).join("exe")).is_ok()
}

/// C2: the child's own code; 126, 127, 128+n; 2 for bad usage.
#[test]
fn exit_codes() {
    let dir = TempDir::new().unwrap();
    assert_eq!(code(&dir, &["f", "--", "true"]), Some(0));
    assert_eq!(code(&dir, &["f", "--", "sh", "-c", "exit 7"]), Some(7));
    assert_eq!(
        code(&dir, &["f", "--", "sh", "-c", "kill -9 $$"]),
        Some(137)
    );
    assert_eq!(code(&dir, &["f", "--", "./not-there"]), Some(127));
    fs::write(dir.path().join("plain"), "").unwrap();
    assert_eq!(code(&dir, &["f", "--", "./plain"]), Some(126));
    assert_eq!(code(&dir, &["f"]), Some(2));
    assert!(
        !dir.path().join("f.lock").exists(),
        "the lock was given back each time"
    );
}

/// C1 (options of run), C16: busy with `-n` is 75, timed out is 124, `-E` replaces both.
#[test]
fn busy_codes() {
    let dir = TempDir::new().unwrap();
    let (mut child, _lines) = holder(&dir, &[], "echo held; sleep 1000");
    assert_eq!(code(&dir, &["-n", "f", "--", "true"]), Some(75));
    assert_eq!(code(&dir, &["-n", "-E", "9", "f", "--", "true"]), Some(9));
    assert_eq!(code(&dir, &["-w", "50ms", "f", "--", "true"]), Some(124));
    assert_eq!(
        code(&dir, &["-w", "50ms", "-E", "8", "f", "--", "true"]),
        Some(8)
    );
    kill("-TERM", child.id());
    assert_eq!(child.wait().unwrap().code(), Some(143));
    assert_eq!(code(&dir, &["-n", "f", "--", "true"]), Some(0));
}

/// C8: the message names the blocker with pid and purpose.
#[test]
fn the_holder_is_named() {
    let dir = TempDir::new().unwrap();
    let (mut child, _lines) = holder(
        &dir,
        &["--purpose", "nightly compaction"],
        "echo held; sleep 1000",
    );
    let output = tenure(&dir, &["-n", "f", "--", "true"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains(&child.id().to_string()), "{text}");
    kill("-TERM", child.id());
    child.wait().unwrap();
}

/// `-q`: a held lock is reported by the exit code only; other errors are still printed.
#[test]
fn quiet_is_told_by_the_code() {
    let dir = TempDir::new().unwrap();
    let (mut child, _lines) = holder(&dir, &[], "echo held; sleep 1000");
    let ends = |arguments: &[&str]| {
        let output = tenure(&dir, arguments).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), said)
    };
    let nothing = String::new();
    assert_eq!(
        ends(&["-qn", "f", "--", "true"]),
        (Some(75), nothing.clone())
    );
    let patience = ["-q", "-w", "1200ms", "-E", "7", "f", "--", "true"];
    assert_eq!(ends(&patience), (Some(7), nothing));
    kill("-TERM", child.id());
    child.wait().unwrap();
    let (code, said) = ends(&["-q", "f", "--", "./no-such-command"]);
    assert_eq!(code, Some(127));
    assert!(said.contains("no-such-command"), "{said}");
}

/// C3: what the child finds in its environment.
#[test]
fn the_environment_of_the_child() {
    let dir = TempDir::new().unwrap();
    let script = "env | grep ^TENURE_ | sort; readlink /proc/self/fd/$TENURE_FD";
    let output = tenure(&dir, &["--fence", "f", "--", "sh", "-c", script])
        .env("TENURE_FENCE", "stale")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    for part in [
        "TENURE_HELD=1",
        "TENURE_MODE=exclusive",
        "TENURE_WHERE=f",
        "TENURE_FENCE=1\n",
        "TENURE_NOTICE_FD=",
        "f.lock\n",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    // Without a fence an inherited value must not be mistaken for one.
    let output = tenure(&dir, &["f", "--", "env"])
        .env("TENURE_FENCE", "stale")
        .output()
        .unwrap();
    assert!(!String::from_utf8_lossy(&output.stdout).contains("TENURE_FENCE"));
    let output = tenure(&dir, &["-o", "f", "--", "env"]).output().unwrap();
    assert!(!String::from_utf8_lossy(&output.stdout).contains("TENURE_FD"));
}

/// C3: signals reach the group, USR1 the child alone.
#[test]
fn signals_are_passed_on() {
    let dir = TempDir::new().unwrap();
    for (signal, number) in [("-TERM", 15), ("-INT", 2), ("-HUP", 1), ("-QUIT", 3)] {
        let (mut child, _lines) = holder(&dir, &[], "echo held; exec sleep 1000");
        kill(signal, child.id());
        assert_eq!(child.wait().unwrap().code(), Some(128 + number), "{signal}");
    }
    for signal in ["-USR1", "-USR2"] {
        let script = format!(
            "trap 'kill $!; exit 44' {}; echo held; sleep 1000 & wait",
            &signal[1..]
        );
        let (mut child, _lines) = holder(&dir, &[], &script);
        kill(signal, child.id());
        assert_eq!(child.wait().unwrap().code(), Some(44), "{signal}");
    }
}

/// C4: the lock is released when the whole group has ended, not when the child has.
#[test]
fn a_background_process_of_the_group_keeps_the_lock() {
    let dir = TempDir::new().unwrap();
    let script = "(read line < go; :) & echo held; exit 3";
    assert!(
        Command::new("mkfifo")
            .arg(dir.path().join("go"))
            .status()
            .unwrap()
            .success()
    );
    let (mut child, _lines) = holder(&dir, &[], script);
    assert_eq!(
        code(&dir, &["-n", "f", "--", "true"]),
        Some(75),
        "the group lives"
    );
    fs::write(dir.path().join("go"), "go\n").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(3));
    assert_eq!(code(&dir, &["-n", "f", "--", "true"]), Some(0));
}

/// C4: at a normal end, a process that left the group by `setsid` is not waited for.
#[test]
fn a_daemon_that_left_is_not_waited_for() {
    let dir = TempDir::new().unwrap();
    let script = "setsid sh -c 'echo $$ > pid; exec sleep 1000' < /dev/null > /dev/null & while ! test -s pid; do sleep 0.01; done; exit 0";
    assert_eq!(code(&dir, &["f", "--", "sh", "-c", script]), Some(0));
    let pid = fs::read_to_string(dir.path().join("pid")).unwrap();
    assert!(is_alive(pid.trim()), "it lives on");
    kill("-KILL", pid.trim().parse().unwrap());
}

/// C4, C17: SIGKILL of tenure ends the whole tree, with or without `setsid`, before the lock is
/// free.
#[test]
fn killing_tenure_ends_the_tree() {
    let dir = TempDir::new().unwrap();
    for round in 0..10 {
        let _ = fs::remove_file(dir.path().join("pids"));
        let script = "setsid sh -c 'echo $$ >> pids; exec sleep 1000' & \
                      sh -c 'echo $$ >> pids; exec sleep 1000' & \
                      while test $(wc -l < pids 2>/dev/null || echo 0) -lt 2; do sleep 0.01; done; \
                      echo $$ >> pids; echo held; wait";
        let (mut child, _lines) = holder(&dir, &[], script);
        let pids = fs::read_to_string(dir.path().join("pids")).unwrap();
        child.kill().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(9));
        // The next holder must find no process of the tree.
        let script =
            "cat pids | while read pid; do test -e /proc/$pid/exe && echo alive $pid; done; :";
        let output = tenure(&dir, &["-w", "60s", "f", "--", "sh", "-c", script])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(text, "", "round {round}: of {pids}");
        assert_eq!(output.status.code(), Some(0));
    }
}

/// C4: with `--no-kill` the lock stays held until the command has ended by itself.
#[test]
fn no_kill_waits_for_the_end() {
    let dir = TempDir::new().unwrap();
    assert!(
        Command::new("mkfifo")
            .arg(dir.path().join("go"))
            .status()
            .unwrap()
            .success()
    );
    let (mut child, _lines) = holder(
        &dir,
        &["--no-kill"],
        "echo held; read line < go; echo x > done",
    );
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(
        code(&dir, &["-n", "f", "--", "true"]),
        Some(75),
        "the command still runs"
    );
    fs::write(dir.path().join("go"), "go\n").unwrap();
    assert_eq!(
        code(&dir, &["-w", "60s", "f", "--", "test", "-e", "done"]),
        Some(0)
    );
}

/// C4: SIGKILL of the supervisor: the child dies with it, and tenure ends the rest.
#[test]
fn killing_the_keeper_ends_the_tree() {
    let dir = TempDir::new().unwrap();
    let script = "setsid sh -c 'echo $$ > pid; exec sleep 1000' & \
                  while ! test -s pid; do sleep 0.01; done; echo held; wait";
    let (mut child, _lines) = holder(&dir, &[], script);
    let pid = fs::read_to_string(dir.path().join("pid")).unwrap();
    let task = format!("/proc/{0}/task/{0}/children", child.id());
    let supervisor = fs::read_to_string(task).unwrap();
    kill("-KILL", supervisor.trim().parse().unwrap());
    assert_eq!(child.wait().unwrap().code(), Some(137));
    assert!(!is_alive(pid.trim()), "what left the group is gone too");
    assert_eq!(code(&dir, &["-n", "f", "--", "true"]), Some(0));
}

/// C5 (stop before the lease ends), C14: a lost lock stops the command, with 120.
#[test]
fn a_lost_lock_stops_the_command() {
    let dir = TempDir::new().unwrap();
    for on_lost in ["term", "kill"] {
        let script = "trap 'echo told; exit 0' TERM; echo held; sleep 1000 & wait";
        let (mut child, mut lines) = holder(&dir, &["--on-lost", on_lost], script);
        fs::remove_file(dir.path().join("f.lock")).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(120), "{on_lost}");
        let mut rest = String::new();
        lines.read_to_string(&mut rest).unwrap();
        assert_eq!(rest.trim() == "told", on_lost == "term", "{rest}");
    }
}

/// C5: `notify` informs the command through its pipe and does not stop it.
#[test]
fn notify_only_tells() {
    let dir = TempDir::new().unwrap();
    let script = "echo held; read line <&$TENURE_NOTICE_FD || { sleep 0.2; read line <&$TENURE_NOTICE_FD; }; echo \"$line\"; exit 0";
    let script = format!("while :; do {script}; done");
    let script = script.replace(
        "echo held; read",
        "test -e said || {{ echo held; : > said; }}; read",
    );
    let script = script.replace("{{", "{").replace("}}", "}");
    let script = script.replace(
        "|| { sleep 0.2; read line <&$TENURE_NOTICE_FD; }; echo",
        "|| { sleep 0.05; continue; }; echo",
    );
    let (mut child, mut lines) = holder(&dir, &["--on-lost", "notify"], &script);
    fs::remove_file(dir.path().join("f.lock")).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(120));
    let mut rest = String::new();
    lines.read_to_string(&mut rest).unwrap();
    assert!(rest.contains(r#""event":"lost""#), "{rest}");
}

/// The command has tenure's own standard input.
#[test]
fn standard_input_passes_through() {
    let dir = TempDir::new().unwrap();
    let mut child = tenure(&dir, &["f", "--", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"through").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.stdout, b"through");
}

/// One holder at a time: a counter without other protection stays correct.
#[test]
fn many_commands_take_turns() {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("n"), "0").unwrap();
    let script = "n=$(cat n); echo $((n + 1)) > n";
    let children: Vec<Child> = (0..20)
        .map(|_| {
            tenure(&dir, &["f", "--", "sh", "-c", script])
                .spawn()
                .unwrap()
        })
        .collect();
    for mut child in children {
        assert_eq!(child.wait().unwrap().code(), Some(0));
    }
    assert_eq!(
        fs::read_to_string(dir.path().join("n")).unwrap().trim(),
        "20"
    );
    eventually("the lock file is gone", || {
        !dir.path().join("f.lock").exists()
    });
}

/// Returns the heartbeat counter of a lock file, once it is there.
fn beat(dir: &TempDir, lock: &str) -> Option<u64> {
    let text = fs::read_to_string(dir.path().join(lock)).ok()?;
    let record: serde_json::Value = serde_json::from_str(&text).ok()?;
    record["tenure"]["beat"].as_str()?.trim().parse().ok()
}

/// K33: a short command has no heartbeat; a long one has, and so has a lock that is held while
/// another is awaited.
#[test]
fn what_lasts_is_kept_alive() {
    let dir = TempDir::new().unwrap();
    let gate = dir.path().join("gate");
    assert!(
        Command::new("mkfifo")
            .arg(&gate)
            .status()
            .unwrap()
            .success()
    );
    let (mut child, _lines) = holder(
        &dir,
        &["--heartbeat", "100ms"],
        "echo held; read line < gate",
    );
    eventually("the command's lock beats", || {
        beat(&dir, "f.lock").is_some_and(|beat| beat >= 2)
    });
    let mut second = tenure(&dir, &["--heartbeat", "100ms", "a", "f", "--", "true"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    eventually("the first of two locks beats", || {
        beat(&dir, "a.lock").is_some_and(|beat| beat >= 2)
    });
    fs::write(&gate, "go\n").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(second.wait().unwrap().code(), Some(0));
}

/// C2: a command may be as long as the system allows.
#[test]
fn a_long_command_runs() {
    let dir = TempDir::new().unwrap();
    let words: Vec<String> = (0..60_000).map(|number| number.to_string()).collect();
    let mut arguments = vec!["f", "--", "sh", "-c", "echo $# ${60000}", "sh"];
    arguments.extend(words.iter().map(String::as_str));
    let done = tenure(&dir, &arguments).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&done.stdout), "60000 59999\n");
    // A script without an interpreter line runs in the shell.
    let script = dir.path().join("script");
    fs::write(&script, "echo $# ${60000}\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let mut arguments = vec!["f", "--", "./script"];
    arguments.extend(words.iter().map(String::as_str));
    let done = tenure(&dir, &arguments).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&done.stdout), "60000 59999\n");
}

/// C3: the child starts with no signal blocked or ignored, whatever `tenure` does with its own.
#[test]
fn signals_are_as_usual_for_the_child() {
    let dir = TempDir::new().unwrap();
    let done = tenure(&dir, &["f", "--", "grep", "Sig", "/proc/self/status"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(said.contains("SigBlk:\t0000000000000000"), "{said}");
    // SIGPIPE, which Rust programs ignore.
    let ignored = said.lines().find_map(|line| line.strip_prefix("SigIgn:\t"));
    let ignored = u64::from_str_radix(ignored.unwrap(), 16).unwrap();
    assert_eq!(ignored & 1 << 12, 0, "{said}");
}
