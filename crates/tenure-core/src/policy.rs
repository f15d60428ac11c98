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
    pub const fn is_recursive(self) -> bool {
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

/// A lock that is held, waited for or wanted: its mode, and the algorithm that applies to it (R42:
/// holds keep their algorithm).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Its mode.
    pub mode: Mode,
    /// Its algorithm.
    pub algorithm: Algorithm,
}

impl Access {
    /// Whether it is a write that covers everything below its path.
    pub const fn covers_below(self) -> bool {
        matches!(self.mode, Mode::Write) && self.algorithm.is_recursive()
    }

    /// Whether it is a semaphore permit.
    pub const fn is_permit(self) -> bool {
        matches!(self.mode, Mode::Write) && matches!(self.algorithm, Algorithm::Semaphore)
    }
}

/// The position of a held path, seen from the wanted one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// An ancestor of it.
    Above,
    /// The path itself.
    Same,
    /// A descendant of it.
    Below,
}

/// The conflict rule: why a wanted lock cannot be granted while another owner holds this one (the
/// matrix above R43 (conflicts between different algorithms), E6 (shared lock on a subtree)).
///
/// The check, the list of blockers and the queue walk the tree and ask this function. In the queue
/// it is the relation of R44 (when two requests exclude each other): `held` is then what a waiter
/// wants.
///
/// `SemaphoreFull` between two permits means "if all permits are taken", which the caller counts; two
/// waiters for permits always exclude each other (R44).
#[inline]
pub const fn excludes(wanted: Access, held: Access, position: Position) -> Option<Reason> {
    let writes = matches!(wanted.mode, Mode::Write);
    match (position, held.mode) {
        (Position::Above, Mode::Write) if held.covers_below() => Some(Reason::AncestorLocked),
        (Position::Above, Mode::ReadTree) if writes => Some(Reason::AncestorLocked),
        (Position::Same, Mode::Write) if held.is_permit() && wanted.is_permit() => {
            Some(Reason::SemaphoreFull)
        }
        (Position::Same, Mode::Write) => Some(Reason::WriteLocked),
        (Position::Same, Mode::Read | Mode::ReadTree) if writes => Some(Reason::ReadLocked),
        (Position::Below, Mode::Write)
            if wanted.covers_below() || matches!(wanted.mode, Mode::ReadTree) =>
        {
            Some(Reason::DescendantWriteLocked)
        }
        (Position::Below, Mode::Read | Mode::ReadTree) if wanted.covers_below() => {
            Some(Reason::DescendantReadLocked)
        }
        _ => None,
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
