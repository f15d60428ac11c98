//! A store and two clocks in a few lines, for tests: everything takes 10 ms, waits pass at once,
//! and faults happen where a test says.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use super::{
    Acquire, Acquired, Answer, Body, Failure, Hold, Op, Progress, Refusal, Request, Steps, Wait,
    Why,
};
use crate::judge::{Content, Life, Object, Sightings, Version};
use crate::key::Key;
use crate::record::{Block, Record};
use crate::terms::{Level, Mode, Settings, Terms};
use crate::time::{Boot, Now, after, stamp};

/// What goes wrong with one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It does not happen.
    Lost,
    /// It happens, and the answer is lost.
    AnswerLost,
    /// 403.
    Denied,
}

pub(crate) struct World {
    pub(crate) objects: BTreeMap<Key, Object>,
    pub(crate) now: Now,
    pub(crate) level: Level,
    /// Operations so far, waits included.
    pub(crate) log: Vec<String>,
    /// `(text, fault)`: hits the first operation whose line contains the text, once.
    pub(crate) faults: Vec<(&'static str, Fault)>,
    /// Runs before each operation, once its line contains the text.
    pub(crate) hooks: Vec<Hook>,
    versions: u64,
    seeds: u128,
}

type Hook = (&'static str, Box<dyn FnOnce(&mut World)>);

impl World {
    pub(crate) fn new(level: Level) -> World {
        let now = Now {
            boot: Boot(Duration::from_secs(1000)),
            wall: "2026-03-07T09:00:30Z".parse().unwrap(),
        };
        World {
            objects: BTreeMap::new(),
            now,
            level,
            log: Vec::new(),
            faults: Vec::new(),
            hooks: Vec::new(),
            versions: 0,
            seeds: 0,
        }
    }

    pub(crate) fn terms(&self) -> Terms {
        Settings::default().terms(self.level).unwrap()
    }

    pub(crate) fn request(&mut self, mode: Mode, name: &str) -> Request {
        self.seeds += 1;
        Request {
            mode,
            operation: if mode == Mode::Shared {
                "backup"
            } else {
                "prune"
            }
            .into(),
            holder: format!("{name} (pid 1)"),
            block: Block::default(),
            wait: Wait::No,
            seed: self.seeds,
        }
    }

    pub(crate) fn acquire(&mut self, mode: Mode, name: &str) -> Result<Acquired, Refusal> {
        let acquire = self.begin(mode, name);
        self.drive(acquire)
    }

    pub(crate) fn begin(&mut self, mode: Mode, name: &str) -> Acquire {
        let request = self.request(mode, name);
        Acquire::new(self.terms(), request, Sightings::default())
    }

    pub(crate) fn hold(&mut self, mode: Mode, name: &str) -> Hold {
        let acquired = self.acquire(mode, name).expect("it was free");
        Hold::new(self.terms(), acquired)
    }

    pub(crate) fn drive<S: Steps>(&mut self, mut steps: S) -> S::End {
        loop {
            if let Progress::Done(end) = self.step(&mut steps) {
                return end;
            }
        }
    }

    pub(crate) fn step<S: Steps>(&mut self, steps: &mut S) -> Progress<S::End> {
        let op = steps.next(self.now);
        let answer = self.perform(op);
        steps.answer(answer, self.now)
    }

    /// Lets a holder live until `until`; waits beyond it are cut short.
    pub(crate) fn live(&mut self, hold: &mut Hold, until: Boot) {
        while self.now.boot < until {
            let op = match hold.next(self.now) {
                Op::WaitUntil(wake) => Op::WaitUntil(wake.min(until)),
                op => op,
            };
            let answer = self.perform(op);
            assert!(matches!(hold.answer(answer, self.now), Progress::Going));
        }
        hold.tick(self.now);
    }

    pub(crate) fn pass(&mut self, span: Duration) {
        self.now = Now {
            boot: self.now.boot + span,
            wall: after(self.now.wall, span),
        };
    }

    /// Puts a record of an original at `key`, `age` old and valid for another `left`.
    pub(crate) fn original(&mut self, key: Key, age: u64, left: i64) {
        let date = |seconds: i64| stamp(self.now.wall + jiff::SignedDuration::from_secs(seconds));
        let record = Record {
            operation: "prune".into(),
            holder: "atlas-3 (pid 40217)".into(),
            acquired_at: date(-i64::try_from(age).unwrap()),
            expires_at: date(left),
            is_shared: false,
            tenure: None,
        };
        let modified = self.now.wall - jiff::SignedDuration::from_secs(age.cast_signed());
        self.store(key.clone(), Body::Record(record));
        self.objects.get_mut(&key).unwrap().modified = Some(modified);
    }

    pub(crate) fn store(&mut self, key: Key, body: Body) -> Version {
        self.versions += 1;
        let version = Version::tag(self.versions.to_string());
        let content = match body {
            Body::Record(record) => Content::Record(record),
            Body::Fence(number) => Content::Fence(number),
            Body::Probe(number) => Content::Fence(number.into()),
        };
        let object = Object {
            content,
            version: version.clone(),
            modified: Some(self.now.wall),
            store_now: None,
            life: Life::Unknown,
        };
        self.objects.insert(key, object);
        version
    }

    pub(crate) fn holder(&self, key: &Key) -> Option<&str> {
        Some(&self.objects.get(key)?.record()?.holder)
    }

    /// Every lock that is there.
    pub(crate) fn locks(&self) -> Vec<&Key> {
        let is_lock = |key: &&Key| matches!(key, Key::Exclusive | Key::Shared(_));
        self.objects.keys().filter(is_lock).collect()
    }

    pub(crate) fn perform(&mut self, op: Op) -> Answer {
        if let Op::WaitUntil(until) = op {
            self.log.push(op.to_string());
            assert!(until != Boot::NEVER, "a wait without end");
            self.pass(until.since(self.now.boot));
            return Answer::Waited;
        }
        let line = op.to_string();
        if let Some(at) = self.hooks.iter().position(|(text, _)| line.contains(text)) {
            let (_, hook) = self.hooks.remove(at);
            hook(self);
        }
        self.log.push(line.clone());
        self.pass(Duration::from_millis(10));
        let fault = self.faults.iter().position(|(text, _)| line.contains(text));
        match fault.map(|at| self.faults.remove(at).1) {
            Some(Fault::Lost) => Answer::Failed(Failure::passing("lost")),
            Some(Fault::Denied) => Answer::Failed(Failure::lasting("denied")),
            Some(Fault::AnswerLost) => {
                self.apply(op);
                Answer::Failed(Failure::passing("answer lost"))
            }
            None => self.apply(op),
        }
    }

    fn apply(&mut self, op: Op) -> Answer {
        let wall: Timestamp = self.now.wall;
        let there = |world: &World, key: &Key| world.objects.get(key).map(|o| o.version.clone());
        match op {
            Op::Read(key) => match self.objects.get(&key) {
                Some(object) => Answer::Found(Object {
                    store_now: Some(wall),
                    ..object.clone()
                }),
                None => Answer::Absent,
            },
            Op::ListShared => {
                let shared = |key: &&Key| matches!(key, Key::Shared(_));
                Answer::Listed(self.objects.keys().filter(shared).cloned().collect())
            }
            Op::Create(key, body) => match there(self, &key) {
                Some(_) if self.level > Level::Nothing => Answer::Refused(Why::Condition),
                _ => Answer::Written(self.store(key, body)),
            },
            Op::Replace(key, body, version) | Op::Renew(key, body, version) => {
                if self.level > Level::Nothing && there(self, &key) != Some(version) {
                    return Answer::Refused(Why::Condition);
                }
                Answer::Written(self.store(key, body))
            }
            Op::Put(key, body) => Answer::Written(self.store(key, body)),
            Op::DeleteVersion(key, version) => match there(self, &key) {
                None => Answer::Absent,
                Some(seen) if self.level == Level::Deletes && seen != version => {
                    Answer::Refused(Why::Condition)
                }
                Some(_) => {
                    self.objects.remove(&key);
                    Answer::Deleted
                }
            },
            Op::Delete(key) => match self.objects.remove(&key) {
                Some(_) => Answer::Deleted,
                None => Answer::Absent,
            },
            Op::WaitUntil(_) => Answer::Waited,
        }
    }
}
