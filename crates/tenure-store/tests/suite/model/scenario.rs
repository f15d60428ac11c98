//! Scenario: the processes, the store, and the bounds of an exploration.
//!
//! # Why ticks of 16 s are enough
//!
//! All spans that a rule compares are valid settings here, chosen to fit one grid:
//!
//! | span | value | over after |
//! | --- | --- | --- |
//! | settle, withdrawal, retry delays, second check | up to 15 s | 1 tick |
//! | half a refresh | 15 s | 1 tick |
//! | refresh | 30 s | 2 ticks |
//! | reliance, 80 % of the ttl | 48 s | 3 ticks |
//! | ttl | 60 s | 4 ticks |
//!
//! Any number of requests fit between two ticks, and a tick may come between any two requests. So
//! every order of requests and of ending spans is explored. The clock skew allowance is zero: with
//! the default of 10 s a lock is taken over later, never sooner. Clocks that differ are explored
//! with [`Scenario::ahead`].

use tenure_store::internal::LockTerms;
use tenure_store::{ConditionLevel, LockSettings};

use super::store::Modulus;
use crate::support::LockMode;

/// One tick of the clock, in seconds.
pub(crate) const TICK: i16 = 16;
/// The age after which waiting changes nothing more.
const STALE: i16 = 4 * TICK;

/// The kind of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Player {
    Tenure(LockMode),
    Original(LockMode),
}

/// How late an unconditional write may take effect after its read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Late {
    /// Less than `settle`; and an original that holds refreshes before its lease ends.
    Prompt,
    /// At any time.
    Any,
}

/// What counts as a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judge {
    /// Two conflicting Tenure processes hold.
    Tenure,
    /// Two conflicting processes hold, at least one of them Tenure.
    WithTenure,
    /// A process begins to hold with a fencing number that is not above those of all conflicting
    /// holds that began before.
    Fences,
    /// Any two conflicting processes hold.
    Everybody,
    /// A process has seen that it lost the lock, another one holds it, and both work.
    KnowsBetter,
    /// A refresh overwrites the valid lock of another process that works.
    Overwrites,
    /// A process deletes such a lock.
    Deletes,
}

/// Whether responses contain the store's time (K45: age of files and objects).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum StoreClock {
    Shown,
    Hidden,
}

/// How the requests for a fencing number are explored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fence {
    /// Interleaved like all others. Numbers wrap after four.
    Interleaved,
    /// Atomically with the previous request. No decision about holding depends on the counter, and
    /// only requests for the counter can conflict with it.
    AtOnce,
}

/// How often an event may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Times {
    AtMost(u8),
    Any,
}

/// The parameters of an exploration.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) level: ConditionLevel,
    pub(crate) clock: StoreClock,
    pub(crate) players: &'static [Player],
    /// By how many seconds the wall clock of each process is ahead; missing values are zero.
    pub(crate) ahead: &'static [i64],
    /// How late originals, and requests on stores without conditions, may be.
    pub(crate) late: Late,
    /// Whether Tenure waits for late writers. Not if the user promised that there are no originals.
    pub(crate) settle: bool,
    /// Whether other steps may come between the requests for a fencing number.
    pub(crate) fence: Fence,
    /// Number of clock advances.
    pub(crate) ticks: Times,
    /// How many processes may be paused during one advance: with a request under way, or losing
    /// their lease. The others have not started, are idle, wait, or have ended.
    pub(crate) paused: u8,
    /// Number of pauses between the effect of a request and the next request. Delays before the
    /// effect are not counted.
    pub(crate) stands: Times,
    /// Number of lost responses, with or without the effect of the request.
    pub(crate) losses: u8,
    /// Whether processes may die on the machine of the others, which can detect it (P22 evidence of
    /// staleness c). A process that dies on another machine is one that never continues, which is
    /// always explored.
    pub(crate) deaths: bool,
    /// Whether each process starts only while the previous one holds. Then there are no races, and
    /// a fault has another cause.
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

    /// By how many seconds the clock of the process in this slot is ahead.
    pub(crate) fn ahead(&self, slot: u8) -> i64 {
        self.ahead.get(usize::from(slot)).copied().unwrap_or(0)
    }

    /// The age at which an object is stale for every process, whatever its clock shows.
    pub(crate) fn limit(&self) -> i16 {
        let skew = self.ahead.iter().map(|ahead| ahead.abs()).max();
        STALE + i16::try_from(skew.unwrap_or(0)).expect("a small skew")
    }

    pub(crate) fn modulus(&self) -> Modulus {
        match (self.fence, self.judge) {
            (Fence::AtOnce, _) => 1,
            // More than are taken within the bounds of such a scenario.
            (Fence::Interleaved, Judge::Fences) => 9,
            (Fence::Interleaved, _) => 4,
        }
    }
}
