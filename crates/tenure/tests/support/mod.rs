//! A real daemon in a process of its own, and a relay in front of it that fails on command.

#![allow(dead_code, reason = "each test program uses its own part")]

pub(crate) mod relay;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tenure::{Builder, Endpoint, Tenure};

/// A daemon. It ends with its standard input, so none outlives its test, and is killed when it is dropped.
pub(crate) struct Daemon {
    child: Child,
    pub(crate) node: Endpoint,
    /// Where its peers find it, if it is one of several nodes.
    pub(crate) gossip: String,
    data: PathBuf,
    _temp: Option<TempDir>,
}

impl Daemon {
    /// One with an empty directory, on a port that the system chooses.
    pub(crate) fn start() -> Daemon {
        let temp = tempfile::tempdir().unwrap();
        let mut daemon = Daemon::start_on(temp.path(), "127.0.0.1:0", &[]);
        daemon._temp = Some(temp);
        daemon
    }

    /// One that asks for a token.
    pub(crate) fn start_with_token(token: &str) -> Daemon {
        let temp = tempfile::tempdir().unwrap();
        let mut daemon = Daemon::start_on(temp.path(), "127.0.0.1:0", &[token]);
        daemon._temp = Some(temp);
        daemon
    }

    fn start_on(data: &Path, address: &str, more: &[&str]) -> Daemon {
        Daemon::start_with(data, address, more, &[])
    }

    /// One with more keys.
    pub(crate) fn start_with(
        data: &Path,
        address: &str,
        more: &[&str],
        keys: &[(&str, &str)],
    ) -> Daemon {
        // target/debug/deps/test → target/debug/examples/embedded_daemon
        let tests = std::env::current_exe().unwrap();
        let program = tests
            .parent()
            .unwrap()
            .parent()
            .unwrap()
            .join("examples/embedded_daemon");
        let mut child = Command::new(program)
            .arg(data)
            .arg(address)
            .args(more)
            .envs(keys.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut said)
            .unwrap();
        let mut words = said.split_whitespace();
        assert_eq!(words.next(), Some("ready"), "the daemon did not start");
        let node = words.next().unwrap().parse().unwrap();
        let gossip = words.next().unwrap_or_default().to_owned();
        Daemon {
            child,
            node,
            gossip,
            data: data.to_owned(),
            _temp: None,
        }
    }

    /// `kill -9`.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts it again after a kill, on the same data and the same port.
    pub(crate) fn restart(&mut self) {
        let again = Daemon::start_on(&self.data, &self.node.to_string(), &[]);
        let temp = self._temp.take();
        *self = again;
        self._temp = temp;
    }

    pub(crate) fn stop(&self) {
        self.signal(Signal::STOP);
    }

    pub(crate) fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// A client of its own connection.
    pub(crate) fn client(&self) -> Tenure {
        client([&self.node])
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A client of these nodes, with a connection of its own.
pub(crate) fn client<'a>(nodes: impl IntoIterator<Item = &'a Endpoint>) -> Tenure {
    Builder::default()
        .nodes(nodes.into_iter().cloned())
        .build()
        .unwrap()
}
