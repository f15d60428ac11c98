//! Resumable uploads with an independent client, over two instances that share a directory and a
//! daemon.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use support::Daemon;

const CLIENT: &str = "tuspy==1.1.0";
const LONG: Duration = Duration::from_secs(60);

/// A running instance. Killed on drop.
struct Instance {
    child: Child,
    address: String,
}

impl Instance {
    fn start(directory: &Path, daemon: &Daemon) -> Instance {
        let mut child = Command::new(env!("CARGO_BIN_EXE_uploads"))
            .arg(directory)
            .arg("127.0.0.1:0")
            .env("TENURE_URL", &daemon.url)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        lines.read_line(&mut said).unwrap();
        let address = said.trim().strip_prefix("ready ").unwrap().to_owned();
        Instance { child, address }
    }

    /// Sends a raw request. Its body may be shorter than declared.
    fn send(&self, head: &str, body: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        let head = format!("{head}\r\nhost: here\r\ntus-resumable: 1.0.0\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body).unwrap();
        stream
    }

    /// Returns the head of the response in lower case.
    fn ask(&self, head: &str) -> String {
        answer(self.send(&format!("{head}\r\nconnection: close"), b""))
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn answer(stream: TcpStream) -> String {
    let lines = BufReader::new(stream).lines().map_while(Result::ok);
    let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
    head.join("\n").to_lowercase()
}

/// Returns a Python with the tus client, installed below the target directory.
fn python() -> PathBuf {
    let all = Path::new(env!("CARGO_TARGET_TMPDIR")).join("foreign-clients");
    fs::create_dir_all(&all).unwrap();
    let guard = File::create(all.join("tus.lock")).unwrap();
    guard.lock().unwrap();
    let (home, complete) = (all.join("tus"), all.join("tus/complete"));
    if fs::read_to_string(&complete).ok().as_deref() != Some(CLIENT) {
        let _ = fs::remove_dir_all(&home);
        run(Command::new("python3").args(["-m", "venv"]).arg(&home));
        run(Command::new(home.join("bin/pip")).args(["install", "--quiet", CLIENT]));
        fs::write(complete, CLIENT).unwrap();
    }
    home.join("bin/python")
}

fn run(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {told}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn client(arguments: &[&str]) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tus_client.py");
    run(Command::new(python()).arg(script).args(arguments))
}

/// Returns random bytes.
fn noise(length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    File::open("/dev/urandom")
        .unwrap()
        .read_exact(&mut bytes)
        .unwrap();
    bytes
}

/// A stalled request in one instance releases the upload to the client that resumes on the other
/// one, with every byte that had arrived.
#[test]
fn a_cut_upload_goes_on_through_another_instance() {
    const CHUNK: usize = 100_000;
    const CUT: usize = 1_500_000;
    let daemon = Daemon::start();
    let dir = tempfile::tempdir().unwrap();
    let (store, source) = (dir.path().join("store"), dir.path().join("source"));
    fs::create_dir(&store).unwrap();
    let whole = noise(3_000_000);
    fs::write(&source, &whole).unwrap();
    let source = source.to_str().unwrap();
    let (a, b) = (
        Instance::start(&store, &daemon),
        Instance::start(&store, &daemon),
    );

    let url = client(&[
        "begin",
        &format!("http://{}/files", a.address),
        source,
        &CHUNK.to_string(),
    ]);
    let id = url.rsplit('/').next().unwrap();
    let stored = store.join(id);
    assert_eq!(fs::read(&stored).unwrap(), &whole[..CHUNK]);

    // Half open: the connection stays, but no more bytes arrive.
    let rest = whole.len() - CHUNK;
    let stalled = a.send(
        &format!(
            "PATCH /files/{id} HTTP/1.1\r\nupload-offset: {CHUNK}\r\ncontent-length: {rest}\r\n\
             content-type: application/offset+octet-stream"
        ),
        &whole[CHUNK..CUT],
    );
    let begun = Instant::now();
    while fs::metadata(&stored).unwrap().len() < CUT as u64 {
        assert!(begun.elapsed() < LONG, "the first half did not come");
        std::thread::sleep(Duration::from_millis(5));
    }

    let resumed_at = client(&[
        "resume",
        &format!("http://{}/files/{id}", b.address),
        source,
    ]);
    assert_eq!(resumed_at, CUT.to_string());
    assert!(
        fs::read(&stored).unwrap() == whole,
        "the file is not what was sent"
    );
    assert!(answer(stalled).starts_with("http/1.1 423 "));
}

/// The rest of the protocol: capabilities, refusals, and the removal of an upload.
#[test]
fn the_protocol() {
    let daemon = Daemon::start();
    let store = tempfile::tempdir().unwrap();
    let server = Instance::start(store.path(), &daemon);
    let can = server.ask("OPTIONS /files HTTP/1.1");
    assert!(
        can.starts_with("http/1.1 204") && can.contains("tus-extension: creation,termination"),
        "{can}"
    );
    assert!(
        server
            .ask("POST /files HTTP/1.1")
            .starts_with("http/1.1 400")
    );
    assert!(
        server
            .ask("HEAD /files/..%2fsecret HTTP/1.1")
            .starts_with("http/1.1 404")
    );

    let created = server.ask("POST /files HTTP/1.1\r\nupload-length: 5\r\ncontent-length: 0");
    assert!(created.starts_with("http/1.1 201"), "{created}");
    let path = created
        .lines()
        .find_map(|line| line.strip_prefix("location: "))
        .unwrap();
    let patch = |offset: usize, body: &[u8]| {
        let head = format!(
            "PATCH {path} HTTP/1.1\r\nconnection: close\r\nupload-offset: {offset}\r\ncontent-length: {}\r\n\
             content-type: application/offset+octet-stream",
            body.len()
        );
        answer(server.send(&head, body))
    };
    assert!(patch(0, b"abc").contains("upload-offset: 3"));
    assert!(patch(0, b"abc").starts_with("http/1.1 409"));
    assert!(patch(3, b"defg").starts_with("http/1.1 413"));
    let state = server.ask(&format!("HEAD {path} HTTP/1.1"));
    assert!(
        state.contains("upload-offset: 3") && state.contains("upload-length: 5"),
        "{state}"
    );
    assert!(
        server
            .ask(&format!("DELETE {path} HTTP/1.1"))
            .starts_with("http/1.1 204")
    );
    assert!(
        server
            .ask(&format!("HEAD {path} HTTP/1.1"))
            .starts_with("http/1.1 404")
    );
    assert_eq!(fs::read_dir(store.path()).unwrap().count(), 0);
}
