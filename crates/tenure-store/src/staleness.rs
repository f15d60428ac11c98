//! Staleness: decides whether a lock object is held or may be removed (P15 (expired records),
//! P20–P24).
//!
//! ```text
//! no date ────────────▶ held (P15)             expired ──▶ within the skew ──▶ held (P21)
//! date in the future ─▶ held (P20)                 └─────▶ any evidence ─────▶ stale (P22)
//! unreadable ─▶ held, until age or observation     └─────▶ none ─────────────▶ held (P23)
//! ```
//!
//! The wall clock of another machine alone never frees a lock. Evidence is one of: the age by the
//! store's own clock, an observation of this process on `CLOCK_BOOTTIME`, or the proven death of
//! the holder. None counts while a live process keeps `flock` on the record.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use crate::key::ObjectKey;
use crate::record::{DEFAULT_TTL, LockRecord};
use crate::time::{BootTime, Now, span};
use tenure_files::internal::HumanDuration;

/// A decoded object as one response of the store showed it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Object {
    /// The decoded content.
    pub content: ObjectContent,
    /// The version of the object.
    pub version: Version,
    /// The time of its last write, by the store's clock.
    pub modified: Option<Timestamp>,
    /// The store's clock in the same response (K45 (age of files and objects)).
    pub store_now: Option<Timestamp>,
    /// What this machine knows about the process of the holder (K10–K14).
    pub liveness: ProcessLiveness,
}

/// The content of an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ObjectContent {
    /// A lock record.
    Record(LockRecord),
    /// The fencing counter.
    Fence(u64),
    /// Bytes that cannot be read (P24 (unparsable repository records)).
    Unreadable {
        /// The reason.
        why: Unreadable,
        /// The stored size in bytes.
        bytes: u64,
    },
}

/// The reason why an object cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Unreadable {
    /// Sealed, and no key was given (P11 (compression and encryption layers)).
    #[error("sealed, and no data key was given")]
    Opaque,
    /// Sealed, and the key does not open it (P11).
    #[error("sealed with another key, or damaged")]
    WrongKey,
    /// Sealed for another key: it was moved or copied here, or, if sealing is required, it does not
    /// name its key (P11).
    #[error("sealed for another name, or without one")]
    Moved,
    /// Not sealed, and sealing is required (`--require-sealed`).
    #[error("not sealed, and sealed records are required")]
    NotSealed,
    /// Larger than 64 KiB, stored or decompressed (P13 (repository record size limit)).
    #[error("larger than a lock record can be")]
    TooLarge,
    /// Not a valid record.
    #[error("not a lock record: {0}")]
    Damaged(String),
}

/// The store's version of an object. Compared for equality only; the order has no meaning.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Version {
    /// The entity tag.
    pub e_tag: Option<String>,
    /// The generation or version id, if the store has one.
    pub generation: Option<String>,
}

impl Version {
    /// Creates a version that consists of an entity tag.
    pub fn tag(e_tag: impl Into<String>) -> Version {
        Version {
            e_tag: Some(e_tag.into()),
            generation: None,
        }
    }

    /// Returns `true` if equal versions prove that an object has not changed.
    fn says_something(&self) -> bool {
        self.e_tag.is_some() || self.generation.is_some()
    }
}

/// What is known about the process of the holder (section 3 of the common rules).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProcessLiveness {
    /// Nothing: another machine, another PID namespace, or no block.
    Unknown,
    /// The process runs. Its lease may have expired nevertheless.
    Alive,
    /// The process runs and keeps `flock` on the record (K10 (prove life by flock)): the record
    /// cannot be removed, even if the process is paused.
    Locked,
    /// The process is dead (K10–K13).
    Dead,
}

/// The verdict on a lock object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Staleness {
    /// The object is held, or may be held.
    Held(HeldReason),
    /// The object cannot be read and is not old enough to be removed (P24).
    Unreadable(Unreadable),
    /// The object is not held any more.
    Stale(Evidence),
    /// The object is not a lock but a half-written file of an original (P24).
    Scratch,
}

impl Staleness {
    /// Returns `true` if the object blocks a conflicting request.
    pub fn blocks(&self) -> bool {
        match self {
            Staleness::Held(_) | Staleness::Unreadable(_) => true,
            Staleness::Stale(_) | Staleness::Scratch => false,
        }
    }
}

/// The reason why an object counts as held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HeldReason {
    /// It expires in the future (P20 (unexpired is not stale)).
    InForce,
    /// It expires more than ten ttl in the future: held, but suspicious (P20).
    FarAhead,
    /// It has no readable date: held until a user breaks it (P15 (expired records)).
    NoDate,
    /// Expired, but by less than two clocks may differ (P21 (clock skew allowance)).
    WithinSkew,
    /// Expired, but written recently: a live holder with a wrong clock (P23 (live holder, wrong
    /// clock)).
    YoungByStore,
    /// Expired, but there is no evidence yet that refreshes have stopped (P22 (evidence of
    /// staleness)).
    Unproven,
    /// Expired, but its process runs and keeps `flock` on it (K24 (lock before removal)).
    Locked,
}

/// The evidence that an expired object is stale (P22).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Evidence {
    /// It was not written for this long, by the store's clock.
    Age(Duration),
    /// This process has observed it unchanged for this long.
    Watched(Duration),
    /// Its process is dead.
    Dead,
}

impl std::fmt::Display for Staleness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Staleness::Held(HeldReason::InForce) => f.write_str("held: its lease has not expired"),
            Staleness::Held(HeldReason::FarAhead) => f.write_str(
                "held: its date is far in the future; break it if its holder does not run",
            ),
            Staleness::Held(HeldReason::NoDate) => {
                f.write_str("held: it has no readable date, so it ends only by release or break")
            }
            Staleness::Held(HeldReason::WithinSkew) => {
                f.write_str("held: expired, but within the allowance for clocks that differ")
            }
            Staleness::Held(HeldReason::YoungByStore) => {
                f.write_str("held: expired by its date, but refreshed; its holder's clock is slow")
            }
            Staleness::Held(HeldReason::Unproven) => f.write_str(
                "held: expired, but it is not proven yet that its holder stopped refreshing it",
            ),
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

/// The versions that this process has seen, and since when each is unchanged (P22 b).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Observations(BTreeMap<ObjectKey, (Version, BootTime)>);

impl Observations {
    /// Records a read of `key` and returns how long the object has not changed.
    ///
    /// The time runs from the response that first showed this version to the sending of the latest
    /// request. Changes before the first response or after the latest request cannot be excluded,
    /// so that time does not count.
    pub(crate) fn note(
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

    /// Forgets all shared locks that are not in `listed`.
    pub(crate) fn keep_shared(&mut self, listed: &[ObjectKey]) {
        self.0
            .retain(|key, _| *key == ObjectKey::Exclusive || listed.contains(key));
    }

    /// Forgets `key`: a later object under the same key is another lock.
    pub(crate) fn forget(&mut self, key: &ObjectKey) {
        self.0.remove(key);
    }
}

impl Object {
    /// Returns the age of the object by the store's clock.
    ///
    /// If the store shows no clock, our own clock is used and `skew` is subtracted (K45). Returns
    /// `None` if the time of the last write is unknown.
    pub(crate) fn age(&self, now: Now, skew: Duration) -> Option<Duration> {
        let modified = self.modified?;
        Some(match self.store_now {
            Some(store_now) => span(modified, store_now),
            None => span(modified, now.wall).saturating_sub(skew),
        })
    }

    /// Returns the record, if the content is one.
    pub fn record(&self) -> Option<&LockRecord> {
        match &self.content {
            ObjectContent::Record(record) => Some(record),
            ObjectContent::Fence(_) | ObjectContent::Unreadable { .. } => None,
        }
    }
}

/// Returns the verdict on `object` at `key`.
///
/// `watched` is how long this process has observed it unchanged. `now` is read before the request
/// was sent.
pub(crate) fn judge(
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
        // A counter at the key of a lock is as unreadable as any other text.
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
    // A dead holder is evidence only after the expiry above: an unexpired record stays held (P20).
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
    // P24: 120 s, twice the ttl of the originals.
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
