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

use super::judge::{self, Judged, Ruling};
use super::options::{Options, Payload};
use super::payload::compose;
use super::place::{Parent, Place};
use super::reclaim::{self, Observation, ReclaimGuard, Standing};
use super::table::{self, Entry, Listed};
use crate::error::{Blocker, Class, Decision, Error, Result};
use crate::heart::{self, Care};
use crate::hold::Hold;
use crate::identity::{Here, Identity, Token};
use crate::liveness::{Proof, Verdict};
use crate::publish::{self, Draft, Published};
use crate::remove::{Removal, Step, no_pause, remove};
use crate::wait::{Waiter, Woken, random_fraction};

/// Moments at which a test may let the world change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// The name is taken; whoever has it is judged next.
    Taken,
    /// Our record stands under its name; the guard is looked at next.
    Published,
    /// Our reclaim guard stands; the dead lock is removed next.
    GuardMade,
    /// A step of the removal itself.
    Removal(Step),
    /// The dead lock is gone; our record is published next.
    DeadRemoved,
    /// Our record stands; the guard is taken down next.
    Reclaimed,
}

/// Acquires, waiting as the options say.
pub(super) fn acquire(key: &str, options: &Options) -> Result<Arc<Entry>> {
    options.check()?;
    let place = Place::of(options, Parent::Create)?;
    let (here, token, local) = (Here::now(), Token::random(), place.dir.is_local());
    let identity = match options.follows {
        Some(pid) => Identity::following(pid, token, local),
        None => Identity::own_at(&here, token, local),
    };
    let draft_options = publish::Options {
        durability: options.durability,
        first_way: options.first_way,
        ..publish::Options::default()
    };
    let names = [place.lock_name.as_os_str(), place.guard_name.as_os_str()];
    Acquisition {
        key,
        options,
        place: &place,
        here,
        token,
        identity,
        draft: Draft::new(&place.dir, &place.lock_name, draft_options),
        drafted: None,
        waiter: Waiter::new(&place.dir, &names, options.cancel.clone()).for_names_to_go(),
        budget: Budget::new(options),
        observation: Observation::default(),
        was_taken: false,
        is_patient: false,
        is_racing: false,
    }
    .run()
}

struct Acquisition<'a> {
    key: &'a str,
    options: &'a Options,
    place: &'a Place,
    here: Here,
    token: Token,
    identity: Identity,
    draft: Draft<'a>,
    drafted: Option<Drafted>,
    waiter: Waiter<'a>,
    budget: Budget<'a>,
    observation: Observation,
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
enum Attempt {
    Held(Arc<Entry>),
    Blocked(Obstacle),
    /// What stood in the way went while it was judged: try again at once (S20).
    Vanished,
}

/// What is in the way, and under which class it is reported if it stays.
struct Obstacle {
    what: What,
    class: Class,
    blocker: Option<Blocker>,
}

/// The name whose end we wait for.
#[derive(Clone, Copy)]
enum What {
    Lock,
    Guard,
}

impl Obstacle {
    fn lock(blocker: Option<Blocker>) -> Obstacle {
        Obstacle {
            what: What::Lock,
            class: Class::Timeout,
            blocker,
        }
    }

    fn guard(blocker: Option<Blocker>) -> Obstacle {
        Obstacle {
            what: What::Guard,
            class: Class::Timeout,
            blocker,
        }
    }
}

impl Acquisition<'_> {
    fn run(mut self) -> Result<Arc<Entry>> {
        loop {
            match self.attempt()? {
                Attempt::Held(entry) => return Ok(entry),
                Attempt::Vanished if self.budget.spend() => {}
                Attempt::Vanished => return Err(self.in_vain(Obstacle::lock(None))),
                Attempt::Blocked(obstacle) => self.wait(obstacle)?,
            }
        }
    }

    fn attempt(&mut self) -> Result<Attempt> {
        let was_racing = std::mem::take(&mut self.is_racing);
        match table::enter(
            self.key,
            &self.place.target,
            self.options.reentrant_owner.as_deref(),
        ) {
            Listed::Free => {}
            Listed::Again(entry) => return Ok(Attempt::Held(entry)),
            Listed::Held(entry) => return Ok(Attempt::Blocked(self.held_here(&entry))),
        }
        if let Some(obstacle) = self.guard_in_the_way()? {
            return Ok(Attempt::Blocked(obstacle));
        }
        if self.was_taken
            && let Some(judged) = self.judge()?
        {
            return self.answer(judged);
        }
        match self.publish()? {
            Some(hold) => self.second_look(hold),
            None if was_racing => Ok(Attempt::Blocked(Obstacle::lock(None))),
            None => {
                self.was_taken = true;
                self.options.at(Point::Taken);
                match self.judge()? {
                    Some(judged) => self.answer(judged),
                    None => Ok(Attempt::Vanished),
                }
            }
        }
    }

    /// S16.1: a guard that is not ours means wait, unless it was left behind (S22).
    fn guard_in_the_way(&mut self) -> Result<Option<Obstacle>> {
        let stands = Ok(Some(Obstacle::guard(None)));
        match reclaim::standing(self.place)? {
            Standing::None => Ok(None),
            Standing::Left(file, id) => match reclaim::take_down(self.place, &file, id)? {
                true => Ok(None),
                false => stands,
            },
            Standing::Locked(file, id) => {
                if self.is_patient {
                    self.waiter.follow_lock(&file, id);
                }
                stands
            }
            Standing::Directory(stat) => {
                match self
                    .observation
                    .remove_if_left(self.place, &stat, self.options)?
                {
                    true => Ok(None),
                    false => stands,
                }
            }
            Standing::File(_) => self.guard_file_in_the_way(),
            Standing::Other(_) => stands,
        }
    }

    /// A guard that is a file carries a record like a lock and is judged like one (S22).
    fn guard_file_in_the_way(&mut self) -> Result<Option<Obstacle>> {
        let judged = judge::judge(self.place, &self.place.guard_name, self.options, &self.here)?;
        let Some(mut judged) = judged else {
            return Ok(None);
        };
        if judged.ruling == Ruling::Reclaim
            && let Some(record) = &mut judged.record
            && remove(&self.place.dir, record, &no_pause)? == Removal::Removed
        {
            return Ok(None);
        }
        Ok(Some(Obstacle::guard(Some(judged.blocker))))
    }

    /// S16.2, by way of a draft that is kept for the next attempt. `None`: the name is taken.
    fn publish(&mut self) -> Result<Option<Arc<Hold>>> {
        self.refresh_draft()?;
        let Some(published) = self.draft.publish()? else {
            return Ok(None);
        };
        let hold = self.hold(published);
        self.options.at(Point::Published);
        Ok(Some(hold))
    }

    fn hold(&mut self, published: Published) -> Arc<Hold> {
        let bytes = self
            .drafted
            .take()
            .map(|drafted| drafted.bytes)
            .unwrap_or_default();
        let dir = Arc::clone(&self.place.dir);
        Arc::new(Hold::new(
            dir,
            &self.place.lock_name,
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
            &self.place.lock_path,
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
    fn second_look(&mut self, hold: Arc<Hold>) -> Result<Attempt> {
        let mut has_waited = false;
        while let Some(obstacle) = self.guard_in_the_way().inspect_err(|_| give_up(&hold))? {
            has_waited = true;
            self.wait(obstacle).inspect_err(|_| give_up(&hold))?;
        }
        if has_waited {
            match hold.check() {
                Ok(()) => {}
                Err(error) if error.class() == Class::Compromised => return Ok(Attempt::Vanished),
                Err(error) => {
                    give_up(&hold);
                    return Err(error);
                }
            }
        }
        self.settle(hold).map(Attempt::Held)
    }

    fn judge(&mut self) -> Result<Option<Judged>> {
        judge::judge(self.place, &self.place.lock_name, self.options, &self.here)
    }

    fn answer(&mut self, judged: Judged) -> Result<Attempt> {
        match judged.ruling {
            Ruling::Reclaim => self.reclaim(judged),
            Ruling::Stale => Err(judge::stale(self.place, judged.blocker, self.options.stale)),
            Ruling::Unreadable => Ok(Attempt::Blocked(Obstacle {
                class: Class::Unreadable,
                ..Obstacle::lock(Some(judged.blocker))
            })),
            Ruling::Wait => {
                if self.is_patient {
                    self.follow(&judged);
                }
                Ok(Attempt::Blocked(Obstacle::lock(Some(judged.blocker))))
            }
        }
    }

    /// The holder's end shall wake us (K42).
    fn follow(&mut self, judged: &Judged) {
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
    fn reclaim(&mut self, judged: Judged) -> Result<Attempt> {
        let obstacle = Attempt::Blocked(Obstacle::lock(Some(judged.blocker)));
        let Some(mut record) = judged.record else {
            return Ok(obstacle);
        };
        if !record.try_lock(&self.place.dir)? {
            return Ok(obstacle);
        }
        let Some(guard) = ReclaimGuard::make(self.place)? else {
            return Ok(obstacle);
        };
        self.options.at(Point::GuardMade);
        let pause = |step| self.options.at(Point::Removal(step));
        match (
            remove(&self.place.dir, &mut record, &pause),
            &self.options.on_displaced,
        ) {
            (Ok(Removal::Removed), _) => {}
            (Ok(Removal::Busy | Removal::Changed), _) => return Ok(obstacle),
            // K26: two others may believe that they hold it. Whoever listens is told; the name is
            // held all the same.
            (Err(error), Some(tell)) if error.class() == Class::Compromised => {
                tell(&error);
                return Ok(obstacle);
            }
            (Err(error), _) => return Err(error),
        }
        self.options.at(Point::DeadRemoved);
        self.refresh_draft()?;
        let Some(published) = self.draft.publish()? else {
            return Ok(Attempt::Vanished);
        };
        let hold = self.hold(published);
        self.options.at(Point::Reclaimed);
        drop(guard);
        self.settle(hold).map(Attempt::Held)
    }

    /// S16.5: ours. The fence is taken now, never before (K39); then the heart begins to beat.
    fn settle(&mut self, hold: Arc<Hold>) -> Result<Arc<Entry>> {
        let mut fence = None;
        if self.options.fence {
            let options = publish::Options::default();
            let number = crate::fence::next(&self.place.dir, options)
                .and_then(|number| hold.write_fence(number).map(|()| number))
                .inspect_err(|_| give_up(&hold))?;
            fence = Some(number);
        }
        // Nobody beats for a hold that follows another process, and it outlives our watch.
        let cared = self.options.follows.is_none().then(|| {
            let beat = self.options.heartbeat_interval();
            heart::care_for(
                &hold,
                Care {
                    beat,
                    check: self.options.check_interval,
                },
            )
        });
        let entry = Arc::new(Entry {
            key: self.key.to_owned(),
            target: self.place.target.clone(),
            lock_path: self.place.lock_path.clone(),
            owner: self.options.reentrant_owner.clone(),
            metadata: self.options.metadata.clone(),
            since: SystemTime::now(),
            fence,
            retain_on_exit: self.options.retain_on_exit,
            cared: Mutex::new(cared),
            hold,
        });
        table::insert(&entry);
        Ok(entry)
    }

    /// Waits for the next attempt, or says that it was in vain (S13). An event brings the attempt
    /// forward without using up the budget.
    fn wait(&mut self, obstacle: Obstacle) -> Result<()> {
        if self.budget.is_spent() {
            return Err(self.in_vain(obstacle));
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
                Woken::Event if self.is_gone(&obstacle) => {
                    self.is_patient = false;
                    self.was_taken = false;
                    self.is_racing = true;
                    return Ok(());
                }
                // It went, and another was quicker: no need to judge that one now.
                Woken::Event => self.is_patient = false,
                Woken::HolderGone => return Ok(()),
                Woken::Time => {
                    self.is_patient = true;
                    self.was_taken = true;
                    if Instant::now() >= due {
                        self.budget.attempt_is_due();
                    }
                    return Ok(());
                }
                Woken::Cancelled => {
                    return Err(self.in_vain(obstacle).next("the wait was cancelled"));
                }
            }
            if Instant::now() >= due {
                self.budget.attempt_is_due();
                return Ok(());
            }
        }
    }

    fn is_gone(&self, obstacle: &Obstacle) -> bool {
        let name = match obstacle.what {
            What::Lock => &self.place.lock_name,
            What::Guard => &self.place.guard_name,
        };
        matches!(self.place.dir.stat(name), Err(rustix::io::Errno::NOENT))
    }

    fn in_vain(&mut self, mut obstacle: Obstacle) -> Error {
        if obstacle.blocker.is_none() {
            // We lost a race and did not look at the winner. The message should name it (K5).
            obstacle.blocker = self.judge().ok().flatten().map(|judged| judged.blocker);
        }
        judge::timeout(self.place, obstacle.class, obstacle.blocker).decided(Decision::Wait)
    }

    fn held_here(&self, entry: &Entry) -> Obstacle {
        Obstacle::lock(Some(Blocker {
            address: self.place.address(),
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
fn give_up(hold: &Hold) {
    let _ = hold.release();
}

/// The attempts and the time that are left (S13).
struct Budget<'a> {
    options: &'a Options,
    started: Instant,
    /// Attempts made after the first.
    n: u32,
    /// When the next one is due; kept when an event brings an attempt forward.
    next: Option<Instant>,
}

impl<'a> Budget<'a> {
    fn new(options: &'a Options) -> Budget<'a> {
        Budget {
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
