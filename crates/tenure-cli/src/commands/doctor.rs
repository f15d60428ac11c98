//! `tenure doctor`: shows what the backend of an address supports, and checks it.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::{Map, Value, json};
use tenure::{Address, Capabilities, EngineAdmin, HumanDuration, Tenure};
use tenure_files::internal::block_on;
use tenure_files::internal::{Dir, FileSystemReach};

use crate::options::InspectOptions;
use crate::output::{CommandFailure, OutputFormat};
use crate::terminal::{self, Tone};

/// Check this machine, or show what the backend of an address supports and guarantees.
///
/// Without WHERE: the release, the clock, the limits, the file system of this directory, and the daemon
/// in TENURE_URL; exits with 1 if something needs attention.
///
/// With WHERE: modes, queue order, fences, leases and how a dead holder is detected, and a check of the
/// backend: the file system, the conditional writes of the store, or the health of the daemon.
///
/// Examples:
///   tenure doctor
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
    /// The address to examine [default: this machine].
    #[arg(value_name = "WHERE")]
    place: Option<String>,
}

/// A finding: a name, a sentence for people, a value for programs.
type DoctorFinding = (&'static str, String, Value);

impl Doctor {
    pub(crate) fn run(self) -> ExitCode {
        let examined = match &self.place {
            Some(place) => self.examine(place).map(|()| 0),
            None => self.examine_machine(),
        };
        OutputFormat::of(self.json).end(examined)
    }

    /// Checks this machine. Returns 1 if something needs attention.
    fn examine_machine(&self) -> Result<u8, CommandFailure> {
        if self.sql || self.prepare {
            return Err(CommandFailure::usage(
                "--prepare and --sql need a database: tenure doctor --prepare postgres://HOST/DATABASE",
            ));
        }
        if self.clean {
            return Err(CommandFailure::usage(
                "--clean needs an upload directory: tenure doctor --clean upload:DIR/ANY",
            ));
        }
        let checks = [release(), clock(), limits(), here(), daemon()];
        let colored = terminal::has_color(std::io::stdout());
        let mut lines = Vec::new();
        let mut found = Map::new();
        for check in &checks {
            let tone = if check.is_well { Tone::Good } else { Tone::Bad };
            let mark = tone.paint(if check.is_well { "ok  " } else { "CHECK" }, colored);
            lines.push(format!("{mark} {:<9} {}", check.name, check.text));
            if let Some(next) = &check.next {
                lines.push(format!("     next: {next}"));
            }
            let json = json!({ "ok": check.is_well, "text": check.text, "next": check.next });
            found.insert(check.name.to_owned(), json);
        }
        let is_well = checks.iter().all(|check| check.is_well);
        let json = json!({ "ok": is_well, "checks": found });
        OutputFormat::of(self.json).answer(lines.join("\n"), &json)?;
        Ok(if is_well { 0 } else { 1 })
    }

    fn examine(&self, text: &str) -> Result<(), CommandFailure> {
        if self.sql || self.prepare {
            return self.prepare(text);
        }
        let place: Address = text.parse()?;
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
                    let doubts = block_on(EngineAdmin::new(text)?.doubts())?;
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
    fn prepare(&self, place: &str) -> Result<(), CommandFailure> {
        let engine = EngineAdmin::new(place)?;
        if self.sql {
            let json = json!({ "sql": EngineAdmin::SQL });
            return OutputFormat::of(self.json).answer(EngineAdmin::SQL.to_owned(), &json);
        }
        block_on(engine.prepare())?;
        let doubts = block_on(engine.doubts())?;
        let mut text = format!("{}: prepared", place);
        for doubt in &doubts {
            text.push_str(&format!("\n  warning   {doubt}"));
        }
        let json = json!({ "place": place, "prepared": true, "doubts": doubts });
        OutputFormat::of(self.json).answer(text, &json)
    }
}

/// One check of this machine.
struct MachineCheck {
    name: &'static str,
    is_well: bool,
    text: String,
    next: Option<String>,
}

impl MachineCheck {
    fn well(name: &'static str, text: impl Into<String>) -> MachineCheck {
        MachineCheck {
            name,
            is_well: true,
            text: text.into(),
            next: None,
        }
    }

    fn needs(name: &'static str, text: impl Into<String>, next: impl Into<String>) -> MachineCheck {
        MachineCheck {
            name,
            is_well: false,
            text: text.into(),
            next: Some(next.into()),
        }
    }
}

fn release() -> MachineCheck {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let text = format!(
        "tenure {} on Linux {} ({})",
        env!("CARGO_PKG_VERSION"),
        kernel.trim_end(),
        std::env::consts::ARCH
    );
    MachineCheck::well("release", text)
}

/// Whether the kernel's clock is kept in step. Locks do not depend on it, but dates in repositories do.
#[allow(unsafe_code, reason = "adjtimex has no safe wrapper")]
fn clock() -> MachineCheck {
    // SAFETY: a zeroed `timex` asks for nothing to be changed (`modes` is 0), and the kernel fills it.
    let state = unsafe {
        let mut clock: libc::timex = std::mem::zeroed();
        libc::adjtimex(&mut clock)
    };
    match state {
        libc::TIME_ERROR => MachineCheck::well(
            "clock",
            "not synchronized, as far as the kernel knows (only repositories use the date)",
        ),
        -1 => MachineCheck::well("clock", "unknown: the kernel does not say"),
        _ => MachineCheck::well("clock", "synchronized"),
    }
}

fn limits() -> MachineCheck {
    use rustix::process::{Resource, getrlimit};
    let limit = getrlimit(Resource::Nofile);
    let shown = |limit: Option<u64>| limit.map_or_else(|| "no limit".to_owned(), |n| n.to_string());
    let text = format!(
        "open files: {} (at most {})",
        shown(limit.current),
        shown(limit.maximum)
    );
    match limit.maximum {
        Some(most) if most < 1024 => MachineCheck::needs(
            "limits",
            text,
            "a daemon needs a descriptor per client: raise `ulimit -n`",
        ),
        _ => MachineCheck::well("limits", text),
    }
}

/// The file system of this directory: K31 (local file systems).
fn here() -> MachineCheck {
    match Dir::open(Path::new(".")) {
        Ok(dir) => {
            let system = dir.file_system();
            MachineCheck::well("files", format!("{}: {}", system.name, system.promise()))
        }
        Err(error) => {
            MachineCheck::needs("files", error.to_string(), "change to another directory")
        }
    }
}

fn daemon() -> MachineCheck {
    let url = std::env::var("TENURE_URL")
        .ok()
        .filter(|url| !url.is_empty());
    let asked = Tenure::from_env().and_then(|tenure| block_on(tenure.health_of(&[])));
    match (asked, &url) {
        (Ok(health), url) => {
            let at = url.as_deref().unwrap_or("127.0.0.1:50051");
            MachineCheck::well("daemon", format!("{at}: {health}"))
        }
        // Lock files and repositories need no daemon.
        (Err(_), None) => MachineCheck::well(
            "daemon",
            "none at 127.0.0.1:50051, and TENURE_URL is not set; lock files need none",
        ),
        (Err(error), Some(url)) => {
            // The stand-in for the whole daemon says nothing here.
            let text = error.to_string();
            let text = text.strip_prefix("all:/: ").unwrap_or(&text).to_owned();
            let (what, next) = match text.rsplit_once("; ") {
                Some((what, next)) => (what.to_owned(), next.to_owned()),
                None => (text, "check TENURE_URL".to_owned()),
            };
            MachineCheck::needs("daemon", format!("{url}: {what}"), next)
        }
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
            let ahead = Duration::try_from(ahead.abs()).unwrap_or_default();
            format!("the store's clock is {} {side} ours", HumanDuration(ahead))
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
