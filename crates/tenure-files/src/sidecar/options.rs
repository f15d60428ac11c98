//! What a caller may ask of a sidecar lock, with the protocol's defaults, checked before any file is
//! touched (S14).

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::{Map, Value};

use super::acquire::AcquireStep;
use crate::clock::Clock;
use crate::error::{Class, Error, Result};
use crate::publish::{Durability, PublishMethod};
use crate::wait::Cancel;

/// The members of a record that the caller chooses.
pub type Payload = Map<String, Value>;

/// What to do with a lock that is not shown to be alive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StalePolicy {
    /// Remove nothing, not even on proof; that is left to a person.
    Never,
    /// Remove on proof only; a lock that is merely old ends the acquisition with `Stale`.
    #[default]
    FailClosed,
    /// Also remove an old lock, if `approve` agrees and it has not changed meanwhile.
    RemoveIfUnchanged,
}

/// How often the holder shows that it lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Heartbeat {
    /// A third of the stale time, at most 10 s.
    #[default]
    Auto,
    /// Never; the record then carries `createdAt` and ages like an original's (S11).
    Off,
    /// This often, at least every 100 ms apart.
    Every(Duration),
}

/// How often and how fast to try again (S13).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Retry {
    /// Attempts after the first; `None` is without limit.
    pub retries: Option<u32>,
    /// Growth of the delay per attempt.
    pub factor: f64,
    /// The first delay.
    pub min_timeout: Duration,
    /// The longest delay.
    pub max_timeout: Duration,
    /// Multiply each delay by a random number in [1, 2).
    pub randomize: bool,
}

impl Default for Retry {
    fn default() -> Retry {
        Retry {
            retries: None,
            factor: 1.0,
            min_timeout: Duration::from_millis(50),
            max_timeout: Duration::from_millis(1000),
            randomize: false,
        }
    }
}

/// No interval is longer: what the original's timers can do, almost 25 days.
const LONGEST: Duration = Duration::from_millis(2_147_483_647);

impl Retry {
    /// Exactly one attempt.
    pub fn none() -> Retry {
        Retry {
            retries: Some(0),
            ..Retry::default()
        }
    }

    /// The delay before attempt `n + 1`, counted from 0, with a jitter factor in [1, 2) (S13).
    pub(super) fn delay(&self, n: u32, jitter: f64) -> Duration {
        let millis = |duration: Duration| duration.as_secs_f64() * 1000.0;
        let (min, max) = (millis(self.min_timeout), millis(self.max_timeout));
        let grown = min * self.factor.powf(f64::from(n));
        let base = max.min(min.max(grown));
        let delay = max.min((base * jitter).round()) / 1000.0;
        Duration::try_from_secs_f64(delay).map_or(LONGEST, |delay| delay.min(LONGEST))
    }
}

/// A lock that somebody else has, as a `should_reclaim` sees it.
#[derive(Clone, Copy, Debug)]
pub struct StaleCandidate<'a> {
    /// The lock file.
    pub lock_path: &'a Path,
    /// The normalized target (S1).
    pub target: &'a Path,
    /// The record, if it is a JSON object (S7).
    pub payload: Option<&'a Payload>,
    /// The caller's stale time; `None` is infinite.
    pub stale: Option<Duration>,
    /// Now, by the file system's clock.
    pub now: SystemTime,
    /// Whether a manager of this process holds it.
    pub held_by_this_process: bool,
}

/// A stale lock about to be removed, as an `approve` sees it.
#[derive(Clone, Copy, Debug)]
pub struct ReclaimCandidate<'a> {
    /// The lock file.
    pub lock_path: &'a Path,
    /// The normalized target.
    pub target: &'a Path,
    /// The exact bytes that would be removed.
    pub bytes: &'a [u8],
    /// The record, if it is a JSON object.
    pub payload: Option<&'a Payload>,
}

type PayloadFn = dyn Fn() -> Payload + Send + Sync;
type ShouldReclaim = dyn Fn(&StaleCandidate<'_>) -> bool + Send + Sync;
type Approve = dyn Fn(&ReclaimCandidate<'_>) -> bool + Send + Sync;
type OnDisplaced = dyn Fn(&Error) + Send + Sync;
type PauseFn = dyn Fn(AcquireStep) + Send + Sync;

/// What to lock, and how. Everything but the target has a default.
#[derive(Clone)]
pub struct Options {
    pub(super) target: PathBuf,
    pub(super) lock_path: Option<PathBuf>,
    pub(super) stale: Option<Duration>,
    pub(super) timeout: Option<Duration>,
    pub(super) retry: Retry,
    pub(super) recovery: StalePolicy,
    pub(super) payload: Option<Arc<PayloadFn>>,
    pub(super) should_reclaim: Option<Arc<ShouldReclaim>>,
    pub(super) approve: Option<Arc<Approve>>,
    pub(super) on_displaced: Option<Arc<OnDisplaced>>,
    pub(super) reentrant_owner: Option<String>,
    pub(super) metadata: Payload,
    pub(super) retain_on_exit: bool,
    pub(super) check_interval: Option<Duration>,
    pub(super) heartbeat: Heartbeat,
    pub(super) durability: Durability,
    pub(super) fence: bool,
    pub(super) trust_pid: bool,
    pub(super) guard_stale: Duration,
    pub(super) follows: Option<u32>,
    pub(super) cancel: Option<Cancel>,
    pub(super) clock: Clock,
    pub(super) first_way: PublishMethod,
    pub(super) pause: Option<Arc<PauseFn>>,
}

impl Options {
    /// Locks `target` with the defaults: wait without limit, remove dead locks on proof only.
    pub fn new(target: impl Into<PathBuf>) -> Options {
        Options {
            target: target.into(),
            lock_path: None,
            stale: Some(Duration::from_secs(30)),
            timeout: None,
            retry: Retry::default(),
            recovery: StalePolicy::default(),
            payload: None,
            should_reclaim: None,
            approve: None,
            on_displaced: None,
            reentrant_owner: None,
            metadata: Map::new(),
            retain_on_exit: false,
            check_interval: None,
            heartbeat: Heartbeat::default(),
            durability: Durability::Durable,
            fence: false,
            trust_pid: false,
            guard_stale: Duration::from_secs(60),
            follows: None,
            cancel: None,
            clock: Clock::SYSTEM,
            first_way: PublishMethod::Tmpfile,
            pause: None,
        }
    }

    /// Another lock path than the target's own + `.lock` (S2).
    #[must_use]
    pub fn lock_path(mut self, path: impl Into<PathBuf>) -> Options {
        self.lock_path = Some(path.into());
        self
    }

    /// The age at which a lock may be called stale; `None` is never.
    #[must_use]
    pub fn stale(mut self, age: impl Into<Option<Duration>>) -> Options {
        self.stale = age.into();
        self
    }

    /// The overall deadline; `None` is none.
    #[must_use]
    pub fn timeout(mut self, timeout: impl Into<Option<Duration>>) -> Options {
        self.timeout = timeout.into();
        self
    }

    /// How to try again.
    #[must_use]
    pub fn retry(mut self, retry: Retry) -> Options {
        self.retry = retry;
        self
    }

    /// What to do with stale locks.
    #[must_use]
    pub fn recovery(mut self, recovery: StalePolicy) -> Options {
        self.recovery = recovery;
        self
    }

    /// The caller's members of the record, made anew for every attempt.
    #[must_use]
    pub fn payload(mut self, payload: impl Fn() -> Payload + Send + Sync + 'static) -> Options {
        self.payload = Some(Arc::new(payload));
        self
    }

    /// Replaces the test of age for locks that are not shown to be alive (S19.4).
    #[must_use]
    pub fn should_reclaim(
        mut self,
        judge: impl Fn(&StaleCandidate<'_>) -> bool + Send + Sync + 'static,
    ) -> Options {
        self.should_reclaim = Some(Arc::new(judge));
        self
    }

    /// Must agree before a stale lock is removed.
    #[must_use]
    pub fn approve(
        mut self,
        approve: impl Fn(&ReclaimCandidate<'_>) -> bool + Send + Sync + 'static,
    ) -> Options {
        self.approve = Some(Arc::new(approve));
        self
    }

    /// Told when a removal displaced the live lock of an original and could not put it back (K26);
    /// the wait then goes on. Without it, that ends the acquisition with `Compromised`.
    #[must_use]
    pub fn on_displaced(mut self, tell: impl Fn(&Error) + Send + Sync + 'static) -> Options {
        self.on_displaced = Some(Arc::new(tell));
        self
    }

    /// The same owner may take the lock again while it has it (S15).
    #[must_use]
    pub fn reentrant_owner(mut self, owner: impl Into<String>) -> Options {
        self.reentrant_owner = Some(owner.into());
        self
    }

    /// Shown by `held_entries`, not written.
    #[must_use]
    pub fn metadata(mut self, metadata: Payload) -> Options {
        self.metadata = metadata;
        self
    }

    /// Leave the lock file when the process ends normally.
    #[must_use]
    pub fn retain_on_exit(mut self) -> Options {
        self.retain_on_exit = true;
        self
    }

    /// Verify ownership this often and report its loss, in addition to the heartbeat.
    #[must_use]
    pub fn check_interval(mut self, interval: Duration) -> Options {
        self.check_interval = Some(interval);
        self
    }

    /// How often to show that we live.
    #[must_use]
    pub fn heartbeat(mut self, heartbeat: Heartbeat) -> Options {
        self.heartbeat = heartbeat;
        self
    }

    /// Whether the record is synced before its name appears (K19).
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Options {
        self.durability = durability;
        self
    }

    /// Take a fencing number (K39).
    #[must_use]
    pub fn fence(mut self) -> Options {
        self.fence = true;
        self
    }

    /// Believe a bare pid without a host name (S19.3): no containers share the directory.
    #[must_use]
    pub fn trust_pid(mut self) -> Options {
        self.trust_pid = true;
        self
    }

    /// How long a foreign reclaim guard may stand still before it counts as left behind (S22).
    #[must_use]
    pub fn guard_stale(mut self, age: Duration) -> Options {
        self.guard_stale = age;
        self
    }

    /// The hold follows the life of this process of our PID namespace instead of ours (C13).
    #[must_use]
    pub fn follows(mut self, pid: u32) -> Options {
        self.follows = Some(pid);
        self
    }

    /// Lets another thread end the wait.
    #[must_use]
    pub fn cancel(mut self, cancel: Cancel) -> Options {
        self.cancel = Some(cancel);
        self
    }

    /// The wall clock for ages.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Options {
        self.clock = clock;
        self
    }

    /// The first way of publishing to try (K17).
    #[must_use]
    pub fn first_way(mut self, way: PublishMethod) -> Options {
        self.first_way = way;
        self
    }

    /// Called at the points where a test may let the world change, or end the process.
    #[doc(hidden)]
    #[must_use]
    pub fn pause(mut self, pause: impl Fn(AcquireStep) + Send + Sync + 'static) -> Options {
        self.pause = Some(Arc::new(pause));
        self
    }

    /// The heartbeat interval in force; `None` without heartbeats.
    pub fn heartbeat_interval(&self) -> Option<Duration> {
        const SLOWEST: Duration = Duration::from_secs(10);
        match self.heartbeat {
            // Nobody beats for a hold that follows another process.
            _ if self.follows.is_some() => None,
            Heartbeat::Off => None,
            Heartbeat::Every(interval) => Some(interval),
            Heartbeat::Auto => Some(match self.stale {
                Some(stale) => (stale / 3).clamp(Duration::from_millis(100), SLOWEST),
                None => SLOWEST,
            }),
        }
    }

    /// Refuses values out of range (S14).
    pub(super) fn check(&self) -> Result<()> {
        let refuse = |what: &str| Err(Error::new(Class::BadInput, &self.target, what));
        let retry = &self.retry;
        if !retry.factor.is_finite() || retry.factor < 0.0 {
            return refuse("retry.factor must be finite and not negative");
        }
        if retry.min_timeout > retry.max_timeout {
            return refuse("retry.min_timeout must not exceed retry.max_timeout");
        }
        if let Heartbeat::Every(interval) = self.heartbeat
            && !(Duration::from_millis(100)..=LONGEST).contains(&interval)
        {
            return refuse("the heartbeat must be off or 100 to 2147483647 ms");
        }
        if let Some(interval) = self.check_interval
            && !(Duration::from_millis(1)..=LONGEST).contains(&interval)
        {
            return refuse("check_interval must be 1 to 2147483647 ms");
        }
        if self
            .follows
            .is_some_and(|pid| crate::process::valid_pid(pid.into()).is_none())
        {
            return refuse("the pid to follow is not a pid");
        }
        Ok(())
    }

    pub(super) fn at(&self, point: AcquireStep) {
        if let Some(pause) = &self.pause {
            pause(point);
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("target", &self.target)
            .field("lock_path", &self.lock_path)
            .field("stale", &self.stale)
            .field("timeout", &self.timeout)
            .field("retry", &self.retry)
            .field("recovery", &self.recovery)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(retry: Retry, attempts: u32) -> Vec<u128> {
        (0..attempts)
            .map(|n| retry.delay(n, 1.0).as_millis())
            .collect()
    }

    /// S13: the delays named in the rule, the cap, and the jitter.
    #[test]
    fn delays_grow_as_the_rule_says() {
        assert_eq!(millis(Retry::default(), 3), [50, 50, 50]);
        let min_timeout = Duration::from_millis(100);
        let doubling = Retry {
            factor: 2.0,
            min_timeout,
            ..Retry::default()
        };
        assert_eq!(millis(doubling, 6), [100, 200, 400, 800, 1000, 1000]);
        assert_eq!(doubling.delay(1, 1.5).as_millis(), 300);
        assert_eq!(doubling.delay(3, 1.9).as_millis(), 1000);
        let shrinking = Retry {
            factor: 0.5,
            min_timeout,
            ..Retry::default()
        };
        assert_eq!(
            millis(shrinking, 3),
            [100, 100, 100],
            "never below the first delay"
        );
        assert_eq!(doubling.delay(u32::MAX, 1.0).as_millis(), 1000);
        let endless = Retry {
            max_timeout: Duration::MAX,
            ..doubling
        };
        assert_eq!(endless.delay(u32::MAX, 1.9), LONGEST);
    }

    /// S11, S24: a third of the stale time, at most 10 s; nobody beats for another process.
    #[test]
    fn the_heartbeat_follows_the_stale_time() {
        let options = Options::new("x");
        let seconds = Duration::from_secs;
        assert_eq!(options.heartbeat_interval(), Some(seconds(10)));
        assert_eq!(
            options.clone().stale(seconds(6)).heartbeat_interval(),
            Some(seconds(2))
        );
        assert_eq!(
            options.clone().stale(None).heartbeat_interval(),
            Some(seconds(10))
        );
        assert_eq!(
            options
                .clone()
                .heartbeat(Heartbeat::Off)
                .heartbeat_interval(),
            None
        );
        assert_eq!(options.follows(1).heartbeat_interval(), None);
    }

    /// S14: out of range is `BadInput`.
    #[test]
    fn values_out_of_range_are_refused() {
        let options = || Options::new("x");
        let retry = Retry::default();
        let bad = [
            options().retry(Retry {
                factor: -1.0,
                ..retry
            }),
            options().retry(Retry {
                factor: f64::NAN,
                ..retry
            }),
            options().retry(Retry {
                min_timeout: Duration::from_secs(2),
                ..retry
            }),
            options().heartbeat(Heartbeat::Every(Duration::from_millis(99))),
            options().heartbeat(Heartbeat::Every(Duration::MAX)),
            options().check_interval(Duration::ZERO),
            options().check_interval(Duration::from_secs(3_000_000)),
            options().follows(0),
            options().follows(4_194_305),
        ];
        for options in bad {
            assert_eq!(
                options.check().unwrap_err().class(),
                Class::BadInput,
                "{options:?}"
            );
        }
        options().check().unwrap();
    }
}
