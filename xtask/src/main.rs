//! `cargo xtask <command>`: development tasks of the repository. CI and developers run the same
//! commands.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

mod bindings;
mod book;
mod clients;
mod compare;
mod console;
mod dist;
mod gates;
mod mutants;
mod release;
mod slow;
mod tidy;

const USAGE: &str = "\
usage: cargo xtask <command>

  test     everything that CI requires: format, tidy, licences, lints, features, docs, packages,
           tests; prints the minutes of each part (the tests install what they need)
  check    the same without the tests
  bindings the suites of the packages for other languages; not part of `test` yet
  torture  clients of several languages on one counter, killed at random; after `bindings`
  tidy     the repository's own rules: crate dependencies, rule ids, dead files, names, wording
  slow     [part] what takes longer than CI may: run before a release, output kept in docs/verification
  clients  the Go and PHP clients and all examples, with real daemons; not part of `test` yet
  compare  [options] the daemon beside etcd, Redis and ZooKeeper (installs them), as ratios of one run
  mutants  [package [name]] breaks one line at a time in a copy; the tests must notice
  book     builds docs/ with mdBook into target/book (builds mdBook once)
  dist     [--target T] [--check] the files of a release in target/dist; --check installs and tries them
  release  VERSION [--dry-run] checks version, changelog and work tree, builds, tries and tags
  console  build the assets of the web console from console/ (needs npm)
  fix      format and apply lint suggestions; the only command that writes source files

examples:
  cargo xtask check
  cargo xtask slow hours
  cargo xtask mutants tenure-log";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let result = match words.as_slice() {
        ["test"] => gates::run(gates::TEST),
        ["check"] => gates::run(gates::CHECK),
        ["bindings"] => bindings::run(),
        ["torture"] => bindings::torture(),
        ["tidy"] => tidy::run(&root()),
        ["slow", part @ ..] if part.len() <= 1 => slow::run(&root(), part.first().copied()),
        ["mutants"] => mutants::run(&root(), None, None),
        ["mutants", package] => mutants::run(&root(), Some(package), None),
        ["mutants", package, only] => mutants::run(&root(), Some(package), Some(only)),
        ["compare", options @ ..] => compare::run(options),
        ["clients"] => clients::run(),
        ["book"] => book::run(&root()),
        ["dist", options @ ..] => dist::run(&root(), options),
        ["release", version] => release::run(&root(), version, false),
        ["release", version, "--dry-run"] => release::run(&root(), version, true),
        ["console"] => console::build(),
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

/// Returns the root directory of the repository.
fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// Returns the directory that cargo builds into.
fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), Into::into)
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

/// Builds the command with the features of `cargo test --workspace`, so that the tests of other
/// languages use the same build.
fn build_command() -> Result<(), String> {
    cargo(&[
        "test",
        "--workspace",
        "--locked",
        "--no-run",
        "--quiet",
        "--test",
        "serve",
    ])
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
