//! One call on its way into the log: a pure step machine.
//!
//! ```text
//!           ┌────────────── another entry has the place: apply it, next place ──────────────┐
//!           ▼                                                                               │
//!   Attempt::append ──▶ the engine ──Done──▶ apply it: the outcome                          │
//!           ▲               ├─Taken──▶ read ──▶ its own id? ──yes──▶ the outcome            │
//!           │               │                        └──no──────────────────────────────────┘
//!           └─ same entry ──┴─no answer──▶ read: is the place still free?
//! ```
//!
//! An entry is for one place. While it is not known who has that place, the attempt sends the same
//! entry again and no other: the first one may still arrive. Once another entry has the place, no
//! late copy can have an effect, so the call is written again for the next place. If a snapshot has
//! replaced the place before the attempt could read it, its fate stays unknown, and the caller has to
//! repeat the call under its idempotency key.

use crate::driver::{Append, Tail, Version};
use crate::entry::{Call, LeaseKey, LogEntry, UnreadableEntry};
use crate::replica::{CallOutcome, Done, LogCopy};
use tenure_core::value::Stamp;

/// A call, until its place in the log is known.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Attempt {
    id: u128,
    /// What was sent and may be in the log.
    sent: Option<Append>,
}

/// What an append does to beat rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rows {
    /// See [`Append::unchanged`].
    pub unchanged: Vec<(LeaseKey, Version)>,
    /// See [`Append::raise`].
    pub raise: Vec<LeaseKey>,
    /// See [`Append::remove`].
    pub remove: Vec<LeaseKey>,
}

/// What a part of the log did to a replica.
#[derive(Clone, Debug)]
pub struct Learned {
    /// Everything that was applied, in order.
    pub done: Vec<Done>,
    /// Whether the replica was replaced by a snapshot: what came before it is not in `done`.
    pub has_gap: bool,
    /// What is known of the attempt.
    pub fate: Fate,
}

/// What is known of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Its entry is not in the log. It can be sent again.
    Open,
    /// Its entry was applied.
    Applied(CallOutcome),
    /// Its place is in a part of the log that was removed. The entry may have been there, so the
    /// call must not be written again.
    Unknown,
}

impl Attempt {
    /// Begins a call. The id must be unique among all entries of the log.
    pub fn new(id: u128) -> Attempt {
        Attempt { id, sent: None }
    }

    /// Returns the entry to append behind the last entry of the replica. An entry whose fate is
    /// unknown is returned again as it is; `write` makes the call for a new place from the state at
    /// that place.
    pub fn append<E>(
        &mut self,
        replica: &LogCopy,
        stamp: Stamp,
        write: impl FnOnce(&LogCopy) -> Result<(Call, Rows), E>,
    ) -> Result<Append, E> {
        if let Some(sent) = &self.sent
            && sent.index > replica.index()
        {
            return Ok(sent.clone());
        }
        let (call, rows) = write(replica)?;
        let rules = match &call {
            Call::Found { rules, .. } => *rules,
            _ => replica.space().rules(),
        };
        let entry = LogEntry {
            rules,
            id: self.id,
            stamp,
            call,
        };
        let append = Append {
            index: replica.index() + 1,
            id: self.id,
            entry: entry.to_bytes(),
            unchanged: rows.unchanged,
            raise: rows.raise,
            remove: rows.remove,
        };
        self.sent = Some(append.clone());
        Ok(append)
    }

    /// Brings a replica up to the end of a part of the log, and recognizes the attempt's own entry in
    /// it.
    ///
    /// # Errors
    ///
    /// [`UnreadableEntry`] if an entry cannot be applied; those before it are applied.
    pub fn learn(&self, replica: &mut LogCopy, tail: &Tail) -> Result<Learned, UnreadableEntry> {
        let mut learned = Learned {
            done: Vec::new(),
            has_gap: false,
            fate: Fate::Open,
        };
        if let Some(snapshot) = &tail.snapshot {
            let restored = LogCopy::restore(snapshot)?;
            if restored.index() > replica.index() {
                *replica = restored;
                learned.has_gap = true;
                if !self.is_open_at(replica.index() + 1) {
                    learned.fate = Fate::Unknown;
                }
            }
        }
        for (index, bytes) in &tail.entries {
            if *index <= replica.index() {
                continue;
            }
            let entry = LogEntry::from_bytes(bytes)?;
            let done = replica.apply(*index, &entry)?;
            if entry.id == self.id {
                learned.fate = Fate::Applied(done.outcome.clone());
            }
            learned.done.push(done);
        }
        Ok(learned)
    }

    /// Whether nothing was sent for a place before this one.
    fn is_open_at(&self, place: u64) -> bool {
        let sent = self.sent.as_ref();
        sent.is_none_or(|sent| sent.index >= place)
    }
}
