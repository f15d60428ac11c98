//! Child processes: the test binary runs itself again in a role, and reports to its parent in
//! lines.

#![allow(
    clippy::unwrap_used,
    reason = "a test may hope; its panic is the report"
)]

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const ROLE: &str = "TENURE_TEST_ROLE";
const TARGET: &str = "TENURE_TEST_TARGET";

/// A role: its name, and what the process does with a target.
pub type Role = (&'static str, fn(&Path));

/// Runs the role that the parent gave this process, if any. Called by the test named `child`.
pub fn play(roles: &[Role]) {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let target = std::env::var(TARGET).expect("a role has a target");
    let (_, play) = roles
        .iter()
        .find(|(name, _)| *name == role)
        .expect("a known role");
    play(Path::new(&target));
    std::process::exit(0);
}

/// Sends a line to the parent.
pub fn say(word: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "> {word}").unwrap();
    out.flush().unwrap();
}

/// Waits for a line from the parent; exits if the parent has exited.
pub fn hear() -> String {
    let mut line = String::new();
    if std::io::stdin().lock().read_line(&mut line).unwrap() == 0 {
        std::process::exit(3);
    }
    line.trim().to_owned()
}

/// A child in a role.
pub struct Player {
    child: Child,
    stdin: Option<ChildStdin>,
    words: Receiver<(Instant, String)>,
}

impl Player {
    /// Starts this test binary in a role.
    pub fn new(role: &str, target: &Path) -> Player {
        Player::with(role, target, &[])
    }

    /// Starts this test binary in a role, with additional environment variables.
    pub fn with(role: &str, target: &Path, environment: &[(&str, &str)]) -> Player {
        let mut command = in_role(&std::env::current_exe().unwrap(), role, target);
        command.envs(environment.iter().copied());
        Player::of(command)
    }

    /// Starts a copy of this test binary in a role, as another user.
    pub fn as_user(uid: u32, program: &Path, role: &str, target: &Path) -> Player {
        let mut command = in_role(program, role, target);
        std::os::unix::process::CommandExt::uid(&mut command, uid);
        Player::of(command)
    }

    /// Starts any program that prints lines beginning with `> `.
    pub fn of(mut command: Command) -> Player {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take();
        let words = listen(child.stdout.take().unwrap());
        Player {
            child,
            stdin,
            words,
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn expect(&self, word: &str) -> Instant {
        self.expect_within(word, Duration::from_secs(30))
    }

    pub fn expect_within(&self, word: &str, patience: Duration) -> Instant {
        let (at, said) = self
            .words
            .recv_timeout(patience)
            .expect("the child said something");
        assert_eq!(said, word);
        at
    }

    /// Returns the next line within this time, if there is one.
    pub fn hear_within(&self, patience: Duration) -> Option<String> {
        self.words.recv_timeout(patience).ok().map(|(_, word)| word)
    }

    pub fn tell(&mut self, word: &str) {
        writeln!(self.stdin.as_mut().unwrap(), "{word}").unwrap();
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    pub fn wait(mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    /// Kills it with SIGKILL and reaps it.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn listen(stdout: ChildStdout) -> Receiver<(Instant, String)> {
    let (sender, words) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            // The test harness may have printed the beginning of the line.
            if let Some((_, word)) = line.split_once("> ") {
                let _ = sender.send((Instant::now(), word.to_owned()));
            }
        }
    });
    words
}

fn in_role(program: &Path, role: &str, target: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .args(["--exact", "child", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .env(TARGET, target);
    command
}
