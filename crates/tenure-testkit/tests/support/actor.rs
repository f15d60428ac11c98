//! Child processes (`actor`) that take part in a test, and are killed, stopped and asked.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use tenure_testkit::TIMEOUT;

pub(crate) struct Actor {
    child: Child,
    lines: Receiver<String>,
    /// The copied program, if it runs a copy.
    copy: Option<tempfile::TempDir>,
}

impl Actor {
    pub(crate) fn spawn(args: &[&str], dir: &Path) -> Actor {
        Actor::start(Command::new(env!("CARGO_BIN_EXE_files-actor")), args, dir)
    }

    /// Runs as another user. The program is copied to a place where that user can read it.
    pub(crate) fn spawn_as(user: u32, args: &[&str], dir: &Path) -> Actor {
        Actor::spawn_in_group(user, user, args, dir)
    }

    /// Runs as another user with this group.
    pub(crate) fn spawn_in_group(user: u32, group: u32, args: &[&str], dir: &Path) -> Actor {
        let copy = tempfile::tempdir().expect("a place for the copy");
        let program = copy.path().join("actor");
        std::fs::copy(env!("CARGO_BIN_EXE_files-actor"), &program).expect("copied");
        let everybody = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(copy.path(), everybody).expect("it is ours");
        let mut command = Command::new(&program);
        command.uid(user).gid(group);
        let mut actor = Actor::start(command, args, dir);
        actor.copy = Some(copy);
        actor
    }

    pub(crate) fn start(mut command: Command, args: &[&str], dir: &Path) -> Actor {
        command
            .args(args)
            .arg(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = loop {
            match command.spawn() {
                Ok(child) => break child,
                // Another thread forked while our copy was open for writing; that child is about to
                // close it.
                Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => thread::yield_now(),
                Err(error) => panic!("the actor cannot be started: {error}"),
            }
        };
        let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        let (line, lines) = channel();
        thread::spawn(move || {
            stdout
                .lines()
                .map_while(Result::ok)
                .try_for_each(|l| line.send(l))
        });
        Actor {
            child,
            lines,
            copy: None,
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the next line it prints.
    pub(crate) fn hear(&self) -> String {
        self.lines
            .recv_timeout(TIMEOUT)
            .unwrap_or_else(|_| "(nothing)".to_owned())
    }

    /// Asserts the next line it prints.
    #[track_caller]
    pub(crate) fn says(&self, expected: &str) {
        assert_eq!(self.hear(), expected);
    }

    /// Whether it has printed nothing so far.
    pub(crate) fn is_silent(&self) -> bool {
        self.lines.try_recv().is_err()
    }

    pub(crate) fn tell(&mut self, command: &str) {
        let stdin = self.child.stdin.as_mut().expect("it is piped");
        writeln!(stdin, "{command}").expect("it listens");
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("it can be signalled");
    }

    /// Sends SIGKILL and waits until the process is gone.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it ends");
    }

    /// Closes its stdin and waits for its exit.
    pub(crate) fn finish(mut self) {
        drop(self.child.stdin.take());
        let status = self.child.wait().expect("it ends");
        assert!(status.success(), "the actor failed: {status}");
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("it can be asked").is_some()
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
