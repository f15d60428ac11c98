//! Inspection of locks: holders, waiters, changes.
//!
//! The commands `why`, `ls`, `watch`, `ask` and `break` use these types.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::mpsc;

use crate::address::Address;
use crate::error::{Blocker, Error};
use crate::values::{Fence, Holder, Mode, millis};
use tenure_base::HumanDuration;

/// The state of one lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LockState {
    /// The address.
    pub place: Address,
    /// Whether an exclusive request would be granted now.
    pub free: bool,
    /// The holds that block an exclusive request.
    pub holders: Vec<Blocker>,
    /// The waiters in queue order; `None` if they are not known, because the backend has no queue or
    /// cannot list it.
    pub waiters: Option<Vec<QueuedWaiter>>,
    /// The permits of a semaphore, if the lock is one and is held.
    pub permits: Option<Permits>,
    /// The last assigned fence, if the backend stores it without a holder.
    pub fence: Option<Fence>,
    /// The conflict rule of the namespace, if the backend has namespaces.
    pub rule: Option<String>,
    /// Owners that wait for each other in a cycle.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deadlock: Vec<String>,
    /// Further notes for people.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// The lock's name is taken by a file that is no lock record, such as `Cargo.lock`. It blocks
    /// the lock, but it belongs to another program and must not be broken.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub not_a_record: bool,
}

/// The permits of a semaphore.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Permits {
    /// How many are held.
    pub held: u32,
    /// How many there are.
    pub of: u32,
}

impl LockState {
    /// Returns the waiters in queue order, as far as they are known.
    pub fn known_waiters(&self) -> &[QueuedWaiter] {
        self.waiters.as_deref().unwrap_or_default()
    }

    pub(crate) fn free(place: &Address) -> LockState {
        LockState {
            place: place.clone(),
            free: true,
            holders: Vec::new(),
            waiters: None,
            permits: None,
            fence: None,
            rule: None,
            deadlock: Vec::new(),
            notes: Vec::new(),
            not_a_record: false,
        }
    }
}

impl fmt::Display for LockState {
    /// Formats the state as `tenure why` prints it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.not_a_record {
            write!(f, "{} cannot be locked", self.place)?;
            return self
                .notes
                .iter()
                .try_for_each(|note| write!(f, "\n  {}", tenure_base::printable(note)));
        }
        match (self.free, self.holders.is_empty()) {
            (true, true) => write!(f, "{} is free", self.place)?,
            (true, false) => write!(f, "{} is free: its last holder is dead", self.place)?,
            (false, false) => write!(f, "{} is held", self.place)?,
            (false, true) => write!(f, "{} cannot be taken", self.place)?,
        }
        for holder in &self.holders {
            write!(f, "\n  {holder}")?;
            if holder.place != self.place {
                write!(f, ", at {}", holder.place)?;
            }
            if let Some(fence) = holder.fence {
                write!(f, ", fence {fence}")?;
            }
            if let Some(id) = &holder.id {
                write!(f, " [{id}]")?;
            }
        }
        for (number, waiter) in self.known_waiters().iter().enumerate() {
            write!(f, "\n  {}. in line: {waiter}", number + 1)?;
        }
        if !self.deadlock.is_empty() {
            write!(f, "\n  deadlock: {}", self.deadlock.join(" waits for "))?;
        }
        if let Some(rule) = &self.rule {
            write!(f, "\n  rule: {rule}")?;
        }
        for note in &self.notes {
            write!(f, "\n  {}", tenure_base::printable(note))?;
        }
        Ok(())
    }
}

/// A waiter in the queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct QueuedWaiter {
    /// The address that it waits for.
    pub place: Address,
    /// Its description, for people.
    pub holder: Holder,
    /// Its owner id.
    pub owner: String,
    /// The requested mode.
    pub mode: Mode,
    /// How long it has waited.
    #[serde(serialize_with = "millis", rename = "waited_ms")]
    pub waited: Option<Duration>,
}

impl fmt::Display for QueuedWaiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.holder == Holder::default() {
            true => f.write_str(&tenure_base::printable(&self.owner))?,
            false => self.holder.fmt(f)?,
        }
        write!(f, " ({})", self.mode)?;
        match self.waited {
            Some(waited) => write!(f, ", waiting for {}", HumanDuration(waited)),
            None => Ok(()),
        }
    }
}

/// Whether the lock of a live holder may be broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Force {
    /// Breaks only dead or stale holds.
    No,
    /// Breaks any hold that the request names.
    Yes,
}

/// The result of a break.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Broken {
    /// The broken holds, as far as they are known.
    pub victims: Vec<Blocker>,
    /// The newest fence of the lock, if the backend reports one: C16 (details of codes and break).
    /// On the daemon it is the largest fence of the broken holds.
    pub fence: Option<Fence>,
}

/// A change at or below a watched address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChangeEvent {
    /// What happened.
    pub kind: ChangeKind,
    /// The address of the lock.
    pub place: Address,
    /// The owner id of the hold or waiter.
    pub owner: String,
    /// Its description, for people.
    pub holder: Holder,
    /// Its mode.
    pub mode: Mode,
    /// Its fence.
    pub fence: Option<Fence>,
}

/// The kind of a [`ChangeEvent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChangeKind {
    /// The hold existed when the watch began.
    Present,
    /// End of the initial list of holds.
    PresentEnd,
    /// A hold began.
    Granted,
    /// A request was queued.
    Queued,
    /// A hold was released.
    Released,
    /// A lease expired.
    Expired,
    /// A hold was broken or ended by force.
    Killed,
    /// A waiter left the queue without a grant.
    Dequeued,
    /// A holder was asked to release.
    Asked,
    /// The policy of the namespace changed.
    Policy,
}

impl ChangeKind {
    /// Returns the name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            ChangeKind::Present => "present",
            ChangeKind::PresentEnd => "present-end",
            ChangeKind::Granted => "granted",
            ChangeKind::Queued => "queued",
            ChangeKind::Released => "released",
            ChangeKind::Expired => "expired",
            ChangeKind::Killed => "killed",
            ChangeKind::Dequeued => "dequeued",
            ChangeKind::Asked => "asked",
            ChangeKind::Policy => "policy",
        }
    }
}

impl ChangeEvent {
    /// Returns the event that ends the initial list.
    pub(crate) fn present_end(place: &Address) -> ChangeEvent {
        ChangeEvent {
            kind: ChangeKind::PresentEnd,
            place: place.clone(),
            owner: String::new(),
            holder: Holder::default(),
            mode: Mode::Exclusive,
            fence: None,
        }
    }

    /// Converts a hold into an event.
    #[cfg(feature = "files")]
    pub(crate) fn of(kind: ChangeKind, hold: &Blocker) -> ChangeEvent {
        ChangeEvent {
            kind,
            place: hold.place.clone(),
            owner: hold
                .id
                .as_ref()
                .map_or_else(String::new, |id| id.as_str().to_owned()),
            holder: hold.holder.clone(),
            mode: hold.mode,
            fence: hold.fence,
        }
    }
}

/// A stream of lock changes.
///
/// It begins with the present holds and ends when it is dropped. On the daemon it continues at another
/// node if its node fails; the changes of the time between are then reported as the difference of the
/// two states. After an error it ends: start a new watch then.
#[derive(Debug)]
pub struct WatchStream {
    changes: mpsc::UnboundedReceiver<Result<ChangeEvent, Error>>,
}

pub(crate) type ChangeStream = mpsc::UnboundedSender<Result<ChangeEvent, Error>>;

impl WatchStream {
    pub(crate) fn new() -> (ChangeStream, WatchStream) {
        let (sender, changes) = mpsc::unbounded_channel();
        (sender, WatchStream { changes })
    }

    /// Returns the next change, or `None` at the end of the stream.
    pub async fn next(&mut self) -> Option<Result<ChangeEvent, Error>> {
        self.changes.recv().await
    }
}
