//! CI gates: format, tidy, licences, lints, features, docs, packages, tests, each with its duration in minutes.
//!
//! The fast gates run first, so that a small mistake is reported within seconds. The first failure
//! ends the run.

use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use crate::{cargo, cargo_with, root, target, tidy};

/// One gate: its name in the table of durations, and the function that runs it.
type Part = (&'static str, fn() -> Result<(), String>);

const FORMAT: Part = ("format", || cargo(&["fmt", "--all", "--check"]));
const TIDY: Part = ("tidy", || tidy::run(&root()));
/// The committed assets of the web console are those of its source.
const CONSOLE: Part = ("console", crate::console::check);
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
const FEATURES: Part = ("features", || {
    for (package, features) in [
        ("tenure", ""),
        ("tenure", "daemon"),
        ("tenure", "files"),
        ("tenure", "dir"),
        ("tenure-store", "s3"),
        ("tenure-store", "gcs"),
        ("tenure-store", "azure"),
    ] {
        cargo(&[
            "clippy",
            "--locked",
            "--package",
            package,
            "--no-default-features",
            "--features",
            features,
            "--",
            "-D",
            "warnings",
        ])?;
    }
    Ok(())
});
const DOCS: Part = ("docs", || {
    cargo_with(
        &["doc", "--workspace", "--no-deps", "--locked", "--quiet"],
        &[("RUSTDOCFLAGS", "-D warnings")],
    )
});
/// Builds the archives that would be published, but does not compile them: the other gates compile
/// the same files. `cargo xtask slow packages` compiles them as well.
const PACKAGES: Part = ("packages", || {
    cargo(&[
        "package",
        "--workspace",
        "--locked",
        "--no-verify",
        "--allow-dirty",
        "--quiet",
    ])
});
const TESTS: Part = ("tests", || {
    cargo(&["test", "--workspace", "--locked"])?;
    // What builds on every platform: without lock files.
    cargo(&[
        "test",
        "--locked",
        "--package",
        "tenure",
        "--no-default-features",
        "--features",
        "daemon",
        "--lib",
        "--test",
        "library",
    ])
});

/// The gates of `cargo xtask check`.
pub(crate) const CHECK: &[Part] = &[
    FORMAT, TIDY, CONSOLE, LICENCES, LINTS, FEATURES, DOCS, PACKAGES,
];
/// The gates of `cargo xtask test`, which CI runs.
pub(crate) const TEST: &[Part] = &[
    FORMAT, TIDY, CONSOLE, LICENCES, LINTS, FEATURES, DOCS, PACKAGES, TESTS,
];

/// Runs gates in order and prints the duration of each, also if one fails.
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

/// The pinned version of cargo-deny. A newer one may accept other licences.
const CARGO_DENY: &str = "0.20.2";

/// Checks licences, banned and duplicate crates, and sources, by the rules of `deny.toml`.
fn licences() -> Result<(), String> {
    let program = cargo_deny()?;
    eprintln!("$ cargo deny check bans licenses sources");
    let status = Command::new(&program)
        // Not advisories: they need a database from the network, and change without a commit.
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

/// Returns the path of cargo-deny. Builds the pinned version once into the target directory, so
/// that an installed version has no influence.
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
            // The default features add a TLS stack for advisories, which are not used.
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
