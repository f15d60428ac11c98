//! Algorithms, lock modes and conflict reasons (R40–R48).

use core::num::NonZeroU32;

use crate::value::Fence;

/// How a namespace decides conflicts. Each variant is a row of the table above R40.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Algorithm {
    /// Reads are shared; a write covers its path and everything below.
    RecursiveRw,
    /// Reads are shared; a write concerns its exact path.
    PointRw,
    /// No reads; a write covers its path and everything below.
    RecursiveWrite,
    /// No reads; a write concerns its exact path.
    PointWrite,
    /// No reads; up to N owners hold a permit of the exact path.
    Semaphore,
}

impl Algorithm {
    /// All of them, in wire order.
    pub const ALL: [Algorithm; 5] = [
        Algorithm::RecursiveRw,
        Algorithm::PointRw,
        Algorithm::RecursiveWrite,
        Algorithm::PointWrite,
        Algorithm::Semaphore,
    ];

    /// Whether a write under it covers what lies below its path.
    pub fn is_recursive(self) -> bool {
        matches!(self, Algorithm::RecursiveRw | Algorithm::RecursiveWrite)
    }

    /// Whether it knows this mode at all; otherwise the answer is `ReadLocksDisabled`.
    pub fn allows(self, mode: Mode) -> bool {
        match mode {
            Mode::Write => true,
            Mode::Read => matches!(self, Algorithm::RecursiveRw | Algorithm::PointRw),
            // E6: a shared lock on a subtree makes sense only where writes cover subtrees.
            Mode::ReadTree => self == Algorithm::RecursiveRw,
        }
    }
}

/// Lock mode. A semaphore permit is requested as a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// Exclusive.
    Write,
    /// Shared, the exact path only (R40).
    Read,
    /// Shared, the path and everything below it (E6).
    ReadTree,
}

impl Mode {
    /// All of them, in wire order.
    pub const ALL: [Mode; 3] = [Mode::Write, Mode::Read, Mode::ReadTree];
}

/// Why an acquire is not granted; the variants match the wire protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Another owner's covering write (or read of a tree, for a write) on an ancestor.
    AncestorLocked,
    /// Another owner's write or permit on the path.
    WriteLocked,
    /// Another owner's read on the path.
    ReadLocked,
    /// Another owner's write or permit below the path.
    DescendantWriteLocked,
    /// Another owner's read below the path.
    DescendantReadLocked,
    /// All permits of the path are taken.
    SemaphoreFull,
    /// An earlier waiter blocks the request (R79: no overtaking).
    Queued,
    /// The namespace's algorithm does not support this mode.
    ReadLocksDisabled,
    /// The supplied fence is not above the stored one; `current` is the stored one, or the floor
    /// (R68 caller-supplied tokens, R72 token retention and floors).
    StaleFence {
        /// The stored fence or the floor.
        current: Fence,
    },
    /// The request has no permits, or a number other than the path's capacity (R50 semaphores need
    /// permits, R51 the first acquire fixes capacity).
    InvalidPermits {
        /// The path's capacity; `None` if the request has no permits.
        capacity: Option<NonZeroU32>,
    },
}

impl Reason {
    /// Returns whether waiting can resolve the conflict. Other reasons are reported at once and
    /// never queued.
    pub fn is_waitable(self) -> bool {
        match self {
            Reason::AncestorLocked
            | Reason::WriteLocked
            | Reason::ReadLocked
            | Reason::DescendantWriteLocked
            | Reason::DescendantReadLocked
            | Reason::SemaphoreFull
            | Reason::Queued => true,
            Reason::ReadLocksDisabled
            | Reason::StaleFence { .. }
            | Reason::InvalidPermits { .. } => false,
        }
    }
}

/// A reason that names a blocker, as a client may repeat it in `IsBlocking` and `SetWaitEdge`
/// (R110: reasons that can block).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BlockReason {
    /// See [`Reason::AncestorLocked`].
    AncestorLocked,
    /// See [`Reason::WriteLocked`].
    WriteLocked,
    /// See [`Reason::ReadLocked`].
    ReadLocked,
    /// See [`Reason::DescendantWriteLocked`].
    DescendantWriteLocked,
    /// See [`Reason::DescendantReadLocked`].
    DescendantReadLocked,
    /// See [`Reason::SemaphoreFull`].
    SemaphoreFull,
    /// See [`Reason::Queued`].
    Queued,
}

/// What an owner expected to hold and does not (R55 HELD needs a live lease, R56 HELD checks per
/// mode, R90 Renew with domains, R105 replays report present truth).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Missing {
    /// No live lease in the namespace.
    Alive,
    /// No write on exactly that path.
    Write,
    /// No read on exactly that path.
    Read,
    /// No permit on that path.
    Semaphore,
    /// No fence is stored for the path, or (a replay, R105) it has moved on.
    Fence,
    /// A lease without any hold (renewal only).
    OwnerSet,
}
