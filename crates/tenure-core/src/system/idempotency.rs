//! Remembered answers of cluster-wide calls: a key is claimed before the call fans out and completed
//! after it (R102–R105).

use super::command::{KeyClaim, KeyWork, RepeatedKey, SystemAnswer, SystemCall};
use crate::idempotency::{IdempotencyTable, KeyLookup, Remembered, TableKey};
use crate::value::Key;

/// A claimed key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ClaimedKey {
    /// `None` while the call is in progress.
    pub(super) answer: Option<SystemAnswer>,
    /// The work of the call while it is in progress.
    pub(super) work: Option<KeyWork>,
}

/// Claimed keys and remembered answers.
pub(super) type SystemIdempotency = IdempotencyTable<(SystemCall, Key), ClaimedKey>;

impl TableKey for (SystemCall, Key) {
    /// All calls share the room.
    type Share = ();
    fn share(&self) -> &() {
        &()
    }
}

impl SystemIdempotency {
    /// Looks up the key of a call; `None` if it is fresh and there is room.
    pub(super) fn repeated(&self, claim: &KeyClaim, time: u64) -> Option<RepeatedKey> {
        match self.look(&key_of(claim), claim.fingerprint, time) {
            KeyLookup::New => None,
            KeyLookup::Answered(there) => Some(match &there.answer {
                Some(answer) => RepeatedKey::Answered(answer.clone()),
                None => RepeatedKey::Open,
            }),
            KeyLookup::Reused => Some(RepeatedKey::KeyReused),
            KeyLookup::Full => Some(RepeatedKey::Full),
        }
    }

    /// Reserves a key for a call that is about to begin.
    pub(super) fn reserve(&mut self, claim: KeyClaim, time: u64) -> Result<(), RepeatedKey> {
        match self.repeated(&claim, time) {
            Some(repeated) => Err(repeated),
            None => {
                self.put(claim, ClaimedKey::default(), time);
                Ok(())
            }
        }
    }

    /// Returns the work in progress under a key.
    pub(super) fn work(&self, claim: &KeyClaim, time: u64) -> Option<&KeyWork> {
        match self.look(&key_of(claim), claim.fingerprint, time) {
            KeyLookup::Answered(there) => there.work.as_ref(),
            KeyLookup::New | KeyLookup::Reused | KeyLookup::Full => None,
        }
    }

    /// Stores the work of a call. The key is new or in progress, without work stored so far.
    pub(super) fn begin(&mut self, claim: KeyClaim, work: KeyWork, time: u64) {
        let answer = None;
        let work = Some(work);
        self.put(claim, ClaimedKey { answer, work }, time);
    }

    /// Stores the answer of a call, or drops the claim of a failed one.
    pub(super) fn complete(&mut self, claim: KeyClaim, answer: Option<SystemAnswer>, time: u64) {
        let there = self.get(&key_of(&claim));
        let settled = there.is_some_and(|there| {
            let other = there.fingerprint != claim.fingerprint;
            there.end > time && (other || there.answer.answer.is_some())
        });
        match answer {
            // The key stands for another request by now, or has an answer. That stays, also if a
            // second attempt at the same call completes later with any result (R102).
            _ if settled => {}
            Some(answer) => {
                let claimed = ClaimedKey {
                    answer: Some(answer),
                    work: None,
                };
                self.put(claim, claimed, time);
            }
            // Only a claim without stored work is dropped here: a plan stays until it is carried
            // out, and `Finish` of a change decides about its key.
            None => {
                if there.is_some_and(|there| there.answer.work.is_none()) {
                    self.remove(&key_of(&claim));
                }
            }
        }
    }

    /// Drops the key of a refused change: a repeat is evaluated again (R102).
    pub(super) fn give_up(&mut self, claim: &KeyClaim, change: u64) {
        let key = key_of(claim);
        let change = KeyWork::Change(change);
        let is_its = |there: &Remembered<ClaimedKey>| there.answer.work.as_ref() == Some(&change);
        if self.get(&key).is_some_and(is_its) {
            self.remove(&key);
        }
    }

    fn put(&mut self, claim: KeyClaim, claimed: ClaimedKey, time: u64) {
        let key = (claim.call, claim.key);
        self.remember(key, claim.fingerprint, claimed, time);
    }

    /// Restores the work of a call. Returns whether the key exists.
    pub(super) fn set_work(&mut self, key: &(SystemCall, Key), work: KeyWork) -> bool {
        let there = self.answer_mut(key);
        there.map(|there| there.work = Some(work)).is_some()
    }
}

fn key_of(claim: &KeyClaim) -> (SystemCall, Key) {
    (claim.call, claim.key.clone())
}
