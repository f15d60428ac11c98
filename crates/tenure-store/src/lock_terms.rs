//! The terms of a lock: how long, how often, how careful (P15, P16, P26, P28).
//!
//! [`LockSettings`] is what a caller asks for; [`LockTerms`] is what holds once the store's abilities are
//! known. Only [`LockSettings::terms`] makes the one from the other, so a `LockTerms` is always lawful.

use std::time::Duration;

use crate::record::DEFAULT_TTL;

/// Shared or exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockMode {
    /// Together with other shared holders: backup, restore (P17).
    Shared,
    /// Alone: prune (P17).
    Exclusive,
}

/// What a store does with conditions (P26).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConditionLevel {
    /// Level 0: it ignores or refuses them.
    Nothing,
    /// Level 1: create-if-absent and replace-if-version.
    Writes,
    /// Level 2: delete-if-version too.
    Deletes,
}

impl ConditionLevel {
    /// The number that P26 gives it.
    pub fn number(self) -> u8 {
        match self {
            ConditionLevel::Nothing => 0,
            ConditionLevel::Writes => 1,
            ConditionLevel::Deletes => 2,
        }
    }
}

/// Who else uses this store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OtherClients {
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
pub struct LockSettings {
    /// How long a lock outlives its last refresh.
    pub ttl: Duration,
    /// How often it is refreshed.
    pub refresh: Duration,
    /// How far the clocks of two machines may lie apart (P21).
    pub skew: Duration,
    /// How long to wait for late writers; `None` is P28's default.
    pub settle: Option<Duration>,
    /// Who else uses the store.
    pub company: OtherClients,
    /// What a shared holder does about an intruder.
    pub on_conflict: OnConflict,
    /// How often a failed read or list is repeated before it counts (P25).
    pub retries: u8,
    /// How often a waiter looks again (P19).
    pub poll: Duration,
}

impl Default for LockSettings {
    fn default() -> LockSettings {
        LockSettings {
            ttl: DEFAULT_TTL,
            refresh: Duration::from_secs(30),
            skew: Duration::from_secs(10),
            settle: None,
            company: OtherClients::Originals,
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

impl LockSettings {
    /// The terms on a store of this `level`.
    pub fn terms(&self, level: ConditionLevel) -> Result<LockTerms, SettingsError> {
        let &LockSettings { ttl, refresh, .. } = self;
        if !(Duration::from_secs(30)..=Duration::from_secs(600)).contains(&ttl) {
            return Err(SettingsError::Ttl(ttl));
        }
        if refresh.is_zero() || refresh * 2 > ttl {
            return Err(SettingsError::Refresh { refresh, ttl });
        }
        let settle = self.settle.unwrap_or(match (level, self.company) {
            (ConditionLevel::Nothing, _) => Duration::from_secs(3),
            (ConditionLevel::Writes | ConditionLevel::Deletes, OtherClients::Originals) => {
                Duration::from_secs(1)
            }
            (ConditionLevel::Writes | ConditionLevel::Deletes, OtherClients::TenureOnly) => {
                Duration::ZERO
            }
        });
        if settle * 4 > ttl {
            return Err(SettingsError::Settle { settle, ttl });
        }
        Ok(LockTerms {
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
pub struct LockTerms {
    /// What the store does with conditions.
    pub level: ConditionLevel,
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

impl LockTerms {
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
            LockSettings {
                ttl,
                refresh,
                ..LockSettings::default()
            }
            .terms(ConditionLevel::Deletes)
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
            LockSettings {
                company,
                ..LockSettings::default()
            }
            .terms(level)
            .unwrap()
            .settle
            .as_secs()
        };
        assert_eq!(settle(ConditionLevel::Deletes, OtherClients::Originals), 1);
        assert_eq!(settle(ConditionLevel::Writes, OtherClients::Originals), 1);
        assert_eq!(settle(ConditionLevel::Nothing, OtherClients::Originals), 3);
        assert_eq!(settle(ConditionLevel::Deletes, OtherClients::TenureOnly), 0);
        assert_eq!(settle(ConditionLevel::Nothing, OtherClients::TenureOnly), 3);
    }

    /// P32: 48 s of 60 s.
    #[test]
    fn a_fifth_of_the_lease_is_never_used() {
        let terms = LockSettings::default()
            .terms(ConditionLevel::Deletes)
            .unwrap();
        assert_eq!(terms.reliance(), Duration::from_secs(48));
    }
}
