//! `cargo xtask compare`: benchmarks the daemon, etcd, Redis and ZooKeeper on this machine.

use std::path::Path;
use std::process::{Command, Stdio};

/// Debian packages, and a file that shows whether each is installed.
const PEERS: &[(&str, &str)] = &[
    ("etcd-server", "/usr/bin/etcd"),
    ("redis-server", "/usr/bin/redis-server"),
    ("zookeeper", "/usr/share/java/zookeeper.jar"),
    ("default-jre-headless", "/usr/bin/java"),
];

/// Installs the other systems, builds `tenure` and `tenure-compare`, and runs the comparison.
/// `words` are passed to `tenure-compare run`.
pub(super) fn run(words: &[&str]) -> Result<(), String> {
    install();
    super::cargo(&[
        "build",
        "--release",
        "--locked",
        "-p",
        "tenure-cli",
        "-p",
        "tenure-bench",
    ])?;
    let built = super::target();
    let status = Command::new(built.join("release/tenure-compare"))
        .args(["run", "--tenure"])
        .arg(built.join("release/tenure"))
        .args(words)
        .status()
        .map_err(|error| format!("cannot start tenure-compare: {error}"))?;
    if status.success() {
        Ok(())
    } else {
        Err("the comparison failed".to_owned())
    }
}

/// Installs missing packages. A system that cannot be installed is omitted from the table, with a
/// note.
fn install() {
    let missing: Vec<&str> = PEERS
        .iter()
        .filter(|(_, file)| !Path::new(file).exists())
        .map(|(package, _)| *package)
        .collect();
    if missing.is_empty() {
        return;
    }
    eprintln!("$ apt-get install {}", missing.join(" "));
    let installed = Command::new("apt-get")
        .args(["install", "--yes", "--no-install-recommends"])
        .args(&missing)
        // Debian packages start their servers on installation, but not in runlevel 1. The
        // comparison starts its own.
        .env("RUNLEVEL", "1")
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdout(Stdio::null())
        .status();
    if !installed.is_ok_and(|status| status.success()) {
        eprintln!("xtask: some peers could not be installed: they are left out");
    }
}
