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
