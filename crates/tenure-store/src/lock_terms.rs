//! Timing parameters of a repository lock, validated (P16 (allowed lease times)): ttl, refresh
//! interval, clock skew, and settle time: how long an acquirer waits for late writes of other
//! clients (P28 (acquire the exclusive lock)).
//!
//! [`LockSettings`] is the caller's request. [`LockSettings::terms`] validates it for a store of
//! known [`ConditionLevel`] (P26 (levels of conditional writes)). Only it creates a [`LockTerms`].

use std::time::Duration;

use crate::record::DEFAULT_TTL;

/// The mode of a repository lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockMode {
    /// Shared with other shared holders: backup, restore (P17 (lock per operation)).
    Shared,
    /// Excludes all other holders: prune (P17).
    Exclusive,
}

/// Which conditional operations a store supports (P26 (levels of conditional writes)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConditionLevel {
    /// Level 0: none; the store ignores or refuses conditions.
    Nothing,
    /// Level 1: create-if-absent and replace-if-version.
    Writes,
    /// Level 2: level 1 and delete-if-version.
    Deletes,
}

impl ConditionLevel {
    /// Returns the number of the level in P26.
    pub fn number(self) -> u8 {
        match self {
            ConditionLevel::Nothing => 0,
            ConditionLevel::Writes => 1,
            ConditionLevel::Deletes => 2,
        }
    }
}

/// Which other clients use the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OtherClients {
    /// Originals may be among them: wait for their late writes.
    Originals,
    /// Only Tenure clients, as the user promises (`--tenure-only`).
    TenureOnly,
}

/// What a shared holder does when an exclusive record appears while it holds (P33 (check for
/// conflicts while holding)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OnConflict {
    /// Reports it to the listener and keeps the lock.
    Warn,
    /// Treats the lock as lost (`--strict`).
    Stop,
}

/// Settings of a lock, as requested. The defaults are those that originals expect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockSettings {
    /// Time after the last refresh until the lock expires.
    pub ttl: Duration,
    /// Interval between refreshes.
    pub refresh: Duration,
    /// Largest assumed difference between the clocks of two machines (P21 (clock skew allowance)).
    pub skew: Duration,
    /// Settle time: how long to wait for late writers. `None` selects the default of P28 (acquire
    /// the exclusive lock).
    pub settle: Option<Duration>,
    /// Which other clients use the store.
    pub company: OtherClients,
    /// What a shared holder does about a conflicting exclusive record.
    pub on_conflict: OnConflict,
    /// Number of retries of a failed read or list (P25 (failed reads are not absence)).
    pub retries: u8,
    /// Interval between the attempts of a waiter (P19 (waiting for the repository)).
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

/// The error of settings that contradict the protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// The ttl is out of range (P16 (allowed lease times)).
    #[error("a ttl of {} s is not between 30 s and 600 s", .0.as_secs_f64())]
    Ttl(Duration),
    /// The refresh interval is zero or longer than half the ttl (P16).
    #[error("a refresh every {} s does not fit a ttl of {} s: at most half of it, and more than none", .refresh.as_secs_f64(), .ttl.as_secs_f64())]
    Refresh {
        /// The requested interval.
        refresh: Duration,
        /// The ttl.
        ttl: Duration,
    },
    /// The settle time is longer than a quarter of the ttl.
    #[error("settle of {} s does not fit a ttl of {} s: at most a quarter of it", .settle.as_secs_f64(), .ttl.as_secs_f64())]
    Settle {
        /// The requested settle time.
        settle: Duration,
        /// The ttl.
        ttl: Duration,
    },
}

impl LockSettings {
    /// Validates the settings and returns the terms for a store of this `level`.
    ///
    /// # Errors
    ///
    /// Returns [`SettingsError`] if the ttl, the refresh interval or the settle time is out of
    /// range.
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

/// Validated parameters of a lock on a store of known level.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LockTerms {
    /// Which conditional operations the store supports.
    pub level: ConditionLevel,
    /// Time after the last refresh until the lock expires. A record stores it in whole seconds.
    pub ttl: Duration,
    /// Interval between refreshes.
    pub refresh: Duration,
    /// Largest assumed difference between two clocks.
    pub skew: Duration,
    /// Settle time: how long to wait for late writers.
    pub settle: Duration,
    /// What a shared holder does about a conflicting exclusive record.
    pub on_conflict: OnConflict,
    /// Number of retries of a failed read or list.
    pub retries: u8,
    /// Interval between the attempts of a waiter.
    pub poll: Duration,
}

impl LockTerms {
    /// Number of times that a refused write restarts the acquire (P28.3).
    pub(crate) const ROUNDS: u8 = 5;
    /// Delay before a failed refresh is repeated (P32 (lease limit at 80 percent)).
    pub(crate) const REFRESH_RETRY: Duration = Duration::from_secs(2);
    /// Delay before a holder reads its record again that the store reported as absent (K34 (detect
    /// a lost lock)).
    pub(crate) const ABSENCE_RETRY: Duration = Duration::from_secs(1);
    /// Time after which a conflicting record is read again before it counts (P33).
    pub(crate) const SECOND_LOOK: Duration = Duration::from_secs(10);

    /// Returns how long a holder may rely on a refresh, counted from the sending of its write
    /// (P32).
    pub(crate) fn reliance(&self) -> Duration {
        tenure_files::Lease::usable(self.ttl)
    }

    /// Returns how long to wait for a younger conflicting client to withdraw (P28.4).
    ///
    /// At least one second, even if the settle time is zero: the other client's read and delete are
    /// still under way.
    pub(crate) fn withdrawal(&self) -> Duration {
        self.settle.max(Duration::from_secs(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// P16: both sides of every bound.
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

    /// P28.5: the default settle time.
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
