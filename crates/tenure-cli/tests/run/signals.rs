//! Signals: which process gets which (C3: environment of the child), and the exit code after a
//! signal (C2: exit codes).

use super::shell::{RunFixture, TENURE, eventually, is_alive, signal, state};

/// C2: 128+n, for ten signals that a command may die of.
#[test]
fn a_command_killed_by_a_signal_is_reported() {
    let place = RunFixture::new();
    for (name, number) in [
        ("HUP", 1),
        ("INT", 2),
        ("ILL", 4),
        ("ABRT", 6),
        ("FPE", 8),
        ("KILL", 9),
        ("SEGV", 11),
        ("PIPE", 13),
        ("ALRM", 14),
        ("TERM", 15),
    ] {
        let script = format!("ulimit -c 0; kill -{name} $$");
        assert_eq!(
            place.code(&["f", "--", "sh", "-c", &script]),
            Some(128 + number),
            "{name}"
        );
    }
}

/// C3: TERM, INT, HUP and QUIT reach every member of the group, not only the child.
#[test]
fn four_signals_reach_the_whole_group() {
    let place = RunFixture::new();
    for name in ["TERM", "INT", "HUP", "QUIT"] {
        let script = format!(
            "trap 'echo child >> heard' {name}; \
             sh -c 'trap \"echo member >> heard; exit 0\" {name}; echo held; while :; do sleep 0.01; done'; \
             exit 3"
        );
        let holder = place.hold(&[], &script);
        holder.signal(name);
        assert_eq!(holder.end().code, Some(3), "{name}");
        let mut heard: Vec<String> = std::fs::read_to_string(place.file("heard"))
            .unwrap()
            .lines()
            .map(str::to_owned)
            .collect();
        heard.sort();
        assert_eq!(heard, ["child", "member"], "{name}");
        std::fs::remove_file(place.file("heard")).unwrap();
    }
}

/// C3: USR1 and USR2 reach the child alone.
#[test]
fn two_signals_reach_the_child_alone() {
    let place = RunFixture::new();
    for name in ["USR1", "USR2"] {
        let script = format!(
            "sh -c 'trap \"echo member >> heard\" {name}; echo $$ > member; while ! test -e stop; do sleep 0.01; done' & \
             while ! test -s member; do sleep 0.01; done; \
             trap 'echo child >> heard; : > stop; wait; exit 3' {name}; echo held; while :; do sleep 0.01; done"
        );
        let holder = place.hold(&[], &script);
        holder.signal(name);
        assert_eq!(holder.end().code, Some(3), "{name}");
        let heard = std::fs::read_to_string(place.file("heard")).unwrap();
        assert_eq!(heard, "child\n", "{name}");
        for file in ["heard", "member", "stop"] {
            std::fs::remove_file(place.file(file)).unwrap();
        }
    }
}

/// K37: tenure releases before a signal ends it: the record is gone afterwards.
#[test]
fn a_signal_that_ends_it_leaves_no_record() {
    let place = RunFixture::new();
    for (name, number) in [("INT", 2), ("TERM", 15), ("HUP", 1)] {
        let holder = place.hold(&[], "echo held; exec sleep 1000");
        assert!(place.file("f.lock").exists(), "{name}");
        holder.signal(name);
        assert_eq!(holder.end().code, Some(128 + number), "{name}");
        assert!(!place.file("f.lock").exists(), "{name}");
    }
}

/// C3: a command that survives a signal keeps its lock, and tenure keeps waiting.
#[test]
fn a_command_may_survive_what_it_is_sent() {
    let place = RunFixture::new();
    let mut holder = place.hold(
        &[],
        "trap 'echo again' HUP; echo held; while :; do sleep 0.01; done",
    );
    for _ in 0..3 {
        holder.signal("HUP");
        assert_eq!(holder.line(), "again");
        assert!(!place.is_free());
    }
    holder.signal("TERM");
    assert_eq!(holder.end().code, Some(143));
}

/// C3: a signal before the child runs ends tenure and leaves nothing behind.
#[test]
fn a_signal_while_waiting_ends_the_wait() {
    let place = RunFixture::new();
    let holder = place.hold(&[], "echo held; exec sleep 1000");
    for (name, number) in [("TERM", 15), ("INT", 2), ("HUP", 1), ("QUIT", 3)] {
        // Where the tests run in the background of a script, these signals are ignored, and that is inherited.
        let mut waiter = std::process::Command::new("env")
            .args(["--default-signal=HUP,INT,QUIT", TENURE, "run", "f"])
            .args(["--", "touch", "ran"])
            .current_dir(place.path())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let supervisor = supervisor_of(waiter.id());
        signal(name, waiter.id());
        let status = waiter.wait().unwrap();
        let by = std::os::unix::process::ExitStatusExt::signal(&status);
        assert_eq!(by, Some(number), "{name}");
        eventually("its keeper is gone too", || !is_alive(supervisor));
    }
    assert!(!place.file("ran").exists());
    holder.signal("TERM");
    holder.end();
    assert!(place.is_free(), "no request was left behind");
}

/// C4: a stopped tenure does not stop the command, and its supervisor still watches it.
#[test]
fn stopping_tenure_does_not_stop_the_command() {
    let place = RunFixture::new();
    place.fifo("go");
    let mut holder = place.hold(&[], "echo held; read x < go; echo done; exit 8");
    holder.signal("STOP");
    eventually("tenure is stopped", || state(holder.pid()) == Some('T'));
    place.say("go");
    assert_eq!(holder.line(), "done");
    assert!(!place.is_free(), "the lock is still held");
    holder.signal("CONT");
    assert_eq!(holder.end().code, Some(8));
}

/// C3: in a burst of signals none is lost and nothing hangs.
#[test]
fn a_burst_of_signals_ends_once() {
    let place = RunFixture::new();
    let holder = place.hold(&[], "trap 'exit 33' TERM; echo held; sleep 1000 & wait");
    for _ in 0..20 {
        if !is_alive(holder.pid()) {
            break;
        }
        let _ = std::process::Command::new("kill")
            .arg(holder.pid().to_string())
            .stderr(std::process::Stdio::null())
            .status();
    }
    assert_eq!(holder.end().code, Some(33));
}

/// The supervisor is forked before the lock is asked for (C4).
fn supervisor_of(tenure: u32) -> u32 {
    let mut supervisor = None;
    eventually("the keeper is there", || {
        supervisor = super::shell::children(tenure).first().copied();
        // Its own group: it is past its own start.
        supervisor.is_some_and(|pid| group(pid) == Some(pid))
    });
    supervisor.unwrap()
}

fn group(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(2)?.parse().ok()
}
