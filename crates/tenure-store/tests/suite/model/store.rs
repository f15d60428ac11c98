//! The store of the model: a map, a clock, and the conditions of its level.
//!
//! The version of an object is a hash of its bytes, as on S3: equal bytes, equal version. That is
//! the weakest version a store may have, so what is safe here is safe with generations too.

use std::collections::BTreeMap;

use jiff::Timestamp;
use tenure_store::judge::{Content, Life, Object, Version};
use tenure_store::key::Key;
use tenure_store::record::Record;
use tenure_store::steps::{Answer, Body, Op, Why};
use tenure_store::terms::Level;

use super::part::digest;
use crate::support::original::{Got, OriginalRecord, Step};

/// Whether answers carry the store's time (K45).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum StoreClock {
    Shown,
    Hidden,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Stored {
    content: Content,
    version: Version,
    modified: Timestamp,
    writer: usize,
}

/// Everything that is in the repository.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Store {
    level: Level,
    clock: StoreClock,
    objects: BTreeMap<Key, Stored>,
    /// Processes that ended without a word, on the machine of everybody else (P22 c).
    dead: Vec<usize>,
}

impl Store {
    pub(crate) fn new(level: Level, clock: StoreClock) -> Store {
        Store {
            level,
            clock,
            objects: BTreeMap::new(),
            dead: Vec::new(),
        }
    }

    pub(crate) fn bury(&mut self, process: usize) {
        self.dead.push(process);
    }

    /// Whether anything lies under this key that this process wrote.
    pub(crate) fn has_of(&self, process: usize) -> bool {
        self.objects
            .iter()
            .any(|(key, stored)| *key != Key::Fence && stored.writer == process)
    }

    /// A look of a Tenure process.
    pub(crate) fn read(&self, op: &Op, now: Timestamp) -> Answer {
        match op {
            Op::Read(key) => match self.objects.get(key) {
                Some(stored) => Answer::Found(self.show(stored, now)),
                None => Answer::Absent,
            },
            Op::ListShared => Answer::Listed(self.shared()),
            other => unreachable!("{other} is not a look"),
        }
    }

    /// A write or deletion of a Tenure process, all at once.
    pub(crate) fn write(&mut self, process: usize, op: &Op, now: Timestamp) -> Answer {
        match op {
            Op::Create(key, body) => {
                assert!(
                    self.level >= Level::Writes,
                    "a conditional write at level 0"
                );
                if self.objects.contains_key(key) {
                    return Answer::Refused(Why::Condition);
                }
                self.put(process, key, body, now)
            }
            Op::Replace(key, body, version) | Op::Renew(key, body, version) => {
                assert!(
                    self.level >= Level::Writes,
                    "a conditional write at level 0"
                );
                match self.objects.get(key) {
                    Some(stored) if stored.version == *version => self.put(process, key, body, now),
                    Some(_) | None => Answer::Refused(Why::Condition),
                }
            }
            Op::Put(key, body) => self.put(process, key, body, now),
            Op::DeleteVersion(key, version) => {
                assert!(
                    self.level >= Level::Deletes,
                    "a conditional delete below level 2"
                );
                match self.objects.get(key) {
                    Some(stored) if stored.version == *version => self.delete(key),
                    Some(_) => Answer::Refused(Why::Condition),
                    None => Answer::Absent,
                }
            }
            Op::Delete(key) => self.delete(key),
            Op::Read(_) | Op::ListShared | Op::WaitUntil(_) => {
                unreachable!("{op} changes nothing")
            }
        }
    }

    /// One step of an original.
    pub(crate) fn apply_original(&mut self, process: usize, step: &Step, now: Timestamp) -> Got {
        match step {
            Step::Read(path) => {
                let key = Key::lock(path).expect("an original reads locks");
                Got::Record(
                    self.objects
                        .get(&key)
                        .and_then(|stored| match &stored.content {
                            Content::Record(record) => Some(as_original_sees(record)),
                            Content::Fence(_) | Content::Unreadable { .. } => None,
                        }),
                )
            }
            Step::ListShared => Got::Keys(self.shared().iter().map(Key::path).collect()),
            Step::Write(path, record) => {
                let key = Key::lock(path).expect("an original writes locks");
                self.put(
                    process,
                    &key,
                    &Body::Record(as_original_writes(record)),
                    now,
                );
                Got::Done
            }
            Step::Delete(path) => {
                self.objects
                    .remove(&Key::lock(path).expect("an original deletes locks"));
                Got::Done
            }
        }
    }

    fn shared(&self) -> Vec<Key> {
        self.objects
            .keys()
            .filter(|key| matches!(key, Key::Shared(_)))
            .cloned()
            .collect()
    }

    fn show(&self, stored: &Stored, now: Timestamp) -> Object {
        Object {
            content: stored.content.clone(),
            version: stored.version.clone(),
            modified: Some(stored.modified),
            store_now: match self.clock {
                StoreClock::Shown => Some(now),
                StoreClock::Hidden => None,
            },
            life: if self.dead.contains(&stored.writer) {
                Life::Dead
            } else {
                Life::Unknown
            },
        }
    }

    fn put(&mut self, writer: usize, key: &Key, body: &Body, modified: Timestamp) -> Answer {
        let content = match body {
            Body::Record(record) => Content::Record(record.clone()),
            Body::Fence(number) => Content::Fence(*number),
            Body::Probe(_) => unreachable!("the level of the model's store is known"),
        };
        let version = Version::tag(format!("{:x}", digest(&content)));
        let stored = Stored {
            content,
            version: version.clone(),
            modified,
            writer,
        };
        self.objects.insert(key.clone(), stored);
        Answer::Written(version)
    }

    fn delete(&mut self, key: &Key) -> Answer {
        match self.objects.remove(key) {
            Some(_) => Answer::Deleted,
            None => Answer::Absent,
        }
    }
}

fn as_original_sees(record: &Record) -> OriginalRecord {
    OriginalRecord {
        holder: record.holder.clone(),
        acquired_at: record.acquired_at.clone(),
        expires: record.expires(),
        is_shared: record.is_shared,
    }
}

fn as_original_writes(record: &OriginalRecord) -> Record {
    Record::parse(record.to_json().as_bytes()).expect("an original's record is a record")
}
