//! Server processes: each durable, on loopback, in its own directory, killed when dropped.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Signal, set_parent_process_death_signal};

/// Time limit for a server to start.
const START_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) struct PeerServer {
    pub(crate) name: &'static str,
    pub(crate) address: SocketAddr,
    child: Child,
}

impl Drop for PeerServer {
    fn drop(&mut self) {
        self.kill();
    }
}

fn free_port() -> Result<SocketAddr, String> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|listener| listener.local_addr())
        .map_err(|error| format!("no free port: {error}"))
}

fn make(directory: &Path) -> Result<(), String> {
    std::fs::create_dir_all(directory).map_err(|error| format!("{}: {error}", directory.display()))
}

fn spawn(command: &mut Command) -> Result<Child, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    // If the comparison itself is killed, `Drop` does not run; the kernel then kills the servers.
    let die_too = || Ok(set_parent_process_death_signal(Some(Signal::KILL))?);
    #[allow(unsafe_code, reason = "the only way to say it between fork and exec")]
    // SAFETY: one system call, which touches no memory.
    unsafe {
        command.pre_exec(die_too);
    }
    command
        .stdin(Stdio::null())
        .spawn()
        .map_err(|error| format!("{name}: {error}"))
}

impl PeerServer {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn kill(&mut self) {
        // It may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    pub(crate) fn tenure(binary: &Path, directory: &Path) -> Result<PeerServer, String> {
        make(directory)?;
        let mut child = spawn(
            Command::new(binary)
                .arg("serve")
                .env("TENURE_DATA_DIR", directory)
                .env("TENURE_LISTEN", "127.0.0.1:0")
                .env("TENURE_WEB_LISTEN", "127.0.0.1:0")
                .stdout(Stdio::null())
                .stderr(Stdio::piped()),
        )?;
        let said = child.stderr.take().ok_or("no output")?;
        let address = said_in(said, "grpc ");
        PeerServer::with("tenure", child, address)
    }

    /// Starts the echo server: this program with the argument `echo`.
    pub(crate) fn echo() -> Result<PeerServer, String> {
        let me = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut child = spawn(Command::new(me).arg("echo").stdout(Stdio::piped()))?;
        let said = child.stdout.take().ok_or("no output")?;
        let address = said_in(said, "ready ");
        PeerServer::with("echo", child, address)
    }

    fn with(
        name: &'static str,
        mut child: Child,
        address: Result<SocketAddr, String>,
    ) -> Result<PeerServer, String> {
        match address {
            Ok(address) => Ok(PeerServer {
                name,
                address,
                child,
            }),
            Err(why) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(format!("{name} did not start: {why}"))
            }
        }
    }

    pub(crate) fn redis(directory: &Path) -> Result<PeerServer, String> {
        make(directory)?;
        let address = free_port()?;
        let port = address.port().to_string();
        let child = spawn(
            Command::new("redis-server")
                .args(["--port", &port, "--bind", "127.0.0.1"])
                .args([
                    "--appendonly",
                    "yes",
                    "--appendfsync",
                    "always",
                    "--save",
                    "",
                ])
                .arg("--dir")
                .arg(directory)
                .stdout(Stdio::null())
                .stderr(Stdio::null()),
        )?;
        // Redis listens before it has loaded its data, so wait for PONG.
        answers("redis", child, address, b"PING\r\n", b"+PONG")
    }

    pub(crate) fn etcd(directory: &Path) -> Result<PeerServer, String> {
        make(directory)?;
        let (address, peers) = (free_port()?, free_port()?);
        let (client, peer) = (format!("http://{address}"), format!("http://{peers}"));
        let child = spawn(
            Command::new("etcd")
                .arg("--data-dir")
                .arg(directory)
                .args(["--listen-client-urls", &client])
                .args(["--advertise-client-urls", &client])
                .args(["--listen-peer-urls", &peer])
                .args(["--initial-advertise-peer-urls", &peer])
                .args(["--initial-cluster", &format!("default={peer}")])
                .args(["--log-level", "error"])
                .stdout(Stdio::null())
                .stderr(Stdio::null()),
        )?;
        let health = b"GET /health HTTP/1.0\r\n\r\n";
        answers("etcd", child, address, health, b"\"true\"")
    }

    pub(crate) fn zookeeper(directory: &Path) -> Result<PeerServer, String> {
        make(directory)?;
        let address = free_port()?;
        let settings = format!(
            "tickTime=2000\ndataDir={}\nclientPort={}\nclientPortAddress=127.0.0.1\n\
             admin.enableServer=false\n4lw.commands.whitelist=srvr\nmaxClientCnxns=0\n",
            directory.display(),
            address.port()
        );
        let file = directory.join("zoo.cfg");
        std::fs::write(&file, settings).map_err(|error| error.to_string())?;
        let jar = "/usr/share/java/zookeeper.jar";
        if !Path::new(jar).exists() {
            return Err(format!("{jar} is not there"));
        }
        let child = spawn(
            Command::new("java")
                .args([
                    "-cp",
                    jar,
                    "org.apache.zookeeper.server.quorum.QuorumPeerMain",
                ])
                .arg(file)
                .stdout(Stdio::null())
                .stderr(Stdio::null()),
        )?;
        // ZooKeeper listens before it serves; `srvr` reports a mode once it does.
        answers("zookeeper", child, address, b"srvr", b"Mode: ")
    }
}

/// Returns the address after `word` in the line of output that says "ready".
fn said_in(output: impl Read + Send + 'static, word: &str) -> Result<SocketAddr, String> {
    let mut lines = BufReader::new(output);
    let mut said = String::new();
    loop {
        let start = said.len();
        let read = lines.read_line(&mut said);
        if !read.is_ok_and(|count| count > 0) {
            return Err(said);
        }
        let line = &said[start..];
        if !line.contains("ready") {
            continue;
        }
        let text = line.split_once(word).map(|(_, rest)| rest);
        let text = text.and_then(|rest| rest.split([',', '\n']).next());
        let address = text.and_then(|text| text.trim().parse().ok());
        let Some(address) = address else {
            return Err(said);
        };
        // The rest must be read too: the server would block on a full pipe.
        std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
        return Ok(address);
    }
}

/// Waits until the server gives the expected answer.
fn answers(
    name: &'static str,
    mut child: Child,
    address: SocketAddr,
    question: &[u8],
    answer: &[u8],
) -> Result<PeerServer, String> {
    let start = Instant::now();
    while start.elapsed() < START_TIMEOUT {
        if let Ok(Some(status)) = child.try_wait() {
            return Err(format!("{name} ended: {status}"));
        }
        if asks(address, question, answer).unwrap_or(false) {
            return Ok(PeerServer {
                name,
                address,
                child,
            });
        }
        // The socket may not exist yet, so poll.
        std::thread::sleep(Duration::from_millis(10));
    }
    let _ = child.kill();
    let _ = child.wait();
    Err(format!("{name} was not up within {START_TIMEOUT:?}"))
}

fn asks(address: SocketAddr, question: &[u8], answer: &[u8]) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    stream.write_all(question)?;
    let mut said = Vec::new();
    let mut bytes = [0; 1024];
    loop {
        let count = stream.read(&mut bytes)?;
        said.extend_from_slice(&bytes[..count]);
        if said.windows(answer.len()).any(|part| part == answer) {
            return Ok(true);
        }
        if count == 0 || said.starts_with(b"-") {
            return Ok(false);
        }
    }
}

/// Adds the token that the waiters of Redis pass on.
pub(crate) fn push_token(server: &PeerServer, run: u64) -> Result<(), String> {
    let command = format!("RPUSH bench:/{run:x}-0/hot token\r\n");
    match asks(server.address, command.as_bytes(), b":1") {
        Ok(true) => Ok(()),
        Ok(false) => Err("redis took no token".to_owned()),
        Err(error) => Err(format!("redis: {error}")),
    }
}
