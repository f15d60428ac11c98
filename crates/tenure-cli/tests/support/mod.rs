//! A real daemon process for tests, and plain clients for it.

#![allow(dead_code, reason = "each test program uses its own part")]

pub(crate) mod foreign;
pub(crate) mod http2;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// A running `tenure serve`. Killed when dropped.
pub(crate) struct Daemon {
    child: Child,
    /// What it says after "ready".
    said: Option<std::thread::JoinHandle<String>>,
    pub(crate) grpc: SocketAddr,
    pub(crate) web: SocketAddr,
    pub(crate) h3: SocketAddr,
    /// How long it took until it said that it is ready.
    pub(crate) started_in: Duration,
    /// The gossip address, if it has peers.
    pub(crate) gossip: Option<SocketAddr>,
}

impl Daemon {
    /// Starts one on a data directory, on ports that the system chooses.
    pub(crate) fn start(data: &Path) -> Daemon {
        Daemon::start_with(data, &[])
    }

    /// Starts a daemon for a `static`, which is never dropped: it ends when our end of a pipe is
    /// closed.
    pub(crate) fn start_until_we_end(data: &Path) -> Daemon {
        let binary = env!("CARGO_BIN_EXE_tenure");
        let mut command = Command::new("sh");
        // The shell reads until the pipe is closed, which happens however this process ends.
        command
            .args(["-c", "\"$0\" serve & cat > /dev/null; kill -9 $!", binary])
            .stdin(Stdio::piped());
        Daemon::spawn(settings(&mut command, data))
    }

    /// The same, with more of the environment set.
    pub(crate) fn start_with(data: &Path, environment: &[(&str, &str)]) -> Daemon {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
        command.arg("serve");
        Daemon::spawn(settings(&mut command, data).envs(environment.iter().copied()))
    }

    /// Starts what the command says, and waits until it is ready.
    pub(crate) fn spawn(command: &mut Command) -> Daemon {
        let begun = Instant::now();
        let mut child = command
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap());
        let mut said = String::new();
        // `tenure: ready, grpc 127.0.0.1:1, web 127.0.0.1:2, h3 127.0.0.1:3`
        let ready = loop {
            let mut line = String::new();
            if lines.read_line(&mut line).unwrap() == 0 {
                panic!("the daemon ended before it was ready:\n{said}");
            }
            if line.contains("ready") {
                break line;
            }
            said.push_str(&line);
        };
        let started_in = begun.elapsed();
        let said = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = lines.read_to_end(&mut bytes);
            String::from_utf8_lossy(&bytes).into_owned()
        });
        // What is off has no port.
        let address = |name: &str| {
            let (_, rest) = ready.split_once(name)?;
            rest.split([',', '\n']).next()?.trim().parse().ok()
        };
        Daemon {
            child,
            said: Some(said),
            grpc: address("grpc").unwrap(),
            web: address("web").unwrap(),
            h3: address("h3").unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 0))),
            gossip: address("gossip"),
            started_in,
        }
    }

    /// A connection for gRPC.
    pub(crate) async fn channel(&self) -> tonic::transport::Channel {
        let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{}", self.grpc));
        endpoint.unwrap().connect().await.unwrap()
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The bytes that it holds in memory now.
    pub(crate) fn memory(&self) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = text
            .lines()
            .find(|line| line.starts_with("VmRSS:"))
            .unwrap();
        let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
        kib * 1024
    }

    /// Sends SIGKILL.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits until it ends by itself. Returns its exit code and its last line.
    pub(crate) fn ended(mut self) -> (Option<i32>, String) {
        let code = self.child.wait().unwrap().code();
        let said = self.said.take().unwrap().join().unwrap();
        (code, said.lines().last().unwrap_or_default().to_owned())
    }

    /// Asks it to end, and returns its exit code.
    pub(crate) fn terminate(mut self) -> Option<i32> {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").arg(&pid).status().unwrap().success());
        self.child.wait().unwrap().code()
    }

    /// One JSON call over HTTP/1.1.
    pub(crate) fn post(&self, url: &str, body: &Value) -> (u16, Value) {
        self.post_raw(url, "application/json", body.to_string().as_bytes())
    }

    /// One call with any body.
    pub(crate) fn post_raw(&self, url: &str, kind: &str, body: &[u8]) -> (u16, Value) {
        let head = format!(
            "POST {url} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: {kind}\r\n\
             content-length: {}\r\n\r\n",
            body.len()
        );
        let mut request = head.into_bytes();
        request.extend_from_slice(body);
        self.exchange(&request)
    }

    /// A GET.
    pub(crate) fn get(&self, url: &str) -> (u16, Value) {
        self.exchange(
            format!("GET {url} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
                .as_bytes(),
        )
    }

    /// A GET that is not answered in JSON: head and body.
    pub(crate) fn get_text(&self, url: &str) -> (String, String) {
        let request = format!("GET {url} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        let answer = self.raw(request.as_bytes());
        let text = String::from_utf8(answer).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), body.to_owned())
    }

    fn exchange(&self, request: &[u8]) -> (u16, Value) {
        let answer = self.raw(request);
        let text = String::from_utf8_lossy(&answer);
        let status = text.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = status.unwrap_or_else(|| panic!("no HTTP answer: {text:?}"));
        let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        (status, serde_json::from_str(body).unwrap_or(Value::Null))
    }

    /// Sends bytes to the web port and returns the whole answer.
    pub(crate) fn raw(&self, request: &[u8]) -> Vec<u8> {
        let mut stream = TcpStream::connect(self.web).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(30)))
            .unwrap();
        // A server that refuses early may close before it has read everything.
        let _ = stream.write_all(request);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        answer
    }
}

/// Ports that the system chooses, and few groups.
pub(crate) fn settings<'a>(command: &'a mut Command, data: &Path) -> &'a mut Command {
    command
        .env("TENURE_DATA_DIR", data)
        .env("TENURE_LISTEN", "127.0.0.1:0")
        .env("TENURE_WEB_LISTEN", "127.0.0.1:0")
        .env("TENURE_H3_LISTEN", "127.0.0.1:0")
        .env("TENURE_GROUP_COUNT", "4")
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
