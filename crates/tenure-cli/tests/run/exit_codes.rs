//! Exit codes (C2 exit codes, C15 exit code follows the decision, C16 details of codes and break)
//! and their messages.

use std::fs;
use std::process::Stdio;

use super::shell::RunFixture;

/// C2: every code of the child arrives as it is.
#[test]
fn the_childs_own_codes_pass_through() {
    let place = RunFixture::new();
    for code in [0, 1, 2, 75, 120, 121, 124, 125, 126, 127, 255] {
        let script = format!("exit {code}");
        assert_eq!(place.code(&["f", "--", "sh", "-c", &script]), Some(code));
    }
}

/// C2: bad usage is 2, starts nothing and takes no lock.
#[test]
fn bad_usage_starts_nothing() {
    let place = RunFixture::new();
    for arguments in [
        &["f"][..],
        &["--", "true"],
        &["--on-lost", "nonsense", "f", "--", "touch", "ran"],
        &["-w", "soon", "f", "--", "touch", "ran"],
        &["-n", "-w", "5", "f", "--", "touch", "ran"],
        &["ftp://host/x", "--", "touch", "ran"],
        &["--unknown", "f", "--", "touch", "ran"],
        &["-s", "-x", "f", "--", "touch", "ran"],
        // C16: lock files have no shared mode.
        &["-s", "f", "--", "touch", "ran"],
    ] {
        assert_eq!(place.code(arguments), Some(2), "{arguments:?}");
    }
    assert!(!place.file("ran").exists());
    assert!(!place.file("f.lock").exists());
}

/// C2: a command that cannot be run is 126, a missing one 127; the lock is released.
#[test]
fn commands_that_cannot_be_run() {
    let place = RunFixture::new();
    fs::create_dir(place.file("directory")).unwrap();
    fs::write(place.file("plain"), "").unwrap();
    assert_eq!(place.code(&["f", "--", "./directory"]), Some(126));
    assert_eq!(place.code(&["f", "--", "./plain"]), Some(126));
    assert_eq!(place.code(&["f", "--", "./missing"]), Some(127));
    assert_eq!(
        place.code(&["f", "--", "no-such-command-anywhere"]),
        Some(127)
    );
    assert!(!place.file("f.lock").exists());
}

/// C2: tenure's own failure is 125, and the command does not run.
#[test]
fn a_place_that_cannot_be_locked() {
    let place = RunFixture::new();
    fs::write(place.file("file"), "").unwrap();
    let arguments = ["file/below", "--", "touch", "ran"];
    assert_eq!(place.code(&arguments), Some(125));
    assert!(!place.file("ran").exists());
}

/// C15: held is 75 whatever its class: an unreadable record counts as held.
#[test]
fn an_unreadable_lock_is_held() {
    let place = RunFixture::new();
    fs::write(place.file("f.lock"), b"\xff\xfe not a record").unwrap();
    assert_eq!(place.code(&["-n", "f", "--", "touch", "ran"]), Some(75));
    assert!(!place.file("ran").exists());
}

/// C15: a refusal that waiting does not cure is 125 at once, also for a waiter.
#[test]
fn a_refusal_does_not_wait() {
    let place = RunFixture::new();
    // A directory in place of the lock file: it will never be released.
    fs::create_dir(place.file("f.lock")).unwrap();
    assert_eq!(place.code(&["f", "--", "touch", "ran"]), Some(125));
    assert!(!place.file("ran").exists());
}

/// C1: a waiter runs as soon as the holder has gone, not before.
#[test]
fn a_waiter_runs_after_the_holder() {
    let place = RunFixture::new();
    place.fifo("go");
    let holder = place.hold(&[], "echo held; read x < go; echo first >> order");
    let waiter = place
        .run(&["f", "--", "sh", "-c", "echo second >> order"])
        .spawn();
    place.say("go");
    assert_eq!(holder.end().code, Some(0));
    assert_eq!(waiter.unwrap().wait().unwrap().code(), Some(0));
    let order = fs::read_to_string(place.file("order")).unwrap();
    assert_eq!(order, "first\nsecond\n");
}

/// C1, C8: after a second of waiting the holder is shown.
#[test]
fn a_waiter_says_for_whom() {
    let place = RunFixture::new();
    let holder = place.hold(
        &["--purpose", "nightly compaction"],
        "echo held; exec sleep 1000",
    );
    let mut waiter = place
        .run(&["f", "--", "true"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufReader::new(waiter.stderr.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut lines, &mut line).unwrap();
    assert!(line.contains("waiting"), "{line}");
    assert!(line.contains(&holder.pid().to_string()), "{line}");
    holder.signal("TERM");
    holder.end();
    assert_eq!(waiter.wait().unwrap().code(), Some(0));
}

/// C3: standard input is the child's alone, whole, and may be closed early.
#[test]
fn standard_input_is_the_childs() {
    let place = RunFixture::new();
    let mut child = place
        .run(&["f", "--", "sh", "-c", "head -c 5; exec cat > rest"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let data: Vec<u8> = (0..300_000u32).map(|n| b'a' + (n % 26) as u8).collect();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), &data).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(output.stdout, b"abcde");
    // `head` may have read ahead; the rest is a suffix, in order.
    assert!(data.ends_with(&fs::read(place.file("rest")).unwrap()));
}

/// C3: a pipe through tenure carries everything.
#[test]
fn a_pipe_passes_through() {
    let place = RunFixture::new();
    let output = std::process::Command::new("sh")
        .args([
            "-c",
            "seq 1 20000 | \"$0\" run f -- sort -n | tail -n 1",
            super::shell::TENURE,
        ])
        .current_dir(place.path())
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "20000");
}

/// C3: the variables are set last, so they win; what does not apply is removed.
#[test]
fn variables_of_an_outer_lock_do_not_leak() {
    let place = RunFixture::new();
    let inner = format!("\"{}\" run g -- env", super::shell::TENURE);
    let output = place
        .run(&["--fence", "f", "--", "sh", "-c", &inner])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("TENURE_WHERE=g\n"), "{text}");
    assert!(text.contains("g.lock\n"), "{text}");
    assert!(
        !text.contains("TENURE_FENCE="),
        "the outer fence leaked: {text}"
    );
    assert!(!text.contains("TENURE_WHERE=f\n"), "{text}");
}

/// C3: settings pass through.
#[test]
fn the_daemons_url_passes_through() {
    let place = RunFixture::new();
    let output = place
        .run(&["f", "--", "env"])
        .env("TENURE_URL", "tenure://elsewhere:1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("TENURE_URL=tenure://elsewhere:1\n"), "{text}");
}

/// C7: a lock file needs no async runtime and no network: neither is open while it is held.
#[test]
fn a_lock_file_starts_no_runtime() {
    let place = RunFixture::new();
    let holder = place.hold(&[], "echo held; exec sleep 1000");
    let process = std::path::Path::new("/proc").join(holder.pid().to_string());
    let names = |directory: &str| -> Vec<String> {
        let entries = fs::read_dir(process.join(directory)).unwrap().flatten();
        entries
            .map(|entry| entry.path())
            .map(|path| match directory {
                "fd" => fs::read_link(path).unwrap().display().to_string(),
                _ => fs::read_to_string(path.join("comm"))
                    .unwrap()
                    .trim()
                    .to_owned(),
            })
            .collect()
    };
    // A thread takes its name when it first runs.
    super::shell::eventually("the heart and nothing else beats", || {
        let mut threads = names("task");
        threads.sort();
        threads == ["tenure", "tenure-heart"]
    });
    let epoll = "anon_inode:[eventpoll]";
    assert!(
        !names("fd").iter().any(|target| target == epoll),
        "a runtime polls"
    );
    holder.signal("TERM");
    holder.end();
}
