//! Test support: a directory with `tenure run`, and ways to wait for other processes.

#![allow(dead_code, reason = "each test program uses its own part")]

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// The binary under test.
pub(crate) const TENURE: &str = env!("CARGO_BIN_EXE_tenure");

/// A directory of its own for one test.
pub(crate) struct RunFixture {
    dir: TempDir,
}

impl RunFixture {
    pub(crate) fn new() -> RunFixture {
        RunFixture {
            dir: TempDir::new().unwrap(),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// `tenure run` with these arguments.
    pub(crate) fn run(&self, arguments: &[&str]) -> Command {
        self.tenure("run", arguments)
    }

    /// A verb of `tenure` with these arguments, in a session without a terminal and with the default
    /// dispositions of signals: where the tests run in the background of a script, some signals are
    /// ignored, and that would be inherited. Neither program forks, so the process is `tenure`.
    pub(crate) fn tenure(&self, verb: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new("setsid");
        command
            .args(["env", "--default-signal=HUP,INT,QUIT,TERM,USR1,USR2"])
            .args([TENURE, verb])
            .args(arguments)
            .current_dir(self.dir.path())
            .env_remove("TENURE_URL")
            .stdin(Stdio::null());
        command
    }

    /// Its exit code.
    pub(crate) fn code(&self, arguments: &[&str]) -> Option<i32> {
        let status = self.run(arguments).stderr(Stdio::null()).status();
        status.unwrap().code()
    }

    /// Returns whether the lock on `f` is free now.
    pub(crate) fn is_free(&self) -> bool {
        match self.code(&["-n", "f", "--", "true"]) {
            Some(0) => true,
            Some(75) => false,
            other => panic!("neither free nor held: {other:?}"),
        }
    }

    /// Creates a named pipe: the reader waits for the writer.
    pub(crate) fn fifo(&self, name: &str) {
        let made = Command::new("mkfifo").arg(self.file(name)).status();
        assert!(made.unwrap().success());
    }

    /// Writes a line into a pipe that has a reader.
    pub(crate) fn say(&self, fifo: &str) {
        fs::write(self.file(fifo), "go\n").unwrap();
    }

    /// The process ids that a script wrote, one a line.
    pub(crate) fn pids(&self, name: &str) -> Vec<u32> {
        let text = fs::read_to_string(self.file(name)).unwrap();
        text.lines()
            .map(|line| line.trim().parse().unwrap())
            .collect()
    }

    /// Holds `f` with a shell script that prints `held` when it is ready.
    pub(crate) fn hold(&self, options: &[&str], script: &str) -> Holder {
        self.hold_with("sh", options, script)
    }

    /// The same with another shell.
    pub(crate) fn hold_with(&self, shell: &str, options: &[&str], script: &str) -> Holder {
        let mut arguments = options.to_vec();
        arguments.extend(["f", "--", shell, "-c", script]);
        Holder::start(self.run(&arguments))
    }
}

/// A `tenure run` whose command has printed `held`.
pub(crate) struct Holder {
    child: Child,
    lines: BufReader<ChildStdout>,
    errors: BufReader<ChildStderr>,
    /// What was read so far.
    said: String,
}

impl Holder {
    pub(crate) fn start(command: Command) -> Holder {
        Holder::try_start(command).unwrap_or_else(|ended| panic!("never held: {ended:?}"))
    }

    /// For a lock that may be lost before its command has printed anything.
    pub(crate) fn try_start(mut command: Command) -> Result<Holder, Ended> {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let errors = BufReader::new(child.stderr.take().unwrap());
        let mut holder = Holder {
            child,
            lines,
            errors,
            said: String::new(),
        };
        match holder.line().as_str() {
            "held" => Ok(holder),
            "" => Err(holder.end()),
            other => panic!("the command said {other:?}"),
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next line that the command prints.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Waits until tenure or its command has printed this on standard error.
    pub(crate) fn expect_error(&mut self, word: &str) {
        loop {
            let mut line = String::new();
            let length = self.errors.read_line(&mut line).unwrap();
            assert_ne!(length, 0, "{word} was never said: {}", self.said);
            self.said.push_str(&line);
            if line.contains(word) {
                return;
            }
        }
    }

    pub(crate) fn signal(&self, name: &str) {
        signal(name, self.child.id());
    }

    /// The supervisor, which is `tenure`'s first child.
    pub(crate) fn supervisor(&self) -> u32 {
        children(self.child.id())[0]
    }

    /// Takes note of tenure's own end while its command may live on and keep the pipes open.
    pub(crate) fn reap(mut self) {
        self.child.wait().unwrap();
    }

    /// Waits for the end: exit code, the rest of standard output, standard error.
    pub(crate) fn end(mut self) -> Ended {
        let status = self.child.wait().unwrap();
        let mut out = String::new();
        self.lines.read_to_string(&mut out).unwrap();
        self.errors.read_to_string(&mut self.said).unwrap();
        Ended {
            code: status.code(),
            signal: std::os::unix::process::ExitStatusExt::signal(&status),
            out,
            errors: self.said,
        }
    }
}

/// How a [`Holder`] ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
    pub(crate) out: String,
    pub(crate) errors: String,
}

/// Sends a signal by name.
pub(crate) fn signal(name: &str, pid: u32) {
    let sent = Command::new("kill")
        .args(["-s", name, &pid.to_string()])
        .status();
    assert!(sent.unwrap().success(), "{name} to {pid}");
}

/// The children of a process, in the order in which they were made.
pub(crate) fn children(pid: u32) -> Vec<u32> {
    let list = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    list.split_ascii_whitespace()
        .map(|child| child.parse().unwrap())
        .collect()
}

/// The letter of a process's state (`R`, `S`, `T`, `Z`, …); none if it is gone.
pub(crate) fn state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// A zombie does nothing any more, so it does not count.
pub(crate) fn is_alive(pid: u32) -> bool {
    !matches!(state(pid), None | Some('Z' | 'X'))
}

/// Waits for something that another process does; the limit only ends a broken test.
pub(crate) fn eventually(what: &str, mut happened: impl FnMut() -> bool) {
    let limit = Instant::now() + Duration::from_secs(60);
    while !happened() {
        assert!(Instant::now() < limit, "it never happened: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
