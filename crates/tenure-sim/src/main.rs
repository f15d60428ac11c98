//! The command `cargo sim`: runs new seeds, replays one seed, or searches for planted bugs.
//!
//! ```text
//!   cargo sim                            new seeds until stopped
//!   cargo sim -- SEED                    replay one seed, with its trace on standard error
//!   cargo sim -- --seeds N               N new seeds
//!   cargo sim -- --hours H               new seeds until H virtual hours have passed
//!   cargo sim -- --first SEED            count up from this seed instead of a new one
//!   cargo sim -- --search N              seeds 1 to N until the first violation
//!   cargo sim -- --planted-bugs [NAME]   all planted bugs, or one: does a checker find it?
//!
//!   with any of these:
//!     --fault-profile NAME               this fault profile instead of the seed's own
//!     --fault-seconds S                  fault phase in virtual seconds (default 300)
//!     --json                             totals as JSON
//! ```

#![allow(clippy::print_stdout, reason = "a command prints")]
#![allow(
    clippy::disallowed_types,
    reason = "only this file knows real time, to pick seeds"
)]

use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;

use tenure_sim::{
    ContractViolation, Counts, FaultProfile, Options, Printing, RareEvent, RunReport, fault_kinds,
    missing_in, planted_bugs, run, run_all,
};

#[derive(Default)]
struct RunOptions {
    seed: Option<u64>,
    seeds: Option<u64>,
    first: Option<u64>,
    hours: Option<f64>,
    search: Option<u64>,
    fault_phase: Option<u64>,
    find_planted_bugs: Option<String>,
    fault_profile: Option<FaultProfile>,
    json: bool,
}

fn main() -> ExitCode {
    match wanted(std::env::args().skip(1)) {
        Ok(wanted) => go(&wanted),
        Err(what) => {
            eprintln!(
                "error: {what}\nusage: cargo sim -- [SEED | --seeds N | --hours H | --planted-bugs [NAME]] [--json]"
            );
            ExitCode::from(2)
        }
    }
}

/// Parses the command line. A leading `--` is skipped, because the alias `cargo sim` already ends
/// with `--`: `cargo sim --seeds 3` and `cargo sim -- --seeds 3` are the same.
fn wanted(words: impl Iterator<Item = String>) -> Result<RunOptions, String> {
    let mut wanted = RunOptions::default();
    let mut words = words.peekable();
    words.next_if(|word| word == "--");
    while let Some(word) = words.next() {
        let mut number = || -> Result<u64, String> {
            let text = words
                .next()
                .ok_or_else(|| format!("{word} needs a number"))?;
            text.parse().map_err(|_| format!("{text} is not a number"))
        };
        match word.as_str() {
            "--seeds" => wanted.seeds = Some(number()?),
            "--first" => wanted.first = Some(number()?),
            "--hours" => wanted.hours = Some(number()? as f64),
            "--search" => wanted.search = Some(number()?),
            "--fault-seconds" => wanted.fault_phase = Some(number()?),
            "--fault-profile" => {
                let name = words.next().unwrap_or_default();
                let fault_profile = FaultProfile::called(&name);
                wanted.fault_profile = Some(
                    fault_profile
                        .ok_or_else(|| format!("no fault profile has the name `{name}`"))?,
                );
            }
            "--json" => wanted.json = true,
            "--planted-bugs" => {
                wanted.find_planted_bugs = Some(
                    words
                        .next_if(|word| !word.starts_with("--"))
                        .unwrap_or_default(),
                );
            }
            text => wanted.seed = Some(text.parse().map_err(|_| format!("{text} is not a seed"))?),
        }
    }
    Ok(wanted)
}

fn go(wanted: &RunOptions) -> ExitCode {
    let mut options = Options {
        fault_profile: wanted.fault_profile,
        ..Options::default()
    };
    if let Some(seconds) = wanted.fault_phase {
        options.fault_seconds = seconds;
    }
    if let Some(only) = &wanted.find_planted_bugs {
        return visit(only, options);
    }
    if let Some(seed) = wanted.seed {
        let report = run(
            seed,
            Options {
                printing: Printing::On,
                ..options
            },
        );
        tell(
            &report.counts,
            1,
            u64::from(report.violation.is_some()),
            wanted.json,
        );
        return match &report.violation {
            Some(violation) => {
                println!("seed {seed}: {violation}");
                ExitCode::FAILURE
            }
            None => {
                println!("seed {seed}: well, trace {:016x}", report.trace);
                ExitCode::SUCCESS
            }
        };
    }
    if let Some(seeds) = wanted.search {
        println!("{}", search(options, seeds));
        return ExitCode::SUCCESS;
    }
    many(wanted, options)
}

fn many(wanted: &RunOptions, options: Options) -> ExitCode {
    let first = wanted.first.unwrap_or_else(fresh_seed);
    let count = wanted.seeds.unwrap_or(u64::MAX);
    let (mut total, mut runs, mut failed) = (Counts::default(), 0, 0);
    run_all(
        (0..count).map(|step| first.wrapping_add(step)),
        threads(),
        options,
        |report| {
            runs += 1;
            total.add(&report.counts);
            if let Some(violation) = &report.violation {
                failed += 1;
                eprintln!("seed {}: {violation}", report.seed);
            }
            match wanted.hours {
                Some(hours) if total.hours() >= hours => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            }
        },
    );
    tell(&total, runs, failed, wanted.json);
    // A run with one fault profile cannot see everything.
    let missing = match wanted.fault_profile {
        None => missing_in(&total, fault_kinds()),
        Some(_) => Vec::new(),
    };
    for name in &missing {
        println!(
            "MISSING: {name}: it did not happen in {:.0} hours",
            total.hours()
        );
    }
    if failed == 0 && missing.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Returns a seed made from the wall clock. It is the only non-deterministic value; every failure
/// is printed with its seed.
fn fresh_seed() -> u64 {
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    now.as_secs() << 20
}

fn tell(total: &Counts, runs: u64, failed: u64, json: bool) {
    let facts = [
        ("seeds", runs),
        ("failed", failed),
        ("calls", total.asks),
        ("answers", total.answers),
        ("locks", total.beliefs),
        ("writes_taken", total.store_writes.0),
        ("writes_refused", total.store_writes.1),
        ("elections", total.elections),
        ("memberships", total.memberships),
        ("snapshots", total.snapshots),
        ("frames", total.frames),
        ("syncs", total.syncs),
        ("stops", total.stops),
        ("refused_disks", total.refused_disks),
        ("operator_waits", total.operator_waits),
    ];
    let join = |of: &std::collections::BTreeMap<&'static str, u64>| {
        let parts: Vec<String> = of
            .iter()
            .map(|(name, count)| format!("\"{name}\":{count}"))
            .collect();
        parts.join(",")
    };
    if json {
        let plain: Vec<String> = facts
            .iter()
            .map(|(name, count)| format!("\"{name}\":{count}"))
            .collect();
        println!(
            "{{\"virtual_hours\":{:.2},{},\"faults\":{{{}}},\"judged\":{{{}}},\"rare\":{{{}}}}}",
            total.hours(),
            plain.join(","),
            join(&total.faults),
            join(&total.judged),
            join(&total.rare)
        );
        return;
    }
    println!("{:>12.2}  virtual hours", total.hours());
    for (name, count) in facts {
        println!("{count:>12}  {name}");
    }
    for (name, count) in &total.faults {
        println!("{count:>12}  fault: {name}");
    }
    for (name, count) in &total.judged {
        println!("{count:>12}  judged: {name}");
    }
    for ((fault, verdict), count) in &total.verdicts {
        println!("{count:>12}  disk after {fault}: {verdict}");
    }
    for event in RareEvent::ALL {
        let count = total.rare.get(event.name()).copied().unwrap_or(0);
        println!("{count:>12}  rare: {}", event.name());
    }
}

/// Runs the seeds 1 to `seeds` until a violation is found. One after the other: the result is the same
/// each time.
fn search(options: Options, seeds: u64) -> String {
    let mut tried = 0;
    let mut verdict = None;
    // A panic counts as a violation. The panic messages would clutter the table of results.
    std::panic::set_hook(Box::new(|_| {}));
    run_all(1..=seeds, 1, options, |report: RunReport| {
        tried += 1;
        let Some(violation) = report.violation else {
            return ControlFlow::Continue(());
        };
        let what = violation.what.replace('\n', " ");
        let what: String = what.chars().take(90).collect();
        verdict = Some(format!(
            "caught by {:<13} after {tried:>3} seeds: {what}",
            violation.checker
        ));
        ControlFlow::Break(())
    });
    let _ = std::panic::take_hook();
    verdict.unwrap_or_else(|| format!("NOT CAUGHT in {tried} seeds"))
}

fn visit(only: &str, options: Options) -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let bugs = match planted_bugs::read(&root) {
        Ok(bugs) => bugs,
        Err(what) => {
            eprintln!("error: {what}");
            return ExitCode::from(2);
        }
    };
    let mut workshop = None;
    let mut missed = 0;
    for bug in &bugs {
        if !only.is_empty() && only != bug.name {
            continue;
        }
        let said = match ContractViolation::called(&bug.name) {
            Some(contract_violation) => Ok(search(
                Options {
                    contract_violation: Some(contract_violation),
                    fault_profile: bug.fault_profile,
                    ..options
                },
                bug.within(),
            )),
            None => workshop
                .get_or_insert_with(|| planted_bugs::BuildCopy::open(&root, &bugs))
                .as_ref()
                .map_err(Clone::clone)
                .and_then(|workshop| workshop.show(bug)),
        };
        let said = said.unwrap_or_else(|what| format!("BROKEN: {what}"));
        missed += u64::from(!said.starts_with("caught"));
        println!("{:<28} {said}", bug.name);
    }
    if missed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

#[cfg(test)]
mod tests {
    use super::wanted;

    #[test]
    fn a_double_dash_may_come_first() {
        let read = |line: &str| wanted(line.split_whitespace().map(str::to_owned));
        for line in ["-- 53", "53"] {
            assert_eq!(read(line).unwrap().seed, Some(53));
        }
        for line in ["-- --seeds 3 --json", "--seeds 3 --json"] {
            let wanted = read(line).unwrap();
            assert!(wanted.seeds == Some(3) && wanted.json);
        }
        assert_eq!(
            read("-- --planted-bugs")
                .unwrap()
                .find_planted_bugs
                .as_deref(),
            Some("")
        );
        assert!(read("-- --").is_err());
        assert!(read("often").is_err());
    }
}
