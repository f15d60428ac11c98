//! Options of a sidecar acquisition, with the protocol's defaults. They are validated before any
//! file is touched (S14 (options out of range)).

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::{Map, Value};

use super::acquire::AcquireStep;
use crate::clock::Clock;
use crate::deadline::OnWait;
use crate::error::{Class, Error, Result};
use crate::publish::{Durability, PublishMethod};
use crate::wait::Cancel;

/// JSON members that the caller adds to a record.
pub type Payload = Map<String, Value>;

/// What to do with a lock whose holder is not proven alive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StalePolicy {
    /// Removes nothing, not even a lock whose holder is proven dead. An operator removes it.
    Never,
    /// Removes a lock only if its holder is proven dead. A lock that is only old ends the
    /// acquisition with `Stale`.
    #[default]
    FailClosed,
    /// Also removes an old lock if [`approve`](Options::approve) agrees and the lock has not
    /// changed in the meantime.
    RemoveIfUnchanged,
}

/// How often the holder writes a heartbeat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Heartbeat {
    /// A third of the stale time, at most 10 s.
    #[default]
    Auto,
    /// No heartbeat. The record then carries `createdAt` and ages like an original's (S11 (no
    /// creation date with heartbeats)).
    Off,
    /// This interval, at least 100 ms.
    Every(Duration),
}

/// Retry schedule (S13 (retry delay and budget)).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Retry {
    /// Number of attempts after the first; `None` means no limit.
    pub retries: Option<u32>,
    /// Factor by which the delay grows per attempt.
    pub factor: f64,
    /// The first delay.
    pub min_timeout: Duration,
    /// The longest delay.
    pub max_timeout: Duration,
    /// Whether each delay is multiplied by a random number in [1, 2).
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

/// Longest interval: 2³¹−1 ms, the limit of the original's (JavaScript) timers, almost 25 days.
const LONGEST: Duration = Duration::from_millis(2_147_483_647);

impl Retry {
    /// Returns a schedule with exactly one attempt.
    pub fn none() -> Retry {
        Retry {
            retries: Some(0),
            ..Retry::default()
        }
    }

    /// Returns the delay before attempt `n + 1`, counted from 0, with a jitter factor in [1, 2)
    /// (S13).
    pub(super) fn delay(&self, n: u32, jitter: f64) -> Duration {
        let millis = |duration: Duration| duration.as_secs_f64() * 1000.0;
        let (min, max) = (millis(self.min_timeout), millis(self.max_timeout));
        let grown = min * self.factor.powf(f64::from(n));
        let base = max.min(min.max(grown));
        let delay = max.min((base * jitter).round()) / 1000.0;
        Duration::try_from_secs_f64(delay).map_or(LONGEST, |delay| delay.min(LONGEST))
    }
}

/// A lock of another holder, as passed to [`Options::should_reclaim`].
#[derive(Clone, Copy, Debug)]
pub struct StaleCandidate<'a> {
    /// Path of the lock file.
    pub lock_path: &'a Path,
    /// The normalized target (S1 (normalized target)).
    pub target: &'a Path,
    /// The record, if it is a JSON object (S7 (records that are no objects)).
    pub payload: Option<&'a Payload>,
    /// The caller's stale time; `None` means infinite.
    pub stale: Option<Duration>,
    /// The current time by the clock of the file system.
    pub now: SystemTime,
    /// Whether a manager of this process holds it.
    pub held_by_this_process: bool,
}

/// A stale lock before its removal, as passed to [`Options::approve`].
#[derive(Clone, Copy, Debug)]
pub struct ReclaimCandidate<'a> {
    /// Path of the lock file.
    pub lock_path: &'a Path,
    /// The normalized target.
    pub target: &'a Path,
    /// The exact bytes of the record that would be removed.
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
    pub(super) on_wait: Option<OnWait>,
    pub(super) mode: Option<u32>,
    pub(super) clock: Clock,
    pub(super) first_way: PublishMethod,
    pub(super) pause: Option<Arc<PauseFn>>,
}

impl Options {
    /// Creates options for `target` with the defaults: wait without limit, remove a lock only if
    /// its holder is proven dead.
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
            on_wait: None,
            mode: None,
            clock: Clock::SYSTEM,
            first_way: PublishMethod::Tmpfile,
            pause: None,
        }
    }

    /// Sets the lock path. Default: the target + `.lock` (S2 (lock path)).
    #[must_use]
    pub fn lock_path(mut self, path: impl Into<PathBuf>) -> Options {
        self.lock_path = Some(path.into());
        self
    }

    /// Sets the age above which a lock is stale; `None` means never. Default: 30 s.
    #[must_use]
    pub fn stale(mut self, age: impl Into<Option<Duration>>) -> Options {
        self.stale = age.into();
        self
    }

    /// Sets the maximum time to wait. Default: no limit.
    #[must_use]
    pub fn timeout(mut self, timeout: impl Into<Option<Duration>>) -> Options {
        self.timeout = timeout.into();
        self
    }

    /// Sets the retry schedule.
    #[must_use]
    pub fn retry(mut self, retry: Retry) -> Options {
        self.retry = retry;
        self
    }

    /// Sets the policy for stale locks. Default: [`StalePolicy::FailClosed`].
    #[must_use]
    pub fn recovery(mut self, recovery: StalePolicy) -> Options {
        self.recovery = recovery;
        self
    }

    /// Sets the function that returns the caller's members of the record. It is called for every
    /// attempt.
    #[must_use]
    pub fn payload(mut self, payload: impl Fn() -> Payload + Send + Sync + 'static) -> Options {
        self.payload = Some(Arc::new(payload));
        self
    }

    /// Sets the function that decides, instead of the age, whether a lock is stale. It is not
    /// called for a lock whose `tenure` block proves a live holder (S19.4 order of sidecar
    /// tests).
    #[must_use]
    pub fn should_reclaim(
        mut self,
        judge: impl Fn(&StaleCandidate<'_>) -> bool + Send + Sync + 'static,
    ) -> Options {
        self.should_reclaim = Some(Arc::new(judge));
        self
    }

    /// Sets the function that must return `true` before a stale lock is removed. It is used only
    /// with [`StalePolicy::RemoveIfUnchanged`], and not for holders that are proven dead.
    #[must_use]
    pub fn approve(
        mut self,
        approve: impl Fn(&ReclaimCandidate<'_>) -> bool + Send + Sync + 'static,
    ) -> Options {
        self.approve = Some(Arc::new(approve));
        self
    }

    /// Sets the function that is called when a removal displaced a live lock of an original and
    /// could not restore it (K26 (rename, compare, then unlink)). The wait then continues.
    ///
    /// Without this function, the acquisition ends with `Compromised`.
    #[must_use]
    pub fn on_displaced(mut self, tell: impl Fn(&Error) + Send + Sync + 'static) -> Options {
        self.on_displaced = Some(Arc::new(tell));
        self
    }

    /// Sets the owner for re-entrant acquisition: the same owner may acquire the lock again while
    /// it holds it (S15 (locks within one process)).
    #[must_use]
    pub fn reentrant_owner(mut self, owner: impl Into<String>) -> Options {
        self.reentrant_owner = Some(owner.into());
        self
    }

    /// Sets metadata that [`HeldEntry::metadata`](super::HeldEntry::metadata) returns. It is not
    /// written to the file.
    #[must_use]
    pub fn metadata(mut self, metadata: Payload) -> Options {
        self.metadata = metadata;
        self
    }

    /// Keeps the lock file when the process exits normally.
    #[must_use]
    pub fn retain_on_exit(mut self) -> Options {
        self.retain_on_exit = true;
        self
    }

    /// Sets an interval at which the heartbeat thread verifies ownership, in addition to the
    /// heartbeat. Default: none.
    #[must_use]
    pub fn check_interval(mut self, interval: Duration) -> Options {
        self.check_interval = Some(interval);
        self
    }

    /// Sets the heartbeat interval. Default: [`Heartbeat::Auto`].
    #[must_use]
    pub fn heartbeat(mut self, heartbeat: Heartbeat) -> Options {
        self.heartbeat = heartbeat;
        self
    }

    /// Sets whether the record is synced before its name appears (K19 (durable records and torn
    /// records)). Default: [`Durability::Durable`].
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Options {
        self.durability = durability;
        self
    }

    /// Takes a fencing number with the lock (K39 (fencing number per acquisition)).
    #[must_use]
    pub fn fence(mut self) -> Options {
        self.fence = true;
        self
    }

    /// Trusts a pid in a record without a host name (S19.3). Set this only if no other container
    /// shares the directory.
    #[must_use]
    pub fn trust_pid(mut self) -> Options {
        self.trust_pid = true;
        self
    }

    /// Sets how long an original's reclaim guard must be unchanged before it counts as abandoned
    /// (S22 (guards of crashed reclaimers)). Default: 60 s.
    #[must_use]
    pub fn guard_stale(mut self, age: Duration) -> Options {
        self.guard_stale = age;
        self
    }

    /// Binds the lock to the life of the process `pid`, in our PID namespace, instead of this
    /// process (C13 (holds for scripts)).
    #[must_use]
    pub fn follows(mut self, pid: u32) -> Options {
        self.follows = Some(pid);
        self
    }

    /// Sets a handle with which another thread can cancel the wait.
    #[must_use]
    pub fn cancel(mut self, cancel: Cancel) -> Options {
        self.cancel = Some(cancel);
        self
    }

    /// Sets a callback that is called about once a second while the lock is held by another holder,
    /// with the error that the wait would return if it ended now.
    #[must_use]
    pub fn on_wait(mut self, on_wait: OnWait) -> Options {
        self.on_wait = Some(on_wait);
        self
    }

    /// Sets the permission bits of the record, whatever the umask (K32 (file modes and symlinks)).
    /// Default: 0600; in a directory that a group may write, the group may read and write the
    /// record.
    #[must_use]
    pub fn mode(mut self, mode: u32) -> Options {
        self.mode = Some(mode);
        self
    }

    /// Sets the wall clock for ages. Default: the system clock.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Options {
        self.clock = clock;
        self
    }

    /// Sets the first publish method to try (K17 (publish in one step)).
    #[must_use]
    pub fn first_way(mut self, way: PublishMethod) -> Options {
        self.first_way = way;
        self
    }

    /// Sets a hook that runs at each [`AcquireStep`], where a test can change files or end the
    /// process.
    #[doc(hidden)]
    #[must_use]
    pub fn pause(mut self, pause: impl Fn(AcquireStep) + Send + Sync + 'static) -> Options {
        self.pause = Some(Arc::new(pause));
        self
    }

    /// Returns the effective heartbeat interval, or `None` without heartbeats.
    pub fn heartbeat_interval(&self) -> Option<Duration> {
        const SLOWEST: Duration = Duration::from_secs(10);
        match self.heartbeat {
            // This process may exit before the process that the hold follows, so it writes no
            // heartbeat.
            _ if self.follows.is_some() => None,
            Heartbeat::Off => None,
            Heartbeat::Every(interval) => Some(interval),
            Heartbeat::Auto => Some(match self.stale {
                Some(stale) => (stale / 3).clamp(Duration::from_millis(100), SLOWEST),
                None => SLOWEST,
            }),
        }
    }

    /// Returns `BadInput` for values out of range (S14).
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

    /// S11, S24: a third of the stale time, at most 10 s; no heartbeat for another process.
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
