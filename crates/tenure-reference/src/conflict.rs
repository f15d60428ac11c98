//! Conflict rules of the model, one pair at a time: a hold and a request, or two requests.
//!
//! Written cell by cell from the matrix above R43 (conflicts between different algorithms) and from
//! E6 (shared lock on a subtree). Not optimized.

use tenure_core::command::Request;
use tenure_core::path::Path;
use tenure_core::policy::{Algorithm, Mode, Reason};

/// The position of one path relative to another.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PathRelation {
    Same,
    Above,
    Below,
    Apart,
}

fn place(of: &Path, seen_from: &Path) -> PathRelation {
    if of == seen_from {
        PathRelation::Same
    } else if of.is_ancestor_of(seen_from) {
        PathRelation::Above
    } else if seen_from.is_ancestor_of(of) {
        PathRelation::Below
    } else {
        PathRelation::Apart
    }
}

/// A held or requested access: path, mode, and the algorithm that applies to it: R42 (holds keep
/// their algorithm).
#[derive(Clone, Copy)]
pub struct WantedAccess<'a> {
    /// Its path.
    pub path: &'a Path,
    /// Its mode.
    pub mode: Mode,
    /// Its algorithm.
    pub algorithm: Algorithm,
}

impl WantedAccess<'_> {
    pub(super) fn of(request: &Request, algorithm: Algorithm) -> WantedAccess<'_> {
        WantedAccess {
            path: &request.path,
            mode: request.mode,
            algorithm,
        }
    }

    /// Whether this is a write that covers everything below its path.
    fn covers_below(self) -> bool {
        self.mode == Mode::Write && self.algorithm.is_recursive()
    }

    pub(super) fn is_permit(self) -> bool {
        self.mode == Mode::Write && self.algorithm == Algorithm::Semaphore
    }
}

/// Returns the cell of the matrix for another owner's hold. Whether a permit blocks a permit
/// depends on their number, which is not known here: `SemaphoreFull` means "if all permits are
/// taken".
pub fn blocks(hold: WantedAccess<'_>, request: WantedAccess<'_>) -> Option<Reason> {
    let reading = request.mode != Mode::Write;
    match (place(hold.path, request.path), hold.mode) {
        (PathRelation::Above, Mode::Write) if hold.covers_below() => Some(Reason::AncestorLocked),
        (PathRelation::Above, Mode::ReadTree) if !reading => Some(Reason::AncestorLocked),
        (PathRelation::Above, _) => None,
        (PathRelation::Same, Mode::Write) if hold.is_permit() && request.is_permit() => {
            Some(Reason::SemaphoreFull)
        }
        (PathRelation::Same, Mode::Write) => Some(Reason::WriteLocked),
        (PathRelation::Same, Mode::Read | Mode::ReadTree) if !reading => Some(Reason::ReadLocked),
        (PathRelation::Same, Mode::Read | Mode::ReadTree) => None,
        (PathRelation::Below, Mode::Write)
            if request.covers_below() || request.mode == Mode::ReadTree =>
        {
            Some(Reason::DescendantWriteLocked)
        }
        (PathRelation::Below, Mode::Read | Mode::ReadTree) if request.covers_below() => {
            Some(Reason::DescendantReadLocked)
        }
        (PathRelation::Below, _) | (PathRelation::Apart, _) => None,
    }
}

/// Whether two requests exclude each other, which determines the order of the queue: R44 (when two
/// requests exclude each other), E6.
pub fn exclude(a: WantedAccess<'_>, b: WantedAccess<'_>) -> bool {
    if !a.algorithm.allows(a.mode) || !b.algorithm.allows(b.mode) {
        return false;
    }
    let a_writes = a.mode == Mode::Write;
    let b_writes = b.mode == Mode::Write;
    match place(a.path, b.path) {
        PathRelation::Same => a_writes || b_writes,
        PathRelation::Above => a.covers_below() || (a.mode == Mode::ReadTree && b_writes),
        PathRelation::Below => b.covers_below() || (b.mode == Mode::ReadTree && a_writes),
        PathRelation::Apart => false,
    }
}

/// Whether an owner's own hold already covers the request: R79 (no overtaking).
pub(super) fn suffices(hold: WantedAccess<'_>, request: WantedAccess<'_>) -> bool {
    match (place(hold.path, request.path), hold.mode) {
        (PathRelation::Same, Mode::Write) => {
            request.mode != Mode::ReadTree || hold.algorithm.is_recursive()
        }
        (PathRelation::Same, Mode::Read) => request.mode == Mode::Read,
        (PathRelation::Above, Mode::Write) => hold.covers_below(),
        // E6: a shared lock on a subtree covers every read in it.
        (PathRelation::Same | PathRelation::Above, Mode::ReadTree) => request.mode != Mode::Write,
        (PathRelation::Above, Mode::Read) | (PathRelation::Below | PathRelation::Apart, _) => false,
    }
}

/// Returns the order in which reasons are checked for one path: R45 (order of conflict reasons).
pub(super) fn rank(reason: Reason) -> u8 {
    match reason {
        Reason::ReadLocksDisabled => 0,
        Reason::AncestorLocked => 1,
        Reason::InvalidPermits { .. } => 2,
        Reason::WriteLocked => 3,
        Reason::ReadLocked => 4,
        Reason::SemaphoreFull => 5,
        Reason::DescendantWriteLocked => 6,
        Reason::DescendantReadLocked => 7,
        Reason::StaleFence { .. } => 8,
        Reason::Queued => 9,
    }
}
