//! Final releases: which owners have released everything.
//!
//! An owner has, if its release was answered and none of its acquires was under way when the
//! release was first sent. (An acquire that arrives late takes the lock again, and a repeated
//! release does not free it, because it is the same request under the same key:
//! `docs/design/leases.md`.)

use std::collections::{BTreeMap, BTreeSet};

use tenure_core::value::OwnerId;
use tenure_node::{Answer, ClientRequest};

use super::{ClientCall, Fact};
use crate::time::SimTime;

/// Acquires and releases of every owner.
#[derive(Default)]
pub(super) struct Releases {
    /// Number of unanswered acquires per owner.
    open: BTreeMap<OwnerId, u64>,
    /// Owners whose release was sent, and those of them that had no acquire under way.
    releasing: BTreeSet<OwnerId>,
    clean: BTreeSet<OwnerId>,
    over: BTreeMap<OwnerId, SimTime>,
}

impl Releases {
    pub(super) fn see(&mut self, now: SimTime, fact: &Fact<'_>) {
        match fact {
            Fact::Asked(ask) => {
                if let ClientRequest::Acquire(acquire) = &*ask.request {
                    *self.open.entry(acquire.owner.clone()).or_default() += 1;
                    self.clean.remove(&acquire.owner);
                    self.over.remove(&acquire.owner);
                }
                if let Some(owner) = releases(&ask.request)
                    && self.releasing.insert(owner.clone())
                    && self.open.get(owner).is_none_or(|open| *open == 0)
                {
                    self.clean.insert(owner.clone());
                }
            }
            Fact::Answered(ask, Ok(answer)) => {
                if let ClientRequest::Acquire(acquire) = &*ask.request {
                    let open = self.open.entry(acquire.owner.clone()).or_default();
                    *open = open.saturating_sub(1);
                }
                if let (Some(owner), Answer::Done) = (releases(&ask.request), answer)
                    && self.clean.contains(owner)
                {
                    self.over.entry(owner.clone()).or_insert(now);
                }
            }
            _ => {}
        }
    }

    /// Returns when this owner had released everything, if that was before a call was sent.
    pub(super) fn before(&self, ask: &ClientCall, owner: &OwnerId) -> Option<SimTime> {
        let over = self.over.get(owner).copied();
        over.filter(|when| *when < ask.sent)
    }
}

fn releases(request: &ClientRequest) -> Option<&OwnerId> {
    match request {
        ClientRequest::Release(release) => Some(&release.owner),
        ClientRequest::ReleaseAll { owner, .. } => Some(owner),
        _ => None,
    }
}
