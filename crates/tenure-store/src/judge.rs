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

use crate::key::Key;
use crate::record::{DEFAULT_TTL, Record};
use crate::time::{Boot, Now, Span, span};

/// An object as one answer of the store showed it, decoded.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Object {
    /// What is in it.
    pub content: Content,
    /// Which version of the object this is.
    pub version: Version,
    /// When it was written, by the store's clock.
    pub modified: Option<Timestamp>,
    /// The store's clock in the same answer (K45).
    pub store_now: Option<Timestamp>,
    /// What the machine we run on can say about the holder (K10–K14).
    pub life: Life,
}

/// The inside of an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Content {
    /// A lock record.
    Record(Record),
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
pub enum Life {
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
pub enum Verdict {
    /// Somebody has it, or may have it.
    Held(Held),
    /// It is there, cannot be read, and is not old enough to be passed over (P24).
    Unreadable(Unreadable),
    /// Nobody has it any more.
    Stale(Evidence),
    /// Not a lock at all: a half-written file of an original (P24).
    Scratch,
}

impl Verdict {
    /// Whether the object stands in the way.
    pub fn blocks(&self) -> bool {
        match self {
            Verdict::Held(_) | Verdict::Unreadable(_) => true,
            Verdict::Stale(_) | Verdict::Scratch => false,
        }
    }
}

/// Why an object counts as held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Held {
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

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Verdict::Held(Held::InForce) => f.write_str("held: its lease has not run out"),
            Verdict::Held(Held::FarAhead) => {
                f.write_str("held: its date is suspiciously far ahead, break it if nobody runs")
            }
            Verdict::Held(Held::NoDate) => {
                f.write_str("held: it has no readable date, so it ends only by release or break")
            }
            Verdict::Held(Held::WithinSkew) => {
                f.write_str("held: expired, but within the allowance for clocks that differ")
            }
            Verdict::Held(Held::YoungByStore) => {
                f.write_str("held: expired by its date, but refreshed; its holder's clock is slow")
            }
            Verdict::Held(Held::Unproven) => {
                f.write_str("held: expired, but nothing proves yet that nobody refreshes it")
            }
            Verdict::Held(Held::Locked) => {
                f.write_str("held: expired, but its process is there and keeps it locked")
            }
            Verdict::Unreadable(why) => write!(f, "held while young: {why}"),
            Verdict::Stale(Evidence::Age(age)) => {
                write!(
                    f,
                    "stale: expired, and untouched for {} by the store's clock",
                    Span(*age)
                )
            }
            Verdict::Stale(Evidence::Watched(span)) => {
                write!(
                    f,
                    "stale: expired, and watched unchanged for {}",
                    Span(*span)
                )
            }
            Verdict::Stale(Evidence::Dead) => {
                f.write_str("stale: expired, and its process is gone")
            }
            Verdict::Scratch => f.write_str("no lock: a half-written file"),
        }
    }
}

/// What this process has seen, and since when unchanged (P22 b).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Sightings(BTreeMap<Key, (Version, Boot)>);

impl Sightings {
    /// Notes one more look at `key`, and says for how long it has not changed: from the answer
    /// that showed it first until the question that showed it last. What happened before the one
    /// was read or after the other was asked, nobody watched.
    pub fn note(&mut self, key: &Key, version: &Version, asked: Boot, answered: Boot) -> Duration {
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
    pub fn keep_shared(&mut self, listed: &[Key]) {
        self.0
            .retain(|key, _| *key == Key::Exclusive || listed.contains(key));
    }

    /// Notes that `key` is gone: what comes back under its name is something else.
    pub fn forget(&mut self, key: &Key) {
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
    pub fn record(&self) -> Option<&Record> {
        match &self.content {
            Content::Record(record) => Some(record),
            Content::Fence(_) | Content::Unreadable { .. } => None,
        }
    }
}

/// Judges `object` at `key`, after it was `watched` unchanged for so long. `now` is when it was
/// asked for.
pub fn judge(key: &Key, object: &Object, watched: Duration, now: Now, skew: Duration) -> Verdict {
    let age = object.age(now, skew);
    match &object.content {
        Content::Record(record) => judge_record(record, object.life, age, watched, now, skew),
        // A counter where a lock should be is as unreadable as any other text.
        Content::Fence(_) => judge_unreadable(
            key,
            &Unreadable::Damaged("a fencing counter".into()),
            object.life,
            age,
            watched,
        ),
        Content::Unreadable { why, .. } => judge_unreadable(key, why, object.life, age, watched),
    }
}

fn judge_record(
    record: &Record,
    life: Life,
    age: Option<Duration>,
    watched: Duration,
    now: Now,
    skew: Duration,
) -> Verdict {
    let ttl = record.ttl();
    let Some(expires) = record.expires() else {
        return Verdict::Held(Held::NoDate);
    };
    if expires > now.wall {
        let ahead = span(now.wall, expires);
        return Verdict::Held(if ahead > ttl * 10 {
            Held::FarAhead
        } else {
            Held::InForce
        });
    }
    if span(expires, now.wall) < skew {
        return Verdict::Held(Held::WithinSkew);
    }
    if life == Life::Locked {
        return Verdict::Held(Held::Locked);
    }
    if life == Life::Dead {
        return Verdict::Stale(Evidence::Dead);
    }
    match age {
        Some(age) if age >= ttl => Verdict::Stale(Evidence::Age(age)),
        Some(_) | None if watched >= ttl => Verdict::Stale(Evidence::Watched(watched)),
        Some(_) => Verdict::Held(Held::YoungByStore),
        None => Verdict::Held(Held::Unproven),
    }
}

fn judge_unreadable(
    key: &Key,
    why: &Unreadable,
    life: Life,
    age: Option<Duration>,
    watched: Duration,
) -> Verdict {
    let limit = DEFAULT_TTL * 2;
    if key.is_scratch() && matches!(why, Unreadable::Damaged(_)) {
        return Verdict::Scratch;
    }
    if life == Life::Locked {
        return Verdict::Unreadable(why.clone());
    }
    match age {
        Some(age) if age >= limit => Verdict::Stale(Evidence::Age(age)),
        Some(_) | None if watched >= limit => Verdict::Stale(Evidence::Watched(watched)),
        Some(_) | None => Verdict::Unreadable(why.clone()),
    }
}
