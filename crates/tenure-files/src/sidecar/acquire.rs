//! Acquisition of a sidecar lock: one attempt (S16 (one acquisition attempt)), the treatment of an
//! existing lock (S19 (order of sidecar tests)–S22 (guards of crashed reclaimers)), and the retry
//! budget (S13 (retry delay and budget)).
//!
//! ```text
//!   held here? ── guard? ── publish ── guard again? ── held
//!     │             │          │             └ wait until it is gone, then check: still our file?
//!     │             │          └ exists ── judge ── wait │ refuse │ reclaim under our own guard
//!     └─────────────┴─────────────────────── wait
//! ```
//!
//! A reclaimer makes the *guard* and compares the stale lock; an original then deletes by name. If
//! a guard exists at the second check, its maker may have compared the old lock and delete ours, so
//! the acquirer waits until the guard is gone. A later reclaimer compares with our new lock.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use super::held_table::{self, HeldLock, TableLookup};
use super::lock_path::{LockPaths, ParentDirectory};
use super::options::{Options, Payload};
use super::payload::compose;
use super::reclaim::{self, ExistingGuard, GuardObservation, ReclaimGuard};
use super::staleness::{self, JudgedSidecar, StalenessRuling};
use crate::deadline::{Deadline, Wait};
use crate::error::{BlockingHolder, Class, Decision, Error, Result};
use crate::heartbeat::{self, MonitorOptions};
use crate::hold::FileHolding;
use crate::identity::{Here, Identity, Token};
use crate::liveness::{Proof, Verdict};
use crate::publish::{self, Draft, FileAccess, Published};
use crate::remove::{Removal, RemovalStep, no_pause, remove};
use crate::wait::{NameWaiter, WakeReason, random_fraction};

/// Steps of an acquisition at which a test may change files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcquireStep {
    /// The name exists; the lock is judged next.
    Taken,
    /// Our record is published; the guard is checked next.
    Published,
    /// Our reclaim guard exists; the dead lock is removed next.
    GuardMade,
    /// A step of the removal itself.
    Removal(RemovalStep),
    /// The dead lock is removed; our record is published next.
    DeadRemoved,
    /// Our record is published; the guard is removed next.
    Reclaimed,
}

/// Acquires the lock, and waits as long as the options allow.
pub(super) fn acquire(key: &str, options: &Options) -> Result<Arc<HeldLock>> {
    options.check()?;
    let paths = LockPaths::of(options, ParentDirectory::Create)?;
    let (here, token) = (Here::now(), Token::random());
    let identity = Identity::in_dir(&paths.dir, &here, token, options.follows);
    let usual = publish::Options::default();
    let draft_options = publish::Options {
        durability: options.durability,
        first_way: options.first_way,
        mode: options.mode.unwrap_or(usual.mode),
        access: match options.mode {
            Some(_) => FileAccess::Exact,
            None => usual.access,
        },
    };
    let wait = match (options.retry.retries, options.timeout) {
        (Some(0), _) => Wait::No,
        (_, Some(timeout)) => Wait::For(timeout),
        (_, None) => Wait::Forever,
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
        wait_deadline: Deadline::new(wait, options.cancel.clone()).reports(options.on_wait.clone()),
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
    /// The limits of the wait for the fence counter, and the reports to the caller.
    wait_deadline: Deadline,
    observation: GuardObservation,
    /// Judge before publishing. Set once a lock was found: publishing would most likely fail.
    was_taken: bool,
    /// The lock was held for longer than `GLANCE`: follow its holder.
    is_patient: bool,
    /// The name was just free. If publishing fails now, another waiter won the race and is alive:
    /// no need to judge it.
    is_racing: bool,
}

/// How long a lock must be held before the waiter follows its holder (K42 (watch and poll)). Under
/// contention locks change hands faster, and every waiter would judge every holder.
const GLANCE: Duration = Duration::from_millis(5);

/// The content of the current draft, and when it was written.
struct Drafted {
    payload: Payload,
    bytes: Vec<u8>,
    at: Instant,
}

/// The outcome of one attempt.
enum AcquireAttempt {
    Held(Arc<HeldLock>),
    Blocked(BlockingFile),
    /// The lock vanished while it was judged: try again immediately (S20 (vanished is not stale)).
    Vanished,
}

/// The file that blocks the acquisition, and the class of the error if it stays.
#[derive(Clone)]
struct BlockingFile {
    what: AwaitedName,
    class: Class,
    blocker: Option<BlockingHolder>,
}

/// The file whose removal we wait for.
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
                // An immediate retry counts against the budget (S20).
                AcquireAttempt::Vanished if self.budget.spend() => {}
                AcquireAttempt::Vanished => return Err(self.timed_out(BlockingFile::lock(None))),
                AcquireAttempt::Blocked(blocking_file) => {
                    if self.wait_deadline.report_is_due() {
                        let error = self.timed_out(blocking_file.clone());
                        self.wait_deadline.report(|| error);
                    }
                    self.wait(blocking_file)?;
                }
            }
        }
    }

    /// One attempt (S16). A lock of this process is found in the table, without the disk.
    fn attempt(&mut self) -> Result<AcquireAttempt> {
        let was_racing = std::mem::take(&mut self.is_racing);
        match held_table::enter(
            self.key,
            &self.paths.target,
            self.options.reentrant_owner.as_deref(),
        ) {
            TableLookup::Free => {}
            TableLookup::Again(entry) => {
                return match entry.hold.check() {
                    Ok(()) => Ok(AcquireAttempt::Held(entry)),
                    // The owner must not go on with a lock that another process may hold.
                    Err(error) => {
                        held_table::count_down(&entry);
                        Err(error)
                    }
                };
            }
            // A lost lock keeps no other owner out, although its guards still exist.
            TableLookup::Held(entry) if entry.hold.is_lost() => held_table::remove(&entry),
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

    /// S16.1: a foreign guard means wait, unless it is abandoned (S22).
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

    /// A guard that is a file carries a record, and is judged like a lock (S22).
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

    /// S16.2: publishes the draft; it is kept for the next attempt. `None` if the name exists.
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

    /// Prepares the draft. The payload function is called in every attempt; a draft with the same
    /// payload is reused while it is young. Under contention the record is thus synced while this
    /// process waits, not while it holds the lock and others wait.
    fn refresh_draft(&mut self) -> Result<()> {
        let payload = self
            .options
            .payload
            .as_ref()
            .map(|payload| payload())
            .unwrap_or_default();
        // Without a heartbeat the record carries `createdAt`, so a draft is never reused.
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

    /// S16.4: our record is published; check the guard again and wait until it is gone.
    fn second_look(&mut self, hold: Arc<FileHolding>) -> Result<AcquireAttempt> {
        let mut has_waited = false;
        while let Some(blocking_file) = self.guard_in_the_way().inspect_err(|_| give_up(&hold))? {
            has_waited = true;
            self.wait(blocking_file).inspect_err(|_| give_up(&hold))?;
        }
        if has_waited {
            match hold.check() {
                Ok(()) => {}
                // The reclaimer deleted our record by name: start the next attempt.
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

    /// Acts on the result of S19.
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

    /// Makes the end of the holder wake this waiter (K42).
    fn follow(&mut self, judged: &JudgedSidecar) {
        let Some(record) = &judged.record else { return };
        match &judged.identity {
            Some(identity) => self.waiter.follow(record, identity, &self.here),
            None => {
                // A record without a block: S19.3 allowed the check of its pid.
                if let (Verdict::Alive(_), Some(pid)) = (judged.blocker.verdict, judged.blocker.pid)
                {
                    self.waiter.follow_process(record, pid, None);
                }
            }
        }
    }

    /// S21 (reclaim under the guard). Takes the flock of the dead file before making the guard: if
    /// another process has the flock, it is the live holder or another reclaimer, and a guard would
    /// only delay it.
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
            // K26 (rename, compare, then unlink): two other processes may believe that they hold
            // the lock. Report it to the listener; the name is held in any case, so continue to
            // wait.
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

    /// S16.5: the lock is held. Take the fence now, never before (K39 (fencing number per
    /// acquisition)), then start the heartbeat.
    fn settle(&mut self, hold: Arc<FileHolding>) -> Result<Arc<HeldLock>> {
        let mut fence = None;
        if self.options.fence {
            let options = publish::Options::default();
            let number = crate::fence::next(&self.paths.dir, options, &self.wait_deadline)
                .and_then(|number| hold.write_fence(number).map(|()| number))
                .inspect_err(|_| give_up(&hold))?;
            fence = Some(number);
        }
        // A hold that follows another process gets no heartbeat and no monitoring: this process may
        // exit first.
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

    /// Waits for the next attempt, or returns `Timeout` if the budget is spent (S13). An event
    /// brings the next attempt forward without spending the budget.
    fn wait(&mut self, blocking_file: BlockingFile) -> Result<()> {
        if self.budget.is_spent() {
            return Err(self.timed_out(blocking_file));
        }
        if !self.waiter.is_armed() {
            // A change before the watch began makes no event: check once more before waiting.
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
                // The name was removed and taken again by another process: no need to judge that
                // holder now.
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
                    return Err(self.timed_out(blocking_file).next("the wait was cancelled"));
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

    /// The error after the budget is spent, with the blocking holder.
    fn timed_out(&mut self, mut blocking_file: BlockingFile) -> Error {
        if blocking_file.blocker.is_none() {
            // We lost a race without judging the winner. Judge it now, because the message must
            // name it (K5 (content of user messages)).
            blocking_file.blocker = self.judge().ok().flatten().map(|judged| judged.blocker);
        }
        let error = staleness::timeout(self.paths, blocking_file.class, blocking_file.blocker)
            .decided(Decision::Wait);
        match blocking_file.what {
            AwaitedName::Lock => error,
            // The holder of the lock is not what blocks: say so, and how to remove what does.
            AwaitedName::Guard => error.next(format!(
                "the reclaim guard {} is in the way; if no process is removing a dead lock: tenure \
                 break --guard {}",
                self.paths.dir.join(&self.paths.guard_name).display(),
                self.paths.address()
            )),
        }
    }

    /// The blocking holder is another manager user in this process.
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

/// S17 (clean up failed acquisitions): if a step after publishing fails, our record is removed.
fn give_up(hold: &FileHolding) {
    let _ = hold.release();
}

/// The remaining attempts and time (S13).
struct RetryBudget<'a> {
    options: &'a Options,
    started: Instant,
    /// Number of attempts after the first.
    n: u32,
    /// When the next attempt is due. An event that brings an attempt forward does not change it.
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

    /// Counts an immediate attempt; `false` if the budget was already spent.
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
