//! Independent clients: Python and Node packages at pinned versions, installed below the target
//! directory at the first use.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

const PYTHON: &[&str] = &[
    "grpcio==1.85.1",
    "grpcio-tools==1.85.1",
    "grpcio-reflection==1.85.1",
    "aioquic==1.7.0",
    "sseclient-py==1.9.0",
    "requests==2.34.2",
    "schemathesis==4.32.5",
    "pycurl==7.49.0",
];
const MOTO: &str = "moto[s3,server]==5.2.0";
const NODE: &[&str] = &[
    "eventsource@4.1.0",
    "@grpc/grpc-js@1.14.7",
    "@grpc/proto-loader@0.8.1",
];

const BROWSER: &[&str] = &["playwright-core@1.65.1", "axe-core@4.14.0"];

/// A Python with the packages.
pub(crate) fn python() -> PathBuf {
    let home = home("python", PYTHON, |home| {
        run(Command::new("python3").args(["-m", "venv"]).arg(home));
        let mut pip = Command::new(home.join("bin/pip"));
        run(pip.args(["install", "--quiet"]).args(PYTHON));
        stubs(home);
    });
    home.join("bin/python")
}

/// An S3 server. Ends on drop.
pub(crate) struct Moto {
    child: Child,
    pub(crate) endpoint: String,
}

impl Moto {
    /// Starts it on a free port, and waits until it answers.
    pub(crate) fn start() -> Moto {
        let home = moto_home();
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        let child = Command::new(home.join("bin/moto_server"))
            .args(["-H", "127.0.0.1", "-p", &address.port().to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let endpoint = format!("http://{address}");
        let mut moto = Moto { child, endpoint };
        let patience = Instant::now() + Duration::from_secs(60);
        while TcpStream::connect(address).is_err() {
            assert_eq!(moto.child.try_wait().unwrap(), None, "it has ended");
            assert!(Instant::now() < patience, "it does not answer");
            std::thread::sleep(Duration::from_millis(50));
        }
        let mut stream = TcpStream::connect(address).unwrap();
        let request =
            "PUT /bucket HTTP/1.1\r\nhost: s3\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.contains("200 OK"), "{answer}");
        moto
    }

    /// What a client needs to find it.
    pub(crate) fn environment(&self) -> [(&str, &str); 5] {
        [
            ("AWS_ENDPOINT", &self.endpoint),
            ("AWS_ALLOW_HTTP", "true"),
            ("AWS_REGION", "us-east-1"),
            ("AWS_ACCESS_KEY_ID", "key"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
        ]
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A program of the Python packages.
pub(crate) fn python_program(name: &str) -> PathBuf {
    python().with_file_name(name)
}

/// Runs one of our scripts with a JSON value on its standard input; what it prints is JSON too.
pub(crate) fn python_script(name: &str, input: &Value) -> Value {
    let python = python();
    let generated = python.parent().and_then(Path::parent).map(Path::to_owned);
    let mut command = Command::new(&python);
    command
        .arg(script(name))
        .env("PYTHONPATH", generated.unwrap().join("stubs"));
    exchange(command, input)
}

/// The same with Node.
pub(crate) fn node_script(name: &str, input: &Value) -> Value {
    let home = home("node", NODE, |home| {
        let npm = ["install", "--silent", "--no-fund", "--no-audit", "--prefix"];
        run(Command::new("npm").args(npm).arg(home).args(NODE));
    });
    // Node looks for packages beside the script.
    let copy = home.join(name);
    fs::copy(script(name), &copy).unwrap();
    let mut command = Command::new("node");
    command.arg(copy);
    exchange(command, input)
}

/// The same with Node and Chromium, which is installed if it is missing.
pub(crate) fn browser_script(name: &str, input: &Value) -> Value {
    let home = home("browser", BROWSER, |home| {
        let npm = ["install", "--silent", "--no-fund", "--no-audit", "--prefix"];
        run(Command::new("npm").args(npm).arg(home).args(BROWSER));
    });
    let chromium = Path::new("/usr/bin/chromium");
    if !chromium.exists() {
        let install = [
            "install",
            "-y",
            "-qq",
            "--no-install-recommends",
            "chromium",
        ];
        let mut apt = Command::new("apt-get");
        run(apt.args(install).env("DEBIAN_FRONTEND", "noninteractive"));
    }
    let copy = home.join(name);
    fs::copy(script(name), &copy).unwrap();
    let mut command = Command::new("node");
    command.arg(copy);
    let mut input = input.clone();
    input["chromium"] = chromium.to_str().into();
    exchange(command, &input)
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/foreign")
        .join(name)
}

/// The proto file of the repository.
pub(crate) fn proto_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tenure-wire/proto")
}

fn stubs(home: &Path) {
    let out = home.join("stubs");
    fs::create_dir_all(&out).unwrap();
    let mut protoc = Command::new(home.join("bin/python"));
    protoc
        .args(["-m", "grpc_tools.protoc"])
        .arg(format!("-I{}", proto_root().display()))
        .arg(format!("--python_out={}", out.display()))
        .arg(format!("--grpc_python_out={}", out.display()))
        .arg("pathlockd/v1/pathlock.proto");
    run(&mut protoc);
}

fn exchange(mut command: Command, input: &Value) -> Value {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.to_string().as_bytes()).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} failed: {told}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        let said = String::from_utf8_lossy(&output.stdout);
        panic!("{command:?} did not print JSON ({error}): {said}\n{told}")
    })
}

/// Where something is installed; installs it if it is not. A new pin is a new installation.
fn home(kind: &str, packages: &[&str], install: impl FnOnce(&Path)) -> PathBuf {
    let all = Path::new(env!("CARGO_TARGET_TMPDIR")).join("foreign-clients");
    fs::create_dir_all(&all).unwrap();
    let home = all.join(kind);
    let guard = File::create(all.join(format!("{kind}.lock"))).unwrap();
    guard.lock().unwrap();
    let proto = fs::read_to_string(proto_root().join("pathlockd/v1/pathlock.proto")).unwrap();
    let wanted = format!("{}\n{proto}", packages.join(" "));
    let complete = home.join("complete");
    if fs::read_to_string(&complete).is_ok_and(|found| found == wanted) {
        return home;
    }
    // A half-finished or older installation may be there: start over.
    let _ = fs::remove_dir_all(&home);
    fs::create_dir_all(&home).unwrap();
    install(&home);
    fs::write(complete, wanted).unwrap();
    home
}

/// Where moto is installed. The tests of the store use the same place: it is large, and installed once.
fn moto_home() -> PathBuf {
    let all = Path::new(env!("CARGO_TARGET_TMPDIR")).join("foreign-servers");
    fs::create_dir_all(&all).unwrap();
    let home = all.join(MOTO.replace(['[', ']', ',', '@', '='], "-"));
    let guard = File::create(home.with_extension("lock")).unwrap();
    guard.lock().unwrap();
    let complete = home.join("complete");
    if !complete.exists() {
        let _ = fs::remove_dir_all(&home);
        run(Command::new("python3").args(["-m", "venv"]).arg(&home));
        run(Command::new(home.join("bin/pip")).args(["install", "--quiet", MOTO]));
        fs::write(complete, MOTO).unwrap();
    }
    home
}

fn run(command: &mut Command) {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} failed: {told}");
}
