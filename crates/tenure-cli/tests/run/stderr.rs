//! Standard error that blocks or fails: a message must neither delay the end of a command nor
//! change an exit code (C5 stop before the lease ends, C2 exit codes).

use std::io::Write;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::pipe::pipe;

use super::pty::Terminal;
use super::shell::{Holder, RunFixture, eventually, is_alive};

/// Whether writers wait for a full pipe or get an error.
#[derive(Clone, Copy, PartialEq)]
enum WhenFull {
    Waits,
    Fails,
}

/// A pipe that nothing fits into any more: its reading and its writing end.
fn full_pipe(when_full: WhenFull) -> (OwnedFd, OwnedFd) {
    let (read, write) = pipe().unwrap();
    let flags = fcntl_getfl(&write).unwrap();
    fcntl_setfl(&write, flags | OFlags::NONBLOCK).unwrap();
    let mut writer = std::fs::File::from(write.try_clone().unwrap());
    while writer.write(&[b'x'; 4096]).is_ok() {}
    while writer.write(b"x").is_ok() {}
    if when_full == WhenFull::Waits {
        fcntl_setfl(&write, flags).unwrap();
    }
    (read, write)
}

/// A pipe whose reader is gone.
fn broken_pipe() -> OwnedFd {
    let (read, write) = pipe().unwrap();
    drop(read);
    write
}

fn code_with(mut command: Command, stderr: OwnedFd) -> Option<i32> {
    command.stderr(Stdio::from(stderr)).status().unwrap().code()
}

/// C5: the loss ends the command although its message cannot be written.
#[test]
fn a_loss_ends_the_command_under_a_full_stderr() {
    for when_full in [WhenFull::Waits, WhenFull::Fails] {
        let place = RunFixture::new();
        let (_reader, stderr) = full_pipe(when_full);
        let script = "echo $$ > pids; echo held; exec sleep 1000";
        let mut command = place.run(&["--grace", "60s", "f", "--", "sh", "-c", script]);
        let mut holder = command
            .stdout(Stdio::piped())
            .stderr(Stdio::from(stderr))
            .spawn()
            .unwrap();
        eventually("the command runs", || {
            std::fs::read_to_string(place.file("pids")).is_ok_and(|text| text.ends_with('\n'))
        });
        let child = place.pids("pids")[0];
        std::fs::remove_file(place.file("f.lock")).unwrap();
        eventually("the command was ended", || !is_alive(child));
        assert_eq!(holder.wait().unwrap().code(), Some(120));
    }
}

/// C5, C19 (job control on terminals): with `stty tostop` a background process that writes to the
/// terminal is stopped. The supervisor is in the background and must not be.
#[test]
fn a_loss_ends_the_command_under_tostop() {
    let place = RunFixture::new();
    let mut terminal = Terminal::open(&place);
    terminal.line("stty tostop");
    terminal.expect("ready> ");
    terminal.line("$T run f -- sh -c 'echo run''ning; exec sleep 1000'");
    terminal.expect("running");
    std::fs::remove_file(place.file("f.lock")).unwrap();
    terminal.expect("ready> ");
    terminal.line("echo code=$?");
    terminal.expect("code=120");
}

/// C2: the code of a refusal does not depend on the message.
#[test]
fn a_refusal_keeps_its_code_without_a_reader() {
    let place = RunFixture::new();
    let holder = place.hold(&[], "echo held; exec sleep 1000");
    let refused = place.run(&["-n", "f", "--", "true"]);
    assert_eq!(code_with(refused, broken_pipe()), Some(75));
    let timed_out = place.run(&["-w", "1500ms", "f", "--", "true"]);
    assert_eq!(code_with(timed_out, broken_pipe()), Some(124));
    let missing = place.run(&["g", "--", "./missing"]);
    assert_eq!(code_with(missing, broken_pipe()), Some(127));
    let (_reader, stderr) = full_pipe(WhenFull::Fails);
    let refused = place.run(&["-n", "f", "--", "true"]);
    assert_eq!(code_with(refused, stderr), Some(75));
    holder.signal("TERM");
    holder.end();
}

/// C5: a notice about a release request does not end the command when it cannot be printed.
#[test]
fn a_release_request_is_survived_without_a_reader() {
    let place = RunFixture::new();
    place.fifo("go");
    std::fs::create_dir(place.file("up")).unwrap();
    let script = "echo held; read line <&$TENURE_NOTICE_FD; echo told; read x < go; exit 3";
    let mut command = place.run(&[
        "--on-ask",
        "notify",
        "upload:up/x",
        "--",
        "bash",
        "-c",
        script,
    ]);
    let mut holder = command
        .stdout(Stdio::piped())
        .stderr(Stdio::from(broken_pipe()))
        .spawn()
        .unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(holder.stdout.take().unwrap()));
    assert_eq!(lines.next().unwrap().unwrap(), "held");
    let asked = place
        .tenure("ask", &["--force", "upload:up/x"])
        .output()
        .unwrap();
    assert_eq!(asked.status.code(), Some(0), "{asked:?}");
    assert_eq!(lines.next().unwrap().unwrap(), "told");
    place.say("go");
    assert_eq!(holder.wait().unwrap().code(), Some(3));
}

/// C5: `read` on TENURE_NOTICE_FD waits for the next notice.
#[test]
fn a_shell_can_wait_for_a_notice() {
    let place = RunFixture::new();
    let script = "echo held; read line <&$TENURE_NOTICE_FD; echo \"$line\"";
    let mut holder =
        Holder::start(place.run(&["--on-lost", "notify", "f", "--", "bash", "-c", script]));
    std::fs::remove_file(place.file("f.lock")).unwrap();
    let line = holder.line();
    assert!(line.contains(r#""event":"lost""#), "{line:?}");
    assert_eq!(holder.end().code, Some(120));
}
