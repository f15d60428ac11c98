//! The heart: one thread per process that beats for all its holds (K33) and looks after them when
//! their directory changes (K34).
//!
//! It is started by the first hold that needs it, never before a lock is held, and not before the last
//! [`Rest`] ends. A hold is looked at for the first time a moment after it began, so that short holds cost
//! the heart nothing at all.
//! A hold may listen for a second name in its directory, by which somebody asks for the lock.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::inotify;

use crate::deadline::after;
use crate::error::Class;
use crate::hold::Hold;
use crate::process::{Incarnation, PerProcess};
use crate::wait::{DirEvent, drain_eventfd, read_events, timespec};

/// How often a hold is looked after. `None` means never.
#[derive(Clone, Copy, Debug, Default)]
pub struct Care {
    /// The heartbeat interval (K33).
    pub beat: Option<Duration>,
    /// An additional check without a beat.
    pub check: Option<Duration>,
}

/// A name beside the lock by which somebody may ask for it.
#[derive(Clone)]
pub struct Listen {
    /// The name in the hold's directory.
    pub name: OsString,
    /// How often to look without an event.
    pub poll: Duration,
    /// Looks. Called on the heart's thread, whenever the name may have changed.
    pub look: Arc<Look>,
}

/// What a hold does when somebody may have asked.
pub type Look = dyn Fn(&Arc<Hold>) + Send + Sync;

/// Holds younger than this are left alone.
const FIRST_LOOK: Duration = Duration::from_millis(50);
/// Somebody who asks is in a hurry.
const FIRST_LISTEN: Duration = Duration::from_millis(1);

/// What the heart watches a directory for: whatever can take a lock away.
fn interference() -> inotify::WatchFlags {
    use inotify::WatchFlags as W;
    W::DELETE | W::MOVED_FROM | W::MOVED_TO | W::CREATE | W::MODIFY
}

/// A hold under care. Dropping it ends the care.
#[derive(Debug)]
pub struct Cared {
    id: u64,
    /// A forked child has a heart of its own, with numbers of its own.
    process: Incarnation,
}

/// Begins to beat for `hold` and to watch it.
pub fn care_for(hold: &Arc<Hold>, care: Care) -> Cared {
    care_and_listen(hold, care, None)
}

/// The same, and listens for somebody who asks.
pub fn care_and_listen(hold: &Arc<Hold>, care: Care, listen: Option<Listen>) -> Cared {
    let now = Instant::now();
    let first = match &listen {
        Some(_) => FIRST_LISTEN,
        None => FIRST_LOOK,
    };
    let patient = Patient {
        hold: Arc::downgrade(hold),
        care,
        next_beat: care.beat.map(|every| after(now, every)),
        next_check: care.check.map(|every| after(now, every)),
        first_look: Some(now + first),
        next_listen: None,
        listen,
        watch: None,
    };
    let heart = HEART.get();
    let mut state = heart.lock();
    let id = state.next_id;
    state.next_id += 1;
    let due = patient.due();
    state.patients.insert(id, patient);
    match (&state.wake, due) {
        (None, _) => start_if_needed(&mut state),
        (Some(wake), Some(due)) if state.sleeps_until.is_none_or(|until| due < until) => {
            let _ = rustix::io::write(wake.as_ref(), &1_u64.to_ne_bytes());
        }
        (Some(_), _) => {}
    }
    Cared {
        id,
        process: Incarnation::current(),
    }
}

impl Drop for Cared {
    fn drop(&mut self) {
        if self.process != Incarnation::current() {
            return;
        }
        let mut state = HEART.get().lock();
        if let Some(patient) = state.patients.remove(&self.id)
            && patient.watch.is_some()
        {
            // The watch is taken off by the thread, which owns the inotify descriptor.
            state.watches_changed = true;
        }
    }
}

/// While it lives, the heart's thread is not started for the first time. A thread costs a program that is over
/// at once more than its lock does.
#[derive(Debug)]
pub struct Rest(());

/// Puts off the start of the heart. Holds that begin meanwhile are looked after from the end of the rest on, so keep
/// it far below the time by which a heart is overdue; one that beats already goes on.
#[must_use]
pub fn rest() -> Rest {
    HEART.get().lock().rests += 1;
    Rest(())
}

impl Drop for Rest {
    fn drop(&mut self) {
        let mut state = HEART.get().lock();
        // A forked child, whose heart is another, ends a rest that it has not begun.
        state.rests = state.rests.saturating_sub(1);
        start_if_needed(&mut state);
    }
}

static HEART: PerProcess<Heart> = PerProcess::new();

#[derive(Default)]
struct Heart(Mutex<State>);

#[derive(Default)]
struct State {
    patients: BTreeMap<u64, Patient>,
    next_id: u64,
    /// Set while the thread runs.
    wake: Option<Arc<OwnedFd>>,
    /// Those that put off its start.
    rests: usize,
    sleeps_until: Option<Instant>,
    watches: Vec<i32>,
    watches_changed: bool,
}

struct Patient {
    hold: Weak<Hold>,
    care: Care,
    next_beat: Option<Instant>,
    next_check: Option<Instant>,
    first_look: Option<Instant>,
    next_listen: Option<Instant>,
    listen: Option<Listen>,
    watch: Option<Watch>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Watch {
    descriptor: i32,
    name: OsString,
}

enum Task {
    Beat(Arc<Hold>),
    Check(Arc<Hold>),
    Listen(Arc<Hold>, Listen),
}

impl Heart {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Patient {
    fn due(&self) -> Option<Instant> {
        [
            self.next_beat,
            self.next_check,
            self.first_look,
            self.next_listen,
        ]
        .into_iter()
        .flatten()
        .min()
    }
}

fn start_if_needed(state: &mut State) {
    if state.rests > 0 || state.wake.is_some() || state.patients.is_empty() {
        return;
    }
    let Ok(wake) = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK) else {
        return;
    };
    let wake = Arc::new(wake);
    let inner = Arc::clone(&wake);
    // Without a thread the lock is still safe: only originals, which go by age, need the beat, and
    // every `check` looks for itself.
    if thread::Builder::new()
        .name("tenure-heart".into())
        .spawn(move || run(&inner))
        .is_ok()
    {
        state.wake = Some(wake);
    }
}

fn run(wake: &OwnedFd) {
    let inotify =
        inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK).ok();
    let heart = HEART.get();
    loop {
        let now = Instant::now();
        let (tasks, until) = {
            let mut state = heart.lock();
            if let Some(inotify) = &inotify {
                state.tend_watches(inotify, now);
            }
            let tasks = state.due_tasks(now);
            let until = state.patients.values().filter_map(Patient::due).min();
            state.sleeps_until = until;
            (tasks, until)
        };
        // Nothing is called under the mutex: a listener of a lost lock may acquire another.
        tasks.into_iter().for_each(perform);

        let mut ready = vec![PollFd::new(wake, PollFlags::IN)];
        ready.extend(
            inotify
                .as_ref()
                .map(|inotify| PollFd::new(inotify, PollFlags::IN)),
        );
        let timeout = until.map(|until| timespec(until.saturating_duration_since(Instant::now())));
        let _ = poll(&mut ready, timeout.as_ref());
        drain_eventfd(wake);
        if let Some(inotify) = &inotify {
            let events = read_events(inotify);
            let touched = heart.lock().touched(&events);
            touched.into_iter().for_each(perform);
        }
    }
}

impl State {
    fn due_tasks(&mut self, now: Instant) -> Vec<Task> {
        let is_due = |due: Option<Instant>| due.is_some_and(|due| due <= now);
        let mut tasks = Vec::new();
        for patient in self.patients.values_mut() {
            let Some(hold) = patient.hold.upgrade() else {
                continue;
            };
            if let Some(listen) = &patient.listen
                && (is_due(patient.next_listen) || is_due(patient.first_look))
            {
                patient.next_listen = Some(after(now, listen.poll));
                tasks.push(Task::Listen(Arc::clone(&hold), listen.clone()));
            }
            if is_due(patient.next_beat) {
                patient.next_beat = patient.care.beat.map(|every| after(now, every));
                tasks.push(Task::Beat(hold));
            } else if is_due(patient.next_check) || is_due(patient.first_look) {
                tasks.push(Task::Check(hold));
            }
            if is_due(patient.next_check) {
                patient.next_check = patient.care.check.map(|every| after(now, every));
            }
            if is_due(patient.first_look) {
                patient.first_look = None;
            }
        }
        tasks
    }

    /// Puts watches on the directories of holds that are old enough, and takes off those that
    /// nobody needs any more.
    fn tend_watches(&mut self, inotify: &OwnedFd, now: Instant) {
        if std::mem::take(&mut self.watches_changed) {
            let patients = &self.patients;
            self.watches.retain(|&descriptor| {
                let used = patients.values().any(|patient| {
                    patient
                        .watch
                        .as_ref()
                        .is_some_and(|watch| watch.descriptor == descriptor)
                });
                if !used {
                    let _ = inotify::remove_watch(inotify, descriptor);
                }
                used
            });
        }
        for patient in self.patients.values_mut() {
            if patient.watch.is_some() || patient.first_look.is_none_or(|first| first > now) {
                continue;
            }
            let Some(hold) = patient.hold.upgrade() else {
                continue;
            };
            let path = format!("/proc/self/fd/{}", hold.dir().as_fd().as_raw_fd());
            if let Ok(descriptor) = inotify::add_watch(inotify, path, interference()) {
                // One directory has one descriptor, however often it is added.
                if !self.watches.contains(&descriptor) {
                    self.watches.push(descriptor);
                }
                patient.watch = Some(Watch {
                    descriptor,
                    name: hold.name().to_owned(),
                });
            }
        }
    }

    fn touched(&self, events: &[DirEvent]) -> Vec<Task> {
        let mut tasks = Vec::new();
        for patient in self.patients.values() {
            let (Some(watch), Some(hold)) = (&patient.watch, patient.hold.upgrade()) else {
                continue;
            };
            let changed = |name: &OsStr| {
                events
                    .iter()
                    .any(|event| event.concerns(watch.descriptor, name))
            };
            if let Some(listen) = patient.listen.as_ref().filter(|it| changed(&it.name)) {
                tasks.push(Task::Listen(Arc::clone(&hold), listen.clone()));
            }
            if changed(&watch.name) {
                tasks.push(Task::Check(hold));
            }
        }
        tasks
    }
}

fn perform(task: Task) {
    // A callback that panics must not stop the heart of every other lock of this process.
    let done = catch_unwind(AssertUnwindSafe(|| match &task {
        Task::Beat(hold) => hold.beat(),
        Task::Check(hold) => hold.check(),
        Task::Listen(hold, listen) => {
            (listen.look)(hold);
            Ok(())
        }
    }));
    // A loss has told its listeners. A beat that could not be written is tried again next time; a
    // released hold needs nothing.
    debug_assert!(!matches!(done, Ok(Err(error)) if error.class() == Class::BadInput));
}
