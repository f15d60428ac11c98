//! Wrapper: the event loop of `tenure` while the child runs. Forwards signals and lock events to
//! the supervisor, and handles its reports.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, getpgrp, getpid, kill_process};
use rustix::termios::{isatty, tcgetpgrp, tcsetpgrp};
use signal_hook::consts::{SIGCONT, SIGTSTP, SIGTTIN, SIGTTOU};
use tenure_files::internal::HeartbeatPause;

use super::channel::{
    Channel, ChildEndCause, OnAsk, SupervisorCommand, SupervisorReport, Variables,
};
use super::process_tree::{self, ChildGroup, ProcessEnd};
use super::schedule::ChildLease;
use super::signal_queue::{ReceivedSignal, SignalQueue};
use super::supervisor;
use super::syscalls;
use super::task::SupervisorTask;
use crate::message;

/// A command that ends within this time (20 ms) never starts the heartbeat thread of lock files.
const SHORT: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 20_000_000,
};

/// An event of a lock while the child runs.
#[derive(Debug)]
pub(crate) enum LockNotice {
    /// A renewal of the lock with this index was confirmed.
    Renewed(usize, ChildLease),
    /// A lock is lost.
    Lost(String),
    /// Another client asks for a lock.
    Asked(OnAsk, String),
}

/// Sends lock events from the threads of the library to the wrapper.
#[derive(Clone)]
pub(crate) struct NoticeSender {
    sender: mpsc::Sender<LockNotice>,
    wake: std::sync::Arc<UnixStream>,
}

impl NoticeSender {
    /// Sends an event. A missing receiver is no error: the child has ended.
    pub(crate) fn drop_in(&self, notice: LockNotice) {
        if self.sender.send(notice).is_ok() {
            let _ = rustix::io::write(&*self.wake, &[1]);
        }
    }
}

/// The receiver of a [`NoticeSender`].
pub(crate) struct NoticeReceiver {
    notice: mpsc::Receiver<LockNotice>,
    wake: UnixStream,
}

/// Creates a queue of lock events. The socket pair wakes the wrapper's `poll`.
pub(crate) fn mailbox() -> io::Result<(NoticeSender, NoticeReceiver)> {
    let (sender, notice) = mpsc::channel();
    let (read, write) = UnixStream::pair()?;
    read.set_nonblocking(true)?;
    write.set_nonblocking(true)?;
    Ok((
        NoticeSender {
            sender,
            wake: std::sync::Arc::new(write),
        },
        NoticeReceiver { notice, wake: read },
    ))
}

/// How the run ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RunOutcome {
    /// The child ran.
    Ran(ProcessEnd, ChildEndCause),
    /// The child could not be started, with the `errno`.
    NotStarted(i32),
    /// A lock was lost before the start.
    LostBefore(String),
    /// The supervisor was killed; the wrapper ended the tree.
    SupervisorGone,
}

/// The task, the variables of the child, and the locked descriptors that they name: K38 (inherit
/// the locked descriptor).
pub(crate) struct ChildStart<'a> {
    pub(crate) task: SupervisorTask,
    pub(crate) variables: Variables,
    pub(crate) descriptors: Vec<BorrowedFd<'a>>,
}

/// The leases of all locks. The earliest deadline counts, because the locks are lost together: C6
/// (several locks at once).
#[derive(Default)]
struct HeldLeases(BTreeMap<usize, ChildLease>);

impl HeldLeases {
    /// Records a renewal. Returns the lease with the earliest deadline.
    fn renew(&mut self, number: usize, lease: ChildLease) -> ChildLease {
        self.0.insert(number, lease);
        self.first().unwrap_or(lease)
    }

    fn first(&self) -> Option<ChildLease> {
        self.0
            .values()
            .copied()
            .min_by_key(|lease| lease.safe_until)
    }
}

/// Starts the child under held locks and returns when it has ended.
///
/// The supervisor waits for [`finish`] afterwards, when the locks are released. `rest` delays the
/// heartbeat of lock files until the command has run for a moment.
///
/// # Errors
///
/// Whatever fails, the tree of the child has ended when this returns: the caller releases the locks.
pub(crate) fn supervise(
    channel: &Channel,
    start: ChildStart<'_>,
    signals: &SignalQueue,
    inbox: &NoticeReceiver,
    terminal: &mut Terminal,
    rest: &mut Option<HeartbeatPause>,
) -> io::Result<RunOutcome> {
    let mut events = EventLoop {
        channel,
        signals,
        inbox,
        leases: HeldLeases::default(),
        child: None,
        joins: start.task.joins,
    };
    let ran = catch_unwind(AssertUnwindSafe(|| events.run(start, terminal, rest)));
    let outcome = ran.unwrap_or_else(|_| Err(io::Error::other("a fault in tenure")));
    if matches!(outcome, Err(_) | Ok(RunOutcome::SupervisorGone)) {
        // If the supervisor was killed, its orphans are now our children, because we are a
        // subreaper.
        supervisor::kill_all(events.group());
    }
    terminal.take_back();
    outcome
}

/// The sources of events while the child runs, and what is known of the child.
struct EventLoop<'a> {
    channel: &'a Channel,
    signals: &'a SignalQueue,
    inbox: &'a NoticeReceiver,
    leases: HeldLeases,
    child: Option<Pid>,
    joins: Option<Pid>,
}

impl EventLoop<'_> {
    fn group(&self) -> Option<ChildGroup> {
        let own = self.child.map(ChildGroup::Own);
        self.joins.map(ChildGroup::Shared).or(own)
    }

    fn run(
        &mut self,
        start: ChildStart<'_>,
        terminal: &mut Terminal,
        rest: &mut Option<HeartbeatPause>,
    ) -> io::Result<RunOutcome> {
        self.signals.add(SIGCONT)?;
        if terminal.is_shared() {
            self.signals.add(SIGTSTP)?;
        }
        // The supervisor must know the deadline before the child exists.
        while let Ok(notice) = self.inbox.notice.try_recv() {
            match notice {
                LockNotice::Lost(how) => return Ok(RunOutcome::LostBefore(how)),
                other => self.channel.send(&order(other, &mut self.leases))?,
            }
        }
        self.channel.send_with(
            &SupervisorCommand::Start(start.task, start.variables),
            &start.descriptors,
        )?;
        loop {
            let longest = rest.as_ref().map(|_| &SHORT);
            let ready = wait(self.channel, self.signals.as_fd(), self.inbox, longest)?;
            if ready.signals {
                while let Some(signal) = self.signals.next() {
                    self.forward(signal, terminal);
                }
            }
            if ready.inbox {
                let _ = drain(&self.inbox.wake);
                while let Ok(notice) = self.inbox.notice.try_recv() {
                    let _ = self.channel.send(&order(notice, &mut self.leases));
                }
            }
            // Other events, or the short time is over: start the heartbeat.
            if !ready.channel {
                *rest = None;
                continue;
            }
            match self.channel.receive::<SupervisorReport>()? {
                Some((SupervisorReport::Started(pid), _)) => self.child = to_pid(pid),
                Some((SupervisorReport::Failed(errno), _)) => {
                    return Ok(RunOutcome::NotStarted(errno));
                }
                Some((SupervisorReport::Stopped(signal), _)) => {
                    *rest = None;
                    if terminal.stop_with_child(signal, self.child, self.leases.first()) {
                        let _ = self.channel.send(&SupervisorCommand::Continue);
                    }
                }
                Some((SupervisorReport::Over(end, cause), _)) => {
                    return Ok(RunOutcome::Ran(end, cause));
                }
                None => return Ok(RunOutcome::SupervisorGone),
            }
        }
    }

    fn forward(&self, signal: ReceivedSignal, terminal: &mut Terminal) {
        match signal.number {
            SIGCONT => terminal.lend(self.child),
            SIGTSTP => terminal.stop(SIGTSTP, self.leases.first()),
            // The child is in our group, so it has the signal already.
            number if signal.from_terminal && terminal.is_shared() => {
                terminal.last_key = Some(number);
            }
            number => {
                let _ = self.channel.send(&SupervisorCommand::Signal(number));
            }
        }
    }
}

/// Converts a lock event into a command for the supervisor.
fn order(notice: LockNotice, leases: &mut HeldLeases) -> SupervisorCommand {
    match notice {
        LockNotice::Renewed(number, lease) => SupervisorCommand::Lease(leases.renew(number, lease)),
        LockNotice::Lost(how) => SupervisorCommand::Lost(how),
        LockNotice::Asked(action, who) => SupervisorCommand::Asked(action, who),
    }
}

/// Ends the supervisor after the lock was released.
pub(crate) fn finish(channel: &Channel) {
    let _ = channel.send(&SupervisorCommand::Done);
}

struct ReadySources {
    channel: bool,
    signals: bool,
    inbox: bool,
}

/// Waits for an event, or for `longest`.
fn wait(
    channel: &Channel,
    signals: BorrowedFd<'_>,
    inbox: &NoticeReceiver,
    longest: Option<&Timespec>,
) -> io::Result<ReadySources> {
    let mut fds = [
        PollFd::from_borrowed_fd(channel.as_fd(), PollFlags::IN),
        PollFd::from_borrowed_fd(signals, PollFlags::IN),
        PollFd::from_borrowed_fd(inbox.wake.as_fd(), PollFlags::IN),
    ];
    loop {
        match poll(&mut fds, longest) {
            Ok(_) => break,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    let [channel, signals, inbox] = fds.map(|fd| !fd.revents().is_empty());
    Ok(ReadySources {
        channel,
        signals,
        inbox,
    })
}

fn drain(stream: &UnixStream) -> io::Result<bool> {
    let mut bytes = [0u8; 64];
    let mut any = false;
    loop {
        match rustix::io::read(stream, &mut bytes) {
            Ok(0) => return Ok(any),
            Ok(_) => any = true,
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => return Ok(any),
            Err(errno) => return Err(errno.into()),
        }
    }
}

fn to_pid(number: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(number).ok()?)
}

/// The controlling terminal of `tenure`, and how the child shares it: C19 (job control on
/// terminals).
pub(crate) struct Terminal {
    control: JobControl,
    /// Whether this process gave the terminal to the child's group. A terminal that the shell took
    /// back must not be taken.
    lent: bool,
    /// The last signal that came from the terminal while the child was in our group.
    last_key: Option<i32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JobControl {
    /// There is no terminal.
    None,
    /// `tenure` alone is a job of an interactive shell. The child's own group gets the terminal,
    /// which is standard input.
    Lend,
    /// Other commands are in our group (a pipeline, a script), or the command's input or output is
    /// redirected. The child joins our group, as it would without `tenure`: then `less` and a
    /// password prompt on `/dev/tty` can read the terminal, and its keys reach all of the group.
    Share,
}

impl Terminal {
    pub(crate) fn find() -> Terminal {
        let leads = getpgrp() == getpid();
        let (stdin, stdout) = (rustix::stdio::stdin(), rustix::stdio::stdout());
        let control = if leads && tcgetpgrp(stdin).is_ok() && isatty(stdout) {
            JobControl::Lend
        } else if has_controlling_terminal() && process_tree::proc_is_ours() {
            JobControl::Share
        } else {
            JobControl::None
        };
        Terminal {
            control,
            lent: false,
            last_key: None,
        }
    }

    /// Returns whether the child's group gets the terminal.
    pub(crate) fn is_lent(&self) -> bool {
        self.control == JobControl::Lend
    }

    fn is_shared(&self) -> bool {
        self.control == JobControl::Share
    }

    /// Returns the group that the child joins.
    pub(crate) fn group_to_join(&self) -> Option<Pid> {
        self.is_shared().then(getpgrp)
    }

    /// Returns the descriptor of the terminal if this process is in its foreground group and the
    /// child gets it.
    pub(crate) fn foreground(&self) -> Option<i32> {
        let stdin = rustix::stdio::stdin();
        (self.is_lent() && tcgetpgrp(stdin) == Ok(getpgrp())).then_some(0)
    }

    /// Returns whether this signal came from the terminal while the child was in our group.
    pub(crate) fn sent(&self, signal: i32) -> bool {
        self.last_key == Some(signal)
    }

    /// Prepares for changes of the foreground group. Must be called after the supervisor was
    /// forked.
    pub(crate) fn manage(&mut self) {
        if self.control != JobControl::None {
            syscalls::ignore_background_output_signal();
        }
        // The child takes the terminal when it starts, if we have it.
        self.lent = self.foreground().is_some();
    }

    /// Stops `tenure` together with its child, so that the shell sees a stopped job.
    ///
    /// Returns after the shell continued `tenure`, with whether the child must continue.
    fn stop_with_child(
        &mut self,
        signal: i32,
        child: Option<Pid>,
        lease: Option<ChildLease>,
    ) -> bool {
        // In a shared group, the keys and the kernel stop `tenure` and the child alike.
        if !self.is_lent() {
            return false;
        }
        // The child stopped because it is in the background, but we have the terminal: this follows
        // `bg` and then `fg`.
        if matches!(signal, SIGTTIN | SIGTTOU) && self.foreground().is_some() {
            self.lend(child);
            return true;
        }
        self.take_back();
        self.stop(signal, lease);
        // The shell's `fg` or `bg` has continued us.
        self.lend(child);
        true
    }

    /// Stops this process. Returns after it was continued.
    fn stop(&self, signal: i32, lease: Option<ChildLease>) {
        match lease.map(|lease| lease.safe_until.saturating_sub(tenure::Lease::now())) {
            None => message::say(format_args!(
                "the command was stopped by signal {signal}; the lock stays held"
            )),
            // A stopped process does not renew.
            Some(left) => message::say(format_args!(
                "the command was stopped by signal {signal}; the lease expires in {} s; continue the command \
                 (fg or bg) before that, or it is killed",
                left.as_secs()
            )),
        }
        message::flush_in_between();
        let _ = kill_process(getpid(), Signal::STOP);
    }

    /// Gives the terminal to the child's group, if this process has it.
    fn lend(&mut self, child: Option<Pid>) {
        if let (Some(_), Some(child)) = (self.foreground(), child) {
            self.lent = tcsetpgrp(rustix::stdio::stdin(), child).is_ok();
        }
    }

    fn take_back(&mut self) {
        if self.lent {
            let _ = tcsetpgrp(rustix::stdio::stdin(), getpgrp());
            self.lent = false;
        }
    }
}

fn has_controlling_terminal() -> bool {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    rustix::fs::open("/dev/tty", flags, Mode::empty()).is_ok()
}
