//! systemd: the unit, readiness, watchdog and sockets; logrotate and SIGHUP.

use std::collections::BTreeSet;
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{Daemon, settings};
use crate::tools::{debian, file, succeeds};

const TENURE: &str = env!("CARGO_BIN_EXE_tenure");

/// Each step must be seen within this time, also on a busy machine.
const STEP: Duration = Duration::from_secs(60);

/// The unit, with the path of our binary.
fn unit(dir: &Path) -> std::path::PathBuf {
    let text = fs::read_to_string(file("deploy/systemd/tenure.service")).unwrap();
    assert!(text.contains("ExecStart=/usr/bin/tenure serve"));
    let path = dir.join("tenure.service");
    fs::write(&path, text.replace("/usr/bin/tenure", TENURE)).unwrap();
    fs::copy(
        file("deploy/systemd/tenure.socket"),
        dir.join("tenure.socket"),
    )
    .unwrap();
    path
}

#[test]
fn systemd_accepts_the_unit_and_finds_it_hardened() {
    let dir = tempfile::tempdir().unwrap();
    let unit = unit(dir.path());
    let mut verify = debian("systemd-analyze", "systemd");
    let output = succeeds(
        verify
            .args(["verify", "--man=no"])
            .args([&unit, &dir.path().join("tenure.socket")]),
    );
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    // In tenths: 2.0.
    let mut security = debian("systemd-analyze", "systemd");
    succeeds(
        security
            .args(["security", "--offline=yes", "--threshold=20", "--no-pager"])
            .arg(&unit),
    );
}

/// Receives the next notification that has the line, and returns those before it.
fn notified(socket: &UnixDatagram, line: &str) -> Vec<String> {
    socket.set_read_timeout(Some(STEP)).unwrap();
    let mut earlier = Vec::new();
    let mut bytes = [0; 4096];
    loop {
        let length = socket
            .recv(&mut bytes)
            .unwrap_or_else(|error| panic!("no {line} after {earlier:?}: {error}"));
        let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
        if text.lines().any(|one| one == line) {
            return earlier;
        }
        earlier.push(text);
    }
}

#[test]
fn systemd_learns_of_readiness_the_watchdog_and_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    let daemon = Daemon::start_with(
        &dir.path().join("data"),
        &[
            ("NOTIFY_SOCKET", path.to_str().unwrap()),
            ("WATCHDOG_USEC", "200000"),
        ],
    );
    let before_ready = notified(&socket, "READY=1");
    assert!(
        !before_ready.iter().any(|text| text.contains("STOPPING")),
        "{before_ready:?}"
    );
    for _ in 0..3 {
        notified(&socket, "WATCHDOG=1");
    }
    assert_eq!(daemon.terminate(), Some(0));
    notified(&socket, "STOPPING=1");
}

#[test]
fn a_node_that_waits_for_its_cluster_is_not_ready() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    let mut command = Command::new(TENURE);
    command
        .arg("serve")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut child = settings(&mut command, &dir.path().join("data"))
        .env("NOTIFY_SOCKET", &path)
        .env(
            "TENURE_INTERNAL_AUTH_TOKEN",
            "0123456789abcdef0123456789abcdef",
        )
        .env("TENURE_RAFT_ADDR", "http://127.0.0.1:0")
        .env("TENURE_GOSSIP_ADDR", "127.0.0.1:0")
        // The discard port: no node is there.
        .env("TENURE_SEED_NODES", "127.0.0.1:9")
        .spawn()
        .unwrap();
    let earlier = notified(&socket, "STATUS=waits for its cluster");
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(
        !earlier.iter().any(|text| text.contains("READY")),
        "{earlier:?}"
    );
}

fn free_address() -> String {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    free.local_addr().unwrap().to_string()
}

/// `systemd-socket-activate` binds the port and starts the daemon at the first connection.
fn activated(address: &str, data: &Path, listen: &str) -> Command {
    let mut command = debian("systemd-socket-activate", "systemd");
    command.args(["--fdname=listen", "--listen", address]);
    for variable in [
        format!("TENURE_DATA_DIR={}", data.display()),
        format!("TENURE_LISTEN={listen}"),
        "TENURE_WEB_LISTEN=127.0.0.1:0".to_owned(),
        "TENURE_H3_LISTEN=127.0.0.1:0".to_owned(),
        "TENURE_GROUP_COUNT=4".to_owned(),
    ] {
        command.arg(format!("--setenv={variable}"));
    }
    command.args([TENURE, "serve"]);
    command
}

/// Connects as soon as the port is bound, so that the daemon is started.
fn first_client(address: &str) -> std::thread::JoinHandle<TcpStream> {
    let address = address.to_owned();
    std::thread::spawn(move || {
        let end = Instant::now() + STEP;
        loop {
            match TcpStream::connect(&address) {
                Ok(stream) => return stream,
                Err(error) => assert!(Instant::now() < end, "{error}"),
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    })
}

#[test]
fn the_daemon_serves_on_a_socket_of_systemd() {
    let dir = tempfile::tempdir().unwrap();
    let address = free_address();
    let client = first_client(&address);
    let daemon = Daemon::spawn(&mut activated(&address, dir.path(), &address));
    assert_eq!(daemon.grpc.to_string(), address);
    drop(client.join().unwrap());
    let mut run = Command::new(TENURE);
    succeeds(
        run.args(["run", "-w", "30s", "vol:/a", "--", "true"])
            .env("TENURE_URL", format!("tenure://{address}")),
    );
    assert_eq!(daemon.terminate(), Some(0));
}

/// The configured address decides whether clients need credentials, so no other one may be served.
#[test]
fn a_socket_with_another_address_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let address = free_address();
    let client = first_client(&address);
    let output = activated(&address, dir.path(), "127.0.0.1:0")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains(&format!("the service manager has bound {address}")),
        "{said}"
    );
    assert!(!output.status.success());
    drop(client.join());
}

/// Waits until a file contains a text.
fn wait_for(path: &Path, text: &str) {
    let end = Instant::now() + STEP;
    while !fs::read_to_string(path).is_ok_and(|found| found.contains(text)) {
        assert!(Instant::now() < end, "{} has no {text:?}", path.display());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// logrotate moves the file away; the signal of its script makes the daemon open a new one.
#[test]
fn logrotate_rotates_the_log_file() {
    let dir = tempfile::tempdir().unwrap();
    let logs = dir.path().join("logs");
    fs::create_dir(&logs).unwrap();
    let log = logs.join("tenure.log");
    let daemon = Daemon::start_with(
        &dir.path().join("data"),
        &[("TENURE_LOG_FILE", log.to_str().unwrap())],
    );
    wait_for(&log, "ready");
    let shipped = fs::read_to_string(file("deploy/logrotate/tenure")).unwrap();
    let signal = "systemctl kill --kill-whom=main --signal=HUP tenure.service";
    assert!(shipped.contains(signal) && shipped.contains("/var/log/tenure/"));
    // There is no systemd here: the script signals our daemon instead.
    let ours = shipped
        .replace(signal, &format!("kill -HUP {}", daemon.pid()))
        .replace("/var/log/tenure/", &format!("{}/", logs.display()));
    let rules = dir.path().join("rules");
    fs::write(&rules, ours).unwrap();
    let state = dir.path().join("state");
    succeeds(
        debian("logrotate", "logrotate")
            .args(["--force", "--state"])
            .args([&state, &rules]),
    );
    wait_for(&log, "the log file was opened again");
    assert!(
        fs::read_to_string(logs.join("tenure.log.1"))
            .unwrap()
            .contains("ready")
    );
    assert!(!fs::read_to_string(&log).unwrap().contains("\"ready\""));
    assert_eq!(daemon.terminate(), Some(0));
}

/// Returns the system calls of a group such as `@system-service`.
fn system_calls(group: &str) -> BTreeSet<String> {
    let output = succeeds(debian("systemd-analyze", "systemd").args(["syscall-filter", group]));
    let text = String::from_utf8(output.stdout).unwrap();
    let mut calls = BTreeSet::new();
    // The first line is the name of the group.
    for name in text.lines().skip(1).map(str::trim) {
        if name.starts_with('@') {
            calls.extend(system_calls(name));
        } else if !name.is_empty() && !name.starts_with('#') {
            calls.insert(name.to_owned());
        }
    }
    calls
}

/// A call that the unit forbids would fail only in production.
#[test]
fn the_unit_allows_every_system_call_of_the_daemon() {
    let unit = fs::read_to_string(file("deploy/systemd/tenure.service")).unwrap();
    let mut allowed = BTreeSet::new();
    for filter in unit
        .lines()
        .filter_map(|line| line.strip_prefix("SystemCallFilter="))
    {
        match filter.strip_prefix('~') {
            None => allowed.extend(system_calls(filter)),
            Some(group) => {
                let denied = system_calls(group);
                allowed.retain(|call| !denied.contains(call));
            }
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("trace");
    let mut command = debian("strace", "strace");
    command
        .args(["--follow-forks", "--quiet=all", "--output"])
        .arg(&trace)
        .args([TENURE, "serve"]);
    let daemon = Daemon::spawn(settings(&mut command, &dir.path().join("data")));
    let mut run = Command::new(TENURE);
    succeeds(
        run.args(["run", "-w", "30s", "vol:/a", "--", "true"])
            .env("TENURE_URL", format!("tenure://{}", daemon.grpc)),
    );
    assert_eq!(daemon.get("/v1/health").0, 200);
    // strace passes no signal on, so the daemon itself is asked to end.
    let pids = format!("/proc/{0}/task/{0}/children", daemon.pid());
    let pid = fs::read_to_string(pids).unwrap();
    succeeds(Command::new("kill").arg(pid.trim()));
    assert_eq!(daemon.ended().0, Some(0));
    let used: BTreeSet<String> = fs::read_to_string(&trace)
        .unwrap()
        .lines()
        .filter_map(|line| line.split_once(' ')?.1.trim_start().split_once('('))
        .map(|(name, _)| name.to_owned())
        .filter(|name| !name.contains([' ', '<', '+', '-']))
        .collect();
    assert!(used.len() > 30, "{used:?}");
    let forbidden: Vec<&String> = used.difference(&allowed).collect();
    assert!(forbidden.is_empty(), "{forbidden:?}");
}
