//! Options that several verbs share: how to wait (C1), and what only one protocol knows (C11, C12, C20).

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use tenure::{
    DataKey, Demand, Durability, ExclusiveTuning, FileTuning, Quiesce, Reclaim, RepositoryTuning,
    Seal, Tenure, Tuning, Wait, Where,
};

use crate::duration;
use crate::say::Failed;

/// How long to wait for a lock.
#[derive(Args)]
pub(crate) struct Waiting {
    /// Do not wait: end with 75 if the lock is held.
    #[arg(short = 'n', long, conflicts_with = "wait")]
    no_wait: bool,
    /// Wait at most this long (500ms, 30s, 5m, 1h; a bare number is seconds), then end with 124.
    #[arg(short, long, value_name = "DUR", value_parser = duration::parse)]
    wait: Option<Duration>,
}

impl Waiting {
    pub(crate) fn patience(&self) -> Wait {
        match (self.no_wait, self.wait) {
            (true, _) => Wait::No,
            (false, Some(time)) => Wait::For(time),
            (false, None) => Wait::Forever,
        }
    }
}

/// What only one protocol knows.
#[derive(Args, Default)]
pub(crate) struct Protocol {
    /// When a lock that is not shown to be alive may be removed.
    #[arg(long, value_name = "WHEN", value_enum, help_heading = FILES)]
    reclaim: Option<When>,
    /// The age at which a lock counts as stale.
    #[arg(long, value_name = "DUR", value_parser = duration::parse, help_heading = FILES)]
    stale: Option<Duration>,
    /// How often to show that we live.
    #[arg(long, value_name = "DUR", value_parser = duration::parse, help_heading = FILES)]
    heartbeat: Option<Duration>,
    /// Do not wait for the disk: the lock may be forgotten in a power cut.
    #[arg(long, help_heading = FILES)]
    not_durable: bool,
    /// Believe a bare pid in a record: no containers share the directory.
    #[arg(long, help_heading = FILES)]
    trust_pid: bool,
    /// Process ids in records may belong to other containers: a missing one proves nothing.
    #[arg(long, help_heading = FILES)]
    foreign_pids: bool,
    /// Another lock file than WHERE.lock.
    #[arg(long, value_name = "FILE", help_heading = FILES)]
    lock_path: Option<PathBuf>,
    /// Only our own user may read the record (exclusive:).
    #[arg(long, help_heading = ONE)]
    private: bool,
    /// The tool's version, for the record (exclusive:).
    #[arg(long, value_name = "TEXT", help_heading = ONE)]
    holder_version: Option<String>,
    /// Wait this long before the lock counts, for those who look only now and then (exclusive:, repositories).
    #[arg(long, value_name = "DUR", value_parser = duration::parse, help_heading = ONE)]
    settle: Option<Duration>,
    /// How long to wait for running cycles of the server (exclusive:).
    #[arg(long, value_name = "DUR", value_parser = duration::parse, help_heading = ONE)]
    quiesce: Option<Duration>,
    /// Do not wait for running cycles of the server (exclusive:).
    #[arg(long, conflicts_with = "quiesce", help_heading = ONE)]
    no_quiesce: bool,
    /// The repository's data key: 32 bytes or 64 hex digits.
    #[arg(long, value_name = "FILE", env = "TENURE_KEY_FILE", help_heading = REPOSITORIES)]
    key_file: Option<PathBuf>,
    /// Write sealed records.
    #[arg(long, help_heading = REPOSITORIES)]
    seal: bool,
    /// Refuse a store without conditional writes.
    #[arg(long, help_heading = REPOSITORIES)]
    require_cas: bool,
    /// Only Tenure uses this store: there is nobody to wait for.
    #[arg(long, help_heading = REPOSITORIES)]
    tenure_only: bool,
    /// A shared holder that sees an intruder gives the lock up for lost.
    #[arg(long, help_heading = REPOSITORIES)]
    strict: bool,
}

const FILES: &str = "Lock files";
const ONE: &str = "Exclusive locks and repositories";
const REPOSITORIES: &str = "Repositories";

#[derive(Clone, Copy, ValueEnum)]
enum When {
    /// On proof, or where the protocol's own rule says so.
    Proof,
    /// By age alone, too.
    Age,
    /// Never; that is left to `tenure break`.
    Never,
}

impl Protocol {
    /// The library, with these settings. The environment is only asked where the daemon is.
    pub(crate) fn tenure(&self, places: &[Where]) -> Result<Tenure, Failed> {
        self.check(places)?;
        let asks_daemon = places
            .iter()
            .any(|place| matches!(place, Where::Daemon { .. }));
        let builder = if asks_daemon {
            tenure::Builder::from_env()?
        } else {
            Tenure::builder()
        };
        Ok(builder.tuning(self.tuning()?).build()?)
    }

    /// An option that none of the places knows would be silently ignored: better say so.
    fn check(&self, places: &[Where]) -> Result<(), Failed> {
        let for_files = [
            (self.reclaim.is_some(), "--reclaim"),
            (self.stale.is_some(), "--stale"),
            (self.heartbeat.is_some(), "--heartbeat"),
            (self.not_durable, "--not-durable"),
            (self.trust_pid, "--trust-pid"),
            (self.foreign_pids, "--foreign-pids"),
            (self.lock_path.is_some(), "--lock-path"),
        ];
        let for_exclusive = [
            (self.private, "--private"),
            (self.holder_version.is_some(), "--holder-version"),
            (self.quiesce.is_some(), "--quiesce"),
            (self.no_quiesce, "--no-quiesce"),
        ];
        let for_repositories = [
            (self.seal, "--seal"),
            (self.require_cas, "--require-cas"),
            (self.tenure_only, "--tenure-only"),
            (self.strict, "--strict"),
        ];
        let for_both = [(self.settle.is_some(), "--settle")];
        let is_exclusive = |place: &Where| matches!(place, Where::Exclusive(_));
        let is_repository = |place: &Where| matches!(place, Where::Repository(_));
        refuse(&for_files, "lock files", places.iter().any(Where::is_file))?;
        refuse(
            &for_exclusive,
            "exclusive: locks",
            places.iter().any(is_exclusive),
        )?;
        refuse(
            &for_repositories,
            "repositories",
            places.iter().any(is_repository),
        )?;
        let either = places
            .iter()
            .any(|place| is_exclusive(place) || is_repository(place));
        refuse(&for_both, "exclusive: locks and repositories", either)
    }

    fn tuning(&self) -> Result<Tuning, Failed> {
        Ok(Tuning {
            files: FileTuning {
                reclaim: match self.reclaim {
                    None | Some(When::Proof) => Reclaim::Proof,
                    Some(When::Age) => Reclaim::Age,
                    Some(When::Never) => Reclaim::Never,
                },
                stale: self.stale,
                heartbeat: self.heartbeat,
                durability: if self.not_durable {
                    Durability::Fast
                } else {
                    Durability::Durable
                },
                trust_pid: self.trust_pid,
                foreign_pids: self.foreign_pids,
                lock_path: self.lock_path.clone(),
            },
            exclusive: ExclusiveTuning {
                private: self.private,
                holder_version: self.holder_version.clone(),
                settle: self.settle.unwrap_or_default(),
                quiesce: match (self.no_quiesce, self.quiesce) {
                    (true, _) => Quiesce::Skip,
                    (false, Some(time)) => Quiesce::For(time),
                    (false, None) => Quiesce::Usual,
                },
            },
            repository: RepositoryTuning {
                key: self.key_file.as_deref().map(read_key).transpose()?,
                seal: if self.seal { Seal::Yes } else { Seal::No },
                demand: if self.require_cas {
                    Demand::ConditionalWrites
                } else {
                    Demand::Anything
                },
                tenure_only: self.tenure_only,
                settle: self.settle,
                strict: self.strict,
                config: Vec::new(),
            },
        })
    }
}

fn refuse(options: &[(bool, &str)], whose: &str, applies: bool) -> Result<(), Failed> {
    match options.iter().find(|(given, _)| *given) {
        Some((_, option)) if !applies => Err(Failed::usage(format!(
            "{option} is for {whose}; none of the places is one"
        ))),
        _ => Ok(()),
    }
}

/// C12: 32 raw bytes or 64 hex digits.
fn read_key(file: &Path) -> Result<DataKey, Failed> {
    DataKey::from_file(file).map_err(|error| Failed::usage(format!("{}: {error}", file.display())))
}
