//! The conflict rules of the twin, one pair at a time: a hold and a request, two requests.
//!
//! Written cell by cell from the matrix above R43 and from E6, without any idea of being fast.

use crate::command::Request;
use crate::path::Path;
use crate::policy::{Algorithm, Mode, Reason};

/// Where one path lies, seen from another.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Same,
    Above,
    Below,
    Apart,
}

fn place(of: &Path, seen_from: &Path) -> Place {
    if of == seen_from {
        Place::Same
    } else if of.is_ancestor_of(seen_from) {
        Place::Above
    } else if seen_from.is_ancestor_of(of) {
        Place::Below
    } else {
        Place::Apart
    }
}

/// What is held or wanted: a path, a mode, and the algorithm it goes by (R42).
#[derive(Clone, Copy)]
pub(super) struct Want<'a> {
    pub(super) path: &'a Path,
    pub(super) mode: Mode,
    pub(super) algorithm: Algorithm,
}

impl Want<'_> {
    pub(super) fn of(request: &Request, algorithm: Algorithm) -> Want<'_> {
        Want {
            path: &request.path,
            mode: request.mode,
            algorithm,
        }
    }

    /// A write that covers what lies below its path.
    fn covers_below(self) -> bool {
        self.mode == Mode::Write && self.algorithm.is_recursive()
    }

    pub(super) fn is_permit(self) -> bool {
        self.mode == Mode::Write && self.algorithm == Algorithm::Semaphore
    }
}

/// The cell of the matrix for another owner's hold. A permit against a permit depends on how many
/// there are and is not decided here; the answer `SemaphoreFull` means "if they are all taken".
pub(super) fn blocks(hold: Want<'_>, request: Want<'_>) -> Option<Reason> {
    let reading = request.mode != Mode::Write;
    match (place(hold.path, request.path), hold.mode) {
        (Place::Above, Mode::Write) if hold.covers_below() => Some(Reason::AncestorLocked),
        (Place::Above, Mode::ReadTree) if !reading => Some(Reason::AncestorLocked),
        (Place::Above, _) => None,
        (Place::Same, Mode::Write) if hold.is_permit() && request.is_permit() => {
            Some(Reason::SemaphoreFull)
        }
        (Place::Same, Mode::Write) => Some(Reason::WriteLocked),
        (Place::Same, Mode::Read | Mode::ReadTree) if !reading => Some(Reason::ReadLocked),
        (Place::Same, Mode::Read | Mode::ReadTree) => None,
        (Place::Below, Mode::Write) if request.covers_below() || request.mode == Mode::ReadTree => {
            Some(Reason::DescendantWriteLocked)
        }
        (Place::Below, Mode::Read | Mode::ReadTree) if request.covers_below() => {
            Some(Reason::DescendantReadLocked)
        }
        (Place::Below, _) | (Place::Apart, _) => None,
    }
}

/// R44 and E6: whether two requests exclude each other, which is what orders the queue.
pub(super) fn exclude(a: Want<'_>, b: Want<'_>) -> bool {
    if !a.algorithm.allows(a.mode) || !b.algorithm.allows(b.mode) {
        return false;
    }
    let a_writes = a.mode == Mode::Write;
    let b_writes = b.mode == Mode::Write;
    match place(a.path, b.path) {
        Place::Same => a_writes || b_writes,
        Place::Above => a.covers_below() || (a.mode == Mode::ReadTree && b_writes),
        Place::Below => b.covers_below() || (b.mode == Mode::ReadTree && a_writes),
        Place::Apart => false,
    }
}

/// R79: whether an owner's own hold is enough for the request already.
pub(super) fn suffices(hold: Want<'_>, request: Want<'_>) -> bool {
    match (place(hold.path, request.path), hold.mode) {
        (Place::Same, Mode::Write) => {
            request.mode != Mode::ReadTree || hold.algorithm.is_recursive()
        }
        (Place::Same, Mode::Read) => request.mode == Mode::Read,
        (Place::Above, Mode::Write) => hold.covers_below(),
        // E6: a tree that is read covers every read in it.
        (Place::Same | Place::Above, Mode::ReadTree) => request.mode != Mode::Write,
        (Place::Above, Mode::Read) | (Place::Below | Place::Apart, _) => false,
    }
}

/// R45: the order in which reasons are looked for on one path.
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
