//! The terms of a lock: how long, how often, how careful (P15, P16, P26, P28).
//!
//! [`Settings`] is what a caller asks for; [`Terms`] is what holds once the store's abilities are
//! known. Only [`Settings::terms`] makes the one from the other, so a `Terms` is always lawful.

use std::time::Duration;

use crate::record::DEFAULT_TTL;

/// Shared or exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Together with other shared holders: backup, restore (P17).
    Shared,
    /// Alone: prune (P17).
    Exclusive,
}

/// What a store does with conditions (P26).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Level 0: it ignores or refuses them.
    Nothing,
    /// Level 1: create-if-absent and replace-if-version.
    Writes,
    /// Level 2: delete-if-version too.
    Deletes,
}

impl Level {
    /// The number that P26 gives it.
    pub fn number(self) -> u8 {
        match self {
            Level::Nothing => 0,
            Level::Writes => 1,
            Level::Deletes => 2,
        }
    }
}

/// Who else uses this store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Company {
    /// Other programs of the protocol may be among them: wait for their late writes.
    Originals,
    /// The user promises that only Tenure is (`--tenure-only`).
    TenureOnly,
}

/// What a shared holder does when an exclusive record stands beside it (P33).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OnConflict {
    /// Warn.
    Warn,
    /// Give the lock up for lost (`--strict`).
    Stop,
}

/// What a caller may ask for. The defaults are what the originals expect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How long a lock outlives its last refresh.
    pub ttl: Duration,
    /// How often it is refreshed.
    pub refresh: Duration,
    /// How far the clocks of two machines may lie apart (P21).
    pub skew: Duration,
    /// How long to wait for late writers; `None` is P28's default.
    pub settle: Option<Duration>,
    /// Who else uses the store.
    pub company: Company,
    /// What a shared holder does about an intruder.
    pub on_conflict: OnConflict,
    /// How often a failed read or list is repeated before it counts (P25).
    pub retries: u8,
    /// How often a waiter looks again (P19).
    pub poll: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            ttl: DEFAULT_TTL,
            refresh: Duration::from_secs(30),
            skew: Duration::from_secs(10),
            settle: None,
            company: Company::Originals,
            on_conflict: OnConflict::Warn,
            retries: 3,
            poll: Duration::from_secs(2),
        }
    }
}

/// Settings that contradict the protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// P16.
    #[error("a ttl of {} s is not between 30 s and 600 s", .0.as_secs_f64())]
    Ttl(Duration),
    /// P16.
    #[error("a refresh every {} s does not fit a ttl of {} s: at most half of it, and more than none", .refresh.as_secs_f64(), .ttl.as_secs_f64())]
    Refresh {
        /// The interval asked for.
        refresh: Duration,
        /// The ttl it has to fit.
        ttl: Duration,
    },
    /// A wait that would eat the lease.
    #[error("settle of {} s does not fit a ttl of {} s: at most a quarter of it", .settle.as_secs_f64(), .ttl.as_secs_f64())]
    Settle {
        /// The wait asked for.
        settle: Duration,
        /// The ttl it has to fit.
        ttl: Duration,
    },
}

impl Settings {
    /// The terms on a store of this `level`.
    pub fn terms(&self, level: Level) -> Result<Terms, SettingsError> {
        let &Settings { ttl, refresh, .. } = self;
        if !(Duration::from_secs(30)..=Duration::from_secs(600)).contains(&ttl) {
            return Err(SettingsError::Ttl(ttl));
        }
        if refresh.is_zero() || refresh * 2 > ttl {
            return Err(SettingsError::Refresh { refresh, ttl });
        }
        let settle = self.settle.unwrap_or(match (level, self.company) {
            (Level::Nothing, _) => Duration::from_secs(3),
            (Level::Writes | Level::Deletes, Company::Originals) => Duration::from_secs(1),
            (Level::Writes | Level::Deletes, Company::TenureOnly) => Duration::ZERO,
        });
        if settle * 4 > ttl {
            return Err(SettingsError::Settle { settle, ttl });
        }
        Ok(Terms {
            level,
            ttl,
            refresh,
            skew: self.skew,
            settle,
            on_conflict: self.on_conflict,
            retries: self.retries,
            poll: self.poll,
        })
    }
}

/// What a lock is taken and held by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Terms {
    /// What the store does with conditions.
    pub level: Level,
    /// How long a lock outlives its last refresh. Whole seconds are what the record can say.
    pub ttl: Duration,
    /// How often it is refreshed.
    pub refresh: Duration,
    /// How far clocks may lie apart.
    pub skew: Duration,
    /// How long to wait for late writers.
    pub settle: Duration,
    /// What a shared holder does about an intruder.
    pub on_conflict: OnConflict,
    /// How often a failed read or list is repeated.
    pub retries: u8,
    /// How often a waiter looks again.
    pub poll: Duration,
}

impl Terms {
    /// How often a refused write goes back to the first look (P28.3).
    pub const ROUNDS: u8 = 5;
    /// How soon a failed refresh is repeated (P32).
    pub const REFRESH_RETRY: Duration = Duration::from_secs(2);
    /// How long an intruder must stand before it counts (P33).
    pub const SECOND_LOOK: Duration = Duration::from_secs(10);

    /// How long a holder may rely on a refresh, counted from its sending (P32).
    pub fn reliance(&self) -> Duration {
        self.ttl * 4 / 5
    }

    /// How long to give somebody who saw us time to withdraw (P28.4). Not zero even where nobody
    /// has to be waited for: his answer and his delete are on their way.
    pub fn withdrawal(&self) -> Duration {
        self.settle.max(Duration::from_secs(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// P16: the bounds, and both sides of each.
    #[test]
    fn ttl_and_refresh_stay_in_their_bounds() {
        let try_with = |ttl: u64, refresh: u64| {
            let (ttl, refresh) = (Duration::from_secs(ttl), Duration::from_secs(refresh));
            Settings {
                ttl,
                refresh,
                ..Settings::default()
            }
            .terms(Level::Deletes)
            .is_ok()
        };
        assert!(try_with(60, 30));
        assert!(try_with(30, 15));
        assert!(try_with(600, 300));
        assert!(!try_with(29, 10));
        assert!(!try_with(601, 30));
        assert!(!try_with(60, 31));
        assert!(!try_with(60, 0));
    }

    /// P28.5: the default of `settle`.
    #[test]
    fn settle_depends_on_level_and_company() {
        let settle = |level, company| {
            Settings {
                company,
                ..Settings::default()
            }
            .terms(level)
            .unwrap()
            .settle
            .as_secs()
        };
        assert_eq!(settle(Level::Deletes, Company::Originals), 1);
        assert_eq!(settle(Level::Writes, Company::Originals), 1);
        assert_eq!(settle(Level::Nothing, Company::Originals), 3);
        assert_eq!(settle(Level::Deletes, Company::TenureOnly), 0);
        assert_eq!(settle(Level::Nothing, Company::TenureOnly), 3);
    }

    /// P32: 48 s of 60 s.
    #[test]
    fn a_fifth_of_the_lease_is_never_used() {
        let terms = Settings::default().terms(Level::Deletes).unwrap();
        assert_eq!(terms.reliance(), Duration::from_secs(48));
    }
}
