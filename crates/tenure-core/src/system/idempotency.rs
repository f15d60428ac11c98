//! Idempotency table of cluster-wide calls: a key is claimed before the call fans out and completed
//! after it (R102–R105).

use alloc::collections::{BTreeMap, VecDeque};

use super::command::{KeyClaim, KeyWork, RepeatedKey, SystemAnswer, SystemCall};
use crate::space::ANSWER_KEPT_MS;
use crate::value::Key;

/// A claimed key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ClaimedKey {
    pub(super) fingerprint: u128,
    /// `None` while the call is in progress.
    pub(super) answer: Option<SystemAnswer>,
    /// The work of the call while it is in progress.
    pub(super) work: Option<KeyWork>,
    pub(super) end: u64,
}

/// Claimed keys and remembered answers, with their expiry queue.
#[derive(Clone, Debug)]
pub(super) struct SystemIdempotency {
    table: BTreeMap<(SystemCall, Key), ClaimedKey>,
    // Expiry queue. A key that was claimed or completed again occurs more than once; the last one
    // counts.
    ends: VecDeque<(u64, (SystemCall, Key))>,
    limit: usize,
}

impl SystemIdempotency {
    pub(super) fn new(limit: u32) -> SystemIdempotency {
        SystemIdempotency {
            table: BTreeMap::new(),
            ends: VecDeque::new(),
            limit: limit as usize,
        }
    }

    /// Looks up a key; `None` if it is fresh and there is room.
    pub(super) fn look(&self, claim: &KeyClaim, time: u64) -> Option<RepeatedKey> {
        match self.table.get(&(claim.call, claim.key.clone())) {
            Some(there) if there.end > time => Some(if there.fingerprint != claim.fingerprint {
                RepeatedKey::KeyReused
            } else {
                match &there.answer {
                    Some(answer) => RepeatedKey::Answered(answer.clone()),
                    None => RepeatedKey::Open,
                }
            }),
            Some(_) => None,
            None if self.table.len() >= self.limit => Some(RepeatedKey::Full),
            None => None,
        }
    }

    /// Reserves a key for a call that is about to begin.
    pub(super) fn reserve(&mut self, claim: KeyClaim, time: u64) -> Result<(), RepeatedKey> {
        match self.look(&claim, time) {
            Some(repeated) => Err(repeated),
            None => {
                self.put(claim, None, None, time);
                Ok(())
            }
        }
    }

    /// Returns the work in progress under a key.
    pub(super) fn work(&self, claim: &KeyClaim, time: u64) -> Option<&KeyWork> {
        let there = self.table.get(&(claim.call, claim.key.clone()))?;
        let same = there.end > time && there.fingerprint == claim.fingerprint;
        there.work.as_ref().filter(|_| same)
    }

    /// Stores the work of a call. The key is new or in progress, without work stored so far.
    pub(super) fn begin(&mut self, claim: KeyClaim, work: KeyWork, time: u64) {
        self.put(claim, None, Some(work), time);
    }

    /// Stores the answer of a call, or drops the claim of a failed one.
    pub(super) fn complete(&mut self, claim: KeyClaim, answer: Option<SystemAnswer>, time: u64) {
        let key = (claim.call, claim.key.clone());
        let settled = self.table.get(&key).is_some_and(|there| {
            let other = there.fingerprint != claim.fingerprint;
            there.end > time && (other || there.answer.is_some())
        });
        match answer {
            // The key stands for another request by now, or has an answer. That stays, also if a
            // second attempt at the same call completes later with any result (R102).
            _ if settled => {}
            Some(answer) => self.put(claim, Some(answer), None, time),
            // Only a claim without stored work is dropped here: a plan stays until it is carried
            // out, and `Finish` of a change decides about its key.
            None => {
                if self
                    .table
                    .get(&key)
                    .is_some_and(|there| there.work.is_none())
                {
                    self.table.remove(&key);
                }
            }
        }
    }

    /// Drops the key of a refused change: a repeat is evaluated again (R102).
    pub(super) fn give_up(&mut self, claim: &KeyClaim, change: u64) {
        let key = (claim.call, claim.key.clone());
        let is_its = |there: &ClaimedKey| there.work == Some(KeyWork::Change(change));
        if self.table.get(&key).is_some_and(is_its) {
            self.table.remove(&key);
        }
    }

    fn put(
        &mut self,
        claim: KeyClaim,
        answer: Option<SystemAnswer>,
        work: Option<KeyWork>,
        time: u64,
    ) {
        let end = time.saturating_add(ANSWER_KEPT_MS);
        let key = (claim.call, claim.key);
        let claimed = ClaimedKey {
            fingerprint: claim.fingerprint,
            answer,
            work,
            end,
        };
        self.restore(key, claimed);
    }

    /// Restores an answer. Answers must come in the order of their ends.
    pub(super) fn restore(&mut self, key: (SystemCall, Key), claimed: ClaimedKey) {
        let again = self
            .table
            .get(&key)
            .is_some_and(|there| there.end == claimed.end);
        if !again {
            self.ends.push_back((claimed.end, key.clone()));
        }
        self.table.insert(key, claimed);
    }

    /// Restores the work of a call. Returns whether the key exists.
    pub(super) fn set_work(&mut self, key: &(SystemCall, Key), work: KeyWork) -> bool {
        match self.table.get_mut(key) {
            Some(there) => {
                there.work = Some(work);
                true
            }
            None => false,
        }
    }

    /// Removes lapsed keys, a few per entry.
    pub(super) fn forget(&mut self, time: u64) {
        let mut left = 16;
        while left > 0 && self.ends.front().is_some_and(|(end, _)| *end <= time) {
            if let Some((end, key)) = self.ends.pop_front()
                && self.table.get(&key).is_some_and(|there| there.end == end)
            {
                self.table.remove(&key);
                left -= 1;
            }
        }
    }

    /// Iterates over all answers, in the order of their ends.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&(SystemCall, Key), &ClaimedKey)> {
        self.ends.iter().filter_map(|(end, key)| {
            let there = self.table.get(key)?;
            (there.end == *end).then_some((key, there))
        })
    }
}
