//! Entries of the shared log: one call each, with everything that its outcome depends on.

use tenure_core::codec::{DecodeError, Reader, Writer};
use tenure_core::command::{
    Acquire, BreakLock, Command, Expire, ReleaseCause, RenewLease, Selection,
};
use tenure_core::path::Namespace;
use tenure_core::policy::Algorithm;
use tenure_core::record_enum;
use tenure_core::system::{KeyClaim, SystemCommand};
use tenure_core::value::{OwnerId, Stamp};

/// The version of the encoding of an entry and of a snapshot.
const VERSION: u8 = 1;

/// One entry of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// The newest rules that its writer assumed. A client that does not know them must not apply
    /// the entry.
    pub rules: u32,
    /// Unique. A writer without an answer finds out by it whether its entry is in the log.
    pub id: u128,
    /// The lease time of the writer.
    pub stamp: Stamp,
    /// What it does.
    pub call: Call,
}

/// One call. It is applied in one step, so nothing can come between its parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// The first entry of a log: the settings that never change.
    Found {
        /// The rules to apply from here on.
        rules: u32,
        /// Segments of a namespace without a row (R22: fallback namespace).
        prefix_segments: u32,
        /// The algorithm of namespaces without a row (R24: algorithm of a namespace).
        default: Algorithm,
    },
    /// An acquire, and whether a wait that closes a cycle is refused (E5: refuse on deadlock).
    Acquire {
        /// The request.
        acquire: Acquire,
        /// Whether the wait is refused if it closes a cycle.
        refuse_deadlock: bool,
    },
    /// A release, by namespace.
    Release {
        /// One release per namespace.
        parts: Vec<Command>,
        /// Removes the wait edge too (R98: Release and the wait edge).
        edge: Option<SystemCommand>,
    },
    /// A renewal that changes the length of a lease, or that has a key.
    Renew {
        /// One part per namespace.
        leases: Vec<RenewLease>,
        /// Makes it apply at most once (R102: keyed requests apply once).
        claim: Option<KeyClaim>,
    },
    /// Ends everything that an owner has (R100 ReleaseAll drops everything, R101 ForceRelease always
    /// notifies the victim).
    ReleaseAll {
        /// The owner.
        owner: OwnerId,
        /// The namespaces.
        selection: Selection,
        /// The initiator.
        cause: ReleaseCause,
        /// Whether the wait edge is removed too.
        edge: bool,
        /// Makes it apply at most once.
        claim: Option<KeyClaim>,
    },
    /// Ends leases whose beats have stopped.
    Expire(Vec<Expire>),
    /// Only advances the lease time.
    Tick,
    /// Asks an owner to release (R115: RequestRevoke sends an event).
    Ask {
        /// The owner.
        owner: OwnerId,
    },
    /// Ends one hold (E9: Break one hold).
    Break(BreakLock),
    /// Sets or deletes a row of the namespace table (R131–R138).
    Policy {
        /// The namespace.
        namespace: Namespace,
        /// The algorithm; `None` deletes the row.
        to: Option<Algorithm>,
        /// Makes it apply at most once.
        claim: Option<KeyClaim>,
    },
    /// A command of the machine that spans namespaces: wait edges, the counter.
    System(SystemCommand),
}

record_enum! { Call as "call of a shared log" {
    1(rules, prefix_segments, default) => Found { rules, prefix_segments, default },
    2(acquire, refuse_deadlock) => Acquire { acquire, refuse_deadlock },
    3(parts, edge) => Release { parts, edge },
    4(leases, claim) => Renew { leases, claim },
    5(owner, selection, cause, edge, claim) =>
        ReleaseAll { owner, selection, cause, edge, claim },
    6(leases) => Expire(leases),
    7 => Tick,
    8(owner) => Ask { owner },
    9(hold) => Break(hold),
    10(namespace, to, claim) => Policy { namespace, to, claim },
    11(command) => System(command),
} }

/// Why an entry or a snapshot cannot be applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnreadableEntry {
    /// It was written by a newer release.
    #[error(
        "the log has entries by rules {needed}, and this release knows rules up to {known}: \
         update tenure on this machine"
    )]
    Newer {
        /// The rules that it needs.
        needed: u32,
        /// The rules that this release knows.
        known: u32,
    },
    /// Its bytes are damaged, or no entry.
    #[error("the log cannot be read: {0}")]
    Damaged(#[from] DecodeError),
    /// The entries are not those that the log should have.
    #[error("the log is not complete: {0}")]
    Incomplete(&'static str),
}

impl LogEntry {
    /// Encodes an entry.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.byte(VERSION);
        // Before everything whose encoding depends on the rules.
        out.number(u64::from(self.rules));
        out.put(&self.id);
        out.number(self.stamp.time);
        out.number(self.stamp.wall);
        out.put(&self.call);
        out.into_bytes()
    }

    /// Decodes an entry.
    ///
    /// # Errors
    ///
    /// [`UnreadableEntry`] if a newer release has written it, or if the bytes are no entry.
    pub fn from_bytes(bytes: &[u8]) -> Result<LogEntry, UnreadableEntry> {
        let mut input = Reader::new(bytes);
        input.version(VERSION)?;
        let rules = input.small()?;
        knows(rules)?;
        Ok(LogEntry {
            rules,
            id: input.take()?,
            stamp: Stamp {
                time: input.number()?,
                wall: input.number()?,
            },
            call: input.last()?,
        })
    }
}

/// Refuses rules that this release does not know.
pub(crate) fn knows(rules: u32) -> Result<(), UnreadableEntry> {
    let known = tenure_core::space::RULES;
    match rules <= known {
        true => Ok(()),
        false => Err(UnreadableEntry::Newer {
            needed: rules,
            known,
        }),
    }
}

/// A beat row: the lease of an owner in a namespace, or its place in the queue there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseKey {
    /// The owner.
    pub owner: OwnerId,
    /// The namespace.
    pub namespace: Namespace,
}
