//! Heartbeat threads: they write the heartbeats of all holds of this process (K33 (heartbeat in
//! place)) and check a hold when inotify reports a change of its file (K34 (detect a lost lock)).
//!
//! One thread serves all local file systems, and one each remote file system: a request that hangs
//! on a network must not delay the heartbeats of other locks. Callbacks run on a thread of their
//! own for the same reason.
//!
//! The first registered hold starts a thread, but not while a [`HeartbeatPause`] exists. A hold
//! is first checked 50 ms after its acquisition (1 ms if it listens for release requests). So a
//! shorter hold costs no inotify watch and no check.
//!
//! A hold can also listen for a second file name in its directory: the file is the release request
//! of another process.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::inotify;

use crate::deadline::after;
use crate::dir::Dir;
use crate::error::Class;
use crate::hold::FileHolding;
use crate::process::{Incarnation, PerProcess};
use crate::wait::{DirEvent, drain_eventfd, read_events, timespec};

/// Intervals at which a hold is maintained. `None` means never.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MonitorOptions {
    /// The heartbeat interval (K33).
    pub beat: Option<Duration>,
    /// The interval of additional checks without a heartbeat.
    pub check: Option<Duration>,
}

/// A file name beside the lock by which another process requests it.
#[derive(Clone)]
pub(crate) struct ListenName {
    /// The file name in the directory of the hold.
    pub name: OsString,
    /// The interval at which `look` is called without an inotify event.
    pub poll: Duration,
    /// The callback that reads the request. It runs on the callback thread whenever the file may
    /// have changed.
    pub look: Arc<RequestCheck>,
}

/// The callback of a [`ListenName`].
pub(crate) type RequestCheck = dyn Fn(&Arc<FileHolding>) + Send + Sync;

/// Delay of the first check of a hold: shorter holds cost nothing.
const FIRST_LOOK: Duration = Duration::from_millis(50);
/// The same for a hold that listens for requests: a requester waits for it.
const FIRST_LISTEN: Duration = Duration::from_millis(1);

/// The inotify events that can mean that a lock was removed, replaced or overwritten.
fn interference() -> inotify::WatchFlags {
    use inotify::WatchFlags as W;
    W::DELETE | W::MOVED_FROM | W::MOVED_TO | W::CREATE | W::MODIFY
}

/// Registration of a hold with the heartbeat thread. Dropping it ends heartbeats and checks.
#[derive(Debug)]
pub(crate) struct Monitored {
    id: u64,
    thread: Arc<HeartbeatThread>,
    /// The process that registered it. A forked child has its own heartbeat thread and its own ids.
    process: Incarnation,
}

/// Registers `hold` for heartbeats and checks.
pub(crate) fn monitor(hold: &Arc<FileHolding>, monitor_options: MonitorOptions) -> Monitored {
    monitor_and_listen(hold, monitor_options, None)
}

/// Registers `hold` for heartbeats and checks, and also calls `listen` when its file may have
/// changed.
pub(crate) fn monitor_and_listen(
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
    let mut threads = threads();
    let thread = threads.of(hold.dir());
    let mut state = thread.lock();
    let id = state.next_id;
    state.next_id += 1;
    let due = monitored.due();
    state.monitored_holds.insert(id, monitored);
    match (&state.wake, due) {
        (None, _) if threads.rests > 0 => {}
        (None, _) => start_if_needed(&thread, &mut state),
        // The thread sleeps until `sleeps_until`: wake it only if this hold is due earlier.
        (Some(wake), Some(due)) if state.sleeps_until.is_none_or(|until| due < until) => {
            let _ = rustix::io::write(wake.as_ref(), &1_u64.to_ne_bytes());
        }
        (Some(_), _) => {}
    }
    drop(state);
    Monitored {
        id,
        thread,
        process: Incarnation::current(),
    }
}

impl Drop for Monitored {
    fn drop(&mut self) {
        if self.process != Incarnation::current() {
            return;
        }
        let mut state = self.thread.lock();
        if let Some(monitored) = state.monitored_holds.remove(&self.id)
            && monitored.watch.is_some()
        {
            // The heartbeat thread owns the inotify descriptor and removes the watch.
            state.watches_changed = true;
        }
    }
}

/// Delays the start of the heartbeat thread while it exists. See [`rest`].
#[derive(Debug)]
pub struct HeartbeatPause(());

/// Delays the start of the heartbeat thread until the returned value is dropped.
///
/// For short programs, starting a thread costs more than the lock itself. Holds that begin in the
/// meantime get their first heartbeat after the pause, so keep it much shorter than the stale time.
/// A thread that already runs is not affected.
#[must_use]
pub fn rest() -> HeartbeatPause {
    threads().rests += 1;
    HeartbeatPause(())
}

impl Drop for HeartbeatPause {
    fn drop(&mut self) {
        let mut threads = threads();
        // In a forked child the count is a fresh zero: `saturating_sub` keeps it there.
        threads.rests = threads.rests.saturating_sub(1);
        if threads.rests == 0 {
            for thread in threads.by_device.values() {
                start_if_needed(thread, &mut thread.lock());
            }
        }
    }
}

/// The threads of this process. Lock order: this mutex, then that of one thread.
static THREADS: PerProcess<Mutex<HeartbeatThreads>> = PerProcess::new();

#[derive(Default)]
struct HeartbeatThreads {
    /// By the device of a remote file system; `None` for all local ones.
    by_device: BTreeMap<Option<u64>, Arc<HeartbeatThread>>,
    /// Number of existing [`HeartbeatPause`] values.
    rests: usize,
}

impl HeartbeatThreads {
    fn of(&mut self, dir: &Dir) -> Arc<HeartbeatThread> {
        let device = (!dir.is_local()).then(|| dir.device());
        Arc::clone(self.by_device.entry(device).or_default())
    }
}

fn threads() -> MutexGuard<'static, HeartbeatThreads> {
    THREADS.get().lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Default)]
struct HeartbeatThread(Mutex<HeartbeatState>);

impl std::fmt::Debug for HeartbeatThread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HeartbeatThread")
    }
}

#[derive(Default)]
struct HeartbeatState {
    monitored_holds: BTreeMap<u64, MonitoredHold>,
    next_id: u64,
    /// The eventfd that wakes the thread; set while the thread runs.
    wake: Option<Arc<OwnedFd>>,
    /// When the thread's current `poll` ends; `None` means no timeout.
    sleeps_until: Option<Instant>,
    /// inotify watch descriptors in use, one per directory.
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

fn start_if_needed(thread: &Arc<HeartbeatThread>, state: &mut HeartbeatState) {
    if state.wake.is_some() || state.monitored_holds.is_empty() {
        return;
    }
    let Ok(wake) = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK) else {
        return;
    };
    let wake = Arc::new(wake);
    let (inner, own) = (Arc::clone(&wake), Arc::clone(thread));
    // The lock stays safe without the thread: only originals, which go by the age of the file, need
    // the heartbeat, and every `check` reads the file itself.
    if thread::Builder::new()
        .name("tenure-heart".into())
        .spawn(move || run(&own, &inner))
        .is_ok()
    {
        state.wake = Some(wake);
    }
}

fn run(heartbeat: &HeartbeatThread, wake: &OwnedFd) {
    let inotify =
        inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK).ok();
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
        // Run the tasks without the mutex: they may take long, and new holds register here.
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

    /// Adds watches for the directories of holds that are due for their first check, and removes
    /// watches that no hold uses any more.
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
                // inotify returns the same watch descriptor when a directory is added again.
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

    /// Returns the tasks for the holds whose files the events name.
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
    let done = match task {
        HeartbeatTask::Beat(hold) => hold.beat_and_notify(&run_callback),
        HeartbeatTask::Check(hold) => hold.check_and_notify(&run_callback),
        HeartbeatTask::Listen(hold, listen) => {
            run_callback(Box::new(move || (listen.look)(&hold)));
            Ok(())
        }
    };
    // Errors need no handling here: a loss has already notified its listeners, a failed heartbeat is
    // retried at the next interval, and a released hold needs nothing.
    debug_assert!(!matches!(done, Err(error) if error.class() == Class::BadInput));
}

/// A call of the program's own code.
pub(crate) type Callback = Box<dyn FnOnce() + Send>;

/// Runs callbacks in order on the callback thread, so that a slow one delays no heartbeat. Without a
/// thread it runs here.
fn run_callback(callback: Callback) {
    static CALLBACKS: PerProcess<Mutex<Option<Sender<Callback>>>> = PerProcess::new();
    let mut sender = CALLBACKS
        .get()
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    if sender.is_none() {
        let (callbacks, received) = channel::<Callback>();
        let started = thread::Builder::new()
            .name("tenure-callback".into())
            .spawn(move || received.into_iter().for_each(call));
        *sender = started.is_ok().then_some(callbacks);
    }
    let unsent = match &*sender {
        Some(callbacks) => callbacks.send(callback).err().map(|refused| refused.0),
        None => Some(callback),
    };
    drop(sender);
    if let Some(callback) = unsent {
        call(callback);
    }
}

/// A panic in a callback must not end the thread that serves all locks of this process.
fn call(callback: Callback) {
    let _ = catch_unwind(AssertUnwindSafe(callback));
}
