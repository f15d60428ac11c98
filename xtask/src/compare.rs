//! `cargo xtask compare`: the daemon beside etcd, Redis and ZooKeeper on this machine.

use std::path::Path;
use std::process::{Command, Stdio};

/// Debian's packages and a file of each that says it is there.
const PEERS: &[(&str, &str)] = &[
    ("etcd-server", "/usr/bin/etcd"),
    ("redis-server", "/usr/bin/redis-server"),
    ("zookeeper", "/usr/share/java/zookeeper.jar"),
    ("default-jre-headless", "/usr/bin/java"),
];

/// Installs the peers, builds what is measured, and measures. `words` go to `tenure-compare run`.
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

/// A peer that cannot be installed is left out of the table, which says so.
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
        // Packages start their servers; the comparison starts its own.
        .env("RUNLEVEL", "1")
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdout(Stdio::null())
        .status();
    if !installed.is_ok_and(|status| status.success()) {
        eprintln!("xtask: some peers could not be installed: they are left out");
    }
}
