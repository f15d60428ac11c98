//! Loss of a lock in every phase of a run (C5 stop before the lease ends, C14 lost before the end).
//! A lock file is lost by interference.

use std::fs;

use super::shell::{RunFixture, eventually, is_alive};

/// Takes the lock away from under its holder.
fn steal(place: &RunFixture) {
    fs::remove_file(place.file("f.lock")).unwrap();
}

/// C14: lost before the child ended by itself: 120, though the child's own code was 0.
#[test]
fn lost_by_the_childs_own_hand_at_its_very_end() {
    let place = RunFixture::new();
    assert_eq!(
        place.code(&["f", "--", "sh", "-c", "rm f.lock; exit 0"]),
        Some(120)
    );
}

/// C5, C14: lost after the child ended, while its group lives on: the rest is ended, 120.
#[test]
fn lost_while_only_the_group_is_left() {
    let place = RunFixture::new();
    let script = "sh -c 'echo $$ > pids; exec sleep 1000' & \
                  while ! test -s pids; do sleep 0.01; done; echo held; exit 0";
    let holder = place.hold(&[], script);
    let supervisor = holder.supervisor();
    let member = place.pids("pids")[0];
    eventually("the child has ended", || {
        super::shell::children(supervisor) == [member]
    });
    steal(&place);
    assert_eq!(holder.end().code, Some(120));
    assert!(!is_alive(member));
}

/// C5: lost while running, and the command ignores TERM: KILL follows after the grace time.
#[test]
fn lost_and_deaf() {
    let place = RunFixture::new();
    let script = "trap '' TERM; echo $$ > pids; echo held; while :; do sleep 0.01; done";
    let holder = place.hold(&["--grace", "50ms"], script);
    let child = place.pids("pids")[0];
    steal(&place);
    assert_eq!(holder.end().code, Some(120));
    assert!(!is_alive(child));
}

/// C5: a command that uses its grace time is not killed during it.
#[test]
fn lost_and_tidying_up() {
    let place = RunFixture::new();
    let script =
        "trap 'sleep 0.3; echo tidied; exit 0' TERM; echo held; while :; do sleep 0.01; done";
    let holder = place.hold(&["--grace", "60s"], script);
    steal(&place);
    let ended = holder.end();
    assert_eq!((ended.code, ended.out.trim()), (Some(120), "tidied"));
}

/// C5: lost while already ending by a forwarded TERM: still 120.
#[test]
fn lost_while_ending() {
    let place = RunFixture::new();
    place.fifo("go");
    let script = "trap 'trap \"\" TERM; echo ending; read x < go; exit 0' TERM; echo held; while :; do sleep 0.01; done";
    let mut holder = place.hold(&["--grace", "60s"], script);
    holder.signal("TERM");
    assert_eq!(holder.line(), "ending");
    steal(&place);
    // Continue only after the loss is known.
    holder.expect_error("lost");
    place.say("go");
    let ended = holder.end();
    assert_eq!(ended.code, Some(120), "{ended:?}");
}

/// C5: `--on-lost notify` does not stop the command, but the exit code is 120 (C14).
#[test]
fn lost_with_notify_is_told_and_reported() {
    let place = RunFixture::new();
    place.fifo("go");
    let script = "echo held; read x < go; head -n 1 <&$TENURE_NOTICE_FD; exit 0";
    let mut holder = place.hold(&["--on-lost", "notify"], script);
    steal(&place);
    // The supervisor prints the loss on standard error; the command continues after that.
    holder.expect_error("lost");
    place.say("go");
    let ended = holder.end();
    assert_eq!(ended.code, Some(120));
    assert!(ended.out.contains(r#""event":"lost""#), "{}", ended.out);
}

/// C5: the notice is a line for people and one of JSON, before TERM.
#[test]
fn lost_is_told_in_words() {
    let place = RunFixture::new();
    let script = "trap 'head -n 1 <&$TENURE_NOTICE_FD; exit 0' TERM; echo held; while :; do sleep 0.01; done";
    let holder = place.hold(&["--grace", "60s"], script);
    steal(&place);
    let ended = holder.end();
    let line: serde_json::Value = serde_json::from_str(ended.out.trim()).unwrap();
    assert_eq!(line["event"], "lost");
    assert!(
        ended.errors.contains("tenure: the lock is lost"),
        "{}",
        ended.errors
    );
}

/// C5: a lock that is overwritten by another record is lost, and that record is not changed.
#[test]
fn lost_by_being_overwritten() {
    let place = RunFixture::new();
    let holder = place.hold(&[], "echo held; exec sleep 1000");
    let other = "{\"pid\": 1, \"starttime\": 1}";
    fs::write(place.file("new"), other).unwrap();
    fs::rename(place.file("new"), place.file("f.lock")).unwrap();
    assert_eq!(holder.end().code, Some(120));
    assert_eq!(fs::read_to_string(place.file("f.lock")).unwrap(), other);
}

/// C14, C2: a command that could not be started is no loss.
#[test]
fn not_started_is_not_lost() {
    let place = RunFixture::new();
    assert_eq!(place.code(&["f", "--", "./missing"]), Some(127));
    assert!(place.is_free());
}
