//! The keeper: a small process between `tenure` and the child, forked first thing (C4).
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

use super::channel::{Cause, Channel, OnAsk, Order, Report, Value, Variables};
use super::schedule::{Deadlines, Lease, Moment};
use super::spawn::{self, BeforeExec, Program};
use super::sys::{self, Forked};
use super::task::{Descriptor, OnDeath, OnLost, Task};
use super::tree::{self, End, Reaped};

/// How often a tree that will not go is killed again, and a group that lives on is looked at.
const AGAIN: Duration = Duration::from_millis(20);

/// Forks the keeper. Must be called while this process has one thread.
pub(crate) fn fork() -> io::Result<Channel> {
    let (ours, its) = Channel::pair()?;
    set_child_subreaper(Some(getpid()))?;
    match sys::fork()? {
        Forked::Parent => Ok(ours),
        Forked::Child => {
            drop(ours);
            let code = match Ready::new(its).and_then(Ready::run) {
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
        tree::signal_tree(Signal::KILL);
        loop {
            match tree::reap() {
                Reaped::NoChildren => return,
                Reaped::Nothing => break,
                Reaped::Ended(..) | Reaped::Stopped(..) => {}
            }
        }
        std::thread::sleep(AGAIN);
    }
}

/// A keeper that has nothing to keep yet.
struct Ready {
    channel: Channel,
    child_news: UnixStream,
    timer: OwnedFd,
    lease: Option<Lease>,
}

struct Keeper {
    task: Task,
    channel: Channel,
    child_news: UnixStream,
    timer: OwnedFd,
    lease: Option<Lease>,
}

struct Child {
    pid: Pid,
    notices: OwnedFd,
    end: Option<End>,
    ending: Option<Ending>,
    /// The last known reason to tell the wrapper at the end.
    cause: Cause,
    /// Whether the child was told that its lease is at risk.
    warned: bool,
    /// Keeps lock files locked for as long as the tree lives.
    _locks: Vec<OwnedFd>,
}

struct Ending {
    deadlines: Deadlines,
    asked_to_end: bool,
}

impl Ready {
    fn new(channel: Channel) -> io::Result<Ready> {
        set_child_subreaper(Some(getpid()))?;
        // A group of its own: what a terminal sends to the foreground is not meant for the keeper.
        setpgid(None, None)?;
        // Handlers, not "ignore": a child would inherit the latter.
        let unused = Arc::new(AtomicBool::new(false));
        for signal in spawn::HANDLED
            .into_iter()
            .filter(|signal| *signal != SIGCHLD)
        {
            signal_hook::flag::register(signal, Arc::clone(&unused))?;
        }
        let (child_news, wake) = UnixStream::pair()?;
        child_news.set_nonblocking(true)?;
        wake.set_nonblocking(true)?;
        signal_hook::low_level::pipe::register(SIGCHLD, wake)?;
        let timer = timerfd_create(
            TimerfdClockId::Boottime,
            TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
        )?;
        Ok(Ready {
            channel,
            child_news,
            timer,
            lease: None,
        })
    }

    fn run(mut self) -> io::Result<()> {
        let Some((task, variables, locks)) = self.await_start()? else {
            return Ok(());
        };
        let keeper = Keeper {
            task,
            channel: self.channel,
            child_news: self.child_news,
            timer: self.timer,
            lease: self.lease,
        };
        keeper.run(variables, locks)
    }

    /// What to run, the child's variables and the locked descriptors, or nothing if there is nothing to run.
    fn await_start(&mut self) -> io::Result<Option<(Task, Variables, Vec<OwnedFd>)>> {
        loop {
            match self.channel.receive::<Order>()? {
                Some((Order::Start(task, variables), locks)) => {
                    return Ok(Some((task, variables, locks)));
                }
                Some((Order::Lease(lease), _)) => self.lease = Some(lease),
                Some((Order::Done, _)) | None => return Ok(None),
                Some((
                    Order::Signal(_) | Order::Continue | Order::Lost(_) | Order::Asked(..),
                    _,
                )) => {}
            }
        }
    }
}

impl Keeper {
    fn run(mut self, variables: Variables, locks: Vec<OwnedFd>) -> io::Result<()> {
        let mut child = match self.start(variables, locks) {
            Ok(child) => child,
            Err(error) => {
                let errno = error.raw_os_error().unwrap_or(libc::EIO);
                self.channel.send(&Report::Failed(errno))?;
                return Ok(());
            }
        };
        let pid = child.pid.as_raw_nonzero().get().unsigned_abs();
        if self.task.tells_child && self.channel.send(&Report::Started(pid)).is_err() {
            return self.orphaned();
        }
        loop {
            let gone = self.reap(&mut child)?;
            self.act(&mut child)?;
            if let Some(end) = child.end
                && self.is_over(&child, gone)
            {
                let _ = self.channel.send(&Report::Over(end, child.cause));
                // The wrapper gives the lock back and says so; its death says so too.
                while let Ok(Some((order, _))) = self.channel.receive::<Order>() {
                    if order == Order::Done {
                        break;
                    }
                }
                return Ok(());
            }
            if self.wait(&child)? {
                match self.channel.receive::<Order>() {
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
                Value::Text(text) => Some(text),
                Value::Removed => None,
                Value::Descriptor => match (descriptors.next(), self.task.descriptor) {
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
            cause: Cause::Itself,
            warned: false,
            _locks: locks,
        })
    }

    /// Takes all news of children. Says whether none is left.
    fn reap(&self, child: &mut Child) -> io::Result<bool> {
        loop {
            match tree::reap() {
                Reaped::Ended(pid, end) if pid == child.pid => child.end = Some(end),
                Reaped::Stopped(pid, signal) if pid == child.pid => {
                    self.channel.send(&Report::Stopped(signal))?;
                }
                Reaped::Ended(..) | Reaped::Stopped(..) => {}
                Reaped::Nothing => return Ok(false),
                Reaped::NoChildren => return Ok(true),
            }
        }
    }

    /// At a normal end the group must be gone; after a forced one, the whole tree (C4).
    fn is_over(&self, child: &Child, no_children: bool) -> bool {
        no_children || (child.ending.is_none() && tree::group_is_gone(child.pid))
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
            child.cause = Cause::Lost;
            child.ending = Some(Ending {
                deadlines: lease.deadlines(self.task.grace),
                asked_to_end: false,
            });
            self.channel.send(&Report::Ending(Cause::Lost))?;
        }
        let Some(ending) = &mut child.ending else {
            return Ok(());
        };
        if !ending.asked_to_end {
            ending.asked_to_end = true;
            if child.cause != Cause::Lost || self.task.on_lost == OnLost::Term {
                tree::signal_tree(Signal::TERM);
                // A stopped process hears TERM only when it goes on.
                tree::signal_tree(Signal::CONT);
            }
        }
        let kill_now = child.cause == Cause::Lost && self.task.on_lost == OnLost::Kill;
        if kill_now || now >= ending.deadlines.kill {
            tree::signal_tree(Signal::KILL);
        }
        Ok(())
    }

    /// When an unrenewed lease makes the end begin.
    fn lost_at(&self, lease: Lease) -> Moment {
        let deadlines = lease.deadlines(self.task.grace);
        if self.task.on_lost == OnLost::Kill {
            deadlines.kill
        } else {
            deadlines.term
        }
    }

    fn obey(&mut self, order: Order, child: &mut Child) -> io::Result<()> {
        match order {
            Order::Signal(signal) => pass_on(child.pid, signal),
            Order::Continue => tree::signal_group(child.pid, Signal::CONT),
            Order::Lease(lease) => {
                self.lease = Some(lease);
                child.warned = false;
            }
            Order::Lost(how) => {
                self.tell(child, "lost", &how);
                self.begin_end(child, Cause::Lost, self.task.on_lost != OnLost::Notify)?;
            }
            Order::Asked(action, who) => match action {
                OnAsk::Ignore => {}
                OnAsk::Notify => self.tell(child, "ask", &who),
                OnAsk::Term => {
                    self.tell(child, "ask", &who);
                    self.begin_end(child, Cause::GaveWay, true)?;
                }
            },
            Order::Start(..) | Order::Done => {}
        }
        Ok(())
    }

    fn begin_end(&self, child: &mut Child, cause: Cause, by_force: bool) -> io::Result<()> {
        // A loss outweighs giving way; a second request changes nothing.
        if child.cause != Cause::Lost {
            child.cause = cause;
        }
        if by_force {
            let deadlines = Deadlines::from_now(now(), self.task.grace, self.lease);
            let earlier = child.ending.as_ref().map(|ending| ending.deadlines.kill);
            let kill = earlier.map_or(deadlines.kill, |kill| kill.min(deadlines.kill));
            let asked_to_end = child
                .ending
                .as_ref()
                .is_some_and(|ending| ending.asked_to_end);
            child.ending = Some(Ending {
                deadlines: Deadlines { kill, ..deadlines },
                asked_to_end,
            });
            self.channel.send(&Report::Ending(cause))?;
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
            PollFd::from_borrowed_fd(self.child_news.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.timer.as_fd(), PollFlags::IN),
        ];
        match poll(&mut fds, None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(false),
            Err(errno) => return Err(errno.into()),
        }
        let spoken = !fds[0].revents().is_empty();
        let mut drain = [0u8; 64];
        while matches!(rustix::io::read(&self.child_news, &mut drain), Ok(1..)) {}
        Ok(spoken)
    }

    fn set_timer(&self, at: Option<Moment>) -> io::Result<()> {
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
                match tree::reap() {
                    Reaped::NoChildren => break,
                    Reaped::Ended(..) | Reaped::Stopped(..) => {}
                    Reaped::Nothing => {
                        let mut fds = [PollFd::from_borrowed_fd(
                            self.child_news.as_fd(),
                            PollFlags::IN,
                        )];
                        let _ = poll(&mut fds, None);
                        let mut drain = [0u8; 64];
                        while matches!(rustix::io::read(&self.child_news, &mut drain), Ok(1..)) {}
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
        SIGTERM | SIGINT | SIGHUP | SIGQUIT => tree::signal_group(child, signal),
        _ => {
            let _ = kill_process(child, signal);
        }
    }
}

/// `CLOCK_BOOTTIME`.
pub(crate) fn now() -> Moment {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(
        time.tv_sec.unsigned_abs(),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}
