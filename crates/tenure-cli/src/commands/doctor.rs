//! `tenure doctor`: shows what the backend of an address supports, and checks it.

use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use serde_json::{Map, Value, json};
use tenure::{Address, Capabilities, EngineAdmin};
use tenure_files::internal::block_on;
use tenure_files::internal::{Dir, FileSystemReach};

use crate::options::InspectOptions;
use crate::output::{CommandFailure, OutputFormat};

/// Show what the backend of an address supports and guarantees.
///
/// Prints modes, queue order, fences, leases and how a dead holder is detected, and checks the backend:
/// the file system, the conditional writes of the store, or the health of the daemon.
///
/// Examples:
///   tenure doctor state.json
///   tenure doctor s3://bucket/backup
///   tenure doctor --prepare postgres://host/database
///   tenure doctor --clean upload:/srv/uploads/any     # remove files of crashed processes
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Doctor {
    /// Upload directories: remove dead locks, requests without a lock and temporary files.
    #[arg(long)]
    clean: bool,
    /// Databases: create the tables and functions that Tenure needs.
    #[arg(long)]
    prepare: bool,
    /// Databases: print the SQL that --prepare runs, for an administrator.
    #[arg(long)]
    sql: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    inspect_options: InspectOptions,
    /// The address to examine.
    #[arg(value_name = "WHERE")]
    place: String,
}

/// A finding: a name, a sentence for people, a value for programs.
type DoctorFinding = (&'static str, String, Value);

impl Doctor {
    pub(crate) fn run(self) -> ExitCode {
        OutputFormat::of(self.json).end(self.examine().map(|()| 0))
    }

    fn examine(&self) -> Result<(), CommandFailure> {
        if self.sql || self.prepare {
            return self.prepare();
        }
        let place: Address = self.place.parse()?;
        let tenure = self.inspect_options.tenure(std::slice::from_ref(&place))?;
        let can = Capabilities::of(&place);
        let mut findings = match &place {
            Address::Memory(_) => Vec::new(),
            Address::Sidecar(file) => directory(parent(file))?,
            Address::Exclusive(dir) | Address::Upload { dir, .. } => directory(dir)?,
            Address::Repository(address) => store(address)?,
            Address::Daemon { nodes, .. } => {
                // First, because a daemon that does not serve says why.
                let health = block_on(tenure.health_of(nodes))?;
                let state = block_on(tenure.inspect(&place))?;
                let rule = state.rule.unwrap_or_default();
                let mut found = vec![
                    (
                        "daemon",
                        format!("answers; {rule}"),
                        json!({ "answers": true, "rule": rule }),
                    ),
                    ("health", health.clone(), json!(health)),
                ];
                if place.backend() == "postgres" {
                    let doubts = block_on(EngineAdmin::new(&self.place)?.doubts())?;
                    found.push(("warnings", doubts.join("; "), json!(doubts)));
                }
                found
            }
            other => {
                return Err(CommandFailure::usage(format!(
                    "this release cannot examine {} addresses",
                    other.backend()
                )));
            }
        };
        if self.clean {
            findings.push(clean(&place)?);
        }
        let mut text = format!("{place}\n{}", indent(&can.to_string()));
        let mut found = Map::new();
        for (name, sentence, value) in findings {
            text.push_str(&format!("\n  {name:<9} {sentence}"));
            found.insert(name.to_owned(), value);
        }
        let json = json!({ "place": place, "capabilities": can, "found": found });
        OutputFormat::of(self.json).answer(text, &json)
    }
}

impl Doctor {
    /// Creates the tables of a database, or prints the SQL.
    fn prepare(&self) -> Result<(), CommandFailure> {
        let engine = EngineAdmin::new(&self.place)?;
        if self.sql {
            let json = json!({ "sql": EngineAdmin::SQL });
            return OutputFormat::of(self.json).answer(EngineAdmin::SQL.to_owned(), &json);
        }
        block_on(engine.prepare())?;
        let doubts = block_on(engine.doubts())?;
        let mut text = format!("{}: prepared", self.place);
        for doubt in &doubts {
            text.push_str(&format!("\n  warning   {doubt}"));
        }
        let json = json!({ "place": self.place, "prepared": true, "doubts": doubts });
        OutputFormat::of(self.json).answer(text, &json)
    }
}

fn indent(text: &str) -> String {
    let lines: Vec<String> = text.lines().map(|line| format!("  {line}")).collect();
    lines.join("\n")
}

fn parent(file: &Path) -> &Path {
    match file.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    }
}

/// Reports what the file system supports: K31 (local file systems).
fn directory(dir: &Path) -> Result<Vec<DoctorFinding>, CommandFailure> {
    let dir = Dir::open(dir)?;
    let system = dir.file_system();
    let reach = match system.reach {
        FileSystemReach::Local => "local",
        FileSystemReach::Remote => "remote",
        FileSystemReach::Unknown => "unknown",
    };
    Ok(vec![(
        "files",
        format!("{} ({reach}): {}", system.name, system.promise()),
        json!({ "file_system": system.name, "reach": reach, "promise": system.promise() }),
    )])
}

/// Reports the store's conditional writes: P26 (levels of conditional writes). Writes a scratch
/// object to test them.
fn store(address: &tenure_store::RepositoryAddress) -> Result<Vec<DoctorFinding>, CommandFailure> {
    let failed = |error: tenure_store::Error| CommandFailure::own(error.to_string());
    let repository =
        tenure_store::Repository::open(address.clone(), tenure_store::Options::default())
            .map_err(failed)?;
    let health = block_on(repository.health()).map_err(failed)?;
    let level = health.abilities.level;
    let what = match level {
        tenure_store::ConditionLevel::Nothing => {
            "no conditional writes: locks take longer, because they wait instead"
        }
        tenure_store::ConditionLevel::Writes => "conditional writes",
        tenure_store::ConditionLevel::Deletes => "conditional writes and deletes",
    };
    let clock = match health.clock_ahead {
        Some(ahead) => {
            let side = if ahead.is_negative() {
                "behind"
            } else {
                "ahead of"
            };
            format!("the store's clock is {:#} {side} ours", ahead.abs())
        }
        None => "the store does not report its clock".to_owned(),
    };
    Ok(vec![
        (
            "store",
            format!("level {}: {what}", level.number()),
            json!({ "level": level.number(), "resurfaces": health.abilities.resurfaces }),
        ),
        (
            "clock",
            clock,
            json!({ "ahead_ms": health.clock_ahead.map(|ahead| ahead.as_millis()) }),
        ),
    ])
}

fn clean(place: &Address) -> Result<DoctorFinding, CommandFailure> {
    let Address::Upload { dir, .. } = place else {
        return Err(CommandFailure::usage(
            "--clean applies to upload directories only: tenure doctor --clean upload:DIR/ANY",
        ));
    };
    let cleaned = tenure_files::upload::FileLocker::new(dir)?.clean()?;
    let names = |ids: &[tenure_files::upload::UploadId]| {
        ids.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let leftovers: Vec<String> = cleaned
        .leftovers
        .iter()
        .map(|name| name.to_string_lossy().into_owned())
        .collect();
    let text = format!(
        "removed {} dead locks, {} requests without a lock, {} temporary files",
        cleaned.locks.len(),
        cleaned.requests.len(),
        leftovers.len()
    );
    let json = json!({ "locks": names(&cleaned.locks), "requests": names(&cleaned.requests), "leftovers": leftovers });
    Ok(("cleaned", text, json))
}
