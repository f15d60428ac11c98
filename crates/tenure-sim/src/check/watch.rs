//! Watch consistency: a watch shows every change in commit order: E8 (Watch lock changes).
//!
//! So the changes must be consistent by themselves: no conflicting grants, no overtaking (R79: no
//! overtaking), no release of what was not held. In the convergence phase the result must also
//! equal what is read, and a waiter that has timed out must not be granted.
//!
//! The order is guaranteed per namespace, so the state is kept per namespace.

use std::collections::{BTreeMap, VecDeque};

use tenure_core::event::{ChangeKind, LockChange};
use tenure_core::path::{Namespace, Path};
use tenure_core::policy::Mode;
use tenure_core::query::Inspection;
use tenure_core::value::OwnerId;
use tenure_node::{Answer, ClientRequest, WatchEvent};

use super::exclusion::{PERMITS, excludes};
use super::{CheckResult, Fact, Relevance};
use crate::time::{SECOND, SimTime};

/// In the convergence phase every change reaches every watcher within this time.
const NEWS_TAKES: SimTime = SECOND;

/// The state that every watch stream has shown.
#[derive(Default)]
pub(super) struct WatchOrder {
    views: BTreeMap<u64, StreamView>,
    convergence: bool,
    /// When all clients died.
    dead_since: Option<SimTime>,
    /// Queue time of each owner's last acquire, in milliseconds.
    patience: BTreeMap<OwnerId, u64>,
    /// Reads of the convergence phase, to be compared when all earlier changes have arrived.
    read: VecDeque<WatchedRead>,
}

/// The state that one stream has shown.
#[derive(Default)]
struct StreamView {
    prefix: Option<Namespace>,
    /// When the initial snapshot was complete.
    complete: Option<SimTime>,
    places: BTreeMap<Namespace, WatchedTree>,
}

/// Holds and waiters of one namespace.
#[derive(Default)]
struct WatchedTree {
    holds: Vec<(OwnerId, Path, Mode)>,
    /// Waiters, in order.
    line: Vec<(OwnerId, Path, Mode)>,
    changed: BTreeMap<Path, SimTime>,
}

/// An answer to InspectPath.
struct WatchedRead {
    path: Path,
    sent: SimTime,
    answered: SimTime,
    found: Inspection,
}

impl WatchOrder {
    pub(super) fn see(&mut self, now: SimTime, fact: &Fact<'_>) -> CheckResult {
        match fact {
            Fact::Watches { stream, prefix } => {
                let view = StreamView {
                    prefix: Some((*prefix).clone()),
                    ..StreamView::default()
                };
                self.views.insert(*stream, view);
            }
            Fact::Unwatched(stream) => {
                self.views.remove(stream);
            }
            Fact::Saw(stream, event) => {
                let seen = self.saw(now, *stream, event);
                return seen.and(Ok(Relevance::Checked));
            }
            Fact::ConvergencePhase => self.convergence = true,
            Fact::AllDie => self.dead_since = Some(now),
            Fact::Asked(ask) => {
                if let ClientRequest::Acquire(acquire) = &*ask.request {
                    self.patience
                        .insert(acquire.owner.clone(), acquire.queue_ttl.millis());
                }
            }
            Fact::Answered(ask, Ok(Answer::Inspect(found))) if self.convergence => {
                if let ClientRequest::InspectPath { path } = &*ask.request {
                    self.read.push_back(WatchedRead {
                        path: path.clone(),
                        sent: ask.sent,
                        answered: now,
                        found: (**found).clone(),
                    });
                }
            }
            _ => {}
        }
        self.compare(now)
    }

    fn saw(&mut self, now: SimTime, stream: u64, event: &WatchEvent) -> Result<(), String> {
        let Some(view) = self.views.get_mut(&stream) else {
            return Ok(());
        };
        match event {
            WatchEvent::SnapshotEnd => {
                view.complete = Some(now);
                Ok(())
            }
            WatchEvent::Present(present) => {
                let mut present = present.iter();
                present.try_for_each(|change| self.saw_change(now, stream, change, false))
            }
            WatchEvent::Changed(change) => self.saw_change(now, stream, change, true),
        }
    }

    fn saw_change(
        &mut self,
        now: SimTime,
        stream: u64,
        change: &LockChange,
        is_news: bool,
    ) -> Result<(), String> {
        let Some(view) = self.views.get_mut(&stream) else {
            return Ok(());
        };
        let (Some(owner), Some(path), Some(mode)) = (&change.owner, &change.path, change.mode)
        else {
            return Ok(());
        };
        if let (ChangeKind::Granted, true, Some(dead), Some(patience)) = (
            change.kind,
            is_news,
            self.dead_since,
            self.patience.get(owner),
        ) {
            // The owner's last request may take 5 s until it is queued, and clocks are up to 10 %
            // slow.
            let over = dead + (patience + 5_000) * 1_200 + 3 * SECOND;
            if now > over {
                return Err(format!(
                    "{owner} was granted {path} at {now}, but it was dead since {dead} and its place lasted {patience} ms"
                ));
            }
        }
        let tree = view.places.entry(change.namespace.clone()).or_default();
        tree.changed.insert(path.clone(), now);
        tree.take(change, (owner, path, mode))
    }

    /// Compares reads with the streams, once all changes around the read have arrived.
    fn compare(&mut self, now: SimTime) -> CheckResult {
        let mut compared = Relevance::Passed;
        while self
            .read
            .front()
            .is_some_and(|read| read.answered + NEWS_TAKES < now)
        {
            let Some(read) = self.read.pop_front() else {
                break;
            };
            for view in self.views.values() {
                let prefix = view.prefix.as_ref();
                if prefix.is_some_and(|prefix| prefix.contains(&read.path)) {
                    view.agrees(&read)?;
                    compared = Relevance::Checked;
                }
            }
        }
        Ok(compared)
    }
}

impl StreamView {
    /// Whether a read equals what this stream has shown. Skipped if the path changed at about the
    /// time of the read.
    fn agrees(&self, read: &WatchedRead) -> Result<(), String> {
        let quiet_since = read.sent.saturating_sub(NEWS_TAKES);
        let changed = |tree: &WatchedTree| tree.changed.get(&read.path).copied();
        let mut changes = self.places.values().filter_map(changed);
        let known = self.complete.is_some_and(|since| since < quiet_since);
        if !known || changes.any(|when| when >= quiet_since) {
            return Ok(());
        }
        let found = &read.found;
        let holders = found.writer.iter().chain(&found.readers);
        let mut told: Vec<&OwnerId> = holders.chain(&found.permit_holders).collect();
        told.sort();
        told.dedup();
        let mut seen: Vec<&OwnerId> = self
            .places
            .values()
            .flat_map(|tree| &tree.holds)
            .filter(|(_, path, _)| *path == read.path)
            .map(|(owner, ..)| owner)
            .collect();
        seen.sort();
        seen.dedup();
        if seen != told {
            return Err(format!(
                "{} is held by {told:?}, but those who watch have seen {seen:?}",
                read.path
            ));
        }
        let lines = self.places.values().flat_map(|tree| &tree.line);
        let waiting = lines.filter(|(_, path, _)| *path == read.path).count() as u64;
        if waiting != found.waiters {
            return Err(format!(
                "{} wait for {}, but those who watch have seen {waiting}",
                found.waiters, read.path
            ));
        }
        Ok(())
    }
}

impl WatchedTree {
    /// Applies a change to the state.
    fn take(
        &mut self,
        change: &LockChange,
        (owner, path, mode): (&OwnerId, &Path, Mode),
    ) -> Result<(), String> {
        let this = |one: &(OwnerId, Path, Mode)| one.0 == *owner && one.1 == *path && one.2 == mode;
        match change.kind {
            ChangeKind::Queued => self.line.push((owner.clone(), path.clone(), mode)),
            ChangeKind::Dequeued => self.line.retain(|one| !this(one)),
            ChangeKind::Granted => {
                if !self.holds.iter().any(this) {
                    self.granted(owner, path, mode)?;
                    self.holds.push((owner.clone(), path.clone(), mode));
                }
                self.line.retain(|one| !this(one));
            }
            ChangeKind::Released | ChangeKind::Expired | ChangeKind::Killed => {
                let before = self.holds.len();
                self.holds.retain(|one| !this(one));
                if self.holds.len() == before {
                    return Err(format!(
                        "{owner} lost {path} ({mode:?}, {:?}), but was not seen to hold it",
                        change.kind
                    ));
                }
            }
            ChangeKind::Asked | ChangeKind::Policy { .. } => {}
        }
        Ok(())
    }

    /// Checks a grant against the other holds, the permits, and the earlier waiters.
    fn granted(&self, owner: &OwnerId, path: &Path, mode: Mode) -> Result<(), String> {
        let others = self.holds.iter().filter(|other| other.0 != *owner);
        for (other, held, held_mode) in others {
            if excludes(path, mode, held, *held_mode) {
                return Err(format!(
                    "{owner} was granted {path} ({mode:?}) while {other} held {held} ({held_mode:?})"
                ));
            }
        }
        if path.handler() == "s" {
            let holders = self.holds.iter().filter(|other| other.1 == *path);
            let holders = holders.count();
            if holders >= PERMITS {
                return Err(format!("{owner} got permit {} of {path}", holders + 1));
            }
        }
        // An owner that already holds a path of the tree is not required to queue behind others:
        // R79 (no overtaking).
        let holds_some = self.holds.iter().any(|held| held.0 == *owner);
        let ahead = self.line.iter().take_while(|other| other.0 != *owner);
        for (other, wanted, wanted_mode) in ahead {
            if !holds_some && excludes(path, mode, wanted, *wanted_mode) {
                return Err(format!(
                    "{owner} was granted {path} ({mode:?}), though {other} had waited longer for {wanted} ({wanted_mode:?})"
                ));
            }
        }
        Ok(())
    }
}
