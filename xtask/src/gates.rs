//! What a change must pass: format, tidy, licences, lints, docs, tests, each with its minutes.
//!
//! The cheap parts come first, so that a small mistake is reported within seconds. The first part
//! that fails ends the run.

use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use crate::{cargo, cargo_with, root, target, tidy};

/// One part: its name in the table of minutes, and what it runs.
type Part = (&'static str, fn() -> Result<(), String>);

const FORMAT: Part = ("format", || cargo(&["fmt", "--all", "--check"]));
const TIDY: Part = ("tidy", || tidy::run(&root()));
const LICENCES: Part = ("licences", licences);
const LINTS: Part = ("lints", || {
    cargo(&[
        "clippy",
        "--workspace",
        "--all-targets",
        "--locked",
        "--",
        "-D",
        "warnings",
    ])
});
const DOCS: Part = ("docs", || {
    cargo_with(
        &["doc", "--workspace", "--no-deps", "--locked", "--quiet"],
        &[("RUSTDOCFLAGS", "-D warnings")],
    )
});
const TESTS: Part = ("tests", || cargo(&["test", "--workspace", "--locked"]));

/// `cargo xtask check`.
pub(crate) const CHECK: &[Part] = &[FORMAT, TIDY, LICENCES, LINTS, DOCS];
/// `cargo xtask test`, which is what CI runs.
pub(crate) const TEST: &[Part] = &[FORMAT, TIDY, LICENCES, LINTS, DOCS, TESTS];

/// Runs parts in order and prints the minutes of each, also if one fails.
pub(crate) fn run(parts: &[Part]) -> Result<(), String> {
    let mut minutes = Vec::new();
    let mut result = Ok(());
    for (name, part) in parts {
        let start = Instant::now();
        result = part();
        minutes.push((name, start.elapsed().as_secs_f64() / 60.0));
        if result.is_err() {
            break;
        }
    }
    let total: f64 = minutes.iter().map(|(_, spent)| spent).sum();
    eprintln!("minutes:");
    for (name, spent) in &minutes {
        eprintln!("  {name:<10} {spent:>6.1}");
    }
    eprintln!("  {:<10} {total:>6.1}", "all");
    result
}

/// The release of cargo-deny whose verdict counts: a newer one may know more licences.
const CARGO_DENY: &str = "0.20.2";

/// Licences, banned and duplicate crates, sources: `deny.toml` has the rules.
fn licences() -> Result<(), String> {
    let program = cargo_deny()?;
    eprintln!("$ cargo deny check bans licenses sources");
    let status = Command::new(&program)
        // Advisories need a database from the network and change without a commit.
        .args(["--locked", "check", "bans", "licenses", "sources"])
        .current_dir(root())
        .status()
        .map_err(|error| format!("cannot start {}: {error}", program.display()))?;
    if status.success() {
        Ok(())
    } else {
        Err("cargo deny failed".to_owned())
    }
}

/// The program, built once into the target directory: no machine's own release decides.
fn cargo_deny() -> Result<PathBuf, String> {
    let tools = target().join("tools").join(CARGO_DENY);
    let program = tools.join("bin/cargo-deny");
    if !program.exists() {
        let tools = tools.display().to_string();
        let built = target().join("tools/build").display().to_string();
        cargo(&[
            "install",
            "cargo-deny",
            "--version",
            CARGO_DENY,
            "--locked",
            // Default features are a TLS stack for advisories, which are not asked for.
            "--no-default-features",
            "--debug",
            "--quiet",
            "--root",
            &tools,
            "--target-dir",
            &built,
        ])?;
    }
    Ok(program)
}
