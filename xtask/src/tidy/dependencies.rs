//! Allowed dependencies between crates of the workspace. Everything that is not listed here is
//! refused.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// Each crate with the crates that it may depend on. Applies to dev-dependencies too, except for
/// those in [`FOR_TESTS`].
const ARROWS: &[(&str, &[&str])] = &[
    ("tenure-random", &[]),
    ("tenure-core", &[]),
    ("tenure-log", &["tenure-random"]),
    // Only `durable.rs` uses the log: it maps write batches to its items.
    (
        "tenure-node",
        &["tenure-core", "tenure-log", "tenure-random"],
    ),
    // The naive model: it shares values with the space, no rule.
    ("tenure-reference", &["tenure-core"]),
    (
        "tenure-sim",
        &[
            "tenure-node",
            "tenure-log",
            "tenure-core",
            "tenure-reference",
            "tenure-random",
        ],
    ),
    // The models of calls over several groups run the state machine itself.
    ("tenure-models", &["tenure-core", "tenure-hosted"]),
    // Serves the daemon's protocol inside of a client.
    (
        "tenure-hosted",
        &["tenure-base", "tenure-core", "tenure-wire"],
    ),
    (
        "tenure-cluster",
        &["tenure-node", "tenure-log", "tenure-core"],
    ),
    ("tenure-wire", &[]),
    (
        "tenure-server",
        &[
            "tenure-cluster",
            "tenure-node",
            "tenure-core",
            "tenure-wire",
        ],
    ),
    ("tenure-base", &[]),
    ("tenure-files", &["tenure-base"]),
    // A directory store publishes and removes objects by the same protocol as lock files.
    ("tenure-store", &["tenure-files", "tenure-random"]),
    (
        "tenure",
        &[
            "tenure-base",
            "tenure-files",
            "tenure-hosted",
            "tenure-store",
            "tenure-core",
            "tenure-wire",
        ],
    ),
    (
        "tenure-cli",
        &[
            "tenure",
            "tenure-bench",
            "tenure-server",
            "tenure-files",
            "tenure-store",
            "tenure-core",
            // The administration commands use the daemon's protocol directly.
            "tenure-wire",
        ],
    ),
    // Test helpers and test processes. Not published.
    (
        "tenure-testkit",
        &["tenure-files", "tenure", "tenure-server", "tenure-random"],
    ),
    // The load generator is a client like any other: it uses the wire protocol.
    ("tenure-bench", &["tenure-wire"]),
    // Examples of user programs: only the public library.
    ("tenure-examples", &["tenure"]),
    ("xtask", &[]),
];

/// Additional dependencies of benchmarks and tests.
const FOR_TESTS: &[(&str, &[&str])] = &[
    // Property tests compare the space with the naive model.
    ("tenure-core", &["tenure-reference", "tenure-random"]),
    ("tenure-files", &["tenure-testkit"]),
    // The fuzzer of keys, tokens and configuration files.
    ("tenure-server", &["tenure-random"]),
    // The tests of the client speak the wire protocol beside it.
    ("tenure-testkit", &["tenure-wire"]),
    // Black-box tests use the wire protocol.
    ("tenure-cli", &["tenure-wire", "tenure-random"]),
    // The examples run against a real daemon.
    ("tenure-examples", &["tenure-server"]),
];

pub(super) fn check(root: &Path) -> Result<Vec<String>, String> {
    let output = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--no-deps",
            "--format-version",
            "1",
            "--offline",
        ])
        .current_dir(root)
        .output()
        .map_err(|error| format!("cannot start cargo: {error}"))?;
    if !output.status.success() {
        return Err(format!(
            "cargo metadata: {}",
            String::from_utf8_lossy(&output.stderr)
        ));
    }
    let metadata: Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("cargo metadata does not parse: {error}"))?;
    let packages = metadata["packages"].as_array().cloned().unwrap_or_default();
    let ours: Vec<&str> = packages
        .iter()
        .filter_map(|package| package["name"].as_str())
        .collect();
    let mut complaints = Vec::new();
    for package in &packages {
        let Some(name) = package["name"].as_str() else {
            continue;
        };
        let Some(allowed) = listed(ARROWS, name) else {
            complaints.push(format!(
                "{name}: a new crate needs a line in xtask/src/tidy/dependencies.rs"
            ));
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let Some(used) = dependency["name"].as_str() else {
                continue;
            };
            if !ours.contains(&used) || used == name || allowed.contains(&used) {
                continue;
            }
            let in_tests = dependency["kind"].as_str() == Some("dev");
            if in_tests && listed(FOR_TESTS, name).is_some_and(|extra| extra.contains(&used)) {
                continue;
            }
            complaints.push(format!(
                "{name} must not use {used} (see ARCHITECTURE.md, code map)"
            ));
        }
    }
    Ok(complaints)
}

fn listed(table: &'static [(&str, &[&str])], name: &str) -> Option<&'static [&'static str]> {
    table
        .iter()
        .find(|(crate_name, _)| *crate_name == name)
        .map(|(_, allowed)| *allowed)
}
