//! Remembered answers of a space: a key makes an acquire or a release apply at most once
//! (R102–R105).

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::codec::{DecodeError, Reader, Writer};
use crate::command::{Acquire, Hold, Release, RequestKind, WaitMode};
use crate::hash::Fingerprint;
use crate::idempotency::{IdempotencyTable, TableKey};
use crate::path::Namespace;
use crate::policy::Mode;
use crate::record_enum;
use crate::value::{Fence, Holder, Key};

/// A key with its scope (R104: scope of a key). The derived order keeps all namespaces that know a
/// key adjacent.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ScopedKey {
    pub(super) call: KeyedCall,
    pub(super) key: KeyName,
    pub(super) namespace: Namespace,
}

/// A key in the table. A text may have a kilobyte, and the table has room for many keys.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum KeyName {
    /// Under rules 1, whose snapshots have the text.
    Text(Key),
    /// Since rules 2: a hash of the text. Two keys with the same hash in one namespace make the
    /// second request a reuse of the first one's key, which is refused (R103).
    Hash(u128),
}

impl KeyName {
    pub(super) fn new(key: &Key, rules: u32) -> KeyName {
        if rules < 2 {
            return KeyName::Text(key.clone());
        }
        let mut print = Fingerprint::new();
        print.text(key.as_str());
        KeyName::Hash(print.finish())
    }
}

impl ScopedKey {
    /// Returns the key in the form of rules 2.
    pub(super) fn hashed(&self) -> ScopedKey {
        let mut hashed = self.clone();
        if let KeyName::Text(key) = &self.key {
            hashed.key = KeyName::new(key, 2);
        }
        hashed
    }

    pub(super) fn put(&self, out: &mut Writer) {
        out.put(&self.call);
        out.put(&self.namespace);
        match &self.key {
            KeyName::Text(key) => out.put(key),
            KeyName::Hash(hash) => out.put(hash),
        }
    }

    pub(super) fn take(input: &mut Reader<'_>, rules: u32) -> Result<ScopedKey, DecodeError> {
        let (call, namespace) = (input.take()?, input.take()?);
        let key = match rules {
            0..2 => KeyName::Text(input.take()?),
            _ => KeyName::Hash(input.take()?),
        };
        Ok(ScopedKey {
            call,
            key,
            namespace,
        })
    }
}

impl TableKey for ScopedKey {
    type Share = Namespace;
    fn share(&self) -> &Namespace {
        &self.namespace
    }
}

/// How many times more answers a space remembers since rules 2 than its limit says: its entries
/// have a fixed size since then.
pub(super) const ROOM_FACTOR: usize = 4;

/// The calls of one namespace that may carry a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum KeyedCall {
    Acquire,
    Release,
}

/// A remembered answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoredAnswer {
    /// OK, at once or after queueing: the fence in force.
    Granted(Option<Fence>),
    /// Plain success of a release.
    Released,
    /// QUEUED: the waiter's number.
    Waiting(u64),
    /// QUEUED, but the waiter left without a grant: a repeat is evaluated again.
    Gone,
}

record_enum! { KeyedCall as "call" { 0 => Acquire, 1 => Release } }
record_enum! { StoredAnswer as "answer" {
    0(fence) => Granted(fence), 1 => Released, 2(waiter) => Waiting(waiter), 3 => Gone,
} }

/// The answer of a request, and what it released.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SpaceAnswer {
    pub(super) answer: StoredAnswer,
    /// For a part of a release: the sorted hashes of the holds released in this namespace. The
    /// fingerprint covers the whole request, so it does not identify them. Since rules 2.
    pub(super) released: Box<[u64]>,
}

impl SpaceAnswer {
    fn has_released(&self, hash: u64) -> bool {
        self.released.binary_search(&hash).is_ok()
    }
}

impl From<StoredAnswer> for SpaceAnswer {
    fn from(answer: StoredAnswer) -> SpaceAnswer {
        SpaceAnswer {
            answer,
            released: Box::default(),
        }
    }
}

/// The remembered answers of a space.
pub(super) type SpaceAnswers = IdempotencyTable<ScopedKey, SpaceAnswer>;

impl SpaceAnswers {
    /// Returns whether this hold was released under this key by the same request, in any namespace.
    pub(super) fn was_released(
        &self,
        key: &KeyName,
        fingerprint: u128,
        hold: &Hold,
        time: u64,
    ) -> bool {
        // Start at the path's handler: no namespace that contains the path sorts before it.
        let first = ScopedKey {
            call: KeyedCall::Release,
            key: key.clone(),
            namespace: Namespace::fallback(&hold.path, 0),
        };
        let is_key = |there: &ScopedKey| there.call == KeyedCall::Release && there.key == *key;
        let hash = hold_hash(hold);
        self.starting_at(&first)
            .take_while(|(there, _)| is_key(there))
            .any(|(_, remembered)| {
                remembered.fingerprint == fingerprint
                    && remembered.end > time
                    && remembered.answer.has_released(hash)
            })
    }

    /// Removes from `holds` those that were released under this key.
    pub(super) fn drop_released(&self, key: &ScopedKey, holds: &mut Vec<Hold>) {
        if let Some(remembered) = self.get(key) {
            holds.retain(|hold| !remembered.answer.has_released(hold_hash(hold)));
        }
    }

    /// Remembers these holds as released, in addition to those that an earlier part of the same
    /// request released in the same namespace.
    pub(super) fn remember_release(
        &mut self,
        key: ScopedKey,
        fingerprint: u128,
        holds: &[Hold],
        time: u64,
    ) {
        let mut released: Vec<u64> = holds.iter().map(hold_hash).collect();
        let former = self.get(&key);
        if let Some(former) = former.filter(|former| former.end > time) {
            released.extend(&former.answer.released);
        }
        released.sort_unstable();
        released.dedup();
        let answer = SpaceAnswer {
            answer: StoredAnswer::Released,
            released: released.into(),
        };
        self.remember(key, fingerprint, answer, time);
    }

    /// Restores the rules 2 part of the answers, in their order.
    pub(super) fn set_released(&mut self, released: Vec<Box<[u64]>>) {
        let mut released = released.into_iter();
        self.change_all(|there| there.released = released.next().unwrap_or_default());
    }

    /// Updates an answer: its waiter was granted.
    pub(super) fn granted(&mut self, key: &ScopedKey, fence: Option<Fence>) {
        if let Some(there) = self.answer_mut(key) {
            there.answer = StoredAnswer::Granted(fence);
        }
    }

    /// Updates an answer: its waiter left without a grant.
    pub(super) fn gone(&mut self, key: &ScopedKey) {
        if let Some(there) = self.answer_mut(key) {
            there.answer = StoredAnswer::Gone;
        }
    }
}

/// Hashes the content of an acquire. The route is not included, because a repeat may be resolved by
/// another table.
pub(super) fn acquire_fingerprint(acquire: &Acquire) -> u128 {
    let mut print = Fingerprint::new();
    print.text(acquire.owner.as_str());
    print.number(acquire.ttl.millis());
    print.number(acquire.queue_ttl.millis());
    print.number(acquire.fence.map_or(0, Fence::number));
    print.number(match acquire.wait {
        WaitMode::Queue => 0,
        WaitMode::QueueAndAsk => 1,
        WaitMode::No => 2,
    });
    print.number(acquire.requests.len() as u64);
    for request in &acquire.requests {
        print.text(request.path.as_str());
        print.number(mode_number(request.mode));
        print.number(match request.state {
            RequestKind::New => 0,
            RequestKind::Held => 1,
        });
        print.number(
            request
                .permits
                .map_or(0, |permits| u64::from(permits.get())),
        );
    }
    holds(&mut print, &acquire.releases);
    if let Some(holder) = &acquire.holder {
        describe(&mut print, holder);
    }
    print.finish()
}

/// Hashes the content of a release: of the whole request, if it is known.
pub(super) fn release_fingerprint(release: &Release) -> u128 {
    if let Some(whole) = &release.whole {
        return whole.fingerprint;
    }
    let mut print = Fingerprint::new();
    print.text(release.owner.as_str());
    holds(&mut print, &release.holds);
    print.finish()
}

/// Hashes a hold, to distinguish the holds of one request.
fn hold_hash(hold: &Hold) -> u64 {
    let mut print = Fingerprint::new();
    print.text(hold.path.as_str());
    print.number(mode_number(hold.mode));
    print.finish() as u64
}

fn holds(print: &mut Fingerprint, holds: &[Hold]) {
    print.number(holds.len() as u64);
    for hold in holds {
        print.text(hold.path.as_str());
        print.number(mode_number(hold.mode));
    }
}

fn describe(print: &mut Fingerprint, holder: &Holder) {
    print.text(&holder.name);
    print.text(&holder.host);
    print.number(u64::from(holder.pid));
    print.text(&holder.purpose);
    print.number(holder.labels.len() as u64);
    for (name, value) in &holder.labels {
        print.text(name);
        print.text(value);
    }
}

fn mode_number(mode: Mode) -> u64 {
    match mode {
        Mode::Write => 0,
        Mode::Read => 1,
        Mode::ReadTree => 2,
    }
}
