//! `cargo xtask slow [part]`: verification runs that take too long for CI.
//!
//! They run before a release. Each part is one command; its output is shown and saved in
//! `docs/verification/<part>.txt`, with the tested commit.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// One part: its name, what it verifies, and the command with its environment.
struct Part {
    name: &'static str,
    shows: &'static str,
    environment: &'static [(&'static str, &'static str)],
    command: &'static [&'static str],
}

const PARTS: &[Part] = &[
    Part {
        name: "hours",
        shows: "virtual hours of fresh seeds without a violation, with every fault and every rare event",
        environment: &[],
        command: &[
            "cargo",
            "run",
            "--quiet",
            "--profile",
            "sim",
            "--package",
            "tenure-sim",
            "--",
            "--hours",
            "1000",
        ],
    },
    Part {
        name: "planted-bugs",
        shows: "the simulator catches every planted bug",
        environment: &[],
        command: &["cargo", "sim", "--", "--planted-bugs"],
    },
    Part {
        name: "mutants",
        shows: "the tests notice every listed wrong line",
        environment: &[],
        command: &["cargo", "xtask", "mutants"],
    },
    Part {
        name: "trial",
        shows: "five real nodes under ten minutes of faults",
        environment: &[("TENURE_TRIAL_SECONDS", "600")],
        command: &[
            "cargo",
            "test",
            "-p",
            "tenure-cli",
            "--test",
            "fault_injection",
            "--",
            "--ignored",
            "--nocapture",
            "five",
        ],
    },
    Part {
        name: "processes",
        shows: "three real nodes under twenty minutes of faults, with histories that are linearizable",
        environment: &[("TENURE_TRIAL_SECONDS", "1200")],
        command: &[
            "cargo",
            "test",
            "-p",
            "tenure-cli",
            "--test",
            "fault_injection",
            "--",
            "--nocapture",
            "three_nodes",
        ],
    },
    Part {
        name: "languages",
        shows: "12 processes of several languages lose no update while clients and daemon are killed",
        environment: &[],
        command: &["cargo", "xtask", "torture"],
    },
    Part {
        name: "failover",
        shows: "no lock is lost when one node is silent, killed, slow or refuses",
        environment: &[],
        command: &[
            "cargo",
            "test",
            "-p",
            "tenure-testkit",
            "--test",
            "daemon",
            "--",
            "--ignored",
            "--nocapture",
            "whichever_node_fails",
        ],
    },
    Part {
        name: "fuzz",
        shows: "twenty minutes of mutated keys, tokens, key sets, certificates and configuration files each",
        environment: &[("TENURE_FUZZ_SECONDS", "1200")],
        command: &[
            "cargo",
            "test",
            "--release",
            "-p",
            "tenure-server",
            "--lib",
            "fuzz",
        ],
    },
    Part {
        name: "innocent",
        shows: "what each named call costs another client, at a million locks",
        environment: &[("TENURE_INNOCENT_LOCKS", "1000000")],
        command: &[
            "cargo",
            "test",
            "--release",
            "-p",
            "tenure-cli",
            "--test",
            "daemon",
            "--",
            "--ignored",
            "--nocapture",
            "an_innocent_client_beside",
        ],
    },
    Part {
        name: "overload",
        shows: "a holder of 100 locks loses none under far more load than the daemon can serve",
        environment: &[("TENURE_SOAK_SECONDS", "60")],
        command: &[
            "cargo",
            "test",
            "--release",
            "-p",
            "tenure-cli",
            "--test",
            "daemon",
            "--",
            "--ignored",
            "--nocapture",
            "an_overload_costs",
        ],
    },
    Part {
        name: "soak",
        shows: "ten minutes of every kind of bad client beside honest ones",
        environment: &[("TENURE_SOAK_SECONDS", "600")],
        command: &[
            "cargo",
            "test",
            "--release",
            "-p",
            "tenure-cli",
            "--test",
            "daemon",
            "--",
            "--ignored",
            "--nocapture",
            "all_bad_clients_at_once",
        ],
    },
    Part {
        name: "store-model",
        shows: "every interleaving of the repository lock, larger bounds",
        environment: &[("TENURE_STORE_MODEL", "full")],
        command: &[
            "cargo",
            "test",
            "-p",
            "tenure-store",
            "--test",
            "suite",
            "model",
            "--",
            "--nocapture",
            "--test-threads",
            "1",
        ],
    },
    Part {
        name: "models",
        shows: "every interleaving of the replicated protocols, larger bounds",
        environment: &[("TENURE_MODELS", "full")],
        command: &[
            "cargo",
            "test",
            "-p",
            "tenure-models",
            "--",
            "--nocapture",
            "--test-threads",
            "1",
        ],
    },
    Part {
        name: "engines",
        shows: "one lock in PostgreSQL, 32 processes that are killed and stopped: no overlap, order by fence",
        environment: &[("TENURE_TURNS", "60")],
        command: &[
            "cargo",
            "test",
            "-p",
            "tenure-testkit",
            "--test",
            "conformance",
            "--",
            "--ignored",
            "--nocapture",
            "torture",
        ],
    },
    Part {
        name: "packages",
        shows: "every crate compiles from the archive that would be published",
        environment: &[],
        command: &["cargo", "package", "--workspace", "--locked"],
    },
    Part {
        name: "dist",
        shows: "archive, package and image install, run, upgrade with a lock held, and uninstall",
        environment: &[],
        command: &["cargo", "xtask", "dist", "--check"],
    },
    Part {
        name: "book",
        shows: "mdBook builds the pages",
        environment: &[],
        command: &["cargo", "xtask", "book"],
    },
    Part {
        name: "torture",
        shows: "twelve processes in several languages on one counter, with kills and node restarts",
        environment: &[],
        command: &["python3", "clients/torture/torture.py", "--seconds", "120"],
    },
    Part {
        name: "tusd",
        shows: "200 half-open uploads resume on the other of two tusd servers",
        environment: &[("TENURE_ROUNDS", "200")],
        command: &[
            "go",
            "test",
            "-C",
            "clients/go/tusdlocker",
            "-count=1",
            "-v",
            ".",
        ],
    },
    Part {
        name: "speed",
        shows: "the daemon beside etcd, Redis and ZooKeeper",
        environment: &[],
        command: &["cargo", "xtask", "compare"],
    },
];

/// Runs one part, or all of them. The first failure ends the run.
pub(crate) fn run(root: &Path, only: Option<&str>) -> Result<(), String> {
    let chosen: Vec<&Part> = PARTS
        .iter()
        .filter(|part| only.is_none_or(|name| part.name == name))
        .collect();
    if chosen.is_empty() {
        let names: Vec<String> = PARTS
            .iter()
            .map(|part| format!("  {:<14}{}", part.name, part.shows))
            .collect();
        return Err(format!("no such part; there are\n{}", names.join("\n")));
    }
    for part in chosen {
        record(root, part)?;
    }
    Ok(())
}

/// Runs a part and shows its output. Saves the output if the part succeeds.
fn record(root: &Path, part: &Part) -> Result<(), String> {
    let say = |what: &str, error: std::io::Error| format!("{}: {what}: {error}", part.name);
    eprintln!("{}: {}", part.name, part.shows);
    let start = Instant::now();
    let mut child = Command::new(part.command[0])
        .args(&part.command[1..])
        .envs(part.environment.iter().copied())
        .current_dir(root)
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| say("cannot start", error))?;
    let output = child.stdout.take().ok_or("the child has no output")?;
    let mut kept = format!(
        "{}: {}\n$ {}{}\ncommit {}\n\n",
        part.name,
        part.shows,
        environment(part),
        part.command.join(" "),
        commit(root)?
    );
    for line in BufReader::new(output).lines() {
        let line = line.map_err(|error| say("cannot read its output", error))?;
        eprintln!("{line}");
        kept.push_str(&line);
        kept.push('\n');
    }
    let status = child.wait().map_err(|error| say("cannot wait", error))?;
    if !status.success() {
        return Err(format!("{} failed: nothing is kept", part.name));
    }
    let minutes = start.elapsed().as_secs_f64() / 60.0;
    kept.push_str(&format!("\n{minutes:.1} minutes\n"));
    let folder = root.join("docs/verification");
    fs::create_dir_all(&folder).map_err(|error| say("cannot make docs/verification", error))?;
    let mut file = fs::File::create(folder.join(format!("{}.txt", part.name)))
        .map_err(|error| say("cannot keep the output", error))?;
    file.write_all(kept.as_bytes())
        .map_err(|error| say("cannot keep the output", error))
}

fn environment(part: &Part) -> String {
    part.environment
        .iter()
        .map(|(name, value)| format!("{name}={value} "))
        .collect()
}

/// Returns the tested commit, with the suffix `-dirty` if the work tree has changes.
fn commit(root: &Path) -> Result<String, String> {
    let output = Command::new("git")
        .args(["describe", "--always", "--dirty", "--abbrev=12"])
        .current_dir(root)
        .output()
        .map_err(|error| format!("cannot start git: {error}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
