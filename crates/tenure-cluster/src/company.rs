//! Those who were told something and are about to come back.
//!
//! Whoever gives a hot lock back and whoever gets it are told in the same turn, and both come back
//! at about the same time: one queues again, the other gives back. The first to come would have the
//! disk to itself, and the other would wait for two syncs. So the journal waits a moment for the
//! rest of a small company (never for a large one: many come together by themselves), and one sync
//! does for all. Who is alone is never waited for.

use std::time::{Duration, Instant};

/// A company of more is not waited for.
const MOST: usize = 8;
/// Who has not come back after this has something else to do.
const SOON: Duration = Duration::from_millis(1);

/// See the module.
#[derive(Debug)]
pub(crate) struct Company {
    missing: usize,
    since: Instant,
}

impl Company {
    pub(crate) fn new(now: Instant) -> Company {
        Company {
            missing: 0,
            since: now,
        }
    }

    /// So many were told something in this turn.
    pub(crate) fn told(&mut self, count: usize, now: Instant) {
        if count > 0 {
            self.missing = count;
            self.since = now;
        }
    }

    /// So many have come back. Whether others are worth waiting for.
    pub(crate) fn came(&mut self, count: usize, now: Instant) -> Rest {
        self.missing = self.missing.saturating_sub(count);
        let soon = now.duration_since(self.since) < SOON;
        if soon && (1..=MOST).contains(&self.missing) {
            Rest::Comes
        } else {
            Rest::IsHere
        }
    }
}

/// Whether more is about to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// Probably.
    Comes,
    /// Not that anybody knew.
    IsHere,
}

/// How long a sync usually takes, and so how long it is worth waiting before one.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    usual: Duration,
}

impl Patience {
    /// Longer is never waited.
    const MOST: Duration = Duration::from_micros(60);

    pub(crate) fn took(&mut self, sync: Duration) {
        self.usual = (self.usual * 7 + sync) / 8;
    }

    /// A quarter of a sync: half of them are saved by it.
    pub(crate) fn is(&self) -> Duration {
        (self.usual / 4).min(Self::MOST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_of_a_small_company_is_waited_for() {
        let now = Instant::now();
        let mut company = Company::new(now);
        company.told(2, now);
        assert_eq!(company.came(1, now), Rest::Comes);
        assert_eq!(company.came(1, now), Rest::IsHere, "all are back");
        company.told(3, now);
        company.told(0, now);
        assert_eq!(company.came(1, now), Rest::Comes, "a quiet turn is no news");
        assert_eq!(company.came(5, now), Rest::IsHere);
    }

    #[test]
    fn nobody_waits_for_one_for_many_or_for_those_who_stay_away() {
        let now = Instant::now();
        let mut company = Company::new(now);
        assert_eq!(company.came(1, now), Rest::IsHere);
        company.told(1, now);
        assert_eq!(company.came(1, now), Rest::IsHere);
        company.told(64, now);
        assert_eq!(company.came(1, now), Rest::IsHere);
        company.told(2, now);
        assert_eq!(company.came(1, now + SOON), Rest::IsHere);
    }

    #[test]
    fn patience_grows_with_the_disk_up_to_a_limit() {
        let mut patience = Patience::default();
        assert_eq!(patience.is(), Duration::ZERO, "nothing is known yet");
        for _ in 0..50 {
            patience.took(Duration::from_micros(100));
        }
        let is = patience.is();
        assert!(is > Duration::from_micros(20) && is <= Duration::from_micros(25));
        patience.took(Duration::from_secs(1));
        assert_eq!(patience.is(), Patience::MOST);
    }
}
