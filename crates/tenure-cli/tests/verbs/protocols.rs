//! Options of single protocols (C11 reclaim policy, C12 data key of a repository, C20 options of
//! one protocol), and `tenure check`.

use std::fs;
use std::process::{Command, Stdio};

use super::shell::{Holder, RunFixture, TENURE, is_alive};

fn tenure(place: &RunFixture, arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(TENURE)
        .args(arguments)
        .current_dir(place.path())
        .env_remove("TENURE_URL")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    (
        output.status.code(),
        String::from_utf8_lossy(&output.stdout).into_owned(),
    )
}

/// C20: an option that none of the addresses supports is refused, not ignored.
#[test]
fn an_option_of_another_protocol_is_refused() {
    let place = RunFixture::new();
    for arguments in [
        &["--private", "f", "--", "true"][..],
        &["--seal", "f", "--", "true"],
        &["--settle", "1s", "f", "--", "true"],
        &["--strict", "exclusive:.", "--", "true"],
        &["--reclaim", "age", "tenant:/x", "--", "true"],
        &["--ttl", "30s", "f", "--", "true"],
        &["--permits", "3", "f", "--", "true"],
        &["-s", "--tree", "f", "--", "true"],
        &["--tree", "f", "--", "true"],
    ] {
        assert_eq!(place.code(arguments), Some(2), "{arguments:?}");
    }
}

/// C11: a dead lock is removed on proof, unless that is left to `tenure break`.
#[test]
fn reclaim_decides_about_a_dead_lock() {
    let place = RunFixture::new();
    let holder = place.hold(&[], "echo held; exec sleep 1000");
    let record = fs::read_to_string(place.file("f.lock")).unwrap();
    let dead = record.replace(&format!("\"pid\": {}", holder.pid()), "\"pid\": 4194303");
    holder.signal("TERM");
    holder.end();
    fs::write(place.file("f.lock"), &dead).unwrap();
    assert_ne!(
        place.code(&["-n", "--reclaim", "never", "f", "--", "true"]),
        Some(0)
    );
    assert!(place.file("f.lock").exists());
    assert_eq!(place.code(&["-n", "f", "--", "true"]), Some(0));
    assert!(!place.file("f.lock").exists());
}

/// S2: a lock path other than the default.
#[test]
fn a_lock_path_of_ones_own() {
    let place = RunFixture::new();
    let script = "test -e other && test ! -e f.lock";
    assert_eq!(
        place.code(&["--lock-path", "other", "f", "--", "sh", "-c", script]),
        Some(0)
    );
}

/// C20: a tool locks a database; its server skips, and proceeds afterwards. `--dry-run` removes
/// nothing.
#[test]
fn a_server_asks_before_it_works() {
    let place = RunFixture::new();
    fs::create_dir(place.file("db")).unwrap();
    assert_eq!(tenure(&place, &["check", "exclusive:db"]).0, Some(0));
    let arguments = [
        "--no-quiesce",
        "--purpose",
        "import",
        "exclusive:db",
        "--",
        "sh",
        "-c",
        "echo held; exec sleep 1000",
    ];
    let holder = Holder::start(place.run(&arguments));
    let (code, text) = tenure(&place, &["check", "exclusive:db"]);
    assert_eq!(code, Some(75));
    assert!(text.contains("import"), "{text}");
    assert_eq!(
        tenure(&place, &["check", "exclusive:db", "--", "touch", "ran"]).0,
        Some(75)
    );
    assert!(!place.file("ran").exists());
    let (_, text) = tenure(&place, &["check", "--json", "exclusive:db"]);
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["decision"], "skip");
    let record = fs::read_to_string(place.file("db/.exclusive-lock")).unwrap();
    let pid = holder.pid();
    holder.signal("TERM");
    holder.end();
    assert_eq!(
        tenure(
            &place,
            &["check", "exclusive:db", "--", "sh", "-c", "exit 6"]
        )
        .0,
        Some(6)
    );
    // The lock of a dead tool: a dry run says proceed and keeps it, a real one removes it.
    let lock = place.file("db/.exclusive-lock");
    fs::write(&lock, record.replace(&pid.to_string(), "4194303")).unwrap();
    assert_eq!(
        tenure(&place, &["check", "--dry-run", "exclusive:db"]).0,
        Some(0)
    );
    assert!(lock.exists());
    assert_eq!(tenure(&place, &["check", "exclusive:db"]).0, Some(0));
    assert!(!lock.exists());
    assert_eq!(tenure(&place, &["check", "f"]).0, Some(2));
}

/// X20: one cycle of the server runs under the gate, so a tool waits for its end.
#[test]
fn a_tool_waits_for_a_running_cycle() {
    let place = RunFixture::new();
    fs::create_dir(place.file("db")).unwrap();
    place.fifo("go");
    let mut cycle = Command::new(TENURE)
        .args([
            "check",
            "exclusive:db",
            "--",
            "sh",
            "-c",
            "echo held; read x < go; echo cycle >> order",
        ])
        .current_dir(place.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(
        &mut std::io::BufReader::new(cycle.stdout.take().unwrap()),
        &mut line,
    )
    .unwrap();
    let mut tool = place
        .run(&["exclusive:db", "--", "sh", "-c", "echo tool >> order"])
        .spawn()
        .unwrap();
    super::shell::eventually("the tool has published its lock", || {
        place.file("db/.exclusive-lock").exists()
    });
    place.say("go");
    assert_eq!(cycle.wait().unwrap().code(), Some(0));
    assert_eq!(tool.wait().unwrap().code(), Some(0));
    assert_eq!(
        fs::read_to_string(place.file("order")).unwrap(),
        "cycle\ntool\n"
    );
}

/// C12: a key file is 32 bytes or 64 hex digits; a sealed repository needs it to be read.
#[test]
fn a_repository_is_sealed_with_a_key() {
    let place = RunFixture::new();
    fs::create_dir(place.file("repo")).unwrap();
    fs::write(
        place.file("key"),
        "00112233445566778899aabbccddeeff".repeat(2),
    )
    .unwrap();
    fs::write(place.file("bad"), "too short").unwrap();
    let repo = format!("repo:{}", place.file("repo").display());
    assert_eq!(
        place.code(&["--key-file", "bad", &repo, "--", "true"]),
        Some(2)
    );
    let script = "grep -rl operation repo > found; test ! -s found";
    assert_eq!(
        place.code(&[
            "--tenure-only",
            "--key-file",
            "key",
            "--seal",
            &repo,
            "--",
            "sh",
            "-c",
            script
        ]),
        Some(0)
    );
}

/// C13 (holds for scripts), C16: a hold in a repository is renewed and released by its text form,
/// and broken by its id; a live one is not broken without an id.
#[test]
fn holds_in_a_repository() {
    let place = RunFixture::new();
    fs::create_dir(place.file("repo")).unwrap();
    let repo = format!("repo:{}", place.file("repo").display());
    let lock = |options: &[&str]| -> String {
        let mut arguments = vec!["lock", "--tenure-only"];
        arguments.extend(options);
        arguments.push(&repo);
        let (code, hold) = tenure(&place, &arguments);
        assert_eq!(code, Some(0), "{hold}");
        hold.trim().to_owned()
    };
    let hold = lock(&["--ttl", "60s"]);
    assert_eq!(tenure(&place, &["try", &repo]).0, Some(75));
    // No other client has taken a fence, so it stays, and there is nothing to say.
    assert_eq!(tenure(&place, &["renew", &hold]), (Some(0), String::new()));
    // The key names every holder of the exclusive lock, so it is not an id.
    let any_holder = ["break", "--force", "--id", "index/lock.exclusive", &repo];
    assert_eq!(tenure(&place, &any_holder).0, Some(125));
    assert_eq!(tenure(&place, &["unlock", &hold]).0, Some(0));
    assert_eq!(tenure(&place, &["try", &repo]).0, Some(0));
    lock(&["-s"]);
    lock(&["-s"]);
    assert_eq!(tenure(&place, &["try", "-s", &repo]).0, Some(0));
    assert_eq!(tenure(&place, &["break", "--force", &repo]).0, Some(75));
    let (_, text) = tenure(&place, &["why", "--json", &repo]);
    let state: serde_json::Value = serde_json::from_str(&text).unwrap();
    let id = state["holders"][0]["id"].as_str().unwrap();
    assert_eq!(
        tenure(&place, &["break", "--force", "--id", id, &repo]).0,
        Some(0)
    );
    assert_eq!(
        tenure(&place, &["try", &repo]).0,
        Some(75),
        "the other one is left"
    );
    assert_eq!(
        tenure(&place, &["break", "--force", "--all", &repo]).0,
        Some(0)
    );
    assert_eq!(tenure(&place, &["try", &repo]).0, Some(0));
}

/// C1: a repository's lock is a lease, shared or exclusive.
#[test]
fn a_repository_is_shared() {
    let place = RunFixture::new();
    fs::create_dir(place.file("repo")).unwrap();
    let repo = format!("repo:{}", place.file("repo").display());
    let script = "test $TENURE_MODE = shared && echo held; exec sleep 1000";
    let holder =
        Holder::start(place.run(&["-s", "--tenure-only", &repo, "--", "sh", "-c", script]));
    assert_eq!(
        place.code(&["-s", "-n", "--tenure-only", &repo, "--", "true"]),
        Some(0)
    );
    assert_eq!(
        place.code(&["-n", "--tenure-only", &repo, "--", "true"]),
        Some(75)
    );
    holder.signal("TERM");
    assert_eq!(holder.end().code, Some(143));
    assert_eq!(
        place.code(&["-n", "--tenure-only", &repo, "--", "true"]),
        Some(0)
    );
}

/// X20 (the gate file): a cycle keeps its gate as long as its command lives, even if tenure is
/// killed.
#[test]
fn a_cycle_keeps_the_gate_until_its_command_ends() {
    for name in ["TERM", "KILL"] {
        let place = RunFixture::new();
        fs::create_dir(place.file("db")).unwrap();
        let script = "echo $$ > pids; echo held; exec sleep 1000";
        let cycle = place.tenure("check", &["exclusive:db", "--", "sh", "-c", script]);
        let cycle = Holder::start(cycle);
        let child = place.pids("pids")[0];
        cycle.signal(name);
        let ended = cycle.end();
        assert!(
            ended.code == Some(143) || ended.signal == Some(9),
            "{ended:?}"
        );
        assert_eq!(
            place.code(&["exclusive:db", "--", "true"]),
            Some(0),
            "{name}"
        );
        assert!(!is_alive(child), "{name}");
    }
}

/// C2: the code of a cycle is its command's.
#[test]
fn a_cycle_ends_with_the_code_of_its_command() {
    let place = RunFixture::new();
    fs::create_dir(place.file("db")).unwrap();
    for (command, code) in [("exit 7", 7), ("kill -TERM $$", 143)] {
        let arguments = ["exclusive:db", "--", "sh", "-c", command];
        let status = place.tenure("check", &arguments).status().unwrap();
        assert_eq!(status.code(), Some(code), "{command}");
    }
    let missing = place
        .tenure("check", &["exclusive:db", "--", "./missing"])
        .output();
    assert_eq!(missing.unwrap().status.code(), Some(127));
}

/// X23 (check removes dead locks): a dry run says what it would do, and a directory that is not
/// there is a failure.
#[test]
fn a_check_says_what_is_so() {
    let place = RunFixture::new();
    fs::create_dir(place.file("db")).unwrap();
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let record = format!(
        "{{\"holder\": \"vc\", \"pid\": 4194303, \"hostname\": \"{}\", \"started_at\": \"2026-03-07T09:00:00Z\"}}\n",
        host.trim()
    );
    fs::write(place.file("db/.exclusive-lock"), record).unwrap();
    let (code, text) = tenure(&place, &["check", "--dry-run", "exclusive:db"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("would remove stale lock (vc)"), "{text}");
    assert!(place.file("db/.exclusive-lock").exists());
    let (code, text) = tenure(&place, &["check", "exclusive:db"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("Removed stale lock (vc)"), "{text}");
    for arguments in [
        &["check", "exclusive:typo"][..],
        &["check", "exclusive:typo", "--", "touch", "ran"],
    ] {
        let output = place
            .tenure(arguments[0], &arguments[1..])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{text}");
        assert!(text.contains("no such directory"), "{text}");
    }
    assert!(!place.file("ran").exists());
}

/// C12: sealed records need a key; without one nothing is written in clear.
#[test]
fn a_seal_without_a_key_is_refused() {
    let place = RunFixture::new();
    fs::create_dir(place.file("repo")).unwrap();
    let mut command = place.run(&["--seal", "--tenure-only", "repo:repo", "--", "touch", "ran"]);
    let output = command.env_remove("TENURE_KEY_FILE").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("--key-file"), "{text}");
    assert!(!place.file("ran").exists());
    assert_eq!(fs::read_dir(place.file("repo")).unwrap().count(), 0);
}

/// X18 (holder name and version), P41 (repository addresses and verbs): the names in records are
/// those given, else the purpose, else the command's base name; an empty one is refused.
#[test]
fn records_name_the_holder_and_the_operation() {
    let place = RunFixture::new();
    fs::create_dir(place.file("db")).unwrap();
    fs::create_dir(place.file("repo")).unwrap();
    for (options, wanted) in [
        (&[][..], "grep"),
        (&["--purpose", "nightly"], "nightly"),
        (&["--holder", "vc", "--purpose", "nightly"], "vc"),
    ] {
        let record = format!("\"holder\": \"{wanted}\"");
        let mut arguments = options.to_vec();
        arguments.extend(["exclusive:db", "--", "/bin/grep", "-q"]);
        arguments.extend([record.as_str(), "db/.exclusive-lock"]);
        assert_eq!(place.code(&arguments), Some(0), "{options:?}");
    }
    for (options, wanted) in [
        (&[][..], "grep"),
        (&["--purpose", "nightly"], "nightly"),
        (&["--operation", "prune"], "prune"),
    ] {
        let record = format!("\"operation\":\"{wanted}\"");
        let mut arguments = options.to_vec();
        arguments.extend(["--tenure-only", "repo:repo", "--", "/bin/grep", "-rq"]);
        arguments.extend([record.as_str(), "repo"]);
        assert_eq!(place.code(&arguments), Some(0), "{options:?}");
    }
    for arguments in [
        &["--holder", "", "exclusive:db", "--", "true"][..],
        &["--operation", "", "repo:repo", "--", "true"],
        &["--operation", "x", "exclusive:db", "--", "true"],
        &["--holder", "x", "f", "--", "true"],
    ] {
        assert_eq!(place.code(arguments), Some(2), "{arguments:?}");
    }
}

/// X20 (the gate file): a tool that waited its whole time for a cycle ends with 124.
#[test]
fn a_cycle_that_does_not_end_times_out() {
    let place = RunFixture::new();
    fs::create_dir(place.file("db")).unwrap();
    let script = "echo held; exec sleep 1000";
    let cycle = Holder::start(place.tenure("check", &["exclusive:db", "--", "sh", "-c", script]));
    let tool = [
        "-q",
        "--quiesce",
        "100ms",
        "exclusive:db",
        "--",
        "touch",
        "ran",
    ];
    assert_eq!(place.code(&tool), Some(124));
    assert!(!place.file("ran").exists());
    assert!(!place.file("db/.exclusive-lock").exists());
    cycle.signal("TERM");
    cycle.end();
}

/// C16 (details of codes and break): `break --all` shows every hold that it removes.
#[test]
fn breaking_all_shows_what_it_removes() {
    let place = RunFixture::new();
    fs::create_dir(place.file("repo")).unwrap();
    let script = "echo held; exec sleep 1000";
    let hold = |purpose| {
        let arguments = [
            "-s",
            "--tenure-only",
            "--purpose",
            purpose,
            "repo:repo",
            "--",
            "sh",
            "-c",
            script,
        ];
        Holder::start(place.run(&arguments))
    };
    let holders = [hold("first-backup"), hold("second-backup")];
    let output = place
        .tenure("break", &["--force", "--all", "repo:repo"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(text.contains("removed 2 locks"), "{text}");
    assert!(
        text.contains("first-backup") && text.contains("second-backup"),
        "{text}"
    );
    for holder in holders {
        holder.signal("KILL");
        holder.reap();
    }
}
