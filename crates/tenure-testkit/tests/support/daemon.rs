//! A real daemon in its own process, and a relay in front of it that fails on command.

pub(crate) mod relay;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tenure::{Builder, Endpoint, Tenure};

/// A daemon process. It is killed on drop, and it exits when its standard input is closed, so none
/// outlives its test.
pub(crate) struct Daemon {
    child: Child,
    pub(crate) node: Endpoint,
    /// The gossip address, if it is a cluster node.
    pub(crate) gossip: String,
    data: PathBuf,
    keys: Vec<(String, String)>,
    _temp: Option<TempDir>,
}

impl Daemon {
    /// Starts a daemon with an empty directory on a free port.
    pub(crate) fn start() -> Daemon {
        let temp = tempfile::tempdir().unwrap();
        let mut daemon = Daemon::start_on(temp.path(), "127.0.0.1:0", &[]);
        daemon._temp = Some(temp);
        daemon
    }

    /// Starts a daemon that requires a token.
    pub(crate) fn start_with_token(token: &str) -> Daemon {
        let temp = tempfile::tempdir().unwrap();
        let mut daemon = Daemon::start_on(temp.path(), "127.0.0.1:0", &[token]);
        daemon._temp = Some(temp);
        daemon
    }

    fn start_on(data: &Path, address: &str, more: &[&str]) -> Daemon {
        Daemon::start_with(data, address, more, &[])
    }

    /// Starts a daemon with additional settings.
    pub(crate) fn start_with(
        data: &Path,
        address: &str,
        more: &[&str],
        keys: &[(&str, &str)],
    ) -> Daemon {
        let mut child = Command::new(env!("CARGO_BIN_EXE_daemon-actor"))
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
            keys: keys
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect(),
            _temp: None,
        }
    }

    /// Sends SIGKILL.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Restarts it after a kill, with the same data, settings and port.
    pub(crate) fn restart(&mut self) {
        let keys = self.keys.iter();
        let keys: Vec<(&str, &str)> = keys
            .map(|(key, value)| (key.as_str(), value.as_str()))
            .collect();
        let again = Daemon::start_with(&self.data, &self.node.to_string(), &[], &keys);
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

    /// Returns a client with its own connection.
    pub(crate) fn client(&self) -> Tenure {
        client([&self.node])
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns a client of these nodes with its own connection.
pub(crate) fn client<'a>(nodes: impl IntoIterator<Item = &'a Endpoint>) -> Tenure {
    Builder::default()
        .nodes(nodes.into_iter().cloned())
        .build()
        .unwrap()
}
