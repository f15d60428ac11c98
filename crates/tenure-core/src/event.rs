//! Events for owners (R119–R125, E12 event details) and changes for watchers (E8: Watch lock
//! changes).

use crate::path::{Namespace, Path};
use crate::policy::{Algorithm, Mode};
use crate::value::{Fence, Holder, OwnerId};

/// One event for one owner. The space that made it keeps it for 30 s of lease time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Counts the events of one group, without gaps: how a node notices that it missed some.
    pub sequence: u64,
    /// Unique and increasing per owner, below 2^53 (R121: event ids): the next of the group's
    /// [`EventIdStride`] from the wall hint in milliseconds × 1024 on, above the last.
    pub id: u64,
    /// Who is told.
    pub owner: OwnerId,
    /// Where it happened; `None` for what concerns the owner everywhere.
    pub namespace: Option<Namespace>,
    /// What happened.
    pub kind: EventKind,
}

/// Which ids a group gives its events (R121): those with its own rest when divided by the number of
/// groups, so that no two groups of a cluster ever give the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventIdStride {
    rest: u64,
    groups: u64,
}

impl EventIdStride {
    /// The lane of a group that is alone.
    pub const ONLY: EventIdStride = EventIdStride { rest: 0, groups: 1 };

    /// The lane of the group of this number among so many.
    pub fn new(group: u32, groups: u32) -> EventIdStride {
        let groups = u64::from(groups.max(1));
        EventIdStride {
            rest: u64::from(group) % groups,
            groups,
        }
    }

    /// The first id of this lane that is not below `floor`.
    pub(crate) fn from(self, floor: u64) -> u64 {
        floor + (self.rest + self.groups - floor % self.groups) % self.groups
    }
}

/// What an owner is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EventKind {
    /// What it waited for is now its own (R89: GRANT means held now).
    Grant {
        /// At which fence (E12).
        fence: Option<Fence>,
    },
    /// A hold or a place in line was taken away (R120: sources of events).
    Killed,
    /// Somebody asks it to let go (R115: RequestRevoke sends an event).
    Revoke,
}

/// One change of the tree, in commit order per namespace (E8).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockChange {
    /// Where.
    pub namespace: Namespace,
    /// What happened.
    pub kind: ChangeKind,
    /// Whose hold or place; `None` for a policy change.
    pub owner: Option<OwnerId>,
    /// Which path; `None` for a policy change.
    pub path: Option<Path>,
    /// In which mode.
    pub mode: Option<Mode>,
    /// At which fence, for writes.
    pub fence: Option<Fence>,
    /// Who it is, for people.
    pub holder: Option<Holder>,
}

/// What happened to a hold or a place in line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChangeKind {
    /// Held now.
    Granted,
    /// Waits now.
    Queued,
    /// Given back.
    Released,
    /// The lease ran out.
    Expired,
    /// Taken away.
    Killed,
    /// Left the line without a grant.
    Dequeued,
    /// Asked to let go.
    Asked,
    /// The namespace has another policy.
    Policy {
        /// Its algorithm from now on.
        algorithm: Algorithm,
    },
}
