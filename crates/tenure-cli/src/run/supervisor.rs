//! Supervisor process between `tenure` and the child, forked before any thread exists. It is the
//! *keeper* of C4 (keeper and process group).
//!
//! ```text
//! waiting ──Start──▶ running ──child and its group ended──▶ over
//!    │                  ├─lock lost, release requested─▶ notice, TERM, KILL ──tree ended──▶ over
//!    │                  └─`tenure` died──▶ kill the tree (or wait for it), then the lock ends
//!    └─`tenure` died──▶ exit, nothing was started
//! ```
//!
//! It acts before it prints, and no message can block or end it: see `message.rs`.
//!
//! It holds the locked descriptor, K38 (inherit the locked descriptor), so the kernel keeps a lock
//! file locked until the tree has ended. It checks the deadline of the lease itself, C5 (stop
//! before the lease ends), so the deadline holds even while `tenure` is stopped.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, getpid, kill_process, set_child_subreaper, setpgid};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use tenure::Lease;
use tenure_files::internal as files;
use tenure_files::internal::BootTimer;

use super::channel::{
    Channel, ChildEndCause, OnAsk, SupervisorCommand, SupervisorReport, VariableValue, Variables,
};
use super::process_tree::{self, ChildGroup, ProcessEnd, Reaped};
use super::schedule::{BootInstant, ChildLease, EndDeadlines};
use super::spawn::{self, BeforeExec};
use super::syscalls::{self, Forked};
use super::task::{Descriptor, OnDeath, OnLost, SupervisorTask};
use crate::message;

/// Interval at which a tree is killed again, and a remaining process group is checked again.
const AGAIN: Duration = Duration::from_millis(20);

/// Forks the supervisor. Must be called while this process has only one thread.
pub(crate) fn fork() -> io::Result<Channel> {
    let (ours, its) = Channel::pair()?;
    // If the supervisor is killed, its orphans become our children and can be killed here.
    set_child_subreaper(Some(getpid()))?;
    match syscalls::fork()? {
        Forked::Parent => Ok(ours),
        Forked::Child => {
            drop(ours);
            // The default hook would write to standard error and might block there.
            std::panic::set_hook(Box::new(|panic| message::say(panic)));
            let mut group = None;
            let run = || ReadySupervisor::new(its)?.run(&mut group);
            let ended = catch_unwind(AssertUnwindSafe(run));
            let code = match ended.unwrap_or_else(|_| Err(io::Error::other("it panicked"))) {
                Ok(()) => 0,
                Err(error) => {
                    // No process of the child may outlive the lock, whatever failed.
                    kill_all(group);
                    message::say(format_args!(
                        "the supervisor process failed, so the command was killed: {error}"
                    ));
                    125
                }
            };
            message::flush();
            std::process::exit(code)
        }
    }
}

/// Kills all descendants and waits until the last one has ended.
pub(crate) fn kill_all(group: Option<ChildGroup>) {
    let mut said = false;
    loop {
        // Repeated: a process may have forked between the listing and the kill.
        let refused = process_tree::signal_tree(group, Signal::KILL);
        loop {
            match process_tree::reap() {
                Reaped::NoChildren => return,
                Reaped::Nothing => break,
                Reaped::Ended(..) | Reaped::Stopped(..) => {}
            }
        }
        tell_refused(&refused, &mut said);
        std::thread::sleep(AGAIN);
    }
}

/// Names the processes that cannot be signalled. They run as another user, for example under `sudo`.
fn tell_refused(refused: &[Pid], said: &mut bool) {
    if refused.is_empty() || *said {
        return;
    }
    *said = true;
    let names: Vec<String> = refused
        .iter()
        .map(|pid| format!("{pid} ({})", process_tree::name_of(*pid)))
        .collect();
    let first = refused[0];
    message::say(format_args!(
        "cannot end pid {}: it runs as another user, so it goes on. Tenure waits for its end; to end it: sudo kill {first}",
        names.join(", ")
    ));
}

/// A supervisor that waits for the start of the child.
struct ReadySupervisor {
    channel: Channel,
    child_notice: UnixStream,
    timer: BootTimer,
    lease: Option<ChildLease>,
    /// Signals that were ignored when `tenure` started.
    ignored: u64,
}

struct Supervisor {
    task: SupervisorTask,
    channel: Channel,
    child_notice: UnixStream,
    timer: BootTimer,
    lease: Option<ChildLease>,
    ignored: u64,
    /// `tenure` died: no process renews or releases the lock.
    is_orphan: bool,
    /// When an orphaned supervisor writes the next heartbeat.
    next_beat: Option<BootInstant>,
}

struct Child {
    pid: Pid,
    group: ChildGroup,
    notices: OwnedFd,
    end: Option<ProcessEnd>,
    ending: Option<ShutdownState>,
    /// The cause to report at the end.
    cause: ChildEndCause,
    /// Whether the child got the `at-risk` notice.
    warned: bool,
    /// Whether the user knows of processes that cannot be signalled.
    told_refused: bool,
    /// Keeps lock files locked until the tree has ended.
    locks: Vec<OwnedFd>,
    /// The tokens of the lock files, for heartbeats.
    tokens: Vec<OsString>,
}

struct ShutdownState {
    deadlines: EndDeadlines,
    asked_to_end: bool,
}

impl ReadySupervisor {
    fn new(channel: Channel) -> io::Result<ReadySupervisor> {
        set_child_subreaper(Some(getpid()))?;
        // Own process group: signals that a terminal sends to its foreground group are not for the
        // supervisor.
        setpgid(None, None)?;
        let ignored = syscalls::ignored_signals(&spawn::RESTORED);
        syscalls::ignore_background_output_signal();
        // Handlers that do nothing, instead of `SIG_IGN`: a child would inherit the latter.
        let unused = Arc::new(AtomicBool::new(false));
        for signal in spawn::HANDLED
            .into_iter()
            .filter(|signal| *signal != SIGCHLD)
        {
            signal_hook::flag::register(signal, Arc::clone(&unused))?;
        }
        let (child_notice, wake) = UnixStream::pair()?;
        child_notice.set_nonblocking(true)?;
        wake.set_nonblocking(true)?;
        signal_hook::low_level::pipe::register(SIGCHLD, wake)?;
        let timer = BootTimer::new()?;
        Ok(ReadySupervisor {
            channel,
            child_notice,
            timer,
            lease: None,
            ignored,
        })
    }

    /// Runs the child. Sets `group` when it exists.
    fn run(mut self, group: &mut Option<ChildGroup>) -> io::Result<()> {
        let Some((task, variables, locks)) = self.await_start()? else {
            return Ok(());
        };
        let supervisor = Supervisor {
            task,
            channel: self.channel,
            child_notice: self.child_notice,
            timer: self.timer,
            lease: self.lease,
            ignored: self.ignored,
            is_orphan: false,
            next_beat: None,
        };
        supervisor.run(variables, locks, group)
    }

    /// Returns the task, the variables of the child and the locked descriptors, or `None` if there
    /// is nothing to run.
    fn await_start(&mut self) -> io::Result<Option<(SupervisorTask, Variables, Vec<OwnedFd>)>> {
        loop {
            match self.channel.receive::<SupervisorCommand>()? {
                Some((SupervisorCommand::Start(task, variables), locks)) => {
                    return Ok(Some((task, variables, locks)));
                }
                Some((SupervisorCommand::Lease(lease), _)) => self.lease = Some(lease),
                Some((SupervisorCommand::Done, _)) | None => return Ok(None),
                Some((
                    SupervisorCommand::Signal(_)
                    | SupervisorCommand::Continue
                    | SupervisorCommand::Lost(_)
                    | SupervisorCommand::Asked(..),
                    _,
                )) => {}
            }
        }
    }
}

impl Supervisor {
    fn run(
        mut self,
        variables: Variables,
        locks: Vec<OwnedFd>,
        group: &mut Option<ChildGroup>,
    ) -> io::Result<()> {
        let mut child = match self.start(variables, locks) {
            Ok(child) => child,
            Err(error) => {
                let errno = error.raw_os_error().unwrap_or(libc::EIO);
                self.channel.send(&SupervisorReport::Failed(errno))?;
                return Ok(());
            }
        };
        *group = Some(child.group);
        // Without `/proc` the wrapper can end the child only by its group.
        if self.task.tells_child || !process_tree::proc_is_ours() {
            let pid = child.pid.as_raw_nonzero().get().unsigned_abs();
            self.channel.try_send(&SupervisorReport::Started(pid));
        }
        loop {
            let no_children = self.reap(&mut child);
            self.act(&mut child);
            if let Some(end) = child.end
                && self.is_over(&child, no_children)
            {
                if !self.is_orphan {
                    self.report_end(end, child.cause);
                }
                return Ok(());
            }
            if self.wait(&child)? {
                match self.channel.receive::<SupervisorCommand>() {
                    Ok(Some((order, _))) => self.obey(order, &mut child),
                    Ok(None) | Err(_) => self.become_orphan(&mut child),
                }
            }
        }
    }

    /// Reports the end, and waits until the wrapper has released the lock: the locked descriptors
    /// stay open until then.
    fn report_end(&self, end: ProcessEnd, cause: ChildEndCause) {
        let _ = self.channel.send(&SupervisorReport::Over(end, cause));
        while let Ok(Some((order, _))) = self.channel.receive::<SupervisorCommand>() {
            if order == SupervisorCommand::Done {
                break;
            }
        }
    }

    fn start(&self, variables: Variables, locks: Vec<OwnedFd>) -> io::Result<Child> {
        let (notices_in, notices) = pipe_with(PipeFlags::CLOEXEC)?;
        // Only the writing end: the child's `read` waits for the next notice.
        fcntl_setfl(&notices, OFlags::NONBLOCK)?;
        let mut environment: BTreeMap<OsString, OsString> = std::env::vars_os().collect();
        let mut descriptors = locks.iter();
        let mut tokens = Vec::new();
        for (name, value) in variables {
            if let VariableValue::Text(token) = &value
                && name.as_encoded_bytes().starts_with(b"TENURE_TOKEN")
            {
                tokens.push(token.clone());
            }
            let value = match value {
                VariableValue::Text(text) => Some(text),
                VariableValue::Removed => None,
                VariableValue::Descriptor => match (descriptors.next(), self.task.descriptor) {
                    (Some(lock), Descriptor::Inherited) => Some(handed_down(lock)?),
                    _ => None,
                },
            };
            match value {
                Some(value) => environment.insert(name, value),
                None => environment.remove(&name),
            };
        }
        environment.insert("TENURE_NOTICE_FD".into(), handed_down(&notices_in)?);
        let dies_with = (self.task.on_death == OnDeath::EndTree).then(getpid);
        let pid = spawn::spawn(
            self.task.command(),
            environment,
            BeforeExec {
                dies_with,
                joins: self.task.joins,
                ignored: self.ignored,
                terminal: self.task.terminal,
            },
        )?;
        let group = self.task.joins.map(ChildGroup::Shared);
        Ok(Child {
            pid,
            group: group.unwrap_or(ChildGroup::Own(pid)),
            notices,
            end: None,
            ending: None,
            cause: ChildEndCause::Itself,
            warned: false,
            told_refused: false,
            locks,
            tokens,
        })
    }

    /// Handles all pending child events. Returns whether no child is left.
    fn reap(&self, child: &mut Child) -> bool {
        loop {
            match process_tree::reap() {
                Reaped::Ended(pid, end) if pid == child.pid => child.end = Some(end),
                Reaped::Stopped(pid, signal) if pid == child.pid => {
                    self.channel.try_send(&SupervisorReport::Stopped(signal));
                }
                Reaped::Ended(..) | Reaped::Stopped(..) => {}
                Reaped::Nothing => return false,
                Reaped::NoChildren => return true,
            }
        }
    }

    /// After a normal end the process group must be empty; after a forced one, or without the
    /// wrapper, the whole tree must have ended (C4).
    fn is_over(&self, child: &Child, no_children: bool) -> bool {
        let only_group = child.ending.is_none() && !self.is_orphan;
        no_children || (only_group && child.group.is_gone())
    }

    /// Does what is due: the warning, TERM, KILL, the heartbeat of an orphan.
    fn act(&mut self, child: &mut Child) {
        let now = Lease::now();
        let mut at_risk = false;
        if let Some(lease) = self.lease
            && now >= self.lost_at(lease)
        {
            at_risk = !child.warned;
            child.warned = true;
            if at_risk {
                notify(child, "at-risk", AT_RISK);
            }
            if child.ending.is_none() && self.task.on_lost != OnLost::Notify {
                child.cause = ChildEndCause::Lost;
                child.ending = Some(ShutdownState {
                    deadlines: lease.deadlines(self.task.grace),
                    asked_to_end: false,
                });
            }
        }
        self.signal_ending(child, now);
        if at_risk {
            message::say(AT_RISK);
        }
        if self.next_beat.is_some_and(|at| at <= now) {
            for (lock, token) in child.locks.iter().zip(&child.tokens) {
                // A heartbeat that cannot be written is tried again at the next interval.
                let _ = files::beat_inherited(lock, token.as_encoded_bytes());
            }
            self.next_beat = Some(now + self.task.heartbeat);
        }
    }

    /// Sends TERM and KILL to a tree that must end.
    fn signal_ending(&self, child: &mut Child, now: BootInstant) {
        let Some(ending) = &mut child.ending else {
            return;
        };
        let mut refused = Vec::new();
        if !ending.asked_to_end {
            ending.asked_to_end = true;
            if child.cause != ChildEndCause::Lost || self.task.on_lost == OnLost::Term {
                refused = process_tree::signal_tree(Some(child.group), Signal::TERM);
                // A stopped process handles TERM only after it continues.
                process_tree::signal_tree(Some(child.group), Signal::CONT);
            }
        }
        let kill_now = child.cause == ChildEndCause::Lost && self.task.on_lost == OnLost::Kill;
        if kill_now || now >= ending.deadlines.kill {
            refused = process_tree::signal_tree(Some(child.group), Signal::KILL);
        }
        tell_refused(&refused, &mut child.told_refused);
    }

    /// Returns when a lease without renewal starts the end of the child.
    fn lost_at(&self, lease: ChildLease) -> BootInstant {
        let deadlines = lease.deadlines(self.task.grace);
        if self.task.on_lost == OnLost::Kill {
            deadlines.kill
        } else {
            deadlines.term
        }
    }

    fn obey(&mut self, order: SupervisorCommand, child: &mut Child) {
        match order {
            SupervisorCommand::Signal(signal) => pass_on(child, signal),
            SupervisorCommand::Continue => child.group.signal(Signal::CONT),
            SupervisorCommand::Lease(lease) => {
                self.lease = Some(lease);
                child.warned = false;
            }
            SupervisorCommand::Lost(how) => {
                notify(child, "lost", &how);
                let by_force = self.task.on_lost != OnLost::Notify;
                self.begin_end(child, ChildEndCause::Lost, by_force);
                message::say(how);
            }
            SupervisorCommand::Asked(OnAsk::Ignore, _) => {}
            SupervisorCommand::Asked(action, who) => {
                notify(child, "ask", &who);
                if action == OnAsk::Term {
                    self.begin_end(child, ChildEndCause::GaveWay, true);
                }
                message::say(who);
            }
            SupervisorCommand::Start(..) | SupervisorCommand::Done => {}
        }
    }

    /// Begins the end of the child, and signals it at once if `by_force`.
    fn begin_end(&self, child: &mut Child, cause: ChildEndCause, by_force: bool) {
        // A loss outweighs a release request; a second cause does not replace it.
        if child.cause != ChildEndCause::Lost {
            child.cause = cause;
        }
        if by_force {
            // The deadline may only move forward: a second cause must not extend the time until
            // KILL.
            let now = Lease::now();
            let deadlines = EndDeadlines::from_now(now, self.task.grace, self.lease);
            let earlier = child.ending.as_ref().map(|ending| ending.deadlines.kill);
            let kill = earlier.map_or(deadlines.kill, |kill| kill.min(deadlines.kill));
            let asked_to_end = child
                .ending
                .as_ref()
                .is_some_and(|ending| ending.asked_to_end);
            child.ending = Some(ShutdownState {
                deadlines: EndDeadlines { kill, ..deadlines },
                asked_to_end,
            });
            self.signal_ending(child, now);
        }
    }

    /// Waits for an event. Returns whether the wrapper sent a command.
    fn wait(&self, child: &Child) -> io::Result<bool> {
        let mut next = match (&child.ending, self.lease) {
            (Some(ending), _) => Some(ending.deadlines.kill),
            (None, Some(lease)) if !child.warned => Some(self.lost_at(lease)),
            (None, _) => None,
        };
        let now = Lease::now();
        next = next.into_iter().chain(self.next_beat).min();
        // The end of a process group raises no signal, so poll for it. The same applies to a tree
        // that must be killed again.
        let restless = child.end.is_some() || next.is_some_and(|at| at <= now);
        if restless {
            next = Some(now + AGAIN);
        }
        self.timer.set(next)?;
        let mut fds = [
            PollFd::from_borrowed_fd(self.child_notice.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.timer.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.channel.as_fd(), PollFlags::IN),
        ];
        // The channel of an orphan is always readable: it has ended.
        let watched = if self.is_orphan { 2 } else { 3 };
        match poll(&mut fds[..watched], None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(false),
            Err(errno) => return Err(errno.into()),
        }
        let spoken = !self.is_orphan && !fds[2].revents().is_empty();
        let mut drain = [0u8; 64];
        while matches!(rustix::io::read(&self.child_notice, &mut drain), Ok(1..)) {}
        Ok(spoken)
    }

    /// Handles the death of `tenure`: no process renews or releases the lock any more. A lock file
    /// gets heartbeats until the tree has ended; a lease runs out, and its deadline ends the tree.
    fn become_orphan(&mut self, child: &mut Child) {
        let now = Lease::now();
        self.is_orphan = true;
        self.next_beat = Some(now + self.task.heartbeat);
        if self.task.on_death == OnDeath::EndTree {
            child.ending = Some(ShutdownState {
                deadlines: EndDeadlines {
                    term: now,
                    kill: now,
                },
                asked_to_end: true,
            });
        }
    }
}

const AT_RISK: &str = "the lease could not be renewed in time";

/// Writes an event to the child's pipe. A full pipe drops the event.
fn notify(child: &Child, event: &str, what: &str) {
    let line = serde_json::json!({ "event": event, "reason": what }).to_string() + "\n";
    let _ = rustix::io::write(&child.notices, line.as_bytes());
}

/// Lets the child inherit a descriptor. Returns its number.
fn handed_down(fd: &OwnedFd) -> io::Result<OsString> {
    fcntl_setfd(fd, FdFlags::empty())?;
    Ok(fd.as_raw_fd().to_string().into())
}

/// Sends TERM, INT, HUP and QUIT to the process group, other signals to the child: C3 (environment
/// of the child).
fn pass_on(child: &Child, number: i32) {
    let Some(signal) = Signal::from_named_raw(number) else {
        return;
    };
    match number {
        SIGTERM | SIGINT | SIGHUP | SIGQUIT => {
            child.group.signal(signal);
            // A stopped process handles the signal only after it continues.
            child.group.signal(Signal::CONT);
        }
        _ => {
            let _ = kill_process(child.pid, signal);
        }
    }
}
