//! Staleness: may this object be passed over, or does somebody hold it? (P15, P20–P24)
//!
//! ```text
//! no date ─────────────────▶ held (P15)        expired ──▶ within the skew ──▶ held (P21)
//! date still to come ──────▶ held (P20)            └─────▶ any evidence ─────▶ stale (P22)
//! unreadable: by age only ─▶ held, then stale      └─────▶ none ─────────────▶ held (P23)
//! ```
//!
//! A foreign wall clock alone never frees a lock. Evidence is the age by the store's own clock, an
//! observation of ours on `CLOCK_BOOTTIME`, or the proven death of the holder.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use crate::key::ObjectKey;
use crate::record::{DEFAULT_TTL, LockRecord};
use crate::time::{BootTime, HumanDuration, Now, span};

/// An object as one answer of the store showed it, decoded.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Object {
    /// What is in it.
    pub content: ObjectContent,
    /// Which version of the object this is.
    pub version: Version,
    /// When it was written, by the store's clock.
    pub modified: Option<Timestamp>,
    /// The store's clock in the same answer (K45).
    pub store_now: Option<Timestamp>,
    /// What the machine we run on can say about the holder (K10–K14).
    pub liveness: ProcessLiveness,
}

/// The inside of an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ObjectContent {
    /// A lock record.
    Record(LockRecord),
    /// The fencing counter.
    Fence(u64),
    /// Something that is there and cannot be read (P24).
    Unreadable {
        /// Why not.
        why: Unreadable,
        /// How many bytes are stored.
        bytes: u64,
    },
}

/// Why an object cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Unreadable {
    /// Sealed, and no key was given (P11).
    #[error("sealed, and no data key was given")]
    Opaque,
    /// Sealed, and the key does not open it (P11).
    #[error("sealed with another key, or damaged")]
    WrongKey,
    /// Over 64 KiB stored or unpacked (P13).
    #[error("larger than a lock record can be")]
    TooLarge,
    /// It does not parse.
    #[error("not a lock record: {0}")]
    Damaged(String),
}

/// What a store calls this state of an object: compared for equality, never for order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Version {
    /// Entity tag.
    pub e_tag: Option<String>,
    /// Generation or version id, where the store has them.
    pub generation: Option<String>,
}

impl Version {
    /// A version that consists of an entity tag.
    pub fn tag(e_tag: impl Into<String>) -> Version {
        Version {
            e_tag: Some(e_tag.into()),
            generation: None,
        }
    }

    /// Whether two objects with this version are known to be the same.
    fn says_something(&self) -> bool {
        self.e_tag.is_some() || self.generation.is_some()
    }
}

/// What is known about the holder's process (section 3 of the common rules).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProcessLiveness {
    /// Nothing: another machine, another namespace, or no block.
    Unknown,
    /// The process runs. Its lease may have ended all the same.
    Alive,
    /// The kernel holds the lock file for it (K10): it cannot be taken from it, paused or not.
    Locked,
    /// The process is gone (K10–K13).
    Dead,
}

/// What an object means for somebody who wants the lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Staleness {
    /// Somebody has it, or may have it.
    Held(HeldReason),
    /// It is there, cannot be read, and is not old enough to be passed over (P24).
    Unreadable(Unreadable),
    /// Nobody has it any more.
    Stale(Evidence),
    /// Not a lock at all: a half-written file of an original (P24).
    Scratch,
}

impl Staleness {
    /// Whether the object stands in the way.
    pub fn blocks(&self) -> bool {
        match self {
            Staleness::Held(_) | Staleness::Unreadable(_) => true,
            Staleness::Stale(_) | Staleness::Scratch => false,
        }
    }
}

/// Why an object counts as held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HeldReason {
    /// Its date is still to come (P20).
    InForce,
    /// Its date is more than ten `ttl` ahead: held, but suspicious (P20).
    FarAhead,
    /// It has no readable date (P15): held until somebody breaks it.
    NoDate,
    /// Expired, but by less than two clocks may differ (P21).
    WithinSkew,
    /// Expired, but written a moment ago: a live holder with a wrong clock (P23).
    YoungByStore,
    /// Expired, and nothing proves yet that nobody refreshes it (P22).
    Unproven,
    /// Expired, but its process is there and has the kernel's lock on it (K24).
    Locked,
}

/// Why an expired object counts as stale (P22).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Evidence {
    /// So old by the store's clock.
    Age(Duration),
    /// Watched by this process for so long without a change.
    Watched(Duration),
    /// Its process is gone.
    Dead,
}

impl std::fmt::Display for Staleness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Staleness::Held(HeldReason::InForce) => f.write_str("held: its lease has not run out"),
            Staleness::Held(HeldReason::FarAhead) => {
                f.write_str("held: its date is suspiciously far ahead, break it if nobody runs")
            }
            Staleness::Held(HeldReason::NoDate) => {
                f.write_str("held: it has no readable date, so it ends only by release or break")
            }
            Staleness::Held(HeldReason::WithinSkew) => {
                f.write_str("held: expired, but within the allowance for clocks that differ")
            }
            Staleness::Held(HeldReason::YoungByStore) => {
                f.write_str("held: expired by its date, but refreshed; its holder's clock is slow")
            }
            Staleness::Held(HeldReason::Unproven) => {
                f.write_str("held: expired, but nothing proves yet that nobody refreshes it")
            }
            Staleness::Held(HeldReason::Locked) => {
                f.write_str("held: expired, but its process is there and keeps it locked")
            }
            Staleness::Unreadable(why) => write!(f, "held while young: {why}"),
            Staleness::Stale(Evidence::Age(age)) => {
                write!(
                    f,
                    "stale: expired, and untouched for {} by the store's clock",
                    HumanDuration(*age)
                )
            }
            Staleness::Stale(Evidence::Watched(span)) => {
                write!(
                    f,
                    "stale: expired, and watched unchanged for {}",
                    HumanDuration(*span)
                )
            }
            Staleness::Stale(Evidence::Dead) => {
                f.write_str("stale: expired, and its process is gone")
            }
            Staleness::Scratch => f.write_str("no lock: a half-written file"),
        }
    }
}

/// What this process has seen, and since when unchanged (P22 b).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Observations(BTreeMap<ObjectKey, (Version, BootTime)>);

impl Observations {
    /// Notes one more look at `key`, and says for how long it has not changed: from the answer
    /// that showed it first until the question that showed it last. What happened before the one
    /// was read or after the other was asked, nobody watched.
    pub fn note(
        &mut self,
        key: &ObjectKey,
        version: &Version,
        asked: BootTime,
        answered: BootTime,
    ) -> Duration {
        if !version.says_something() {
            return Duration::ZERO;
        }
        match self.0.get(key) {
            Some((seen, since)) if seen == version => asked.since(*since),
            Some(_) | None => {
                self.0.insert(key.clone(), (version.clone(), answered));
                Duration::ZERO
            }
        }
    }

    /// Notes which shared locks are there; the others are gone.
    pub fn keep_shared(&mut self, listed: &[ObjectKey]) {
        self.0
            .retain(|key, _| *key == ObjectKey::Exclusive || listed.contains(key));
    }

    /// Notes that `key` is gone: what comes back under its name is something else.
    pub fn forget(&mut self, key: &ObjectKey) {
        self.0.remove(key);
    }
}

impl Object {
    /// Age by the store's clock. Where the store shows no clock, by ours, with the allowance taken
    /// off (K45).
    pub fn age(&self, now: Now, skew: Duration) -> Option<Duration> {
        let modified = self.modified?;
        Some(match self.store_now {
            Some(store_now) => span(modified, store_now),
            None => span(modified, now.wall).saturating_sub(skew),
        })
    }

    /// The record, if it is one.
    pub fn record(&self) -> Option<&LockRecord> {
        match &self.content {
            ObjectContent::Record(record) => Some(record),
            ObjectContent::Fence(_) | ObjectContent::Unreadable { .. } => None,
        }
    }
}

/// Judges `object` at `key`, after it was `watched` unchanged for so long. `now` is when it was
/// asked for.
pub fn judge(
    key: &ObjectKey,
    object: &Object,
    watched: Duration,
    now: Now,
    skew: Duration,
) -> Staleness {
    let age = object.age(now, skew);
    match &object.content {
        ObjectContent::Record(record) => {
            judge_record(record, object.liveness, age, watched, now, skew)
        }
        // A counter where a lock should be is as unreadable as any other text.
        ObjectContent::Fence(_) => judge_unreadable(
            key,
            &Unreadable::Damaged("a fencing counter".into()),
            object.liveness,
            age,
            watched,
        ),
        ObjectContent::Unreadable { why, .. } => {
            judge_unreadable(key, why, object.liveness, age, watched)
        }
    }
}

fn judge_record(
    record: &LockRecord,
    liveness: ProcessLiveness,
    age: Option<Duration>,
    watched: Duration,
    now: Now,
    skew: Duration,
) -> Staleness {
    let ttl = record.ttl();
    let Some(expires) = record.expires() else {
        return Staleness::Held(HeldReason::NoDate);
    };
    if expires > now.wall {
        let ahead = span(now.wall, expires);
        return Staleness::Held(if ahead > ttl * 10 {
            HeldReason::FarAhead
        } else {
            HeldReason::InForce
        });
    }
    if span(expires, now.wall) < skew {
        return Staleness::Held(HeldReason::WithinSkew);
    }
    if liveness == ProcessLiveness::Locked {
        return Staleness::Held(HeldReason::Locked);
    }
    if liveness == ProcessLiveness::Dead {
        return Staleness::Stale(Evidence::Dead);
    }
    match age {
        Some(age) if age >= ttl => Staleness::Stale(Evidence::Age(age)),
        Some(_) | None if watched >= ttl => Staleness::Stale(Evidence::Watched(watched)),
        Some(_) => Staleness::Held(HeldReason::YoungByStore),
        None => Staleness::Held(HeldReason::Unproven),
    }
}

fn judge_unreadable(
    key: &ObjectKey,
    why: &Unreadable,
    liveness: ProcessLiveness,
    age: Option<Duration>,
    watched: Duration,
) -> Staleness {
    let limit = DEFAULT_TTL * 2;
    if key.is_scratch() && matches!(why, Unreadable::Damaged(_)) {
        return Staleness::Scratch;
    }
    if liveness == ProcessLiveness::Locked {
        return Staleness::Unreadable(why.clone());
    }
    match age {
        Some(age) if age >= limit => Staleness::Stale(Evidence::Age(age)),
        Some(_) | None if watched >= limit => Staleness::Stale(Evidence::Watched(watched)),
        Some(_) | None => Staleness::Unreadable(why.clone()),
    }
}
