//! Foreign programs: Debian packages and a Python package, installed at the first use.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};

use serde_json::Value;

const KUBERNETES_VALIDATE: &str = "kubernetes-validate==1.31.0";

/// A file of the repository.
pub(crate) fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(name)
}

/// Returns a program of a Debian package. Installs the package if the program is missing.
pub(crate) fn debian(program: &str, package: &str) -> Command {
    static INSTALLING: Mutex<()> = Mutex::new(());
    let _one = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    let is_there = || {
        let found = Command::new("which")
            .arg(program)
            .stdout(Stdio::null())
            .status();
        found.is_ok_and(|status| status.success())
    };
    if !is_there() {
        for words in [
            vec!["update", "-q"],
            vec!["install", "-y", "--no-install-recommends", package],
        ] {
            let _ = Command::new("apt-get")
                .args(words)
                // Debian packages start their servers on installation, but not in runlevel 1.
                .env("RUNLEVEL", "1")
                .env("DEBIAN_FRONTEND", "noninteractive")
                .stdout(Stdio::null())
                .status();
        }
    }
    assert!(
        is_there(),
        "{program} is needed for this test: apt-get install {package} (as root)"
    );
    Command::new(program)
}

/// Returns a program of the Python package.
pub(crate) fn python(program: &str) -> Command {
    static HOME: OnceLock<PathBuf> = OnceLock::new();
    let home = HOME.get_or_init(|| {
        let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("deploy-python");
        let complete = home.join("complete");
        if fs::read_to_string(&complete).is_ok_and(|found| found == KUBERNETES_VALIDATE) {
            return home;
        }
        let _ = fs::remove_dir_all(&home);
        succeeds(Command::new("python3").args(["-m", "venv"]).arg(&home));
        let mut pip = Command::new(home.join("bin/pip"));
        succeeds(pip.args(["install", "--quiet", KUBERNETES_VALIDATE]));
        fs::write(complete, KUBERNETES_VALIDATE).unwrap();
        home
    });
    Command::new(home.join("bin").join(program))
}

/// Reads all documents of a YAML file.
pub(crate) fn yaml(path: &Path) -> Vec<Value> {
    let script =
        "import json, sys, yaml; print(json.dumps(list(yaml.safe_load_all(open(sys.argv[1])))))";
    let output = succeeds(python("python").args(["-c", script]).arg(path));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Runs a command that must succeed.
pub(crate) fn succeeds(command: &mut Command) -> Output {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}
