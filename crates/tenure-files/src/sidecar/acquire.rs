//! Acquiring a sidecar lock: one attempt (S16), what to do when somebody is in the way (S19–S22),
//! and how long to go on trying (S13).
//!
//! ```text
//!   table ── guard? ── publish ── guard again? ── held
//!     │        │          │             └ wait until it is gone, then: still ours?
//!     │        │          └ taken ── judge ── wait │ refuse │ reclaim under our own guard
//!     └────────┴───────────────────────────── wait
//! ```
//!
//! The second look at the guard closes the race with originals that delete by name: a reclaimer
//! that put up its guard later compares with our fresh file, and one that did so earlier is waited
//! for.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use super::held_table::{self, HeldLock, TableLookup};
use super::lock_path::{LockPaths, ParentDirectory};
use super::options::{Options, Payload};
use super::payload::compose;
use super::reclaim::{self, ExistingGuard, GuardObservation, ReclaimGuard};
use super::staleness::{self, JudgedSidecar, StalenessRuling};
use crate::error::{BlockingHolder, Class, Decision, Error, Result};
use crate::heartbeat::{self, MonitorOptions};
use crate::hold::FileHolding;
use crate::identity::{Here, Identity, Token};
use crate::liveness::{Proof, Verdict};
use crate::publish::{self, Draft, Published};
use crate::remove::{Removal, RemovalStep, no_pause, remove};
use crate::wait::{NameWaiter, WakeReason, random_fraction};

/// Moments at which a test may let the world change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcquireStep {
    /// The name is taken; whoever has it is judged next.
    Taken,
    /// Our record stands under its name; the guard is looked at next.
    Published,
    /// Our reclaim guard stands; the dead lock is removed next.
    GuardMade,
    /// A step of the removal itself.
    Removal(RemovalStep),
    /// The dead lock is gone; our record is published next.
    DeadRemoved,
    /// Our record stands; the guard is taken down next.
    Reclaimed,
}

/// Acquires, waiting as the options say.
pub(super) fn acquire(key: &str, options: &Options) -> Result<Arc<HeldLock>> {
    options.check()?;
    let paths = LockPaths::of(options, ParentDirectory::Create)?;
    let (here, token, local) = (Here::now(), Token::random(), paths.dir.is_local());
    let identity = match options.follows {
        Some(pid) => Identity::following(pid, token, local),
        None => Identity::own_at(&here, token, local),
    };
    let draft_options = publish::Options {
        durability: options.durability,
        first_way: options.first_way,
        ..publish::Options::default()
    };
    let names = [paths.lock_name.as_os_str(), paths.guard_name.as_os_str()];
    Acquisition {
        key,
        options,
        paths: &paths,
        here,
        token,
        identity,
        draft: Draft::new(&paths.dir, &paths.lock_name, draft_options),
        drafted: None,
        waiter: NameWaiter::new(&paths.dir, &names, options.cancel.clone()).for_names_to_go(),
        budget: RetryBudget::new(options),
        observation: GuardObservation::default(),
        was_taken: false,
        is_patient: false,
        is_racing: false,
    }
    .run()
}

struct Acquisition<'a> {
    key: &'a str,
    options: &'a Options,
    paths: &'a LockPaths,
    here: Here,
    token: Token,
    identity: Identity,
    draft: Draft<'a>,
    drafted: Option<Drafted>,
    waiter: NameWaiter<'a>,
    budget: RetryBudget<'a>,
    observation: GuardObservation,
    /// Once we have met a lock, we look before we publish.
    was_taken: bool,
    /// Whether whoever is in the way has been there long enough to be followed.
    is_patient: bool,
    /// Woken because the name was free: if another is quicker now, that one is alive and well.
    is_racing: bool,
}

/// How long something stands in the way before its holder is followed (K42). Under contention
/// locks change hands faster, and each holder would be judged by all who wait.
const GLANCE: Duration = Duration::from_millis(5);

struct Drafted {
    payload: Payload,
    bytes: Vec<u8>,
    at: Instant,
}

/// How one attempt ended.
enum AcquireAttempt {
    Held(Arc<HeldLock>),
    Blocked(BlockingFile),
    /// What stood in the way went while it was judged: try again at once (S20).
    Vanished,
}

/// What is in the way, and under which class it is reported if it stays.
struct BlockingFile {
    what: AwaitedName,
    class: Class,
    blocker: Option<BlockingHolder>,
}

/// The name whose end we wait for.
#[derive(Clone, Copy)]
enum AwaitedName {
    Lock,
    Guard,
}

impl BlockingFile {
    fn lock(blocker: Option<BlockingHolder>) -> BlockingFile {
        BlockingFile {
            what: AwaitedName::Lock,
            class: Class::Timeout,
            blocker,
        }
    }

    fn guard(blocker: Option<BlockingHolder>) -> BlockingFile {
        BlockingFile {
            what: AwaitedName::Guard,
            class: Class::Timeout,
            blocker,
        }
    }
}

impl Acquisition<'_> {
    fn run(mut self) -> Result<Arc<HeldLock>> {
        loop {
            match self.attempt()? {
                AcquireAttempt::Held(entry) => return Ok(entry),
                AcquireAttempt::Vanished if self.budget.spend() => {}
                AcquireAttempt::Vanished => return Err(self.in_vain(BlockingFile::lock(None))),
                AcquireAttempt::Blocked(blocking_file) => self.wait(blocking_file)?,
            }
        }
    }

    fn attempt(&mut self) -> Result<AcquireAttempt> {
        let was_racing = std::mem::take(&mut self.is_racing);
        match held_table::enter(
            self.key,
            &self.paths.target,
            self.options.reentrant_owner.as_deref(),
        ) {
            TableLookup::Free => {}
            TableLookup::Again(entry) => return Ok(AcquireAttempt::Held(entry)),
            TableLookup::Held(entry) => return Ok(AcquireAttempt::Blocked(self.held_here(&entry))),
        }
        if let Some(blocking_file) = self.guard_in_the_way()? {
            return Ok(AcquireAttempt::Blocked(blocking_file));
        }
        if self.was_taken
            && let Some(judged) = self.judge()?
        {
            return self.answer(judged);
        }
        match self.publish()? {
            Some(hold) => self.second_look(hold),
            None if was_racing => Ok(AcquireAttempt::Blocked(BlockingFile::lock(None))),
            None => {
                self.was_taken = true;
                self.options.at(AcquireStep::Taken);
                match self.judge()? {
                    Some(judged) => self.answer(judged),
                    None => Ok(AcquireAttempt::Vanished),
                }
            }
        }
    }

    /// S16.1: a guard that is not ours means wait, unless it was left behind (S22).
    fn guard_in_the_way(&mut self) -> Result<Option<BlockingFile>> {
        let stands = Ok(Some(BlockingFile::guard(None)));
        match reclaim::standing(self.paths)? {
            ExistingGuard::None => Ok(None),
            ExistingGuard::Left(file, id) => match reclaim::take_down(self.paths, &file, id)? {
                true => Ok(None),
                false => stands,
            },
            ExistingGuard::Locked(file, id) => {
                if self.is_patient {
                    self.waiter.follow_lock(&file, id);
                }
                stands
            }
            ExistingGuard::Directory(stat) => {
                match self
                    .observation
                    .remove_if_left(self.paths, &stat, self.options)?
                {
                    true => Ok(None),
                    false => stands,
                }
            }
            ExistingGuard::File(_) => self.guard_file_in_the_way(),
            ExistingGuard::Other(_) => stands,
        }
    }

    /// A guard that is a file carries a record like a lock and is judged like one (S22).
    fn guard_file_in_the_way(&mut self) -> Result<Option<BlockingFile>> {
        let judged =
            staleness::judge(self.paths, &self.paths.guard_name, self.options, &self.here)?;
        let Some(mut judged) = judged else {
            return Ok(None);
        };
        if judged.ruling == StalenessRuling::Reclaim
            && let Some(record) = &mut judged.record
            && remove(&self.paths.dir, record, &no_pause)? == Removal::Removed
        {
            return Ok(None);
        }
        Ok(Some(BlockingFile::guard(Some(judged.blocker))))
    }

    /// S16.2, by way of a draft that is kept for the next attempt. `None`: the name is taken.
    fn publish(&mut self) -> Result<Option<Arc<FileHolding>>> {
        self.refresh_draft()?;
        let Some(published) = self.draft.publish()? else {
            return Ok(None);
        };
        let hold = self.hold(published);
        self.options.at(AcquireStep::Published);
        Ok(Some(hold))
    }

    fn hold(&mut self, published: Published) -> Arc<FileHolding> {
        let bytes = self
            .drafted
            .take()
            .map(|drafted| drafted.bytes)
            .unwrap_or_default();
        let dir = Arc::clone(&self.paths.dir);
        Arc::new(FileHolding::new(
            dir,
            &self.paths.lock_name,
            published,
            bytes,
            self.token,
        ))
    }

    /// The payload is asked for in every attempt. A draft that says the same and is young is used
    /// again: under contention the sync of a record then happens while waiting, not while others
    /// wait for us.
    fn refresh_draft(&mut self) -> Result<()> {
        let payload = self
            .options
            .payload
            .as_ref()
            .map(|payload| payload())
            .unwrap_or_default();
        let keep_for = self
            .options
            .heartbeat_interval()
            .map_or(Duration::ZERO, |beat| {
                (beat / 2).min(Duration::from_secs(1))
            });
        if let Some(drafted) = &self.drafted
            && drafted.payload == payload
            && drafted.at.elapsed() < keep_for
        {
            return Ok(());
        }
        let bytes = compose(
            self.options,
            &payload,
            &self.identity,
            self.token,
            self.options.clock.now(),
            &self.paths.lock_path,
        )?;
        self.draft.write(&bytes)?;
        self.drafted = Some(Drafted {
            payload,
            bytes,
            at: Instant::now(),
        });
        Ok(())
    }

    /// S16.4: with our record published, look at the guard again.
    fn second_look(&mut self, hold: Arc<FileHolding>) -> Result<AcquireAttempt> {
        let mut has_waited = false;
        while let Some(blocking_file) = self.guard_in_the_way().inspect_err(|_| give_up(&hold))? {
            has_waited = true;
            self.wait(blocking_file).inspect_err(|_| give_up(&hold))?;
        }
        if has_waited {
            match hold.check() {
                Ok(()) => {}
                Err(error) if error.class() == Class::Compromised => {
                    return Ok(AcquireAttempt::Vanished);
                }
                Err(error) => {
                    give_up(&hold);
                    return Err(error);
                }
            }
        }
        self.settle(hold).map(AcquireAttempt::Held)
    }

    fn judge(&mut self) -> Result<Option<JudgedSidecar>> {
        staleness::judge(self.paths, &self.paths.lock_name, self.options, &self.here)
    }

    fn answer(&mut self, judged: JudgedSidecar) -> Result<AcquireAttempt> {
        match judged.ruling {
            StalenessRuling::Reclaim => self.reclaim(judged),
            StalenessRuling::Stale => Err(staleness::stale(
                self.paths,
                judged.blocker,
                self.options.stale,
            )),
            StalenessRuling::Unreadable => Ok(AcquireAttempt::Blocked(BlockingFile {
                class: Class::Unreadable,
                ..BlockingFile::lock(Some(judged.blocker))
            })),
            StalenessRuling::Wait => {
                if self.is_patient {
                    self.follow(&judged);
                }
                Ok(AcquireAttempt::Blocked(BlockingFile::lock(Some(
                    judged.blocker,
                ))))
            }
        }
    }

    /// The holder's end shall wake us (K42).
    fn follow(&mut self, judged: &JudgedSidecar) {
        let Some(record) = &judged.record else { return };
        match &judged.identity {
            Some(identity) => self.waiter.follow(record, identity, &self.here),
            None => {
                // A bare pid that S19.3 let us ask about.
                if let (Verdict::Alive(_), Some(pid)) = (judged.blocker.verdict, judged.blocker.pid)
                {
                    self.waiter.follow_process(record, pid, None);
                }
            }
        }
    }

    /// S21. The dead file's own lock is taken before the guard is put up: whoever has it is alive
    /// or at the same work, and the guard would only disturb.
    fn reclaim(&mut self, judged: JudgedSidecar) -> Result<AcquireAttempt> {
        let blocking_file = AcquireAttempt::Blocked(BlockingFile::lock(Some(judged.blocker)));
        let Some(mut record) = judged.record else {
            return Ok(blocking_file);
        };
        if !record.try_lock(&self.paths.dir)? {
            return Ok(blocking_file);
        }
        let Some(guard) = ReclaimGuard::make(self.paths)? else {
            return Ok(blocking_file);
        };
        self.options.at(AcquireStep::GuardMade);
        let pause = |step| self.options.at(AcquireStep::Removal(step));
        match (
            remove(&self.paths.dir, &mut record, &pause),
            &self.options.on_displaced,
        ) {
            (Ok(Removal::Removed), _) => {}
            (Ok(Removal::Busy | Removal::Changed), _) => return Ok(blocking_file),
            // K26: two others may believe that they hold it. Whoever listens is told; the name is
            // held all the same.
            (Err(error), Some(tell)) if error.class() == Class::Compromised => {
                tell(&error);
                return Ok(blocking_file);
            }
            (Err(error), _) => return Err(error),
        }
        self.options.at(AcquireStep::DeadRemoved);
        self.refresh_draft()?;
        let Some(published) = self.draft.publish()? else {
            return Ok(AcquireAttempt::Vanished);
        };
        let hold = self.hold(published);
        self.options.at(AcquireStep::Reclaimed);
        drop(guard);
        self.settle(hold).map(AcquireAttempt::Held)
    }

    /// S16.5: ours. The fence is taken now, never before (K39); then the heartbeat thread begins to beat.
    fn settle(&mut self, hold: Arc<FileHolding>) -> Result<Arc<HeldLock>> {
        let mut fence = None;
        if self.options.fence {
            let options = publish::Options::default();
            let number = crate::fence::next(&self.paths.dir, options)
                .and_then(|number| hold.write_fence(number).map(|()| number))
                .inspect_err(|_| give_up(&hold))?;
            fence = Some(number);
        }
        // Nobody beats for a hold that follows another process, and it outlives our watch.
        let monitored = self.options.follows.is_none().then(|| {
            let beat = self.options.heartbeat_interval();
            heartbeat::monitor(
                &hold,
                MonitorOptions {
                    beat,
                    check: self.options.check_interval,
                },
            )
        });
        let entry = Arc::new(HeldLock {
            key: self.key.to_owned(),
            target: self.paths.target.clone(),
            lock_path: self.paths.lock_path.clone(),
            owner: self.options.reentrant_owner.clone(),
            metadata: self.options.metadata.clone(),
            since: SystemTime::now(),
            fence,
            retain_on_exit: self.options.retain_on_exit,
            monitored: Mutex::new(monitored),
            hold,
        });
        held_table::insert(&entry);
        Ok(entry)
    }

    /// Waits for the next attempt, or says that it was in vain (S13). An event brings the attempt
    /// forward without using up the budget.
    fn wait(&mut self, blocking_file: BlockingFile) -> Result<()> {
        if self.budget.is_spent() {
            return Err(self.in_vain(blocking_file));
        }
        if !self.waiter.is_armed() {
            // What happened until now made no event: look once more before waiting.
            self.waiter.arm();
            return Ok(());
        }
        loop {
            let due = self.budget.next_attempt();
            let until = if self.is_patient {
                due
            } else {
                due.min(Instant::now() + GLANCE)
            };
            match self.waiter.wait(until) {
                WakeReason::Event if self.is_gone(&blocking_file) => {
                    self.is_patient = false;
                    self.was_taken = false;
                    self.is_racing = true;
                    return Ok(());
                }
                // It went, and another was quicker: no need to judge that one now.
                WakeReason::Event => self.is_patient = false,
                WakeReason::HolderGone => return Ok(()),
                WakeReason::Time => {
                    self.is_patient = true;
                    self.was_taken = true;
                    if Instant::now() >= due {
                        self.budget.attempt_is_due();
                    }
                    return Ok(());
                }
                WakeReason::Cancelled => {
                    return Err(self.in_vain(blocking_file).next("the wait was cancelled"));
                }
            }
            if Instant::now() >= due {
                self.budget.attempt_is_due();
                return Ok(());
            }
        }
    }

    fn is_gone(&self, blocking_file: &BlockingFile) -> bool {
        let name = match blocking_file.what {
            AwaitedName::Lock => &self.paths.lock_name,
            AwaitedName::Guard => &self.paths.guard_name,
        };
        matches!(self.paths.dir.stat(name), Err(rustix::io::Errno::NOENT))
    }

    fn in_vain(&mut self, mut blocking_file: BlockingFile) -> Error {
        if blocking_file.blocker.is_none() {
            // We lost a race and did not look at the winner. The message should name it (K5).
            blocking_file.blocker = self.judge().ok().flatten().map(|judged| judged.blocker);
        }
        staleness::timeout(self.paths, blocking_file.class, blocking_file.blocker)
            .decided(Decision::Wait)
    }

    fn held_here(&self, entry: &HeldLock) -> BlockingFile {
        BlockingFile::lock(Some(BlockingHolder {
            address: self.paths.address(),
            pid: Some(std::process::id()),
            host: Some(self.here.host.clone()),
            name: entry.owner.clone(),
            token: Some(entry.hold.token().to_string()),
            since: Some(entry.since),
            verdict: Verdict::Alive(Proof::Ourselves),
        }))
    }
}

/// S17: whatever fails after publishing takes our record back.
fn give_up(hold: &FileHolding) {
    let _ = hold.release();
}

/// The attempts and the time that are left (S13).
struct RetryBudget<'a> {
    options: &'a Options,
    started: Instant,
    /// Attempts made after the first.
    n: u32,
    /// When the next one is due; kept when an event brings an attempt forward.
    next: Option<Instant>,
}

impl<'a> RetryBudget<'a> {
    fn new(options: &'a Options) -> RetryBudget<'a> {
        RetryBudget {
            options,
            started: Instant::now(),
            n: 0,
            next: None,
        }
    }

    fn is_spent(&self) -> bool {
        self.options
            .retry
            .retries
            .is_some_and(|retries| self.n >= retries)
            || self
                .options
                .timeout
                .is_some_and(|timeout| self.started.elapsed() >= timeout)
    }

    /// Counts an attempt that is made at once; `false` if there was none left.
    fn spend(&mut self) -> bool {
        let left = !self.is_spent();
        self.n = self.n.saturating_add(1);
        left
    }

    fn attempt_is_due(&mut self) {
        self.n = self.n.saturating_add(1);
        self.next = None;
    }

    fn next_attempt(&mut self) -> Instant {
        let deadline = self
            .options
            .timeout
            .and_then(|timeout| self.started.checked_add(timeout));
        let next = *self.next.get_or_insert_with(|| {
            let jitter = if self.options.retry.randomize {
                1.0 + random_fraction()
            } else {
                1.0
            };
            Instant::now() + self.options.retry.delay(self.n, jitter)
        });
        deadline.map_or(next, |deadline| next.min(deadline))
    }
}
