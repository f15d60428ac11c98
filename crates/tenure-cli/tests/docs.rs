//! Runs the commands of the README in order, and checks that the reference names every option.

#![allow(
    clippy::unwrap_used,
    reason = "a test fails where something is not as it must be"
)]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use support::Daemon;

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

/// The blocks marked `sh`, in order.
fn scripts(page: &str) -> Vec<String> {
    let text = fs::read_to_string(docs().join(page)).unwrap();
    let blocks = text.split("\n```sh\n").skip(1);
    blocks
        .map(|block| block.split("\n```").next().unwrap().to_owned())
        .collect()
}

fn run(page: &str, scripts: &[String], dir: &Path, url: &str) {
    let binary = Path::new(env!("CARGO_BIN_EXE_tenure"));
    let path = format!(
        "{}:{}",
        binary.parent().unwrap().display(),
        std::env::var("PATH").unwrap()
    );
    // `set -e`: the first command that fails ends the page.
    let script = format!("set -e\n{}", scripts.join("\n"));
    let output = Command::new("sh")
        .args(["-c", &script])
        .current_dir(dir)
        .env("PATH", path)
        .env("TENURE_URL", url)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{page}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Runs the commands of the README in order, except those that build this program: the reader's own
/// programs are in the directory, and the daemon runs.
#[test]
fn the_readme() {
    let data = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(data.path());
    let dir = tempfile::tempdir().unwrap();
    for name in [
        "compact", "job", "migrate", "backup", "prune", "resize", "train",
    ] {
        let path = dir.path().join(name);
        fs::write(&path, "#!/bin/sh\necho done\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    fs::write(dir.path().join("state.json"), "{}").unwrap();
    fs::create_dir(dir.path().join("database")).unwrap();
    let scripts: Vec<String> = scripts("../README.md")
        .into_iter()
        .map(|block| {
            let own = block.lines().filter(|line| !line.starts_with("cargo "));
            let text = own.collect::<Vec<_>>().join("\n");
            text.replace("127.0.0.1:8443", &daemon.web.to_string())
        })
        .collect();
    assert!(scripts.len() > 6, "the README has no commands");
    run(
        "README.md",
        &scripts,
        dir.path(),
        &format!("tenure://{}", daemon.grpc),
    );
}

/// Every option of `run` is in the reference.
#[test]
fn the_reference_names_every_option() {
    let page = fs::read_to_string(docs().join("reference/cli.md")).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_tenure"))
        .args(["run", "--help"])
        .output();
    let help = String::from_utf8(output.unwrap().stdout).unwrap();
    let mut options = 0;
    for word in help
        .split_whitespace()
        .filter(|word| word.starts_with("--") && word.len() > 2)
    {
        let option = word.trim_end_matches([',', '.', ':', ';', ')']);
        if option == "--help" {
            continue;
        }
        options += 1;
        assert!(page.contains(&format!("`{option}")), "{option} is missing");
    }
    assert!(options > 30, "{options}");
}
