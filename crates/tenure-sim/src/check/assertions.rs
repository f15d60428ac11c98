//! Assertions over several groups: AssertFencing answers by what the groups have applied.
//!
//! An assertion reads each group at some moment between its call and its answer. So a path that it
//! calls valid was held at some moment of that time, and a path that it calls stale was not held at
//! some moment of it. Only owners of asserting clients are checked; all their holds have one fence.

use std::collections::BTreeMap;

use tenure_core::event::ChangeKind;
use tenure_core::path::Path;
use tenure_core::value::OwnerId;
use tenure_node::{Answer, AssertAnswer, ClientRequest};

use super::reference::{AppliedCommand, CommandResult};
use super::{CheckResult, Fact, Relevance};
use crate::time::SimTime;

/// When each path was held by each owner, by the times at which the entries were first applied.
#[derive(Default)]
pub(super) struct Assertions {
    held: BTreeMap<(OwnerId, Path), Vec<Held>>,
}

/// One hold: from its grant to its end.
struct Held {
    from: SimTime,
    to: Option<SimTime>,
}

impl Held {
    /// Whether it existed at some moment of a time.
    fn overlaps(&self, from: SimTime, to: SimTime) -> bool {
        self.from <= to && self.to.is_none_or(|end| end >= from)
    }

    /// Whether it existed the whole time.
    fn covers(&self, from: SimTime, to: SimTime) -> bool {
        self.from <= from && self.to.is_none_or(|end| end > to)
    }
}

impl Assertions {
    /// A command was applied for the first time.
    pub(super) fn applied(&mut self, now: SimTime, step: &AppliedCommand<'_>) {
        let CommandResult::Space { applied, .. } = &step.what else {
            return;
        };
        for change in &applied.changes {
            let (Some(owner), Some(path)) = (&change.owner, &change.path) else {
                continue;
            };
            if !is_checked(owner) {
                continue;
            }
            let holds = self.held.entry((owner.clone(), path.clone())).or_default();
            match change.kind {
                ChangeKind::Granted => holds.push(Held {
                    from: now,
                    to: None,
                }),
                ChangeKind::Released | ChangeKind::Expired | ChangeKind::Killed => {
                    if let Some(last) = holds.last_mut() {
                        last.to.get_or_insert(now);
                    }
                }
                ChangeKind::Queued
                | ChangeKind::Dequeued
                | ChangeKind::Asked
                | ChangeKind::Policy { .. } => {}
            }
        }
    }

    pub(super) fn see(&self, now: SimTime, fact: &Fact<'_>) -> CheckResult {
        let Fact::Answered(ask, Ok(Answer::AssertFencing(answer))) = fact else {
            return Ok(Relevance::Passed);
        };
        let ClientRequest::AssertFencing { owner, paths, .. } = &*ask.request else {
            return Ok(Relevance::Passed);
        };
        if !is_checked(owner) {
            return Ok(Relevance::Passed);
        }
        let holds = |path: &Path| {
            let holds = self.held.get(&(owner.clone(), path.clone()));
            holds.into_iter().flatten()
        };
        let (sent, id) = (ask.sent, ask.id);
        match answer {
            AssertAnswer::Valid => {
                let never = |path: &&Path| !holds(path).any(|held| held.overlaps(sent, now));
                match paths.iter().find(never) {
                    None => Ok(Relevance::Checked),
                    Some(path) => Err(format!(
                        "assertion {id} of {owner} is valid, and {path} was not held since {sent}"
                    )),
                }
            }
            AssertAnswer::StaleOwner(path) | AssertAnswer::StaleFence(path) => {
                if !paths.contains(path) {
                    return Err(format!(
                        "assertion {id} of {owner} fails for {path}, which it does not name"
                    ));
                }
                if holds(path).any(|held| held.covers(sent, now)) {
                    return Err(format!(
                        "assertion {id} of {owner} fails for {path}, which was held since before {sent}"
                    ));
                }
                Ok(Relevance::Checked)
            }
        }
    }
}

/// Whether this is an owner of an asserting client.
fn is_checked(owner: &OwnerId) -> bool {
    owner.as_str().starts_with('w')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_overlaps_with_its_ends_and_covers_only_its_inside() {
        let held = Held {
            from: 10,
            to: Some(20),
        };
        for (from, to, overlaps, covers) in [
            (0, 9, false, false),
            (0, 10, true, false),
            (10, 19, true, true),
            (12, 20, true, false),
            (20, 30, true, false),
            (21, 30, false, false),
        ] {
            assert_eq!(held.overlaps(from, to), overlaps, "{from} {to}");
            assert_eq!(held.covers(from, to), covers, "{from} {to}");
        }
    }
}
