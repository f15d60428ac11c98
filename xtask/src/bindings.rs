//! Suites of the packages for other languages: install what they need, build them, run their own test
//! commands against the daemon of this build.
//!
//! They are built with the dev profile into the directory of the workspace. `python3`, `node` and `npm` must be
//! there, as for the interoperability tests.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{build_command, root, target};

/// The tools of the Python suite. Pinned: a newer one may report other things.
const PYTHON_TOOLS: &[&str] = &[
    "maturin==1.16.0",
    "pytest==9.2.0",
    "mypy==2.4.1",
    "filelock==4.2.10",
];

/// Runs the suites of all languages.
pub(crate) fn run() -> Result<(), String> {
    // The daemon that the suites start.
    build_command()?;
    lints()?;
    python()?;
    node()
}

/// Format and lints of the native parts, by the rules of the workspace.
fn lints() -> Result<(), String> {
    let at = root().join("bindings");
    execute(in_directory(env!("CARGO"), &at).args(["fmt", "--all", "--check"]))?;
    let mut clippy = in_directory(env!("CARGO"), &at);
    execute(clippy.args(["clippy", "--workspace", "--locked", "--", "-D", "warnings"]))
}

/// Builds the wheel, installs it into an environment of its own and runs pytest.
fn python() -> Result<(), String> {
    let at = root().join("bindings/python");
    let home = target().join("tools/python");
    let python = home.join("bin/python");
    let tools = home.join("tools.txt");
    let wanted = PYTHON_TOOLS.join("\n");
    if std::fs::read_to_string(&tools).ok().as_deref() != Some(&wanted) {
        execute(Command::new("python3").args(["-m", "venv"]).arg(&home))?;
        let mut install = Command::new(&python);
        install.args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
        ]);
        execute(install.args(PYTHON_TOOLS))?;
        std::fs::write(&tools, wanted).map_err(|error| format!("{}: {error}", tools.display()))?;
    }
    // The suite runs with what a user installs, not with the files of the repository.
    let wheels = target().join("wheels");
    let _ = std::fs::remove_dir_all(&wheels);
    let mut build = in_directory(home.join("bin/maturin"), &at);
    let build = build
        .args(["build", "--quiet", "--locked", "--out"])
        .arg(&wheels);
    execute(build.arg("--interpreter").arg(&python))?;
    let mut install = Command::new(&python);
    install.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-index",
        "--force-reinstall",
    ]);
    execute(install.arg("--find-links").arg(&wheels).arg("tenure"))?;
    execute(in_directory(&python, &at).args(["-m", "pytest", "--quiet"]))
}

/// Builds the npm package and runs `npm test`.
fn node() -> Result<(), String> {
    let at = root().join("bindings/node");
    execute(in_directory("npm", &at).args(["ci", "--silent", "--no-fund", "--no-audit"]))?;
    execute(in_directory("npm", &at).args(["run", "--silent", "build:dev"]))?;
    execute(in_directory("npm", &at).args(["test", "--silent"]))
}

/// Clients of several languages on one counter while clients and daemon are killed, with what `run` has built.
pub(crate) fn torture() -> Result<(), String> {
    let python = target().join("tools/python/bin/python");
    let clients = [
        format!(
            "{} bindings/python/tests/conformance_client.py",
            python.display()
        ),
        "node bindings/node/test/conformance-client.mjs".to_owned(),
    ];
    for place in [
        ["--seconds", "120"].as_slice(),
        &["--seconds", "60", "--file"],
    ] {
        let mut command = in_directory(&python, &root());
        command.arg("conformance/torture.py").args(place);
        for client in &clients {
            command.args(["--client", client]);
        }
        execute(command.args(["--of-each", "4"]))?;
    }
    Ok(())
}

/// A command in the directory `at` that finds the daemon and builds into the directory of the workspace.
fn in_directory(program: impl AsRef<OsStr>, at: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .current_dir(at)
        .env("CARGO_TARGET_DIR", target())
        .env("TENURE_BIN", daemon());
    command
}

/// The path of the daemon that was built.
fn daemon() -> PathBuf {
    target().join("debug/tenure")
}

fn execute(command: &mut Command) -> Result<(), String> {
    let line = format!("{command:?}");
    eprintln!("$ {line}");
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{line}: {status}")),
        Err(error) => Err(format!("cannot start {line}: {error}")),
    }
}
