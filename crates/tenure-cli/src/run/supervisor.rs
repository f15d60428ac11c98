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
//! It holds the locked descriptor, K38 (inherit the locked descriptor), so the kernel keeps a lock
//! file locked until the tree has ended. It checks the deadline of the lease itself, C5 (stop
//! before the lease ends), so the deadline holds even while `tenure` is stopped.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, getpid, kill_process, set_child_subreaper, setpgid};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use tenure::Lease;
use tenure_files::internal::BootTimer;

use super::channel::{
    Channel, ChildEndCause, OnAsk, SupervisorCommand, SupervisorReport, VariableValue, Variables,
};
use super::process_tree::{self, ProcessEnd, Reaped};
use super::schedule::{BootInstant, ChildLease, EndDeadlines};
use super::spawn::{self, BeforeExec};
use super::syscalls::{self, Forked};
use super::task::{Descriptor, OnDeath, OnLost, SupervisorTask};

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
            let code = match ReadySupervisor::new(its).and_then(ReadySupervisor::run) {
                Ok(()) => 0,
                Err(error) => {
                    // No process of the child may outlive the lock, whatever failed.
                    eprintln!(
                        "tenure: the supervisor process failed, so the command is killed: {error}"
                    );
                    kill_all();
                    125
                }
            };
            std::process::exit(code)
        }
    }
}

/// Kills all descendants and waits until the last one has ended.
pub(crate) fn kill_all() {
    loop {
        // Repeated: a process may have forked between the listing and the kill.
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

/// A supervisor that waits for the start of the child.
struct ReadySupervisor {
    channel: Channel,
    child_notice: UnixStream,
    timer: BootTimer,
    lease: Option<ChildLease>,
}

struct Supervisor {
    task: SupervisorTask,
    channel: Channel,
    child_notice: UnixStream,
    timer: BootTimer,
    lease: Option<ChildLease>,
}

struct Child {
    pid: Pid,
    notices: OwnedFd,
    end: Option<ProcessEnd>,
    ending: Option<ShutdownState>,
    /// The cause to report at the end.
    cause: ChildEndCause,
    /// Whether the child got the `at-risk` notice.
    warned: bool,
    /// Keeps lock files locked until the tree has ended.
    _locks: Vec<OwnedFd>,
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
                // The wrapper now releases the lock and then sends `Done`. The locked descriptors
                // stay open until then.
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
            self.task.command(),
            environment,
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

    /// Handles all pending child events. Returns whether no child is left.
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

    /// After a normal end the process group must be empty; after a forced one, the whole tree must
    /// have ended (C4).
    fn is_over(&self, child: &Child, no_children: bool) -> bool {
        no_children || (child.ending.is_none() && process_tree::group_is_gone(child.pid))
    }

    /// Does what is due: the warning, TERM, KILL.
    fn act(&self, child: &mut Child) -> io::Result<()> {
        let now = Lease::now();
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
                // A stopped process handles TERM only after it continues.
                process_tree::signal_tree(Signal::CONT);
            }
        }
        let kill_now = child.cause == ChildEndCause::Lost && self.task.on_lost == OnLost::Kill;
        if kill_now || now >= ending.deadlines.kill {
            process_tree::signal_tree(Signal::KILL);
        }
        Ok(())
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
        // A loss outweighs a release request; a second cause does not replace it.
        if child.cause != ChildEndCause::Lost {
            child.cause = cause;
        }
        if by_force {
            // The deadline may only move forward: a second cause must not extend the time until
            // KILL.
            let deadlines = EndDeadlines::from_now(Lease::now(), self.task.grace, self.lease);
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

    /// Writes an event to the child's pipe and a line for people.
    ///
    /// The pipe comes first, so a reader of the line finds the event. Never blocks: a full
    /// pipe drops the event.
    fn tell(&self, child: &Child, event: &str, what: &str) {
        let line = serde_json::json!({ "event": event, "reason": what }).to_string() + "\n";
        let _ = rustix::io::write(&child.notices, line.as_bytes());
        eprintln!("tenure: {what}");
    }

    /// Waits for an event. Returns whether the wrapper sent a command.
    fn wait(&self, child: &Child) -> io::Result<bool> {
        let mut next = match (&child.ending, self.lease) {
            (Some(ending), _) => Some(ending.deadlines.kill),
            (None, Some(lease)) if !child.warned => Some(self.lost_at(lease)),
            (None, _) => None,
        };
        let now = Lease::now();
        // The end of a process group raises no signal, so poll for it. The same applies to a tree
        // that must be killed again.
        let restless = child.end.is_some() || next.is_some_and(|at| at <= now);
        if restless {
            next = Some(now + AGAIN);
        }
        self.timer.set(next)?;
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

    /// Handles the death of `tenure`: there is no process that renews or releases the lock.
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

/// Lets the child inherit a descriptor. Returns its number.
fn handed_down(fd: &OwnedFd) -> io::Result<OsString> {
    fcntl_setfd(fd, FdFlags::empty())?;
    Ok(fd.as_raw_fd().to_string().into())
}

/// Sends TERM, INT, HUP and QUIT to the process group, other signals to the child: C3 (environment
/// of the child).
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
