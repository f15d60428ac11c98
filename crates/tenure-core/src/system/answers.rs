//! The answers of cluster-wide calls: claimed before the call fans out, completed after it (R102–R105).

use alloc::collections::{BTreeMap, VecDeque};

use super::command::{Answer, Call, Claim, Repeated};
use crate::space::ANSWER_KEPT_MS;
use crate::value::Key;

/// A claimed key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Claimed {
    pub(super) fingerprint: u128,
    /// `None` while the call is under way.
    pub(super) answer: Option<Answer>,
    pub(super) end: u64,
}

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Answers {
    table: BTreeMap<(Call, Key), Claimed>,
    // Those that were claimed or completed again are in it more than once; the last one counts.
    ends: VecDeque<(u64, (Call, Key))>,
    limit: usize,
}

impl Answers {
    pub(super) fn new(limit: u32) -> Answers {
        Answers {
            table: BTreeMap::new(),
            ends: VecDeque::new(),
            limit: limit as usize,
        }
    }

    /// What a key says; `None` if it is fresh and there is room.
    pub(super) fn look(&self, claim: &Claim, time: u64) -> Option<Repeated> {
        match self.table.get(&(claim.call, claim.key.clone())) {
            Some(there) if there.end > time => Some(if there.fingerprint != claim.fingerprint {
                Repeated::KeyReused
            } else {
                match &there.answer {
                    Some(answer) => Repeated::Answered(answer.clone()),
                    None => Repeated::Open,
                }
            }),
            Some(_) => None,
            None if self.table.len() >= self.limit => Some(Repeated::Full),
            None => None,
        }
    }

    /// Reserves a key for a call that is about to begin.
    pub(super) fn reserve(&mut self, claim: Claim, time: u64) -> Result<(), Repeated> {
        match self.look(&claim, time) {
            Some(repeated) => Err(repeated),
            None => {
                self.put(claim, None, time);
                Ok(())
            }
        }
    }

    /// Remembers how a call ended, or forgets that it was tried.
    pub(super) fn complete(&mut self, claim: Claim, answer: Option<Answer>, time: u64) {
        let key = (claim.call, claim.key.clone());
        let settled = self.table.get(&key).is_some_and(|there| {
            let other = there.fingerprint != claim.fingerprint;
            there.end > time && (other || there.answer.is_some())
        });
        match answer {
            // The key speaks of another call by now, or was answered: that stands, also if a second
            // attempt at the same call ends later, in whatever way (R102).
            _ if settled => {}
            Some(answer) => self.put(claim, Some(answer), time),
            None => {
                self.table.remove(&key);
            }
        }
    }

    fn put(&mut self, claim: Claim, answer: Option<Answer>, time: u64) {
        let end = time.saturating_add(ANSWER_KEPT_MS);
        let key = (claim.call, claim.key);
        let claimed = Claimed {
            fingerprint: claim.fingerprint,
            answer,
            end,
        };
        self.restore(key, claimed);
    }

    /// Puts an answer back; the ends must not go back.
    pub(super) fn restore(&mut self, key: (Call, Key), claimed: Claimed) {
        let again = self
            .table
            .get(&key)
            .is_some_and(|there| there.end == claimed.end);
        if !again {
            self.ends.push_back((claimed.end, key.clone()));
        }
        self.table.insert(key, claimed);
    }

    /// Forgets what is over, a few at a time.
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

    /// All answers, in the order in which they end.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&(Call, Key), &Claimed)> {
        self.ends.iter().filter_map(|(end, key)| {
            let there = self.table.get(key)?;
            (there.end == *end).then_some((key, there))
        })
    }
}
