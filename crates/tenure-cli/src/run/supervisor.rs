//! The supervisor: a small process between `tenure` and the child, forked first thing (C4).
//!
//!   waiting ──Start──▶ running ──child and group gone──▶ over
//!      │                  ├── lost, asked, no renewal in time ──▶ ending: told, TERM, KILL, tree gone ──▶ over
//!      │                  └── `tenure` died ──▶ the whole tree is killed (or waited for), then the lock goes
//!      └── `tenure` died ──▶ nothing happened
//!
//! It holds the locked descriptor too (K38), so the kernel keeps a lock file locked until the tree
//! is gone; and it keeps the lease's deadline (C5), so that holds also when `tenure` is stopped.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, getpid, kill_process, set_child_subreaper, setpgid};
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, clock_gettime,
    timerfd_create, timerfd_settime,
};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use super::channel::{
    Channel, ChildEndCause, OnAsk, SupervisorCommand, SupervisorReport, VariableValue, Variables,
};
use super::process_tree::{self, ProcessEnd, Reaped};
use super::schedule::{BootInstant, ChildLease, EndDeadlines};
use super::spawn::{self, BeforeExec, Program};
use super::syscalls::{self, Forked};
use super::task::{Descriptor, OnDeath, OnLost, SupervisorTask};

/// How often a tree that will not go is killed again, and a group that lives on is looked at.
const AGAIN: Duration = Duration::from_millis(20);

/// Forks the supervisor. Must be called while this process has one thread.
pub(crate) fn fork() -> io::Result<Channel> {
    let (ours, its) = Channel::pair()?;
    set_child_subreaper(Some(getpid()))?;
    match syscalls::fork()? {
        Forked::Parent => Ok(ours),
        Forked::Child => {
            drop(ours);
            let code = match ReadySupervisor::new(its).and_then(ReadySupervisor::run) {
                Ok(()) => 0,
                Err(error) => {
                    // Whatever went wrong, nothing of the child may outlive the lock's guard.
                    eprintln!("tenure: the keeper failed: {error}");
                    kill_all();
                    125
                }
            };
            std::process::exit(code)
        }
    }
}

/// Kills every descendant and waits until the last is gone.
pub(crate) fn kill_all() {
    loop {
        process_tree::signal_tree(Signal::KILL);
        loop {
            match process_tree::reap() {
                Reaped::NoChildren => return,
                Reaped::Nothing => break,
                Reaped::Ended(..) | Reaped::Stopped(..) => {}
            }
        }
        std::thread::sleep(AGAIN);
    }
}

/// A supervisor that has nothing to keep yet.
struct ReadySupervisor {
    channel: Channel,
    child_notice: UnixStream,
    timer: OwnedFd,
    lease: Option<ChildLease>,
}

struct Supervisor {
    task: SupervisorTask,
    channel: Channel,
    child_notice: UnixStream,
    timer: OwnedFd,
    lease: Option<ChildLease>,
}

struct Child {
    pid: Pid,
    notices: OwnedFd,
    end: Option<ProcessEnd>,
    ending: Option<ShutdownState>,
    /// The last known reason to tell the wrapper at the end.
    cause: ChildEndCause,
    /// Whether the child was told that its lease is at risk.
    warned: bool,
    /// Keeps lock files locked for as long as the tree lives.
    _locks: Vec<OwnedFd>,
}

struct ShutdownState {
    deadlines: EndDeadlines,
    asked_to_end: bool,
}

impl ReadySupervisor {
    fn new(channel: Channel) -> io::Result<ReadySupervisor> {
        set_child_subreaper(Some(getpid()))?;
        // A group of its own: what a terminal sends to the foreground is not meant for the supervisor.
        setpgid(None, None)?;
        // Handlers, not "ignore": a child would inherit the latter.
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
        let timer = timerfd_create(
            TimerfdClockId::Boottime,
            TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
        )?;
        Ok(ReadySupervisor {
            channel,
            child_notice,
            timer,
            lease: None,
        })
    }

    fn run(mut self) -> io::Result<()> {
        let Some((task, variables, locks)) = self.await_start()? else {
            return Ok(());
        };
        let supervisor = Supervisor {
            task,
            channel: self.channel,
            child_notice: self.child_notice,
            timer: self.timer,
            lease: self.lease,
        };
        supervisor.run(variables, locks)
    }

    /// What to run, the child's variables and the locked descriptors, or nothing if there is nothing to run.
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
    fn run(mut self, variables: Variables, locks: Vec<OwnedFd>) -> io::Result<()> {
        let mut child = match self.start(variables, locks) {
            Ok(child) => child,
            Err(error) => {
                let errno = error.raw_os_error().unwrap_or(libc::EIO);
                self.channel.send(&SupervisorReport::Failed(errno))?;
                return Ok(());
            }
        };
        let pid = child.pid.as_raw_nonzero().get().unsigned_abs();
        if self.task.tells_child && self.channel.send(&SupervisorReport::Started(pid)).is_err() {
            return self.orphaned();
        }
        loop {
            let gone = self.reap(&mut child)?;
            self.act(&mut child)?;
            if let Some(end) = child.end
                && self.is_over(&child, gone)
            {
                let _ = self.channel.send(&SupervisorReport::Over(end, child.cause));
                // The wrapper gives the lock back and says so; its death says so too.
                while let Ok(Some((order, _))) = self.channel.receive::<SupervisorCommand>() {
                    if order == SupervisorCommand::Done {
                        break;
                    }
                }
                return Ok(());
            }
            if self.wait(&child)? {
                match self.channel.receive::<SupervisorCommand>() {
                    Ok(Some((order, _))) => self.obey(order, &mut child)?,
                    Ok(None) | Err(_) => return self.orphaned(),
                }
            }
        }
    }

    fn start(&self, variables: Variables, locks: Vec<OwnedFd>) -> io::Result<Child> {
        let (notices_in, notices) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let mut environment: BTreeMap<OsString, OsString> = std::env::vars_os().collect();
        let mut descriptors = locks.iter();
        for (name, value) in variables {
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
            &Program::new(self.task.command(), environment)?,
            BeforeExec {
                dies_with,
                terminal: self.task.terminal,
            },
        )?;
        Ok(Child {
            pid,
            notices,
            end: None,
            ending: None,
            cause: ChildEndCause::Itself,
            warned: false,
            _locks: locks,
        })
    }

    /// Takes all news of children. Says whether none is left.
    fn reap(&self, child: &mut Child) -> io::Result<bool> {
        loop {
            match process_tree::reap() {
                Reaped::Ended(pid, end) if pid == child.pid => child.end = Some(end),
                Reaped::Stopped(pid, signal) if pid == child.pid => {
                    self.channel.send(&SupervisorReport::Stopped(signal))?;
                }
                Reaped::Ended(..) | Reaped::Stopped(..) => {}
                Reaped::Nothing => return Ok(false),
                Reaped::NoChildren => return Ok(true),
            }
        }
    }

    /// At a normal end the group must be gone; after a forced one, the whole tree (C4).
    fn is_over(&self, child: &Child, no_children: bool) -> bool {
        no_children || (child.ending.is_none() && process_tree::group_is_gone(child.pid))
    }

    /// Does what is due.
    fn act(&self, child: &mut Child) -> io::Result<()> {
        let now = now();
        if let Some(lease) = self.lease
            && now >= self.lost_at(lease)
            && !child.warned
        {
            child.warned = true;
            self.tell(child, "at-risk", "the lease could not be renewed in time");
        }
        if child.ending.is_none()
            && self.task.on_lost != OnLost::Notify
            && let Some(lease) = self.lease
            && now >= self.lost_at(lease)
        {
            child.cause = ChildEndCause::Lost;
            child.ending = Some(ShutdownState {
                deadlines: lease.deadlines(self.task.grace),
                asked_to_end: false,
            });
            self.channel
                .send(&SupervisorReport::Ending(ChildEndCause::Lost))?;
        }
        let Some(ending) = &mut child.ending else {
            return Ok(());
        };
        if !ending.asked_to_end {
            ending.asked_to_end = true;
            if child.cause != ChildEndCause::Lost || self.task.on_lost == OnLost::Term {
                process_tree::signal_tree(Signal::TERM);
                // A stopped process hears TERM only when it goes on.
                process_tree::signal_tree(Signal::CONT);
            }
        }
        let kill_now = child.cause == ChildEndCause::Lost && self.task.on_lost == OnLost::Kill;
        if kill_now || now >= ending.deadlines.kill {
            process_tree::signal_tree(Signal::KILL);
        }
        Ok(())
    }

    /// When an unrenewed lease makes the end begin.
    fn lost_at(&self, lease: ChildLease) -> BootInstant {
        let deadlines = lease.deadlines(self.task.grace);
        if self.task.on_lost == OnLost::Kill {
            deadlines.kill
        } else {
            deadlines.term
        }
    }

    fn obey(&mut self, order: SupervisorCommand, child: &mut Child) -> io::Result<()> {
        match order {
            SupervisorCommand::Signal(signal) => pass_on(child.pid, signal),
            SupervisorCommand::Continue => process_tree::signal_group(child.pid, Signal::CONT),
            SupervisorCommand::Lease(lease) => {
                self.lease = Some(lease);
                child.warned = false;
            }
            SupervisorCommand::Lost(how) => {
                self.tell(child, "lost", &how);
                self.begin_end(
                    child,
                    ChildEndCause::Lost,
                    self.task.on_lost != OnLost::Notify,
                )?;
            }
            SupervisorCommand::Asked(action, who) => match action {
                OnAsk::Ignore => {}
                OnAsk::Notify => self.tell(child, "ask", &who),
                OnAsk::Term => {
                    self.tell(child, "ask", &who);
                    self.begin_end(child, ChildEndCause::GaveWay, true)?;
                }
            },
            SupervisorCommand::Start(..) | SupervisorCommand::Done => {}
        }
        Ok(())
    }

    fn begin_end(&self, child: &mut Child, cause: ChildEndCause, by_force: bool) -> io::Result<()> {
        // A loss outweighs giving way; a second request changes nothing.
        if child.cause != ChildEndCause::Lost {
            child.cause = cause;
        }
        if by_force {
            let deadlines = EndDeadlines::from_now(now(), self.task.grace, self.lease);
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
            self.channel.send(&SupervisorReport::Ending(cause))?;
        }
        Ok(())
    }

    /// A line for the child's pipe and one for people; a full pipe is not waited for. The pipe comes first, so
    /// that who has read the words finds the event.
    fn tell(&self, child: &Child, event: &str, what: &str) {
        let line = serde_json::json!({ "event": event, "reason": what }).to_string() + "\n";
        let _ = rustix::io::write(&child.notices, line.as_bytes());
        eprintln!("tenure: {what}");
    }

    /// Sleeps until something happens. Says whether the wrapper has something to say.
    fn wait(&self, child: &Child) -> io::Result<bool> {
        let mut next = match (&child.ending, self.lease) {
            (Some(ending), _) => Some(ending.deadlines.kill),
            (None, Some(lease)) if !child.warned => Some(self.lost_at(lease)),
            (None, _) => None,
        };
        let now = now();
        let restless = child.end.is_some() || next.is_some_and(|at| at <= now);
        if restless {
            next = Some(now + AGAIN);
        }
        self.set_timer(next)?;
        let mut fds = [
            PollFd::from_borrowed_fd(self.channel.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.child_notice.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.timer.as_fd(), PollFlags::IN),
        ];
        match poll(&mut fds, None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(false),
            Err(errno) => return Err(errno.into()),
        }
        let spoken = !fds[0].revents().is_empty();
        let mut drain = [0u8; 64];
        while matches!(rustix::io::read(&self.child_notice, &mut drain), Ok(1..)) {}
        Ok(spoken)
    }

    fn set_timer(&self, at: Option<BootInstant>) -> io::Result<()> {
        let zero = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let it_value = at.map_or(zero, |at| Timespec {
            tv_sec: i64::try_from(at.as_secs()).unwrap_or(i64::MAX),
            // Zero would disarm the timer; one nanosecond is as good.
            tv_nsec: i64::from(at.subsec_nanos().max(1)),
        });
        let spec = Itimerspec {
            it_interval: zero,
            it_value,
        };
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &spec)?;
        Ok(())
    }

    /// `tenure` is gone: nobody renews and nobody would release.
    fn orphaned(self) -> io::Result<()> {
        match self.task.on_death {
            OnDeath::EndTree => kill_all(),
            OnDeath::Wait => loop {
                match process_tree::reap() {
                    Reaped::NoChildren => break,
                    Reaped::Ended(..) | Reaped::Stopped(..) => {}
                    Reaped::Nothing => {
                        let mut fds = [PollFd::from_borrowed_fd(
                            self.child_notice.as_fd(),
                            PollFlags::IN,
                        )];
                        let _ = poll(&mut fds, None);
                        let mut drain = [0u8; 64];
                        while matches!(rustix::io::read(&self.child_notice, &mut drain), Ok(1..)) {}
                    }
                }
            },
        }
        Ok(())
    }
}

/// Lets a child inherit a descriptor, and says its number.
fn handed_down(fd: &OwnedFd) -> io::Result<OsString> {
    fcntl_setfd(fd, FdFlags::empty())?;
    Ok(fd.as_raw_fd().to_string().into())
}

/// TERM, INT, HUP and QUIT to the group, the others to the child (C3).
fn pass_on(child: Pid, number: i32) {
    let Some(signal) = Signal::from_named_raw(number) else {
        return;
    };
    match number {
        SIGTERM | SIGINT | SIGHUP | SIGQUIT => process_tree::signal_group(child, signal),
        _ => {
            let _ = kill_process(child, signal);
        }
    }
}

/// `CLOCK_BOOTTIME`.
pub(crate) fn now() -> BootInstant {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(
        time.tv_sec.unsigned_abs(),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}
