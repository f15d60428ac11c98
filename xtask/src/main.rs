//! The one door to the tools: `cargo xtask <word>`. CI and people use the same words.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

mod compare;
mod mutants;
mod tidy;

const USAGE: &str = "\
usage: cargo xtask <word>

  test     everything that CI demands: format, lints, docs, tests (installs what tests need)
  check    format, lints, docs and tidy; no tests
  tidy     the rules of the repository: crate arrows, rule ids, dead files, leftovers
  compare  [options] the daemon beside etcd, Redis and ZooKeeper (installs them), as ratios of one run
  mutants  [package [name]] breaks one line at a time in a copy; the tests must notice
  fix      format and apply lint suggestions; the only word that writes files";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let result = match words.as_slice() {
        ["test"] => test(),
        ["check"] => check(),
        ["tidy"] => tidy::run(&root()),
        ["mutants"] => mutants::run(&root(), None, None),
        ["mutants", package] => mutants::run(&root(), Some(package), None),
        ["mutants", package, only] => mutants::run(&root(), Some(package), Some(only)),
        ["compare", options @ ..] => compare::run(&root(), options),
        ["fix"] => fix(),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("xtask: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Where the repository is.
fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// The lints are in [`check`]: they compile everything once more, and CI has a time to keep.
fn test() -> Result<(), String> {
    cargo(&["fmt", "--all", "--check"])?;
    cargo(&["test", "--workspace", "--locked"])
}

fn check() -> Result<(), String> {
    cargo(&["fmt", "--all", "--check"])?;
    cargo(&[
        "clippy",
        "--workspace",
        "--all-targets",
        "--locked",
        "--",
        "-D",
        "warnings",
    ])?;
    cargo_with(
        &["doc", "--workspace", "--no-deps", "--locked", "--quiet"],
        &[("RUSTDOCFLAGS", "-D warnings")],
    )?;
    tidy::run(&root())?;
    deny()
}

fn fix() -> Result<(), String> {
    cargo(&[
        "clippy",
        "--workspace",
        "--all-targets",
        "--fix",
        "--allow-dirty",
    ])?;
    cargo(&["fmt", "--all"])
}

/// Licences, advisories and duplicates; only where `cargo-deny` is installed.
fn deny() -> Result<(), String> {
    let installed = Command::new("cargo-deny").arg("--version").output().is_ok();
    if !installed {
        eprintln!("cargo-deny is not installed: licences and advisories were not checked");
        return Ok(());
    }
    cargo(&["deny", "--offline", "check", "bans", "licenses", "sources"])
}

fn cargo(arguments: &[&str]) -> Result<(), String> {
    cargo_with(arguments, &[])
}

fn cargo_with(arguments: &[&str], environment: &[(&str, &str)]) -> Result<(), String> {
    eprintln!("$ cargo {}", arguments.join(" "));
    let status = Command::new(env!("CARGO"))
        .args(arguments)
        .envs(environment.iter().copied())
        .current_dir(root())
        .status()
        .map_err(|error| format!("cannot start cargo: {error}"))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("cargo {} failed", arguments[0]))
    }
}
