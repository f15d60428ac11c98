//! Processes on a real store with virtual time: a minute takes no real time.
//!
//! [`Time`] is the true time. Every process sees it through its own wall clock, which may be wrong
//! by any amount; the clock of the test server follows. A wait advances the time.

use std::sync::Mutex;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tenure_store::AcquireRefusal;
use tenure_store::RepositoryAddress;
use tenure_store::internal::Codec;
use tenure_store::internal::LockTerms;
use tenure_store::internal::Objects;
use tenure_store::internal::Observations;
use tenure_store::internal::Store;
use tenure_store::internal::{
    Acquire, AcquireParams, Acquired, HoldProcedure, HoldStatus, OpResult, Procedure,
    ProcedureStep, Released, StoreOp, WaitBehavior,
};
use tenure_store::internal::{BootTime, Now};
use tenure_store::{ConditionLevel, LockSettings};

use super::LockMode;
use super::s3_server::{BUCKET, S3Server};

/// The current time of the vectors: 2026-03-07T09:00:30Z.
const START: i64 = 1_772_874_030;

/// The time of one test, and its server.
pub(crate) struct Time {
    pub(crate) server: S3Server,
    /// All processes share one client: it has no state, and creating one is slow.
    store: Objects,
    passed: Mutex<Duration>,
    store_ahead: Mutex<SignedDuration>,
    /// How long a round of requests takes, and how many there were.
    round_trip: Mutex<(Duration, usize)>,
}

impl Time {
    /// Starts the time. The server's clock is `store_ahead` of the true time.
    pub(crate) fn begin(store_ahead: SignedDuration) -> Time {
        Time::begin_with(store_ahead, Codec::plain())
    }

    /// The same with a data key.
    pub(crate) fn begin_with(store_ahead: SignedDuration, codec: Codec) -> Time {
        let server = S3Server::start();
        let store = objects(&server, codec);
        let (passed, ahead) = (Mutex::default(), Mutex::default());
        let time = Time {
            server,
            store,
            passed,
            store_ahead: ahead,
            round_trip: Mutex::default(),
        };
        time.begin_again(store_ahead);
        time
    }

    /// Restarts the time with an empty repository.
    pub(crate) fn begin_again(&self, store_ahead: SignedDuration) {
        *self.store_ahead.lock().expect("no panic while time is set") = store_ahead;
        self.server.heal();
        self.server.clear();
        self.server.take_seen();
        self.set(Duration::ZERO);
    }

    pub(crate) fn passed(&self) -> Duration {
        *self.passed.lock().expect("no panic while time passes")
    }

    /// Advances to this time, unless it is already past.
    pub(crate) fn pass_until(&self, moment: Duration) {
        if moment > self.passed() {
            self.set(moment);
        }
    }

    pub(crate) fn pass(&self, span: Duration) {
        self.set(self.passed() + span);
    }

    /// Lets every round of requests take this long, and returns the number of rounds so far.
    pub(crate) fn set_round_trip(&self, span: Duration) -> usize {
        let mut round_trip = self.round_trip.lock().expect("no panic while time is set");
        round_trip.0 = span;
        std::mem::take(&mut round_trip.1)
    }

    /// Performs requests that are sent together: one round.
    async fn perform(&self, op: StoreOp) -> OpResult {
        let parts = op.into_parts().into_iter().map(|op| self.store.perform(op));
        let answers = futures_util::future::join_all(parts).await;
        let span = {
            let mut round_trip = self.round_trip.lock().expect("no panic while time is set");
            round_trip.1 += 1;
            round_trip.0
        };
        self.pass(span);
        OpResult::batch(answers)
    }

    fn set(&self, moment: Duration) {
        *self.passed.lock().expect("no panic while time passes") = moment;
        let ahead = *self.store_ahead.lock().expect("no panic while time is set");
        let store = Timestamp::from_second(START).expect("a date") + ahead + moment;
        self.server.clock().stand_at_ms(store.as_millisecond());
    }
}

/// A process.
pub(crate) struct Process<'a> {
    time: &'a Time,
    terms: LockTerms,
    wall_ahead: SignedDuration,
    observations: Observations,
    seed: u128,
}

impl<'a> Process<'a> {
    /// Creates a process whose wall clock is `wall_ahead` of the true time.
    pub(crate) fn new(
        time: &'a Time,
        seed: u128,
        wall_ahead: SignedDuration,
        settings: &LockSettings,
    ) -> Process<'a> {
        Process {
            time,
            terms: settings
                .terms(ConditionLevel::Deletes)
                .expect("lawful settings"),
            wall_ahead,
            observations: Observations::default(),
            seed,
        }
    }

    /// The same process on a store of another level.
    pub(crate) fn at(mut self, level: ConditionLevel, settings: &LockSettings) -> Process<'a> {
        self.terms = settings.terms(level).expect("lawful settings");
        self
    }

    pub(crate) fn now(&self) -> Now {
        let passed = self.time.passed();
        let wall = Timestamp::from_second(START).expect("a date") + self.wall_ahead + passed;
        // Machines boot at different times.
        Now {
            boot: BootTime(passed + Duration::from_secs(1000 + self.seed as u64)),
            wall,
        }
    }

    fn moment(&self, boot: BootTime) -> Duration {
        boot.0
            .saturating_sub(Duration::from_secs(1000 + self.seed as u64))
    }

    /// Tries to acquire the lock once.
    pub(crate) async fn acquire(&mut self, mode: LockMode) -> Result<Acquired, AcquireRefusal> {
        self.seed += 1 << 64;
        let request = AcquireParams {
            mode,
            operation: "test".into(),
            holder: format!("host-{0} (pid {0})", self.seed as u64),
            block: Default::default(),
            wait: WaitBehavior::No,
            seed: self.seed,
        };
        let acquire = Acquire::new(self.terms.clone(), request, self.observations.clone());
        self.drive(acquire).await
    }

    /// Returns `true` if the lock can be acquired; releases it again.
    pub(crate) async fn gets(&mut self, mode: LockMode) -> bool {
        match self.acquire(mode).await {
            Ok(acquired) => {
                self.release(HoldProcedure::new(self.terms.clone(), acquired))
                    .await;
                true
            }
            Err(AcquireRefusal::Held(_) | AcquireRefusal::LostRace { .. }) => false,
            Err(other) => panic!("{other:?}"),
        }
    }

    /// Acquires the lock and holds it.
    pub(crate) async fn hold(&mut self, mode: LockMode) -> HoldProcedure {
        let acquired = self.acquire(mode).await.expect("the lock is free");
        self.keeping(acquired)
    }

    /// Holds an acquired lock.
    pub(crate) fn keeping(&self, acquired: Acquired) -> HoldProcedure {
        HoldProcedure::new(self.terms.clone(), acquired)
    }

    /// Drives the holder until this time.
    pub(crate) async fn keep(&self, hold: &mut HoldProcedure, until: Duration) {
        loop {
            let answer = match hold.next(self.now()) {
                StoreOp::WaitUntil(boot)
                    if boot == BootTime::NEVER || self.moment(boot) > until =>
                {
                    self.time.pass_until(until);
                    hold.tick(self.now());
                    return;
                }
                StoreOp::WaitUntil(boot) => {
                    self.time.pass_until(self.moment(boot));
                    OpResult::Waited
                }
                op => self.time.perform(op).await,
            };
            match hold.answer(answer, self.now()) {
                ProcedureStep::Going => {}
                ProcedureStep::Done(end) => panic!("the end was not requested: {end:?}"),
            }
        }
    }

    /// Releases the lock.
    pub(crate) async fn release(&self, mut hold: HoldProcedure) -> Released {
        hold.release();
        self.drive(hold).await
    }

    /// Tries to revive a lapsed lock (P34: revive a lapsed lease).
    pub(crate) async fn revive(&self, hold: &mut HoldProcedure) -> HoldStatus {
        hold.revive();
        loop {
            let answer = match hold.next(self.now()) {
                StoreOp::WaitUntil(boot)
                    if boot == BootTime::NEVER || *hold.status() == HoldStatus::Held =>
                {
                    return hold.status().clone();
                }
                StoreOp::WaitUntil(boot) => {
                    self.time.pass_until(self.moment(boot));
                    OpResult::Waited
                }
                op => self.time.perform(op).await,
            };
            let ProcedureStep::Going = hold.answer(answer, self.now()) else {
                panic!("the end was not requested");
            };
        }
    }

    /// Drives a procedure to its end.
    pub(crate) async fn drive<S: Procedure>(&self, mut steps: S) -> S::End {
        loop {
            let answer = match steps.next(self.now()) {
                StoreOp::WaitUntil(boot) => {
                    self.time.pass_until(self.moment(boot));
                    OpResult::Waited
                }
                op => self.time.perform(op).await,
            };
            if let ProcedureStep::Done(end) = steps.answer(answer, self.now()) {
                return end;
            }
        }
    }
}

/// The client settings for the test server.
pub(crate) fn config(server: &S3Server) -> Vec<(String, String)> {
    s3_config(&server.endpoint())
}

/// The client settings for an S3 server.
pub(crate) fn s3_config(endpoint: &str) -> Vec<(String, String)> {
    [
        ("aws_endpoint", endpoint),
        ("aws_allow_http", "true"),
        ("aws_region", "us-east-1"),
        ("aws_access_key_id", "key"),
        ("aws_secret_access_key", "secret"),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into()
}

/// Opens the store of a repository on the test server.
fn objects(server: &S3Server, codec: Codec) -> Objects {
    let Ok(RepositoryAddress::Bucket(bucket)) = format!("s3://{BUCKET}").parse() else {
        unreachable!("an address of a bucket");
    };
    Objects::open(&bucket, &config(server), codec).expect("a client for the test server")
}
