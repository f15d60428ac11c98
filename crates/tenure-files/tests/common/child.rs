//! Other processes: the test binary runs itself again in a role, and tells its parent by lines.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const ROLE: &str = "TENURE_TEST_ROLE";
const TARGET: &str = "TENURE_TEST_TARGET";

/// Runs the role that a parent gave this process, if any. Called by the one test named `child`.
pub(crate) fn play(roles: &[(&str, fn(&Path))]) {
    let Ok(role) = std::env::var(ROLE) else { return };
    let target = std::env::var(TARGET).expect("a role has a target");
    let (_, play) = roles.iter().find(|(name, _)| *name == role).expect("a known role");
    play(Path::new(&target));
    std::process::exit(0);
}

/// Tells the parent.
pub(crate) fn say(word: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "> {word}").unwrap();
    out.flush().unwrap();
}

/// Waits for a word of the parent; the end of the parent ends us too.
pub(crate) fn hear() -> String {
    let mut line = String::new();
    if std::io::stdin().lock().read_line(&mut line).unwrap() == 0 {
        std::process::exit(3);
    }
    line.trim().to_owned()
}

/// A child in a role.
pub(crate) struct Player {
    child: Child,
    stdin: Option<ChildStdin>,
    words: Receiver<(Instant, String)>,
}

impl Player {
    pub(crate) fn new(role: &str, target: &Path) -> Player {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .env(TARGET, target)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take();
        let words = listen(child.stdout.take().unwrap());
        Player { child, stdin, words }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next word, and when it came.
    pub(crate) fn next(&self) -> (Instant, String) {
        self.words.recv_timeout(Duration::from_secs(30)).expect("the child said something")
    }

    pub(crate) fn expect(&self, word: &str) -> Instant {
        let (at, said) = self.next();
        assert_eq!(said, word);
        at
    }

    pub(crate) fn tell(&mut self, word: &str) {
        writeln!(self.stdin.as_mut().unwrap(), "{word}").unwrap();
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    pub(crate) fn wait(mut self) -> ExitStatus {
        drop(self.stdin.take());
        self.child.wait().unwrap()
    }

    /// Kills it with SIGKILL and reaps it.
    pub(crate) fn kill(mut self) {
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
            // The harness may have begun the line.
            if let Some((_, word)) = line.split_once("> ") {
                let _ = sender.send((Instant::now(), word.to_owned()));
            }
        }
    });
    words
}
