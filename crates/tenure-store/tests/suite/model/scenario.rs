//! A scene: who plays, on what, and how much may happen.
//!
//! Why ticks of 16 s are enough
//!
//! All spans that a rule compares are lawful settings here, chosen so that one grid holds them:
//!
//! | span | value | over after |
//! | --- | --- | --- |
//! | settle, withdrawal, pauses before another try, second look | up to 15 s | 1 tick |
//! | half a refresh | 15 s | 1 tick |
//! | refresh | 30 s | 2 ticks |
//! | reliance, 80 % of the ttl | 48 s | 3 ticks |
//! | ttl | 60 s | 4 ticks |
//!
//! Any number of requests fit between two ticks, and a tick may come between any two, so every
//! order of requests and of spans that end is tried. The allowance for clocks that differ is none:
//! with the default of 10 s a lock is taken over later, never sooner. Clocks that differ are tried
//! as such ([`Scenario::ahead`]).

use tenure_store::lock_terms::{ConditionLevel, LockSettings, LockTerms};

use super::store::Modulus;
use crate::support::LockMode;

/// One step of the clock, in seconds.
pub(crate) const TICK: i16 = 16;
/// The first tick at which nothing more changes by waiting.
const STALE: i16 = 4 * TICK;

/// Who plays a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Player {
    Tenure(LockMode),
    Original(LockMode),
}

/// How late a write without a condition may come after the look that it rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Late {
    /// Less than `settle`; and an original that holds refreshes before its lease ends.
    Prompt,
    /// Any time.
    Any,
}

/// What is a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judge {
    /// Two Tenure processes hold that exclude each other.
    Tenure,
    /// Two hold that exclude each other, and at least one of them is Tenure.
    WithTenure,
    /// Any two hold that exclude each other.
    Everybody,
    /// Somebody has seen that he lost the lock, another has it, and both work.
    KnowsBetter,
    /// A refresh overwrites the lock of another who works by it, and whose lease is good.
    Overwrites,
    /// Somebody deletes such a lock.
    Deletes,
}

/// Whether answers carry the store's time (K45).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum StoreClock {
    Shown,
    Hidden,
}

/// How the requests for a fencing number are played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fence {
    /// Like all others. Numbers go round after four.
    Interleaved,
    /// At once with the request before them. No decision about holding rests on that object, and
    /// nobody but its own requests can get in its way.
    AtOnce,
}

/// How often something may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Times {
    AtMost(u8),
    Any,
}

/// What is explored.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) level: ConditionLevel,
    pub(crate) clock: StoreClock,
    pub(crate) players: &'static [Player],
    /// By how many seconds the wall clock of each player is ahead; those not named are right.
    pub(crate) ahead: &'static [i64],
    /// What originals and stores without conditions are granted.
    pub(crate) late: Late,
    /// Whether late writers are waited for. Not, if the user promised that there are no originals.
    pub(crate) settle: bool,
    /// Whether anything may happen between the requests for a fencing number.
    pub(crate) fence: Fence,
    /// Steps of the clock.
    pub(crate) ticks: Times,
    /// How many processes may be paused while the clock moves on once: a request is under way, or
    /// a lease ends. The others have not begun, rest, wait, or are done.
    pub(crate) paused: u8,
    /// Pauses between a request's effect and the next request. A request may be delayed before its
    /// effect at any time, without being counted.
    pub(crate) stands: Times,
    /// Answers that are lost, and with them perhaps the request.
    pub(crate) losses: u8,
    /// Whether processes may die on the machine of the others, who can tell (P22 c). A process
    /// that dies elsewhere is one that never goes on, and needs no leave.
    pub(crate) deaths: bool,
    /// Whether each begins only while the one before holds. Then nobody races, and what goes wrong
    /// goes wrong for another reason.
    pub(crate) in_turn: bool,
    pub(crate) judge: Judge,
}

impl Scenario {
    pub(crate) fn terms(&self) -> LockTerms {
        let settle = if self.settle || self.level == ConditionLevel::Nothing {
            15
        } else {
            0
        };
        let settings = LockSettings {
            retries: 1,
            skew: std::time::Duration::ZERO,
            settle: Some(std::time::Duration::from_secs(settle)),
            ..LockSettings::default()
        };
        settings.terms(self.level).expect("lawful settings")
    }

    /// By how many seconds the clock of this seat is ahead.
    pub(crate) fn ahead(&self, slot: u8) -> i64 {
        self.ahead.get(usize::from(slot)).copied().unwrap_or(0)
    }

    /// The age of an object at which everybody finds it stale, whatever his clock shows.
    pub(crate) fn limit(&self) -> i16 {
        let skew = self.ahead.iter().map(|ahead| ahead.abs()).max();
        STALE + i16::try_from(skew.unwrap_or(0)).expect("a small skew")
    }

    pub(crate) fn modulus(&self) -> Modulus {
        match self.fence {
            Fence::AtOnce => 1,
            Fence::Interleaved => 4,
        }
    }
}
