//! Looking at locks without taking them: who holds, who waits, what changes. `why`, `ls`, `watch`, `ask` and
//! `break` are made of these.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::mpsc;

use crate::address::Address;
use crate::error::{Blocker, Error};
use crate::values::{Fence, Holder, Mode, millis, span};

/// What is known of one place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LockState {
    /// Which place.
    pub place: Address,
    /// Whether an exclusive request would be granted now.
    pub free: bool,
    /// Those whose holds are in the way of an exclusive request.
    pub holders: Vec<Blocker>,
    /// Those who wait, in order, where there is a line.
    pub waiters: Vec<QueuedWaiter>,
    /// The last fence given out, where it is known without a holder.
    pub fence: Option<Fence>,
    /// The rule in force, where a namespace decides it.
    pub rule: Option<String>,
    /// Owners that wait for each other in a circle.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deadlock: Vec<String>,
    /// What else a person should know.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl LockState {
    pub(crate) fn free(place: &Address) -> LockState {
        LockState {
            place: place.clone(),
            free: true,
            holders: Vec::new(),
            waiters: Vec::new(),
            fence: None,
            rule: None,
            deadlock: Vec::new(),
            notes: Vec::new(),
        }
    }
}

impl fmt::Display for LockState {
    /// In sentences, as `tenure why` prints it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
        for (number, waiter) in self.waiters.iter().enumerate() {
            write!(f, "\n  {}. in line: {waiter}", number + 1)?;
        }
        if !self.deadlock.is_empty() {
            write!(f, "\n  deadlock: {}", self.deadlock.join(" waits for "))?;
        }
        if let Some(rule) = &self.rule {
            write!(f, "\n  rule: {rule}")?;
        }
        for note in &self.notes {
            write!(f, "\n  {}", tenure_files::error::printable(note))?;
        }
        Ok(())
    }
}

/// One who waits in line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct QueuedWaiter {
    /// What it waits for.
    pub place: Address,
    /// Who it is, for people.
    pub holder: Holder,
    /// The id under which it would hold.
    pub owner: String,
    /// How it wants it.
    pub mode: Mode,
    /// How long it has waited.
    #[serde(serialize_with = "millis", rename = "waited_ms")]
    pub waited: Option<Duration>,
}

impl fmt::Display for QueuedWaiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.holder == Holder::default() {
            true => f.write_str(&tenure_files::error::printable(&self.owner))?,
            false => self.holder.fmt(f)?,
        }
        write!(f, " ({})", self.mode)?;
        match self.waited {
            Some(waited) => write!(f, ", waiting for {}", span(waited)),
            None => Ok(()),
        }
    }
}

/// Whether a live lock may be broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Force {
    /// Only what is dead or stale.
    No,
    /// Whatever stands there, as long as it is what was named.
    Yes,
}

/// What was broken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Broken {
    /// Whose hold it was, as far as is known.
    pub victims: Vec<Blocker>,
    /// The fence from which on the victim is shut out, where fences are in use (C16).
    pub fence: Option<Fence>,
}

/// Something that happened below a place that is watched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChangeEvent {
    /// What happened.
    pub kind: ChangeKind,
    /// To which lock.
    pub place: Address,
    /// Whose hold or place in line.
    pub owner: String,
    /// Who that is, for people.
    pub holder: Holder,
    /// In which mode.
    pub mode: Mode,
    /// At which fence.
    pub fence: Option<Fence>,
}

/// What happened to a hold or a place in line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChangeKind {
    /// Held when the watch began.
    Present,
    /// All that was there when the watch began has been told.
    PresentEnd,
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
    Policy,
}

impl ChangeKind {
    /// The word as JSON has it.
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
    /// The change that ends the list of what was there.
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

    /// A hold as a change.
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

/// A stream of changes. It begins with what is held, and ends when it is dropped, or with an error when nothing
/// more can be seen; watch again then.
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

    /// The next change; `None` when it is over.
    pub async fn next(&mut self) -> Option<Result<ChangeEvent, Error>> {
        self.changes.recv().await
    }

    /// The same, waiting on this thread.
    pub fn next_blocking(&mut self) -> Option<Result<ChangeEvent, Error>> {
        crate::runtime::block_on(self.next())
    }
}
