//! Invariants from the view of the clients.
//!
//! All clients run in this process, so one clock orders their answers. A holder believes in its
//! lock from its answer until 80 % of the ttl after it first *sent* the request; it stops believing
//! before it sends its release.

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The recorded answers and the violations found in them.
#[derive(Default)]
pub(crate) struct Checkers {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    believed: HashMap<String, Vec<Belief>>,
    /// The largest fence known of a path, from each moment on.
    known: HashMap<String, Vec<(Instant, i64)>>,
    /// The store that the locks guard: the fence of its last writer.
    store: HashMap<String, i64>,
    line: Vec<HoldTurn>,
    counts: BTreeMap<&'static str, u64>,
    wrong: Vec<String>,
}

/// The time span in which a client believes that it holds a path.
#[derive(Clone, Debug)]
pub(crate) struct Belief {
    pub(crate) owner: String,
    pub(crate) shared: bool,
    pub(crate) since: Instant,
    pub(crate) until: Instant,
    pub(crate) fence: i64,
}

/// A waiter's turn in the queue.
struct HoldTurn {
    first_sent: Instant,
    queued: Instant,
    fence: i64,
    owner: String,
}

/// Returns until when a holder may believe.
pub(crate) fn until(sent: Instant, ttl_ms: u64) -> Instant {
    sent + Duration::from_millis(ttl_ms * 4 / 5)
}

impl Checkers {
    /// A path was granted. `first_sent` is when the request was sent for the first time.
    pub(crate) fn granted(&self, path: &str, belief: Belief, first_sent: Instant) {
        let mut guard = self.inner.lock().unwrap();
        let inner = &mut *guard;
        inner.count("grants");
        let now = Instant::now();
        if !belief.shared {
            let known = known_before(&inner.known, path, first_sent);
            if belief.fence <= known {
                inner.wrong.push(format!(
                    "{path}: {} was granted at fence {} when {known} was known",
                    belief.owner, belief.fence
                ));
            }
            inner.learn(path, belief.fence, now);
        }
        if belief.until <= now {
            return;
        }
        let others = inner.believed.entry(path.to_owned()).or_default();
        others.retain(|other| other.until > now);
        for other in others.iter() {
            if !(other.shared && belief.shared) {
                inner.wrong.push(format!(
                    "{path}: {} believes to hold it (fence {}) while {} does (fence {}) for {:?} more",
                    belief.owner,
                    belief.fence,
                    other.owner,
                    other.fence,
                    other.until - now
                ));
            }
        }
        others.push(belief);
    }

    /// A renewal was answered: the belief lasts longer. False if it had lapsed.
    pub(crate) fn renewed(&self, path: &str, owner: &str, until: Instant) -> bool {
        let mut inner = self.inner.lock().unwrap();
        inner.count("renewals");
        let now = Instant::now();
        let belief = inner
            .believed
            .get_mut(path)
            .and_then(|all| all.iter_mut().find(|one| one.owner == owner));
        match belief {
            Some(belief) if belief.until > now => {
                belief.until = until;
                true
            }
            _ => false,
        }
    }

    /// Returns whether the owner believes that it holds the path now.
    pub(crate) fn believes(&self, path: &str, owner: &str) -> bool {
        let inner = self.inner.lock().unwrap();
        let now = Instant::now();
        let all = inner.believed.get(path);
        all.is_some_and(|all| all.iter().any(|one| one.owner == owner && one.until > now))
    }

    /// Ends a belief before the owner sends its release.
    pub(crate) fn stops(&self, path: &str, owner: &str) {
        let mut inner = self.inner.lock().unwrap();
        if let Some(all) = inner.believed.get_mut(path) {
            all.retain(|one| one.owner != owner);
        }
    }

    /// Writes to the store with a fence. A holder that believes must succeed.
    pub(crate) fn writes(&self, path: &str, owner: &str, fence: i64) {
        let mut inner = self.inner.lock().unwrap();
        inner.count("writes");
        let last = inner.store.entry(path.to_owned()).or_default();
        let stale = *last > fence;
        *last = (*last).max(fence);
        if stale {
            inner.wrong.push(format!(
                "{path}: the write of {owner} at fence {fence} was stale though it believed"
            ));
        }
    }

    /// The service called a holder's fence invalid while the holder believed before and after.
    pub(crate) fn disowned(&self, path: &str, owner: &str) {
        let mut inner = self.inner.lock().unwrap();
        inner
            .wrong
            .push(format!("{path}: the lease of {owner} ended early"));
    }

    /// An inspection sent at `sent` answered this.
    pub(crate) fn inspected(&self, path: &str, sent: Instant, writer: &str, fence: i64) {
        let mut guard = self.inner.lock().unwrap();
        let inner = &mut *guard;
        inner.count("reads");
        let now = Instant::now();
        let known = known_before(&inner.known, path, sent);
        if fence < known {
            inner.wrong.push(format!(
                "{path}: inspected at fence {fence} when {known} was known"
            ));
        }
        inner.learn(path, fence, now);
        for belief in inner.believed.get(path).into_iter().flatten() {
            if !belief.shared
                && belief.since <= sent
                && belief.until > now
                && belief.owner != writer
            {
                inner.wrong.push(format!(
                    "{path}: said to be written by {writer:?} while {} held it throughout",
                    belief.owner
                ));
            }
        }
    }

    /// Records a waiter's turn: a waiter that was queued before this one sent its request must not
    /// come after it.
    pub(crate) fn turn(&self, owner: &str, first_sent: Instant, queued: Instant, fence: i64) {
        let mut guard = self.inner.lock().unwrap();
        let inner = &mut *guard;
        inner.count("turns");
        for other in &inner.line {
            let overtaken = queued < other.first_sent && fence > other.fence;
            let overtook = other.queued < first_sent && other.fence > fence;
            if overtaken || overtook {
                inner.wrong.push(format!(
                    "the line: {owner} (fence {fence}) and {} (fence {}) out of order",
                    other.owner, other.fence
                ));
            }
        }
        inner.line.push(HoldTurn {
            first_sent,
            queued,
            fence,
            owner: owner.to_owned(),
        });
        if inner.line.len() > 256 {
            inner.line.remove(0);
        }
    }

    /// Records another violation.
    pub(crate) fn wrong(&self, what: String) {
        self.inner.lock().unwrap().wrong.push(what);
    }

    /// Counts an event for the summary.
    pub(crate) fn count(&self, what: &'static str) {
        self.inner.lock().unwrap().count(what);
    }

    pub(crate) fn grants(&self) -> u64 {
        let inner = self.inner.lock().unwrap();
        inner.counts.get("grants").copied().unwrap_or(0)
    }

    pub(crate) fn stories(&self) -> u64 {
        let inner = self.inner.lock().unwrap();
        inner.counts.get("stories").copied().unwrap_or(0)
    }

    /// Fails if there was a violation.
    pub(crate) fn say(&self) {
        let inner = self.inner.lock().unwrap();
        assert!(inner.wrong.is_empty(), "{}", inner.wrong.join("\n"));
    }

    pub(crate) fn summary(&self) -> String {
        format!("{:?}", self.inner.lock().unwrap().counts)
    }
}

impl Inner {
    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    fn learn(&mut self, path: &str, fence: i64, now: Instant) {
        let known = self.known.entry(path.to_owned()).or_default();
        if known.last().is_none_or(|(_, last)| *last < fence) {
            known.push((now, fence));
        }
    }
}

fn known_before(known: &HashMap<String, Vec<(Instant, i64)>>, path: &str, sent: Instant) -> i64 {
    let Some(known) = known.get(path) else {
        return 0;
    };
    let at = known.partition_point(|(when, _)| *when < sent);
    at.checked_sub(1).map_or(0, |at| known[at].1)
}
