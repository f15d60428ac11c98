//! Canonical form of a process state, independent of absolute time and of the names it uses.
//!
//! The procedures are plain data, so their `Hash` visits every field. [`Canon`] is a `Hasher` that
//! records the visited words, with two changes:
//!
//! - A time is recorded as its distance from now, clipped at a limit for its kind ([`Limits`]). The
//!   limit is at least the longest span that any rule compares with such a time, so two processes
//!   with equal distances decide alike at all later times. `Locals::audit` checks this.
//! - The names that a process gave itself (the date of its acquisition, and the key made from it)
//!   are recorded as "own name". The procedures only compare names for equality.
//!
//! A 128-bit hash of these words is kept. With a million local states, more than any scenario here
//! has, the probability of any collision is below one in 10^26.

use std::hash::{Hash, Hasher};

use tenure_store::internal::parse_stamp;

/// Start of the model's boot clock: far from every other number.
pub(crate) const BOOT: u64 = 1 << 40;
/// Start of its wall clock.
pub(crate) const WALL: i64 = 1_772_874_000;
/// Maximum duration of a run of the model, in seconds.
const ERA: u64 = 1 << 24;

/// Length of an encoded version of a lock: owner, number, date.
pub(crate) const VERSION: usize = 3 + STAMP;
const STAMP: usize = 30;

/// A `Hasher` that records the canonical form.
pub(crate) struct Canon<'a> {
    slot: u8,
    /// Names that the process gave itself.
    mine: &'a [&'a str],
    words: Vec<u64>,
    times: Vec<Time>,
}

struct Time {
    /// The position in `words`.
    at: usize,
    kind: Kind,
    seconds: i64,
}

/// What a time refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Boot,
    Wall,
    Asked,
    Date,
    OwnVersion,
    Version,
    Sighting,
}

/// How far back times are distinguished, in seconds. `None`: not at all.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Readings of the boot clock.
    pub(crate) boot: i64,
    /// How many of them belong to an ended lease: at the start, when it began and ended; at the
    /// end, what was due in it.
    pub(crate) past: (usize, usize),
    /// When a request was sent, on both clocks.
    pub(crate) asked: Option<i64>,
    /// Times reported by the store.
    pub(crate) wall: Option<i64>,
    /// Dates in records.
    pub(crate) date: Option<i64>,
    /// Dates in versions of its own lock.
    pub(crate) own_version: i64,
    /// Dates in versions of other locks.
    pub(crate) version: Option<i64>,
    /// Since when another lock was observed unchanged.
    pub(crate) observation: Option<i64>,
}

impl<'a> Canon<'a> {
    fn new(slot: u8, mine: &'a [&'a str]) -> Canon<'a> {
        Canon {
            slot,
            mine,
            words: Vec::new(),
            times: Vec::new(),
        }
    }

    fn time(&mut self, mut kind: Kind, seconds: i64) {
        let at = self.words.len();
        match (self.times.last_mut(), kind) {
            // A boot time directly followed by a wall time: when a request was sent.
            (Some(last), Kind::Wall) if last.kind == Kind::Boot && last.at + 2 == at => {
                last.kind = Kind::Asked;
                kind = Kind::Asked;
            }
            // A version of another lock followed by a time: an observation. Own locks are not
            // observed.
            (Some(last), Kind::Boot) if last.kind == Kind::Version && last.at + 3 == at => {
                last.kind = Kind::Sighting;
                kind = Kind::Sighting;
            }
            _ => {}
        }
        self.times.push(Time { at, kind, seconds });
        self.words.push(0);
    }

    /// Returns the 128-bit fingerprint at `now`.
    pub(crate) fn fingerprint(mut self, now: i64, limits: Limits) -> u128 {
        let boots = self.times.iter().filter(|time| time.kind == Kind::Boot);
        let (count, mut boot) = (boots.count(), 0);
        for Time { at, kind, seconds } in &self.times {
            let limit = match kind {
                Kind::Boot => {
                    boot += 1;
                    // The order is: sent, lapsed, current action, next refresh, next conflict
                    // check.
                    let (head, tail) = limits.past;
                    let is_past = boot <= head || boot > count - tail;
                    (!is_past).then_some(limits.boot)
                }
                Kind::Wall => limits.wall,
                Kind::Asked => limits.asked,
                Kind::Date => limits.date,
                Kind::OwnVersion => Some(limits.own_version),
                Kind::Version => limits.version,
                Kind::Sighting => limits.observation,
            };
            if let Some(limit) = limit {
                let from_now = (seconds - now).max(-limit);
                self.words[*at] = from_now.cast_unsigned() ^ (1 << 63);
            }
        }
        let [mut one, mut two] = [Folded(0x243f_6a88_85a3_08d3), Folded(0xa409_3822_299f_31d0)];
        for word in self.words {
            one.add(word);
            two.add(word.rotate_left(29));
        }
        u128::from(one.finish()) << 64 | u128::from(two.finish())
    }
}

impl Hasher for Canon<'_> {
    fn finish(&self) -> u64 {
        unreachable!("a fingerprint has 128 bits")
    }

    fn write(&mut self, bytes: &[u8]) {
        if let Some(at) = self.mine.iter().position(|name| name.as_bytes() == bytes) {
            self.words.push(u64::MAX - at as u64);
            return;
        }
        let date = match bytes.len() {
            STAMP => Some((Kind::Date, bytes)),
            VERSION => {
                self.write_u16(u16::from_le_bytes([bytes[1], bytes[2]]));
                let own = bytes[1] == b'0' + self.slot;
                let kind = if own { Kind::OwnVersion } else { Kind::Version };
                Some((kind, &bytes[3..]))
            }
            _ => None,
        };
        let parse = |bytes| parse_stamp(std::str::from_utf8(bytes).ok()?);
        if let Some((kind, Some(date))) = date.map(|(kind, date)| (kind, parse(date))) {
            self.time(kind, date.as_second() - WALL);
            return;
        }
        self.words.push(bytes.len() as u64);
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.words.push(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, word: u8) {
        self.words.push(u64::from(word));
    }

    fn write_u16(&mut self, word: u16) {
        self.words.push(u64::from(word));
    }

    fn write_u32(&mut self, word: u32) {
        self.words.push(u64::from(word));
    }

    fn write_usize(&mut self, word: usize) {
        self.words.push(word as u64);
    }

    /// Only the seconds of the two clocks are in these ranges.
    fn write_u64(&mut self, word: u64) {
        let wall = word.wrapping_sub(WALL.cast_unsigned());
        if (BOOT..BOOT + ERA).contains(&word) {
            self.time(Kind::Boot, (word - BOOT).cast_signed());
        } else if !(ERA..=u64::MAX - ERA).contains(&wall) {
            self.time(Kind::Wall, wall.cast_signed());
        } else {
            self.words.push(word);
        }
    }
}

/// A fast hash for tables: folded multiplication.
#[derive(Clone, Copy)]
pub(crate) struct Folded(u64);

impl Default for Folded {
    fn default() -> Folded {
        Folded(0x1319_8a2e_0370_7344)
    }
}

impl Folded {
    fn add(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word) * u128::from(0x9e37_79b9_7f4a_7c15_u64);
        self.0 = (product as u64) ^ ((product >> 64) as u64) ^ self.0.rotate_left(23);
    }
}

impl Hasher for Folded {
    fn finish(&self) -> u64 {
        let mut last = *self;
        last.add(0x4528_21e6_38d0_1377);
        last.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.add(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, word: u8) {
        self.add(u64::from(word));
    }

    fn write_u16(&mut self, word: u16) {
        self.add(u64::from(word));
    }

    fn write_u32(&mut self, word: u32) {
        self.add(u64::from(word));
    }

    fn write_u64(&mut self, word: u64) {
        self.add(word);
    }

    fn write_usize(&mut self, word: usize) {
        self.add(word as u64);
    }
}

/// A hash table with the fast hash.
pub(crate) type Table<K, V> =
    std::collections::HashMap<K, V, std::hash::BuildHasherDefault<Folded>>;

/// Feeds `value` to a [`Canon`].
pub(crate) fn spell<'a>(value: &impl Hash, slot: u8, mine: &'a [&'a str]) -> Canon<'a> {
    let mut canon = Canon::new(slot, mine);
    value.hash(&mut canon);
    canon
}
