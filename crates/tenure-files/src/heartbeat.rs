//! The heartbeat thread: one thread per process that beats for all its holds (K33) and looks after them when
//! their directory changes (K34).
//!
//! It is started by the first hold that needs it, never before a lock is held, and not before the last
//! [`HeartbeatPause`] ends. A hold is looked at for the first time a moment after it began, so that short holds cost
//! the heartbeat thread nothing at all.
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
use crate::hold::FileHolding;
use crate::process::{Incarnation, PerProcess};
use crate::wait::{DirEvent, drain_eventfd, read_events, timespec};

/// How often a hold is looked after. `None` means never.
#[derive(Clone, Copy, Debug, Default)]
pub struct MonitorOptions {
    /// The heartbeat interval (K33).
    pub beat: Option<Duration>,
    /// An additional check without a beat.
    pub check: Option<Duration>,
}

/// A name beside the lock by which somebody may ask for it.
#[derive(Clone)]
pub struct ListenName {
    /// The name in the hold's directory.
    pub name: OsString,
    /// How often to look without an event.
    pub poll: Duration,
    /// Looks. Called on the heartbeat thread's thread, whenever the name may have changed.
    pub look: Arc<RequestCheck>,
}

/// What a hold does when somebody may have asked.
pub type RequestCheck = dyn Fn(&Arc<FileHolding>) + Send + Sync;

/// Holds younger than this are left alone.
const FIRST_LOOK: Duration = Duration::from_millis(50);
/// Somebody who asks is in a hurry.
const FIRST_LISTEN: Duration = Duration::from_millis(1);

/// What the heartbeat thread watches a directory for: whatever can take a lock away.
fn interference() -> inotify::WatchFlags {
    use inotify::WatchFlags as W;
    W::DELETE | W::MOVED_FROM | W::MOVED_TO | W::CREATE | W::MODIFY
}

/// A hold that is monitored. Dropping it ends the care.
#[derive(Debug)]
pub struct Monitored {
    id: u64,
    /// A forked child has a heart of its own, with numbers of its own.
    process: Incarnation,
}

/// Begins to beat for `hold` and to watch it.
pub fn monitor(hold: &Arc<FileHolding>, monitor_options: MonitorOptions) -> Monitored {
    monitor_and_listen(hold, monitor_options, None)
}

/// The same, and listens for somebody who asks.
pub fn monitor_and_listen(
    hold: &Arc<FileHolding>,
    monitor_options: MonitorOptions,
    listen: Option<ListenName>,
) -> Monitored {
    let now = Instant::now();
    let first = match &listen {
        Some(_) => FIRST_LISTEN,
        None => FIRST_LOOK,
    };
    let monitored = MonitoredHold {
        hold: Arc::downgrade(hold),
        monitor_options,
        next_beat: monitor_options.beat.map(|every| after(now, every)),
        next_check: monitor_options.check.map(|every| after(now, every)),
        first_look: Some(now + first),
        next_listen: None,
        listen,
        watch: None,
    };
    let heartbeat = HEARTBEAT.get();
    let mut state = heartbeat.lock();
    let id = state.next_id;
    state.next_id += 1;
    let due = monitored.due();
    state.monitored_holds.insert(id, monitored);
    match (&state.wake, due) {
        (None, _) => start_if_needed(&mut state),
        (Some(wake), Some(due)) if state.sleeps_until.is_none_or(|until| due < until) => {
            let _ = rustix::io::write(wake.as_ref(), &1_u64.to_ne_bytes());
        }
        (Some(_), _) => {}
    }
    Monitored {
        id,
        process: Incarnation::current(),
    }
}

impl Drop for Monitored {
    fn drop(&mut self) {
        if self.process != Incarnation::current() {
            return;
        }
        let mut state = HEARTBEAT.get().lock();
        if let Some(monitored) = state.monitored_holds.remove(&self.id)
            && monitored.watch.is_some()
        {
            // The watch is taken off by the thread, which owns the inotify descriptor.
            state.watches_changed = true;
        }
    }
}

/// While it lives, the heartbeat thread's thread is not started for the first time. A thread costs a program that is over
/// at once more than its lock does.
#[derive(Debug)]
pub struct HeartbeatPause(());

/// Puts off the start of the heartbeat thread. Holds that begin meanwhile are looked after from the end of the rest on, so keep
/// it far below the time by which a heart is overdue; one that beats already goes on.
#[must_use]
pub fn rest() -> HeartbeatPause {
    HEARTBEAT.get().lock().rests += 1;
    HeartbeatPause(())
}

impl Drop for HeartbeatPause {
    fn drop(&mut self) {
        let mut state = HEARTBEAT.get().lock();
        // A forked child, whose heart is another, ends a rest that it has not begun.
        state.rests = state.rests.saturating_sub(1);
        start_if_needed(&mut state);
    }
}

static HEARTBEAT: PerProcess<HeartbeatThread> = PerProcess::new();

#[derive(Default)]
struct HeartbeatThread(Mutex<HeartbeatState>);

#[derive(Default)]
struct HeartbeatState {
    monitored_holds: BTreeMap<u64, MonitoredHold>,
    next_id: u64,
    /// Set while the thread runs.
    wake: Option<Arc<OwnedFd>>,
    /// Those that put off its start.
    rests: usize,
    sleeps_until: Option<Instant>,
    watches: Vec<i32>,
    watches_changed: bool,
}

struct MonitoredHold {
    hold: Weak<FileHolding>,
    monitor_options: MonitorOptions,
    next_beat: Option<Instant>,
    next_check: Option<Instant>,
    first_look: Option<Instant>,
    next_listen: Option<Instant>,
    listen: Option<ListenName>,
    watch: Option<DirectoryWatch>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct DirectoryWatch {
    descriptor: i32,
    name: OsString,
}

enum HeartbeatTask {
    Beat(Arc<FileHolding>),
    Check(Arc<FileHolding>),
    Listen(Arc<FileHolding>, ListenName),
}

impl HeartbeatThread {
    fn lock(&self) -> MutexGuard<'_, HeartbeatState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MonitoredHold {
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

fn start_if_needed(state: &mut HeartbeatState) {
    if state.rests > 0 || state.wake.is_some() || state.monitored_holds.is_empty() {
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
    let heartbeat = HEARTBEAT.get();
    loop {
        let now = Instant::now();
        let (tasks, until) = {
            let mut state = heartbeat.lock();
            if let Some(inotify) = &inotify {
                state.tend_watches(inotify, now);
            }
            let tasks = state.due_tasks(now);
            let until = state
                .monitored_holds
                .values()
                .filter_map(MonitoredHold::due)
                .min();
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
            let touched = heartbeat.lock().touched(&events);
            touched.into_iter().for_each(perform);
        }
    }
}

impl HeartbeatState {
    fn due_tasks(&mut self, now: Instant) -> Vec<HeartbeatTask> {
        let is_due = |due: Option<Instant>| due.is_some_and(|due| due <= now);
        let mut tasks = Vec::new();
        for monitored in self.monitored_holds.values_mut() {
            let Some(hold) = monitored.hold.upgrade() else {
                continue;
            };
            if let Some(listen) = &monitored.listen
                && (is_due(monitored.next_listen) || is_due(monitored.first_look))
            {
                monitored.next_listen = Some(after(now, listen.poll));
                tasks.push(HeartbeatTask::Listen(Arc::clone(&hold), listen.clone()));
            }
            if is_due(monitored.next_beat) {
                monitored.next_beat = monitored
                    .monitor_options
                    .beat
                    .map(|every| after(now, every));
                tasks.push(HeartbeatTask::Beat(hold));
            } else if is_due(monitored.next_check) || is_due(monitored.first_look) {
                tasks.push(HeartbeatTask::Check(hold));
            }
            if is_due(monitored.next_check) {
                monitored.next_check = monitored
                    .monitor_options
                    .check
                    .map(|every| after(now, every));
            }
            if is_due(monitored.first_look) {
                monitored.first_look = None;
            }
        }
        tasks
    }

    /// Puts watches on the directories of holds that are old enough, and takes off those that
    /// nobody needs any more.
    fn tend_watches(&mut self, inotify: &OwnedFd, now: Instant) {
        if std::mem::take(&mut self.watches_changed) {
            let monitored_holds = &self.monitored_holds;
            self.watches.retain(|&descriptor| {
                let used = monitored_holds.values().any(|monitored| {
                    monitored
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
        for monitored in self.monitored_holds.values_mut() {
            if monitored.watch.is_some() || monitored.first_look.is_none_or(|first| first > now) {
                continue;
            }
            let Some(hold) = monitored.hold.upgrade() else {
                continue;
            };
            let path = format!("/proc/self/fd/{}", hold.dir().as_fd().as_raw_fd());
            if let Ok(descriptor) = inotify::add_watch(inotify, path, interference()) {
                // One directory has one descriptor, however often it is added.
                if !self.watches.contains(&descriptor) {
                    self.watches.push(descriptor);
                }
                monitored.watch = Some(DirectoryWatch {
                    descriptor,
                    name: hold.name().to_owned(),
                });
            }
        }
    }

    fn touched(&self, events: &[DirEvent]) -> Vec<HeartbeatTask> {
        let mut tasks = Vec::new();
        for monitored in self.monitored_holds.values() {
            let (Some(watch), Some(hold)) = (&monitored.watch, monitored.hold.upgrade()) else {
                continue;
            };
            let changed = |name: &OsStr| {
                events
                    .iter()
                    .any(|event| event.concerns(watch.descriptor, name))
            };
            if let Some(listen) = monitored.listen.as_ref().filter(|it| changed(&it.name)) {
                tasks.push(HeartbeatTask::Listen(Arc::clone(&hold), listen.clone()));
            }
            if changed(&watch.name) {
                tasks.push(HeartbeatTask::Check(hold));
            }
        }
        tasks
    }
}

fn perform(task: HeartbeatTask) {
    // A callback that panics must not stop the heartbeat thread of every other lock of this process.
    let done = catch_unwind(AssertUnwindSafe(|| match &task {
        HeartbeatTask::Beat(hold) => hold.beat(),
        HeartbeatTask::Check(hold) => hold.check(),
        HeartbeatTask::Listen(hold, listen) => {
            (listen.look)(hold);
            Ok(())
        }
    }));
    // A loss has told its listeners. A beat that could not be written is tried again next time; a
    // released hold needs nothing.
    debug_assert!(!matches!(done, Ok(Err(error)) if error.class() == Class::BadInput));
}
