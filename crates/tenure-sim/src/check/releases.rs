//! Who has given everything back for good: its release was answered, and no acquire of its was on the
//! way when the release was first sent. (A late acquire takes again what a repeated release, being
//! the same request, does not give back: leases.md.)

use std::collections::{BTreeMap, BTreeSet};

use tenure_core::value::OwnerId;
use tenure_node::{Answer, ClientRequest};

use super::{ClientCall, Fact};
use crate::time::SimTime;

/// See the module.
#[derive(Default)]
pub(super) struct Releases {
    /// Acquires of each owner that are not answered.
    open: BTreeMap<OwnerId, u64>,
    /// Owners whose release was sent, and those of them that had nothing else on the way.
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

    /// When this owner had given everything back, if that was before a question was sent.
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
