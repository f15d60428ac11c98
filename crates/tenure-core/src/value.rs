//! Small values that are valid by construction: owners, durations, fences, keys, stamps.
//!
//! Each constructor checks one rule, once, at the boundary; later code does not check again.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::num::{NonZeroU32, NonZeroU64};

use crate::byte_search::find;

/// Why a value from outside was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Invalid {
    /// A lock path that breaks R1–R4; the text says which part.
    Path(&'static str),
    /// A namespace string that breaks R11 (namespace strings); the text says which part.
    Namespace(&'static str),
    /// An owner id that is empty, longer than 1024 bytes, or contains U+0000 (R7: owner ids).
    Owner,
    /// A ttl outside 1 ms … 7 days (R8: range of ttl_ms).
    Ttl(u64),
    /// A queue ttl above 7 days (R9: range of queue_ttl_ms).
    QueueTtl(u64),
    /// An idempotency key longer than 1024 bytes, or with U+0000 (R10: idempotency key syntax).
    Key,
    /// A caller-supplied fencing token of 2^52 or more (R15: limit for supplied tokens).
    Fence(u64),
    /// A holder description of more than 4 KiB (E3: holder description).
    Holder(usize),
    /// More entries than one request may have (R13 list length limits, R18 AcquireStream is one
    /// acquire).
    Count {
        /// How many there were.
        found: usize,
        /// How many are allowed.
        allowed: usize,
    },
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Invalid::Path(what) => write!(f, "invalid path: {what}"),
            Invalid::Namespace(what) => write!(f, "invalid namespace: {what}"),
            Invalid::Owner => f.write_str("invalid owner id: 1 to 1024 bytes without U+0000"),
            Invalid::Ttl(ttl) => write!(f, "invalid ttl of {ttl} ms: 1 to {} ms", Ttl::MAX_MILLIS),
            Invalid::QueueTtl(ttl) => {
                write!(
                    f,
                    "invalid queue ttl of {ttl} ms: at most {} ms",
                    Ttl::MAX_MILLIS
                )
            }
            Invalid::Key => {
                f.write_str("invalid idempotency key: at most 1024 bytes without U+0000")
            }
            Invalid::Fence(fence) => {
                write!(
                    f,
                    "invalid fencing token {fence}: a supplied token must be below 2^52"
                )
            }
            Invalid::Holder(bytes) => {
                write!(
                    f,
                    "holder description of {bytes} bytes: at most {} bytes",
                    Holder::MAX_BYTES
                )
            }
            Invalid::Count { found, allowed } => {
                write!(f, "{found} entries in one request: at most {allowed}")
            }
        }
    }
}

impl core::error::Error for Invalid {}

/// The id of one lock session, chosen by the caller (R7). Conflicts exist only between different owners.
/// Cheap to clone: the text is shared.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnerId(Arc<str>);

impl OwnerId {
    /// The longest id, in bytes.
    pub const MAX_BYTES: usize = 1024;

    /// Validates a caller's string as an owner id.
    pub fn new(text: &str) -> Result<OwnerId, Invalid> {
        if text.is_empty() || text.len() > Self::MAX_BYTES || find(text.as_bytes(), 0).is_some() {
            return Err(Invalid::Owner);
        }
        Ok(OwnerId(text.into()))
    }

    /// Returns the id as the caller gave it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl core::borrow::Borrow<str> for OwnerId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How long an owner's claims live without a renewal: 1 ms to 7 days (R8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ttl(NonZeroU32);

impl Ttl {
    /// Seven days.
    pub const MAX_MILLIS: u64 = 604_800_000;

    /// Creates a ttl from milliseconds.
    pub fn from_millis(millis: u64) -> Result<Ttl, Invalid> {
        let ttl = u32::try_from(millis).ok().and_then(NonZeroU32::new);
        match ttl {
            Some(ttl) if millis <= Self::MAX_MILLIS => Ok(Ttl(ttl)),
            _ => Err(Invalid::Ttl(millis)),
        }
    }

    /// Returns the ttl in milliseconds, never zero.
    pub fn millis(self) -> u64 {
        u64::from(self.0.get())
    }
}

/// How long a queued acquire may wait: up to 7 days, by default one minute (R9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueTtl(NonZeroU64);

impl QueueTtl {
    /// The default, used for an absent or zero value.
    pub const DEFAULT_MILLIS: u64 = 60_000;

    /// Creates a queue ttl from milliseconds; zero means the default.
    pub fn from_millis(millis: u64) -> Result<QueueTtl, Invalid> {
        if millis > Ttl::MAX_MILLIS {
            return Err(Invalid::QueueTtl(millis));
        }
        let millis = if millis == 0 {
            Self::DEFAULT_MILLIS
        } else {
            millis
        };
        NonZeroU64::new(millis)
            .map(QueueTtl)
            .ok_or(Invalid::QueueTtl(millis))
    }

    /// Returns the time in milliseconds, never zero.
    pub fn millis(self) -> u64 {
        self.0.get()
    }
}

/// Fencing token: grows with every write grant; the protected store refuses smaller ones (R66–R71).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(NonZeroU64);

impl Fence {
    /// Supplied fences are below this (R15).
    pub const SUPPLIED_END: u64 = 1 << 52;
    /// Minted fences are below this, so that JSON numbers can hold them (R71).
    pub const MINTED_END: u64 = 1 << 53;
    /// From here on a namespace is *driven*: only a supplied fence can raise its counter so far.
    /// The counter of a driven namespace never raises that of others (R72 token retention and
    /// floors, R75 IncrFencingToken always grows).
    pub const DRIVEN: u64 = 1 << 51;

    /// Validates a caller-supplied fence. Zero or less on the wire means "mint one" and gives
    /// `None`.
    pub fn supplied(number: i64) -> Result<Option<Fence>, Invalid> {
        match u64::try_from(number).ok().and_then(NonZeroU64::new) {
            None => Ok(None),
            Some(fence) if fence.get() < Self::SUPPLIED_END => Ok(Some(Fence(fence))),
            Some(fence) => Err(Invalid::Fence(fence.get())),
        }
    }

    /// Converts a number that this server issued or stored; `None` for zero and for numbers that it
    /// never issues.
    pub fn from_number(number: u64) -> Option<Fence> {
        if number >= Self::MINTED_END {
            None
        } else {
            NonZeroU64::new(number).map(Fence)
        }
    }

    /// Returns the fence as a number.
    pub fn number(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A caller's idempotency key (R10, R102 keyed requests apply once). An empty one on the wire means
/// none, so it is absent.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Box<str>);

impl Key {
    /// The longest key, in bytes.
    pub const MAX_BYTES: usize = 1024;

    /// Validates a caller's string; returns `None` for an empty one.
    pub fn new(text: &str) -> Result<Option<Key>, Invalid> {
        if text.len() > Self::MAX_BYTES || find(text.as_bytes(), 0).is_some() {
            return Err(Invalid::Key);
        }
        Ok(if text.is_empty() {
            None
        } else {
            Some(Key(text.into()))
        })
    }

    /// Returns the key as the caller gave it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Description of an owner for people (E3). It has no effect on any decision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holder {
    /// What the holder calls itself.
    pub name: String,
    /// The machine it runs on.
    pub host: String,
    /// Its process id there; zero if it has none.
    pub pid: u32,
    /// What it holds the lock for.
    pub purpose: String,
    /// Anything else, in key order.
    pub labels: Vec<(String, String)>,
}

impl Holder {
    /// The longest description, in bytes of its encoding on the wire.
    pub const MAX_BYTES: usize = 4096;
}

/// The time of a log entry. The state machines have no other clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp {
    /// Lease time: milliseconds since the group's birth, kept by its leader. Never goes back.
    pub time: u64,
    /// The leader's wall clock in Unix milliseconds. Used only for event ids (R121: event ids).
    pub wall: u64,
}
