//! In-memory store with two simulated clocks, for tests. Every operation takes 10 ms, waits end at
//! once, and faults occur where a test requests them.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use super::{
    Acquire, AcquireParams, AcquireRefusal, Acquired, ConditionFailure, HoldProcedure, OpBody,
    OpFailure, OpResult, Procedure, ProcedureStep, StoreOp, WaitBehavior,
};
use crate::key::ObjectKey;
use crate::lock_terms::{ConditionLevel, LockMode, LockSettings, LockTerms};
use crate::record::{HolderBlock, LockRecord};
use crate::staleness::{Object, ObjectContent, Observations, ProcessLiveness, Version};
use crate::time::{BootTime, Now, after, stamp};

/// The fault of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreFault {
    /// The operation has no effect.
    Lost,
    /// The operation takes effect, and its response is lost.
    AnswerLost,
    /// The store answers 403.
    Denied,
}

pub(crate) struct FakeStore {
    pub(crate) objects: BTreeMap<ObjectKey, Object>,
    pub(crate) now: Now,
    pub(crate) level: ConditionLevel,
    /// All operations so far, including waits.
    pub(crate) log: Vec<String>,
    /// `(text, fault)`: affects the first operation whose line contains the text, once.
    pub(crate) faults: Vec<(&'static str, StoreFault)>,
    /// The fault of the n-th operation that is not a wait.
    pub(crate) nth_fault: Option<(usize, StoreFault)>,
    /// Each runs once, before the first operation whose line contains its text.
    pub(crate) hooks: Vec<OpHook>,
    versions: u64,
    seeds: u128,
}

type OpHook = (&'static str, Box<dyn FnOnce(&mut FakeStore)>);

impl FakeStore {
    pub(crate) fn new(level: ConditionLevel) -> FakeStore {
        let now = Now {
            boot: BootTime(Duration::from_secs(1000)),
            wall: "2026-03-07T09:00:30Z".parse().unwrap(),
        };
        FakeStore {
            objects: BTreeMap::new(),
            now,
            level,
            log: Vec::new(),
            faults: Vec::new(),
            nth_fault: None,
            hooks: Vec::new(),
            versions: 0,
            seeds: 0,
        }
    }

    pub(crate) fn terms(&self) -> LockTerms {
        LockSettings::default().terms(self.level).unwrap()
    }

    pub(crate) fn request(&mut self, mode: LockMode, name: &str) -> AcquireParams {
        self.seeds += 1;
        AcquireParams {
            mode,
            operation: if mode == LockMode::Shared {
                "backup"
            } else {
                "prune"
            }
            .into(),
            holder: format!("{name} (pid 1)"),
            block: HolderBlock::default(),
            wait: WaitBehavior::No,
            seed: self.seeds,
        }
    }

    pub(crate) fn acquire(
        &mut self,
        mode: LockMode,
        name: &str,
    ) -> Result<Acquired, AcquireRefusal> {
        let acquire = self.begin(mode, name);
        self.drive(acquire)
    }

    pub(crate) fn begin(&mut self, mode: LockMode, name: &str) -> Acquire {
        let request = self.request(mode, name);
        Acquire::new(self.terms(), request, Observations::default())
    }

    pub(crate) fn hold(&mut self, mode: LockMode, name: &str) -> HoldProcedure {
        let acquired = self.acquire(mode, name).expect("it was free");
        HoldProcedure::new(self.terms(), acquired)
    }

    pub(crate) fn drive<S: Procedure>(&mut self, mut steps: S) -> S::End {
        loop {
            if let ProcedureStep::Done(end) = self.step(&mut steps) {
                return end;
            }
        }
    }

    pub(crate) fn step<S: Procedure>(&mut self, steps: &mut S) -> ProcedureStep<S::End> {
        let op = steps.next(self.now);
        let answer = self.perform(op);
        steps.answer(answer, self.now)
    }

    /// Drives a holder until `until`; longer waits are cut short.
    pub(crate) fn live(&mut self, hold: &mut HoldProcedure, until: BootTime) {
        while self.now.boot < until {
            let op = match hold.next(self.now) {
                StoreOp::WaitUntil(wake) => StoreOp::WaitUntil(wake.min(until)),
                op => op,
            };
            let answer = self.perform(op);
            assert!(matches!(
                hold.answer(answer, self.now),
                ProcedureStep::Going
            ));
        }
        hold.tick(self.now);
    }

    pub(crate) fn pass(&mut self, span: Duration) {
        self.now = Now {
            boot: self.now.boot + span,
            wall: after(self.now.wall, span),
        };
    }

    /// Stores a record of an original at `key` that is `age` seconds old and expires in `left`
    /// seconds.
    pub(crate) fn original(&mut self, key: ObjectKey, age: u64, left: i64) {
        let date = |seconds: i64| stamp(self.now.wall + jiff::SignedDuration::from_secs(seconds));
        let record = LockRecord {
            operation: "prune".into(),
            holder: "atlas-3 (pid 40217)".into(),
            acquired_at: date(-i64::try_from(age).unwrap()),
            expires_at: date(left),
            is_shared: false,
            tenure: None,
        };
        let modified = self.now.wall - jiff::SignedDuration::from_secs(age.cast_signed());
        self.store(key.clone(), OpBody::Record(record));
        self.objects.get_mut(&key).unwrap().modified = Some(modified);
    }

    pub(crate) fn store(&mut self, key: ObjectKey, body: OpBody) -> Version {
        self.versions += 1;
        let version = Version::tag(self.versions.to_string());
        let content = match body {
            OpBody::Record(record) => ObjectContent::Record(record),
            OpBody::Fence(number) => ObjectContent::Fence(number),
            OpBody::Probe(number) => ObjectContent::Fence(number.into()),
        };
        let object = Object {
            content,
            version: version.clone(),
            modified: Some(self.now.wall),
            store_now: None,
            liveness: ProcessLiveness::Unknown,
        };
        self.objects.insert(key, object);
        version
    }

    pub(crate) fn holder(&self, key: &ObjectKey) -> Option<&str> {
        Some(&self.objects.get(key)?.record()?.holder)
    }

    /// Returns the keys of all locks.
    pub(crate) fn locks(&self) -> Vec<&ObjectKey> {
        let is_lock = |key: &&ObjectKey| matches!(key, ObjectKey::Exclusive | ObjectKey::Shared(_));
        self.objects.keys().filter(is_lock).collect()
    }

    pub(crate) fn perform(&mut self, op: StoreOp) -> OpResult {
        let ops = op.into_parts();
        OpResult::batch(ops.into_iter().map(|op| self.perform_one(op)).collect())
    }

    fn perform_one(&mut self, op: StoreOp) -> OpResult {
        if let StoreOp::WaitUntil(until) = op {
            self.log.push(op.to_string());
            assert!(until != BootTime::NEVER, "a wait without end");
            self.pass(until.since(self.now.boot));
            return OpResult::Waited;
        }
        let line = op.to_string();
        if let Some(at) = self.hooks.iter().position(|(text, _)| line.contains(text)) {
            let (_, hook) = self.hooks.remove(at);
            hook(self);
        }
        self.log.push(line.clone());
        self.pass(Duration::from_millis(10));
        let done = self.log.iter().filter(|line| !line.starts_with("wait"));
        let nth = self.nth_fault.filter(|(at, _)| at + 1 == done.count());
        let planned = self.faults.iter().position(|(text, _)| line.contains(text));
        let planned = planned.map(|at| self.faults.remove(at).1);
        match nth.map(|(_, fault)| fault).or(planned) {
            Some(StoreFault::Lost) => OpResult::Failed(OpFailure::passing("lost")),
            Some(StoreFault::Denied) => OpResult::Failed(OpFailure::lasting("denied")),
            Some(StoreFault::AnswerLost) => {
                self.apply(op);
                OpResult::Failed(OpFailure::passing("answer lost"))
            }
            None => self.apply(op),
        }
    }

    fn apply(&mut self, op: StoreOp) -> OpResult {
        let wall: Timestamp = self.now.wall;
        let there =
            |fake: &FakeStore, key: &ObjectKey| fake.objects.get(key).map(|o| o.version.clone());
        match op {
            StoreOp::Read(key) => match self.objects.get(&key) {
                Some(object) => OpResult::Found(Object {
                    store_now: Some(wall),
                    ..object.clone()
                }),
                None => OpResult::Absent,
            },
            StoreOp::ListShared => {
                let shared = |key: &&ObjectKey| matches!(key, ObjectKey::Shared(_));
                OpResult::Listed(self.objects.keys().filter(shared).cloned().collect())
            }
            StoreOp::Create(key, body) => match there(self, &key) {
                Some(_) if self.level > ConditionLevel::Nothing => {
                    OpResult::Refused(ConditionFailure::Condition)
                }
                _ => OpResult::Written(self.store(key, body)),
            },
            StoreOp::Replace(key, body, version) | StoreOp::Renew(key, body, version) => {
                if self.level > ConditionLevel::Nothing && there(self, &key) != Some(version) {
                    return OpResult::Refused(ConditionFailure::Condition);
                }
                OpResult::Written(self.store(key, body))
            }
            StoreOp::Put(key, body) => OpResult::Written(self.store(key, body)),
            StoreOp::DeleteVersion(key, version) => match there(self, &key) {
                None => OpResult::Absent,
                Some(seen) if self.level == ConditionLevel::Deletes && seen != version => {
                    OpResult::Refused(ConditionFailure::Condition)
                }
                Some(_) => {
                    self.objects.remove(&key);
                    OpResult::Deleted
                }
            },
            StoreOp::Delete(key) => match self.objects.remove(&key) {
                Some(_) => OpResult::Deleted,
                None => OpResult::Absent,
            },
            StoreOp::WaitUntil(_) | StoreOp::Batch(_) => OpResult::Waited,
        }
    }
}
