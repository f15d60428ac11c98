//! Process trees whose members try to escape (C4: keeper and process group).

use std::process::{Command, Stdio};

use super::shell::{RunFixture, eventually, is_alive, signal, state};

/// Writes the pid of a double-forked process that left the group to `pids`.
const DOUBLE_FORK: &str = "(setsid sh -c 'sh -c \"echo \\$\\$ >> pids; exec sleep 1000\" & exit 0' &); \
     while ! test -s pids; do sleep 0.01; done;";

/// Closes the locked descriptor and the pipe. A plain `sh` knows no descriptors of two digits.
const CLOSE_ALL: &str = "fd=$TENURE_FD; eval \"exec $TENURE_FD>&- $TENURE_NOTICE_FD<&-\";";

/// C4: a process that forked twice and left by `setsid` is found and ended with the rest.
#[test]
fn a_double_fork_does_not_escape_the_death_of_tenure() {
    let place = RunFixture::new();
    let holder = place.hold(&[], &format!("{DOUBLE_FORK} echo held; exec sleep 1000"));
    let pids = place.pids("pids");
    assert!(is_alive(pids[0]));
    holder.signal("KILL");
    assert_eq!(holder.end().signal, Some(9));
    assert_eq!(place.code(&["-w", "60s", "f", "--", "true"]), Some(0));
    assert!(!is_alive(pids[0]), "it outlived the lock");
}

/// C4: the same on loss.
#[test]
fn a_double_fork_does_not_escape_a_loss() {
    let place = RunFixture::new();
    let holder = place.hold(&[], &format!("{DOUBLE_FORK} echo held; exec sleep 1000"));
    let pids = place.pids("pids");
    std::fs::remove_file(place.file("f.lock")).unwrap();
    assert_eq!(holder.end().code, Some(120));
    assert!(!is_alive(pids[0]), "it outlived the lock");
}

/// C4: at a normal end a double fork that left the group is not waited for.
#[test]
fn a_double_fork_that_left_is_not_waited_for() {
    let place = RunFixture::new();
    let script = format!("{DOUBLE_FORK} exit 4").replace("sleep 1000", "sleep 1000 >/dev/null");
    assert_eq!(place.code(&["f", "--", "sh", "-c", &script]), Some(4));
    let pids = place.pids("pids");
    assert!(is_alive(pids[0]), "it lives on");
    assert!(place.is_free(), "and holds nothing");
    signal("KILL", pids[0]);
}

/// C4: a double fork that stays in the group keeps the lock held.
#[test]
fn a_double_fork_that_stayed_is_waited_for() {
    let place = RunFixture::new();
    place.fifo("go");
    let holder = place.hold(&[], "( (read x < go; :) & ) ; echo held; exit 6");
    assert!(!place.is_free());
    place.say("go");
    assert_eq!(holder.end().code, Some(6));
    assert!(place.is_free());
}

/// C17 (after SIGKILL), K38: children that close every descriptor do not release the lock: the
/// supervisor has it, too.
#[test]
fn children_that_close_what_they_inherit_still_hold() {
    let place = RunFixture::new();
    place.fifo("go");
    let script = format!("{CLOSE_ALL} test -e /proc/$$/fd/$fd || echo held; read x < go");
    let holder = place.hold_with("bash", &["--no-kill"], &script);
    holder.signal("KILL");
    holder.reap();
    assert!(!place.is_free(), "the command still runs");
    place.say("go");
    assert_eq!(place.code(&["-w", "60s", "f", "--", "true"]), Some(0));
}

/// C4: a process that closes all inherited descriptors is still ended.
#[test]
fn children_that_close_what_they_inherit_are_ended() {
    let place = RunFixture::new();
    let script = format!(
        "{CLOSE_ALL} setsid sh -c 'echo $$ > pids; exec sleep 1000 <&- >&- 2>&-' & \
         while ! test -s pids; do sleep 0.01; done; echo held; wait"
    );
    let holder = place.hold_with("bash", &[], &script);
    let pids = place.pids("pids");
    holder.signal("KILL");
    holder.end();
    assert_eq!(place.code(&["-w", "60s", "f", "--", "true"]), Some(0));
    assert!(!is_alive(pids[0]));
}

/// C4: the supervisor reaps a zombie in the group, so it does not hold the lock without end.
#[test]
fn a_zombie_does_not_keep_the_lock() {
    let place = RunFixture::new();
    place.fifo("go");
    // `sleep 1000` never waits for the child that it inherited over exec: a zombie until it dies.
    let script = "sh -c 'echo $$ > zombie; read x < go' & \
                  while ! test -s zombie; do sleep 0.01; done; echo $$ > pids; echo held; exec sleep 1000";
    let holder = place.hold(&[], script);
    let (zombie, parent) = (place.pids("zombie")[0], place.pids("pids")[0]);
    // A shell would reap it.
    eventually("the shell has become sleep", || {
        std::fs::read_to_string(format!("/proc/{parent}/comm")).unwrap() == "sleep\n"
    });
    place.say("go");
    eventually("it is a zombie", || state(zombie) == Some('Z'));
    assert!(!place.is_free(), "its parent lives");
    signal("TERM", parent);
    assert_eq!(holder.end().code, Some(143));
    assert!(place.is_free());
    assert_eq!(state(zombie), None, "it was reaped");
}

/// C4: a child that is a zombie while its group lives on keeps the lock, and its exit code counts.
#[test]
fn the_childs_code_counts_when_its_group_outlives_it() {
    let place = RunFixture::new();
    place.fifo("go");
    let holder = place.hold(&[], "(read x < go; exit 99) & echo held; exit 5");
    let supervisor = holder.supervisor();
    eventually("the child has ended", || {
        super::shell::children(supervisor).len() == 1
    });
    assert!(!place.is_free());
    place.say("go");
    assert_eq!(holder.end().code, Some(5));
}

/// C4: a stopped child without a terminal keeps the lock, and continues on SIGCONT.
#[test]
fn a_stopped_child_keeps_the_lock() {
    let place = RunFixture::new();
    let holder = place.hold(&[], "echo $$ > pids; echo held; kill -STOP $$; exit 9");
    let child = place.pids("pids")[0];
    eventually("it is stopped", || state(child) == Some('T'));
    assert!(!place.is_free());
    assert!(is_alive(holder.pid()), "tenure itself is not stopped");
    assert_ne!(state(holder.pid()), Some('T'));
    signal("CONT", child);
    assert_eq!(holder.end().code, Some(9));
}

/// C4: a stopped child is ended with tenure.
#[test]
fn a_stopped_child_dies_with_tenure() {
    let place = RunFixture::new();
    let holder = place.hold(&[], "echo $$ > pids; echo held; kill -STOP $$; exit 9");
    let child = place.pids("pids")[0];
    eventually("it is stopped", || state(child) == Some('T'));
    holder.signal("KILL");
    holder.end();
    assert_eq!(place.code(&["-w", "60s", "f", "--", "true"]), Some(0));
    assert!(!is_alive(child));
}

/// C5: on loss a stopped child is continued, so that it handles TERM.
#[test]
fn a_stopped_child_is_terminated_on_loss() {
    let place = RunFixture::new();
    let script = "trap 'echo told; exit 0' TERM; echo $$ > pids; echo held; kill -STOP $$; sleep 1000 & wait";
    let holder = place.hold(&["--grace", "60s"], script);
    let child = place.pids("pids")[0];
    eventually("it is stopped", || state(child) == Some('T'));
    std::fs::remove_file(place.file("f.lock")).unwrap();
    let ended = holder.end();
    assert_eq!((ended.code, ended.out.trim()), (Some(120), "told"));
}

/// C4: a process that keeps forking cannot outrun its end.
#[test]
fn a_tree_that_keeps_growing_is_ended() {
    let place = RunFixture::new();
    // A chain: each link makes the next one in a session of its own, and ends.
    std::fs::write(
        place.file("link"),
        "echo $$ >> pids\nsleep 0.01\nsetsid sh ./link &\nexit 0\n",
    )
    .unwrap();
    let script = "sh ./link; while test $(wc -l < pids) -lt 5; do sleep 0.01; done; echo held; exec sleep 1000";
    let holder = place.hold(&[], script);
    holder.signal("KILL");
    holder.end();
    assert_eq!(place.code(&["-w", "60s", "f", "--", "true"]), Some(0));
    let links = place.pids("pids");
    assert!(links.iter().all(|pid| !is_alive(*pid)));
    // No process writes any more: the file does not grow while a new holder works.
    assert_eq!(place.code(&["f", "--", "sleep", "0.1"]), Some(0));
    assert_eq!(place.pids("pids"), links);
}

/// C4: the child leads a group of its own, and its parent is the supervisor.
#[test]
fn the_child_leads_its_own_group() {
    let place = RunFixture::new();
    let mut holder = place.hold(
        &[],
        "echo held; set -- $(cat /proc/$$/stat); echo $1 $4 $5; exec sleep 1000",
    );
    let supervisor = holder.supervisor();
    let line = holder.line();
    let numbers: Vec<u32> = line.split(' ').map(|n| n.parse().unwrap()).collect();
    assert_eq!(numbers[1], supervisor, "the parent");
    assert_eq!(numbers[2], numbers[0], "the group");
    holder.signal("TERM");
    holder.end();
}

/// C4: a command in the middle of a pipeline ends with its neighbours as it would without tenure.
#[test]
fn a_pipeline_ends_by_sigpipe() {
    let place = RunFixture::new();
    let script = "\"$0\" run f -- yes | head -n 1 > /dev/null";
    let status = Command::new("bash")
        .args([
            "-c",
            &format!("set -o pipefail; {script}"),
            super::shell::TENURE,
        ])
        .current_dir(place.path())
        .stderr(Stdio::null())
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(128 + 13));
    assert!(place.is_free());
}
