//! SIGKILL to the wrapper and to the supervisor, in every phase (C4 keeper and process group, C17
//! after SIGKILL).

use std::process::Stdio;

use super::shell::{RunFixture, children, eventually, is_alive, signal, state};

const TREE: &str = "setsid sh -c 'echo $$ >> pids; exec sleep 1000' & \
                    sh -c 'echo $$ >> pids; exec sleep 1000' & \
                    while test $(wc -l < pids 2>/dev/null || echo 0) -lt 2; do sleep 0.01; done; \
                    echo $$ >> pids; echo held; wait";

fn all_gone(place: &RunFixture) -> bool {
    place.pids("pids").iter().all(|pid| !is_alive(*pid))
}

/// C17: the supervisor is killed: the whole tree has ended before tenure releases the lock.
#[test]
fn the_keeper_dies_while_the_command_runs() {
    let place = RunFixture::new();
    let holder = place.hold(&[], TREE);
    signal("KILL", holder.supervisor());
    assert_eq!(place.code(&["-w", "60s", "f", "--", "true"]), Some(0));
    assert!(all_gone(&place));
    assert_eq!(holder.end().code, Some(137));
}

/// C4: the supervisor dies while tenure still waits for the lock: nothing runs.
#[test]
fn the_keeper_dies_while_tenure_waits() {
    let place = RunFixture::new();
    let holder = place.hold(&[], "echo held; exec sleep 1000");
    let mut waiter = place
        .run(&["f", "--", "touch", "ran"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut supervisor = 0;
    eventually("the keeper is there", || {
        supervisor = children(waiter.id()).first().copied().unwrap_or(0);
        supervisor != 0
    });
    signal("KILL", supervisor);
    eventually("it is dead", || !is_alive(supervisor));
    holder.signal("TERM");
    holder.end();
    assert_eq!(waiter.wait().unwrap().code(), Some(125));
    assert!(!place.file("ran").exists());
    assert!(place.is_free());
}

/// C17: tenure dies while it ends the command after a loss: the supervisor finishes.
#[test]
fn tenure_dies_while_the_command_ends() {
    let place = RunFixture::new();
    let script = "trap 'echo ending' TERM; echo $$ > pids; echo held; while :; do sleep 0.01; done";
    let mut holder = place.hold(&["--grace", "1000s"], script);
    let supervisor = holder.supervisor();
    std::fs::remove_file(place.file("f.lock")).unwrap();
    assert_eq!(holder.line(), "ending");
    holder.signal("KILL");
    holder.end();
    eventually("the keeper has finished", || !is_alive(supervisor));
    assert!(all_gone(&place), "the command was left to itself");
}

/// C17: tenure dies when only the group is left.
#[test]
fn tenure_dies_after_the_child() {
    let place = RunFixture::new();
    let script = "sh -c 'echo $$ > pids; exec sleep 1000' & \
                  while ! test -s pids; do sleep 0.01; done; echo held; exit 0";
    let holder = place.hold(&[], script);
    let (supervisor, member) = (holder.supervisor(), place.pids("pids")[0]);
    eventually("the child has ended", || children(supervisor) == [member]);
    holder.signal("KILL");
    holder.end();
    assert_eq!(place.code(&["-w", "60s", "f", "--", "true"]), Some(0));
    assert!(!is_alive(member));
}

/// C17: tenure dies while it is stopped.
#[test]
fn tenure_dies_while_it_is_stopped() {
    let place = RunFixture::new();
    let holder = place.hold(&[], TREE);
    holder.signal("STOP");
    eventually("it is stopped", || state(holder.pid()) == Some('T'));
    holder.signal("KILL");
    holder.end();
    assert_eq!(place.code(&["-w", "60s", "f", "--", "true"]), Some(0));
    assert!(all_gone(&place));
}

/// C17: tenure dies while its supervisor is stopped: the kernel wakes an orphaned group, and the tree ends
/// before the lock is free.
#[test]
fn tenure_dies_while_its_keeper_is_stopped() {
    let place = RunFixture::new();
    let holder = place.hold(&[], TREE);
    let supervisor = holder.supervisor();
    signal("STOP", supervisor);
    eventually("it is stopped", || state(supervisor) == Some('T'));
    holder.signal("KILL");
    holder.end();
    assert_eq!(place.code(&["-w", "60s", "f", "--", "true"]), Some(0));
    assert!(all_gone(&place));
}

/// C17: both are killed at once: the parent-death signal ends the child, and the inherited
/// descriptor keeps the lock until the others have ended.
#[test]
fn both_die_at_one_blow() {
    let place = RunFixture::new();
    place.fifo("go");
    let script = "(read x < go; exit 0) & echo $$ > pids; echo held; wait";
    let holder = place.hold(&[], script);
    let (supervisor, child) = (holder.supervisor(), place.pids("pids")[0]);
    // Stopped, neither can act on the other's death.
    for pid in [holder.pid(), supervisor] {
        signal("STOP", pid);
        eventually("it is stopped", || state(pid) == Some('T'));
    }
    signal("KILL", supervisor);
    eventually("the keeper is dead", || !is_alive(supervisor));
    holder.signal("KILL");
    holder.reap();
    eventually("the child went with the keeper", || !is_alive(child));
    assert!(
        !place.is_free(),
        "a member of the group still has the descriptor"
    );
    place.say("go");
    assert_eq!(place.code(&["-w", "60s", "f", "--", "true"]), Some(0));
}

/// C4: with `--no-kill` the whole group is awaited after tenure's death, not the child alone.
#[test]
fn no_kill_outlives_tenure_with_its_whole_group() {
    let place = RunFixture::new();
    place.fifo("go");
    let script = "(read x < go; echo x > done) & echo held; exit 0";
    let holder = place.hold(&["--no-kill"], script);
    holder.signal("KILL");
    holder.reap();
    assert!(!place.is_free(), "the group still works");
    place.say("go");
    assert_eq!(
        place.code(&["-w", "60s", "f", "--", "test", "-e", "done"]),
        Some(0)
    );
}

/// C17: with repeated kills at any moment, a lock never has two holders and no process is left.
#[test]
fn killed_at_any_moment() {
    let place = RunFixture::new();
    let script = "mkdir busy || { echo two holders; exit 1; }; echo $$ > pids; rmdir busy";
    for round in 0..40u64 {
        let mut child = place
            .run(&["-w", "60s", "f", "--", "sh", "-c", script])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // A spread of moments from before the fork to after the end.
        std::thread::sleep(std::time::Duration::from_micros(round * 300));
        child.kill().unwrap();
        child.wait().unwrap();
        // The next holder finds no process at work.
        let check = "rmdir busy 2>/dev/null; test ! -s pids || test ! -e /proc/$(cat pids)/exe";
        assert_eq!(
            place.code(&["-w", "60s", "f", "--", "sh", "-c", check]),
            Some(0),
            "round {round}"
        );
        let _ = std::fs::remove_file(place.file("pids"));
    }
}

/// C4: with `--no-kill`, the supervisor writes the heartbeat after tenure's death, so that programs
/// that go by the age of the file respect the lock.
#[test]
fn the_heartbeat_goes_on_after_tenures_death() {
    let place = RunFixture::new();
    place.fifo("go");
    let options = ["--no-kill", "--heartbeat", "100ms"];
    let holder = place.hold(&options, "echo held; read x < go");
    holder.signal("KILL");
    holder.reap();
    let beat = || {
        let record = std::fs::read_to_string(place.file("f.lock")).unwrap();
        let record: serde_json::Value = serde_json::from_str(&record).unwrap();
        record["tenure"]["beat"]
            .as_str()
            .unwrap()
            .parse::<u64>()
            .unwrap()
    };
    let before = beat();
    eventually("three heartbeats", || beat() >= before + 3);
    place.say("go");
    assert_eq!(place.code(&["-w", "60s", "f", "--", "true"]), Some(0));
}

/// C4, K7 (parse the process stat file): without `/proc` the command's group is ended.
#[test]
fn a_loss_ends_the_group_without_proc() {
    let place = RunFixture::new();
    let script = "sh -c 'echo $$ >> pids; exec sleep 1000' & \
                  while ! test -s pids; do sleep 0.01; done; echo held; wait";
    // Needs root, or user namespaces for everyone.
    let mut command = std::process::Command::new("unshare");
    command
        .args(["--mount", "--map-root-user", "sh", "-c"])
        .arg("mount -t tmpfs none /proc && exec \"$@\"")
        .args(["sh", super::shell::TENURE, "run", "--heartbeat", "100ms"])
        .args(["f", "--", "sh", "-c", script])
        .current_dir(place.path());
    let holder = super::shell::Holder::start(command);
    let member = place.pids("pids")[0];
    std::fs::remove_file(place.file("f.lock")).unwrap();
    let ended = holder.end();
    assert_eq!(ended.code, Some(120), "{ended:?}");
    assert!(!is_alive(member));
}

/// C4: a process of another user cannot be ended. Tenure names it, waits for it, and ends with the
/// code of the loss. Needs root, to make a program that becomes another user.
#[test]
fn a_process_of_another_user_is_named() {
    let place = RunFixture::new();
    std::fs::create_dir(place.file("d")).unwrap();
    let become_root = place.file("become-root");
    std::fs::copy("/usr/bin/setpriv", &become_root).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o4755);
    std::fs::set_permissions(&become_root, mode).unwrap();
    for (path, mode) in [(place.path().to_owned(), 0o755), (place.file("d"), 0o777)] {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(path, mode).unwrap();
    }
    place.fifo("go");
    let script = "echo held; read x < ../go";
    let mut command = std::process::Command::new("setpriv");
    command
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .args([super::shell::TENURE, "run", "--grace", "10ms", "f", "--"])
        .arg(&become_root)
        .args(["--reuid=0", "sh", "-c", script])
        .current_dir(place.file("d"));
    let mut holder = super::shell::Holder::start(command);
    std::fs::remove_file(place.file("d/f.lock")).unwrap();
    holder.expect_error("cannot end pid");
    place.say("go");
    assert_eq!(holder.end().code, Some(120));
}
