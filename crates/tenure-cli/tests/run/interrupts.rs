//! Signals before the command runs: tenure withdraws and releases, then dies of the signal (K37
//! release on signals).

use std::process::{Child, Command, Stdio};

use super::shell::{RunFixture, eventually, signal};

fn start(mut command: Command) -> Child {
    command.stderr(Stdio::null()).spawn().unwrap()
}

/// Sends the signal, and checks that the process dies of it.
fn dies_of(mut child: Child, name: &str, number: i32) {
    signal(name, child.id());
    let status = child.wait().unwrap();
    let by = std::os::unix::process::ExitStatusExt::signal(&status);
    assert_eq!(by, Some(number), "{name}: {status:?}");
}

/// K37: the first of two locks is released when the wait for the second is interrupted.
#[test]
fn the_first_of_two_locks_is_released() {
    let place = RunFixture::new();
    let holder = place.hold(&[], "echo held; exec sleep 1000");
    for (name, number) in [
        ("TERM", 15),
        ("INT", 2),
        ("HUP", 1),
        ("QUIT", 3),
        ("USR1", 10),
    ] {
        let waiter = start(place.run(&["a", "f", "--", "touch", "ran"]));
        eventually("it holds the first", || place.file("a.lock").exists());
        dies_of(waiter, name, number);
        assert!(!place.file("a.lock").exists(), "{name}");
    }
    assert!(!place.file("ran").exists());
    holder.signal("TERM");
    holder.end();
}

/// K37: a tool that waits for servers to notice its lock takes the lock back.
#[test]
fn a_settling_exclusive_lock_is_removed() {
    let place = RunFixture::new();
    std::fs::create_dir(place.file("d")).unwrap();
    let lock = place.file("d/.exclusive-lock");
    let settling = start(place.run(&["--settle", "2s", "exclusive:d", "--", "touch", "ran"]));
    eventually("the lock is there", || lock.exists());
    dies_of(settling, "TERM", 15);
    assert!(!lock.exists());
    assert!(!place.file("ran").exists());
}

/// K37, U16 (end of a release request): a waiter takes its release request back.
#[test]
fn a_release_request_is_withdrawn() {
    let place = RunFixture::new();
    std::fs::create_dir(place.file("up")).unwrap();
    let script = "echo held; exec sleep 1000";
    let options = [
        "--on-ask",
        "ignore",
        "upload:up/x",
        "--",
        "sh",
        "-c",
        script,
    ];
    let holder = super::shell::Holder::start(place.run(&options));
    let request = place.file("up/x.stop");
    let waiter = start(place.run(&["--ask", "upload:up/x", "--", "touch", "ran"]));
    eventually("it asks", || request.exists());
    dies_of(waiter, "TERM", 15);
    assert!(!request.exists());
    assert!(!place.file("ran").exists());
    holder.signal("TERM");
    holder.end();
}

/// K37: `tenure lock` releases, too.
#[test]
fn an_interrupted_lock_leaves_nothing() {
    let place = RunFixture::new();
    std::fs::create_dir(place.file("d")).unwrap();
    let lock = place.file("d/.exclusive-lock");
    let settling = start(place.tenure("lock", &["--settle", "2s", "exclusive:d"]));
    eventually("the lock is there", || lock.exists());
    dies_of(settling, "INT", 2);
    assert!(!lock.exists());
}

/// C3 (environment of the child): a signal that was ignored at the start, as HUP under `nohup`,
/// stays ignored for tenure and for the command.
#[test]
fn nohup_survives_a_hang_up() {
    let place = RunFixture::new();
    place.fifo("go");
    let script = "kill -HUP $$; kill -HUP $PPID; echo held; read x < go; exit 4";
    let mut command = Command::new("setsid");
    command
        .args([
            "env",
            "--default-signal=INT,QUIT,TERM",
            "--ignore-signal=HUP",
        ])
        .args([super::shell::TENURE, "run", "f", "--", "sh", "-c", script])
        .current_dir(place.path());
    let holder = super::shell::Holder::start(command);
    holder.signal("HUP");
    place.say("go");
    assert_eq!(holder.end().code, Some(4));
}
