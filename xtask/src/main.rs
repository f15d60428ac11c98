//! The one door to the tools: `cargo xtask <word>`. CI and people use the same words.

mod mutants;

use std::path::Path;
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["test"] => finish(test()),
        ["mutants"] => finish(mutants::run(root(), None, None)),
        ["mutants", package] => finish(mutants::run(root(), Some(package), None)),
        ["mutants", package, only] => finish(mutants::run(root(), Some(package), Some(only))),
        _ => {
            eprintln!("usage: cargo xtask test | mutants [package [name]]");
            ExitCode::from(2)
        }
    }
}

fn root() -> &'static Path {
    let home = Path::new(env!("CARGO_MANIFEST_DIR"));
    home.parent().unwrap_or(home)
}

fn finish(result: Result<(), String>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("xtask: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Everything CI demands: formatting, lints, tests.
fn test() -> Result<(), String> {
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
    cargo(&["test", "--workspace", "--locked"])
}

fn cargo(arguments: &[&str]) -> Result<(), String> {
    eprintln!("$ cargo {}", arguments.join(" "));
    let status = Command::new(env!("CARGO"))
        .args(arguments)
        .status()
        .map_err(|error| format!("cannot start cargo: {error}"))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("cargo {} failed", arguments[0]))
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_repository_has_both_licences() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .unwrap();
        assert!(root.join("LICENSE-MIT").is_file());
        assert!(root.join("LICENSE-APACHE").is_file());
    }
}
