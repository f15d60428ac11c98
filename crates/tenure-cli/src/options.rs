//! Options that several commands share: time to wait, C1 (options of `run`), and options of single
//! protocols, C11 (reclaim policy), C12 (data key of a repository), C20 (options of one protocol).

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use tenure::{
    Address, DataKey, Demand, Durability, ExclusiveTuning, FileTuning, Quiesce, Reclaim,
    RepositoryTuning, Seal, Tenure, Tuning, Wait,
};

use crate::duration;
use crate::output::CommandFailure;

/// How long to wait for a lock.
#[derive(Args)]
pub(crate) struct WaitOptions {
    /// Do not wait: exit with 75 if the lock is held.
    #[arg(short = 'n', long, conflicts_with = "wait")]
    no_wait: bool,
    /// Maximum time to wait (500ms, 30s, 5m, 1h; a bare number is seconds); then exit with 124. Default: no limit.
    #[arg(short, long, value_name = "DUR", value_parser = duration::parse)]
    wait: Option<Duration>,
}

impl WaitOptions {
    pub(crate) fn wait_limit(&self) -> Wait {
        match (self.no_wait, self.wait) {
            (true, _) => Wait::No,
            (false, Some(time)) => Wait::For(time),
            (false, None) => Wait::Forever,
        }
    }
}

/// Options of one protocol that inspection needs, too.
#[derive(Args)]
pub(crate) struct InspectOptions {
    /// Trust a process id alone in a record: no containers share the directory (lock files).
    #[arg(long)]
    trust_pid: bool,
    /// Process ids in records may belong to other containers: a missing process is not proof of death (lock files).
    #[arg(long)]
    foreign_pids: bool,
    /// The lock file [default: WHERE.lock].
    #[arg(long, value_name = "FILE")]
    lock_path: Option<PathBuf>,
    /// File with the data key of a repository: 32 bytes or 64 hex digits.
    #[arg(long, value_name = "FILE", env = "TENURE_KEY_FILE")]
    key_file: Option<PathBuf>,
}

/// Options of one protocol.
#[derive(Args)]
pub(crate) struct ProtocolOptions {
    #[command(flatten)]
    inspect_options: InspectOptions,
    /// When a lock without a proven live holder may be removed.
    #[arg(long, value_name = "WHEN", value_enum, help_heading = FILES)]
    reclaim: Option<WaitWhen>,
    /// Age at which a lock counts as stale.
    #[arg(long, value_name = "DUR", value_parser = duration::parse, help_heading = FILES)]
    stale: Option<Duration>,
    /// Interval of heartbeats.
    #[arg(long, value_name = "DUR", value_parser = duration::parse, help_heading = FILES)]
    heartbeat: Option<Duration>,
    /// Do not wait for the disk: a power failure may lose the lock.
    #[arg(long, help_heading = FILES)]
    not_durable: bool,
    /// Permission bits of the record, octal [default: 0600, exclusive: 0644; in a directory that a
    /// group may write, that group may read and write it].
    #[arg(long, value_name = "OCTAL", value_parser = mode, help_heading = FILES)]
    mode: Option<u32>,
    /// Make the record readable for the current user only (exclusive:).
    #[arg(long, help_heading = ONE)]
    private: bool,
    /// Name of the tool, stored in the record (exclusive:) [default: --purpose, or the command's name].
    #[arg(long, value_name = "TEXT", help_heading = ONE)]
    holder: Option<String>,
    /// Version of the tool, stored in the record (exclusive:).
    #[arg(long, value_name = "TEXT", help_heading = ONE)]
    holder_version: Option<String>,
    /// Wait this long after the record is written, for programs that check it only now and then
    /// (exclusive:, repositories).
    #[arg(long, value_name = "DUR", value_parser = duration::parse, help_heading = ONE)]
    settle: Option<Duration>,
    /// Maximum time to wait for running cycles of the server (exclusive:).
    #[arg(long, value_name = "DUR", value_parser = duration::parse, help_heading = ONE)]
    quiesce: Option<Duration>,
    /// Do not wait for running cycles of the server (exclusive:).
    #[arg(long, conflicts_with = "quiesce", help_heading = ONE)]
    no_quiesce: bool,
    /// Name of the work, stored in the record [default: --purpose, or the command's name].
    #[arg(long, value_name = "TEXT", help_heading = REPOSITORIES)]
    operation: Option<String>,
    /// Write encrypted records (needs --key-file).
    #[arg(long, help_heading = REPOSITORIES)]
    seal: bool,
    /// Write encrypted records, and do not trust records that are not (needs --key-file).
    #[arg(long, help_heading = REPOSITORIES)]
    require_sealed: bool,
    /// Refuse a store without conditional writes.
    #[arg(long, help_heading = REPOSITORIES)]
    require_cas: bool,
    /// Only Tenure uses this store: do not wait for other programs.
    #[arg(long, help_heading = REPOSITORIES)]
    tenure_only: bool,
    /// Treat a shared lock as lost when a conflicting holder appears.
    #[arg(long, help_heading = REPOSITORIES)]
    strict: bool,
}

/// Shorter than the default of every protocol of lock files.
const HEARTBEAT: Duration = Duration::from_secs(5);

const FILES: &str = "Lock files";
const ONE: &str = "Exclusive locks and repositories";
const REPOSITORIES: &str = "Repositories";

#[derive(Clone, Copy, ValueEnum)]
enum WaitWhen {
    /// On proof that the holder is dead, or by the protocol's own stale rule.
    Proof,
    /// Also by age alone.
    Age,
    /// Never; use `tenure break`.
    Never,
}

impl InspectOptions {
    /// Returns the library with these options.
    pub(crate) fn tenure(&self, places: &[Address]) -> Result<Tenure, CommandFailure> {
        self.check(places)?;
        build(places, self.tuning()?)
    }

    fn check(&self, places: &[Address]) -> Result<(), CommandFailure> {
        let for_files = [
            (self.trust_pid, "--trust-pid"),
            (self.foreign_pids, "--foreign-pids"),
            (self.lock_path.is_some(), "--lock-path"),
        ];
        refuse(
            &for_files,
            "lock files",
            places.iter().any(Address::is_file),
        )
    }

    fn tuning(&self) -> Result<Tuning, CommandFailure> {
        Ok(Tuning {
            files: FileTuning {
                trust_pid: self.trust_pid,
                foreign_pids: self.foreign_pids,
                lock_path: self.lock_path.clone(),
                ..FileTuning::default()
            },
            repository: RepositoryTuning {
                key: self.key_file.as_deref().map(read_key).transpose()?,
                ..RepositoryTuning::default()
            },
            ..Tuning::default()
        })
    }
}

/// Parses permission bits. A record that its holder cannot read and write is of no use.
fn mode(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o777 && mode & 0o600 == 0o600 => Ok(mode),
        _ => Err("must be octal permission bits from 600 to 777 with which the owner can read and write, such as 0660".into()),
    }
}

/// Reads the environment only if an address is on the daemon: wrong settings must not affect lock
/// files.
fn build(places: &[Address], tuning: Tuning) -> Result<Tenure, CommandFailure> {
    let asks_daemon = |place: &Address| matches!(place, Address::Daemon { .. });
    let builder = match places.iter().any(asks_daemon) {
        true => tenure::Builder::from_env()?,
        false => Tenure::builder(),
    };
    Ok(builder.tuning(tuning).build()?)
}

impl ProtocolOptions {
    /// Returns the library with these options.
    pub(crate) fn tenure(&self, places: &[Address]) -> Result<Tenure, CommandFailure> {
        self.tenure_for(places, None)
    }

    /// Returns the library with these options. `name` is the default of `--holder` and
    /// `--operation`: X18 (holder name and version), P41 (repository addresses and verbs).
    pub(crate) fn tenure_for(
        &self,
        places: &[Address],
        name: Option<String>,
    ) -> Result<Tenure, CommandFailure> {
        self.inspect_options.check(places)?;
        self.check(places)?;
        for (option, text) in [("--holder", &self.holder), ("--operation", &self.operation)] {
            if text.as_ref().is_some_and(String::is_empty) {
                return Err(CommandFailure::usage(format!(
                    "{option} must not be empty: other programs show it to their users"
                )));
            }
        }
        let mut tuning = self.tuning()?;
        if tuning.exclusive.holder.is_none() {
            tuning.exclusive.holder.clone_from(&name);
        }
        if tuning.repository.operation.is_none() {
            tuning.repository.operation = name;
        }
        build(places, tuning)
    }

    /// Returns the interval of heartbeats, for a supervisor that has to write them.
    pub(crate) fn heartbeat(&self) -> Duration {
        let by_age = |stale: Duration| (stale / 3).clamp(Duration::from_millis(100), HEARTBEAT);
        self.heartbeat
            .or(self.stale.map(by_age))
            .unwrap_or(HEARTBEAT)
    }

    /// Refuses an option that none of the addresses supports, instead of ignoring it silently
    /// (C20).
    fn check(&self, places: &[Address]) -> Result<(), CommandFailure> {
        let for_files = [
            (self.reclaim.is_some(), "--reclaim"),
            (self.stale.is_some(), "--stale"),
            (self.heartbeat.is_some(), "--heartbeat"),
            (self.not_durable, "--not-durable"),
            (self.mode.is_some(), "--mode"),
        ];
        let for_exclusive = [
            (self.private, "--private"),
            (self.holder.is_some(), "--holder"),
            (self.holder_version.is_some(), "--holder-version"),
            (self.quiesce.is_some(), "--quiesce"),
            (self.no_quiesce, "--no-quiesce"),
        ];
        let for_repositories = [
            (self.operation.is_some(), "--operation"),
            (self.seal, "--seal"),
            (self.require_sealed, "--require-sealed"),
            (self.require_cas, "--require-cas"),
            (self.tenure_only, "--tenure-only"),
            (self.strict, "--strict"),
        ];
        if self.seal && self.inspect_options.key_file.is_none() {
            return Err(CommandFailure::usage(
                "--seal needs the data key: add --key-file FILE or set TENURE_KEY_FILE",
            ));
        }
        let for_both = [(self.settle.is_some(), "--settle")];
        let file = places.iter().any(Address::is_file);
        let exclusive = places
            .iter()
            .any(|place| matches!(place, Address::Exclusive(_)));
        let repository = places
            .iter()
            .any(|place| matches!(place, Address::Repository(_)));
        refuse(&for_files, "lock files", file)?;
        refuse(&for_exclusive, "exclusive: locks", exclusive)?;
        refuse(&for_repositories, "repositories", repository)?;
        refuse(
            &for_both,
            "exclusive: locks and repositories",
            exclusive || repository,
        )
    }

    fn tuning(&self) -> Result<Tuning, CommandFailure> {
        let inspect_options = self.inspect_options.tuning()?;
        Ok(Tuning {
            files: FileTuning {
                reclaim: match self.reclaim {
                    None | Some(WaitWhen::Proof) => Reclaim::Proof,
                    Some(WaitWhen::Age) => Reclaim::Age,
                    Some(WaitWhen::Never) => Reclaim::Never,
                },
                stale: self.stale,
                heartbeat: self.heartbeat,
                durability: match self.not_durable {
                    true => Durability::Fast,
                    false => Durability::Durable,
                },
                mode: self.mode,
                ..inspect_options.files
            },
            exclusive: ExclusiveTuning {
                private: self.private,
                holder: self.holder.clone(),
                holder_version: self.holder_version.clone(),
                settle: self.settle.unwrap_or_default(),
                quiesce: match (self.no_quiesce, self.quiesce) {
                    (true, _) => Quiesce::Skip,
                    (false, Some(time)) => Quiesce::For(time),
                    (false, None) => Quiesce::Usual,
                },
            },
            repository: RepositoryTuning {
                operation: self.operation.clone(),
                seal: if self.seal { Seal::Yes } else { Seal::No },
                require_sealed: self.require_sealed,
                demand: match self.require_cas {
                    true => Demand::ConditionalWrites,
                    false => Demand::Anything,
                },
                tenure_only: self.tenure_only,
                settle: self.settle,
                strict: self.strict,
                ..inspect_options.repository
            },
        })
    }
}

fn refuse(options: &[(bool, &str)], whose: &str, applies: bool) -> Result<(), CommandFailure> {
    match options.iter().find(|(given, _)| *given) {
        Some((_, option)) if !applies => Err(CommandFailure::usage(format!(
            "{option} applies to {whose} only, and no given address is one"
        ))),
        _ => Ok(()),
    }
}

/// Reads 32 raw bytes or 64 hex digits (C12).
fn read_key(file: &Path) -> Result<DataKey, CommandFailure> {
    DataKey::from_file(file)
        .map_err(|error| CommandFailure::usage(format!("{}: {error}", file.display())))
}
