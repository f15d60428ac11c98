//! Events for owners (R119–R125, E12 event details) and changes for watchers (E8: Watch lock
//! changes).

use crate::path::{Namespace, Path};
use crate::policy::{Algorithm, Mode};
use crate::value::{Fence, Holder, OwnerId};

/// One event for one owner. The space that made it keeps it for 30 s of lease time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Sequence number in the group, without gaps, so that a node notices missed events.
    pub sequence: u64,
    /// Unique and increasing per owner, below 2^53 (R121: event ids): the next of the group's
    /// [`EventIdStride`] from the wall hint in milliseconds × 1024 on, above the last.
    pub id: u64,
    /// The recipient.
    pub owner: OwnerId,
    /// The namespace concerned; `None` if the event concerns the owner in all namespaces.
    pub namespace: Option<Namespace>,
    /// What happened.
    pub kind: EventKind,
}

/// The event ids of one group (R121): all ids congruent to the group's number modulo the number of
/// groups. So two groups of a cluster never issue the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventIdStride {
    rest: u64,
    groups: u64,
}

impl EventIdStride {
    /// The stride of a single group.
    pub const ONLY: EventIdStride = EventIdStride { rest: 0, groups: 1 };

    /// Creates the stride of group number `group` out of `groups`.
    pub fn new(group: u32, groups: u32) -> EventIdStride {
        let groups = u64::from(groups.max(1));
        EventIdStride {
            rest: u64::from(group) % groups,
            groups,
        }
    }

    /// Returns the smallest id of this stride that is not below `floor`.
    pub(crate) fn from(self, floor: u64) -> u64 {
        floor + (self.rest + self.groups - floor % self.groups) % self.groups
    }
}

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EventKind {
    /// A queued acquire of the owner was granted (R89: GRANT means held now).
    Grant {
        /// The fence of the grant (E12).
        fence: Option<Fence>,
    },
    /// A hold or a queued acquire was ended by another party (R120: sources of events).
    Killed,
    /// Another client asks the owner to release (R115: RequestRevoke sends an event).
    Revoke,
}

/// One change of a hold, a waiter or a policy, in commit order per namespace (E8).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockChange {
    /// The namespace.
    pub namespace: Namespace,
    /// What happened.
    pub kind: ChangeKind,
    /// The owner of the hold or waiter; `None` for a policy change.
    pub owner: Option<OwnerId>,
    /// The path; `None` for a policy change.
    pub path: Option<Path>,
    /// The mode of the hold or request.
    pub mode: Option<Mode>,
    /// The fence, for writes.
    pub fence: Option<Fence>,
    /// The owner's description for people.
    pub holder: Option<Holder>,
}

/// The kind of a lock change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChangeKind {
    /// The path was granted.
    Granted,
    /// A waiter was queued.
    Queued,
    /// The owner released the hold.
    Released,
    /// The lease expired.
    Expired,
    /// The hold was ended by another party.
    Killed,
    /// A waiter left the queue without a grant.
    Dequeued,
    /// The holder was asked to release.
    Asked,
    /// The policy of the namespace changed.
    Policy {
        /// The new algorithm.
        algorithm: Algorithm,
    },
}
