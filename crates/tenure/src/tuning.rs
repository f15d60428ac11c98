//! Settings of one protocol only (C11, C12, C20). The defaults suit everybody; a backend ignores what is not its own.

use std::path::PathBuf;
use std::time::Duration;

/// Everything that only some protocols know.
#[derive(Clone, Debug, Default)]
pub struct Tuning {
    /// Lock files of every kind.
    pub files: FileTuning,
    /// The exclusive lock of a database.
    pub exclusive: ExclusiveTuning,
    /// Repositories.
    #[cfg(feature = "store")]
    pub repository: RepositoryTuning,
}

/// Lock files.
#[derive(Clone, Debug, Default)]
pub struct FileTuning {
    /// What to do with a lock that is not shown to be alive.
    pub reclaim: Reclaim,
    /// The age at which a lock may be called stale; none is the protocol's.
    pub stale: Option<Duration>,
    /// How often a holder shows that it lives; none is the protocol's.
    pub heartbeat: Option<Duration>,
    /// Whether the lock must survive a power cut.
    pub durability: Durability,
    /// Believe a bare pid without a host name: no containers share the directory (S19).
    pub trust_pid: bool,
    /// Process ids in records may belong to other containers of the same host name (X12, U13).
    pub foreign_pids: bool,
    /// Another lock file than the target's own (S2).
    pub lock_path: Option<PathBuf>,
}

/// When a lock file that is not shown to be alive may be removed (C11).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reclaim {
    /// On proof, or where the protocol's own rule says so.
    #[default]
    Proof,
    /// By age alone, too.
    Age,
    /// Never; that is left to `tenure break`.
    Never,
}

/// Whether a record is synced to disk before it counts (K19).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// Yes.
    #[default]
    Durable,
    /// No: faster, and forgotten in a power cut.
    Fast,
}

/// The exclusive lock of a database.
#[derive(Clone, Debug, Default)]
pub struct ExclusiveTuning {
    /// Only our own user may read the record (X6).
    pub private: bool,
    /// The tool's version, for the record.
    pub holder_version: Option<String>,
    /// Sleep this long before the lock counts, for servers that know no gate (X19).
    pub settle: Duration,
    /// Whether to wait for running cycles of the server.
    pub quiesce: Quiesce,
}

/// Whether to wait for cycles of the server that began before the lock (X20).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Quiesce {
    /// 30 s.
    #[default]
    Usual,
    /// This long.
    For(Duration),
    /// Not at all.
    Skip,
}

/// Repositories.
#[cfg(feature = "store")]
#[derive(Clone, Default)]
pub struct RepositoryTuning {
    /// The repository's data key, to read what is sealed (C12).
    pub key: Option<tenure_store::DataKey>,
    /// Whether to seal our own records.
    pub seal: tenure_store::Seal,
    /// Whether the store must have conditional writes (`--require-cas`).
    pub demand: tenure_store::Demand,
    /// Only Tenure uses this store: there is nobody to wait for (`--tenure-only`).
    pub tenure_only: bool,
    /// How long to wait for late writers; none is the protocol's.
    pub settle: Option<Duration>,
    /// A shared holder that sees an intruder gives the lock up for lost (`--strict`).
    pub strict: bool,
    /// Settings of the store's client, on top of the environment: `aws_endpoint`, …
    pub config: Vec<(String, String)>,
}

#[cfg(feature = "store")]
impl std::fmt::Debug for RepositoryTuning {
    /// Without the values of `config`: secrets are among them.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let config: Vec<_> = self.config.iter().map(|(key, _)| key).collect();
        f.debug_struct("RepositoryTuning")
            .field("key", &self.key)
            .field("seal", &self.seal)
            .field("demand", &self.demand)
            .field("tenure_only", &self.tenure_only)
            .field("settle", &self.settle)
            .field("strict", &self.strict)
            .field("config", &config)
            .finish()
    }
}
