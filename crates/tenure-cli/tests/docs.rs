//! Runs the commands of the README in order, and checks that the reference names every option.

#![allow(
    clippy::unwrap_used,
    reason = "a test fails where something is not as it must be"
)]

mod support;

use std::fs;
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

/// Runs the commands of the README in order, as pasted, in an empty directory, with nothing but the
/// system's programs and `tenure` on the path. The daemon runs.
#[test]
fn the_readme() {
    let data = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(data.path());
    let dir = tempfile::tempdir().unwrap();
    let programs = tempfile::tempdir().unwrap();
    let binary = Path::new(env!("CARGO_BIN_EXE_tenure"));
    std::os::unix::fs::symlink(binary, programs.path().join("tenure")).unwrap();
    let scripts: Vec<String> = scripts("../README.md")
        .into_iter()
        .map(|block| block.replace("127.0.0.1:8443", &daemon.web.to_string()))
        .collect();
    assert!(scripts.len() >= 4, "the README has no commands");
    let output = Command::new("sh")
        .args(["-e", "-c", &scripts.join("\n")])
        .current_dir(dir.path())
        .env_clear()
        .env(
            "PATH",
            format!("{}:/usr/bin:/bin", programs.path().display()),
        )
        .env("HOME", dir.path())
        .env("TENURE_URL", format!("tenure://{}", daemon.grpc))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{}\n{out}{errors}", output.status);
    // The answers that the page promises.
    for promised in ["for nightly report", "permit 1/3", "\"fencingToken\""] {
        assert!(
            out.contains(promised),
            "{promised} is missing:\n{out}{errors}"
        );
    }
    let lines = fs::read_to_string(docs().join("../README.md"))
        .unwrap()
        .lines()
        .count();
    assert!(lines <= 150, "three screens: {lines} lines");
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
