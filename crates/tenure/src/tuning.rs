//! Options of single lock protocols (C20 (options of one protocol)).
//!
//! Examples: when to remove the lock file of a dead holder (C11 (reclaim policy)), the encryption
//! key (C12 (data key of a repository)). A backend ignores options of other protocols.

use std::path::PathBuf;
use std::time::Duration;

/// Options that only some protocols have.
#[derive(Clone, Debug, Default)]
pub struct Tuning {
    /// Options of all lock files.
    pub files: FileTuning,
    /// Options of exclusive locks.
    pub exclusive: ExclusiveTuning,
    /// Options of repositories.
    #[cfg(feature = "store")]
    pub repository: RepositoryTuning,
}

/// Options of all lock files.
#[derive(Clone, Debug, Default)]
pub struct FileTuning {
    /// What to do with a lock whose holder is not proven to be alive.
    pub reclaim: Reclaim,
    /// The age from which a lock may count as stale. Default: that of the protocol.
    pub stale: Option<Duration>,
    /// The interval of the holder's heartbeat. Default: that of the protocol.
    pub heartbeat: Option<Duration>,
    /// Whether the lock must survive a power failure.
    pub durability: Durability,
    /// Trusts the pid in the record of another program, also without a host name or from inside a
    /// container. Set it only if no other containers share the directory: S19 (order of sidecar
    /// tests).
    pub trust_pid: bool,
    /// The permission bits of new records. Default: those of the protocol; in a directory that a
    /// group may write, the group may read and lock the record: K32 (file modes and symlinks).
    pub mode: Option<u32>,
    /// Pids in records may belong to other containers with the same host name: X12 (order of
    /// exclusive tests), U13 (order of upload tests).
    pub foreign_pids: bool,
    /// Replaces the default lock path of the target: S2 (lock path).
    pub lock_path: Option<PathBuf>,
}

/// When a lock file may be removed whose holder is not proven to be alive (C11).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reclaim {
    /// On proof of death, or where the rules of the protocol allow it.
    #[default]
    Proof,
    /// Also by age alone.
    Age,
    /// Never. Only `tenure break` removes it.
    Never,
}

/// Whether a record is synced to disk before the lock counts as held: K19 (durable records and torn
/// records).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// Synced.
    #[default]
    Durable,
    /// Not synced: faster, but lost in a power failure.
    Fast,
}

/// Options of exclusive locks.
#[derive(Clone, Debug, Default)]
pub struct ExclusiveTuning {
    /// Makes the record readable by its owner only: X6 (block and file mode).
    pub private: bool,
    /// The name of the tool, for the record: X18 (holder name and version). Default: the purpose,
    /// or the name of the program.
    pub holder: Option<String>,
    /// The version of the tool, for the record.
    pub holder_version: Option<String>,
    /// The time to wait before the lock counts as held, for servers without a gate file: X19
    /// (settle time for servers).
    pub settle: Duration,
    /// Whether to wait for running cycles of the server.
    pub quiesce: Quiesce,
}

/// Whether to wait for server cycles that began before the lock: X20 (the gate file).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Quiesce {
    /// Waits up to 30 s.
    #[default]
    Usual,
    /// Waits up to this time.
    For(Duration),
    /// Does not wait.
    Skip,
}

/// Options of repositories.
#[cfg(feature = "store")]
#[derive(Clone, Default)]
pub struct RepositoryTuning {
    /// The data key of the repository, to read sealed records (C12).
    pub key: Option<tenure_store::DataKey>,
    /// The operation, for the record: P41 (repository addresses and verbs). Default: the purpose,
    /// or the name of the program.
    pub operation: Option<String>,
    /// Whether to seal new records.
    pub seal: tenure_store::Seal,
    /// Only records that are sealed with the data key for their own name count as records; implies
    /// sealing (`--require-sealed`).
    pub require_sealed: bool,
    /// Whether the store must support conditional writes (`--require-cas`).
    pub demand: tenure_store::Demand,
    /// Only Tenure uses this store, so the waiting times for other programs are skipped
    /// (`--tenure-only`).
    pub tenure_only: bool,
    /// How long to wait for late writers. Default: that of the protocol.
    pub settle: Option<Duration>,
    /// A shared holder treats the lock as lost when it sees a conflicting one (`--strict`).
    pub strict: bool,
    /// Options of the store's client, in addition to the environment: `aws_endpoint`, …
    pub config: Vec<(String, String)>,
}

#[cfg(feature = "store")]
impl std::fmt::Debug for RepositoryTuning {
    /// Leaves out the values of `config`: they may be secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let config: Vec<_> = self.config.iter().map(|(key, _)| key).collect();
        f.debug_struct("RepositoryTuning")
            .field("key", &self.key)
            .field("seal", &self.seal)
            .field("require_sealed", &self.require_sealed)
            .field("demand", &self.demand)
            .field("tenure_only", &self.tenure_only)
            .field("settle", &self.settle)
            .field("strict", &self.strict)
            .field("config", &config)
            .finish()
    }
}
