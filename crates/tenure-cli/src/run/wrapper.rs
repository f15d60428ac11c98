//! Wrapper: the event loop of `tenure` while the child runs. Forwards signals and lock events to
//! the supervisor, and handles its reports.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, getpgrp, getpid, kill_process};
use rustix::termios::{isatty, tcgetpgrp, tcsetpgrp};
use signal_hook::consts::{
    SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTTIN, SIGTTOU, SIGUSR1, SIGUSR2,
};
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::SignalOnly;
use tenure_files::internal::HeartbeatPause;

use super::channel::{
    Channel, ChildEndCause, OnAsk, SupervisorCommand, SupervisorReport, Variables,
};
use super::process_tree::ProcessEnd;
use super::schedule::ChildLease;
use super::supervisor;
use super::syscalls;
use super::task::SupervisorTask;

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
/// `early` returns a signal that arrived before the handlers of this function were installed. The
/// supervisor waits for [`finish`] afterwards, when the locks are released. `rest` delays the
/// heartbeat of lock files until the command has run for a moment.
pub(crate) fn supervise(
    channel: &Channel,
    start: ChildStart<'_>,
    inbox: &NoticeReceiver,
    terminal: &mut Terminal,
    early: impl FnOnce() -> Option<i32>,
    rest: &mut Option<HeartbeatPause>,
) -> io::Result<RunOutcome> {
    let (read, write) = UnixStream::pair()?;
    let mut signals = SignalDelivery::with_pipe(
        read,
        write,
        SignalOnly,
        [SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCONT],
    )?;
    let mut leases = HeldLeases::default();
    // The supervisor must know the deadline before the child exists.
    while let Ok(notice) = inbox.notice.try_recv() {
        match notice {
            LockNotice::Lost(how) => return Ok(RunOutcome::LostBefore(how)),
            other => channel.send(&order(other, &mut leases))?,
        }
    }
    channel.send_with(
        &SupervisorCommand::Start(start.task, start.variables),
        &start.descriptors,
    )?;
    if let Some(signal) = early() {
        channel.send(&SupervisorCommand::Signal(signal))?;
    }
    let mut child = None;
    let outcome = loop {
        let longest = rest.as_ref().map(|_| &SHORT);
        let ready = wait(channel, signals.get_read().as_fd(), inbox, longest)?;
        if ready.signals {
            for signal in signals.pending() {
                if signal == SIGCONT {
                    terminal.lend(child);
                } else {
                    let _ = channel.send(&SupervisorCommand::Signal(signal));
                }
            }
        }
        if ready.inbox {
            let _ = drain(&inbox.wake);
            while let Ok(notice) = inbox.notice.try_recv() {
                let _ = channel.send(&order(notice, &mut leases));
            }
        }
        // Other events, or the short time is over: start the heartbeat.
        if !ready.channel {
            *rest = None;
            continue;
        }
        match channel.receive::<SupervisorReport>()? {
            Some((SupervisorReport::Started(pid), _)) => child = to_pid(pid),
            Some((SupervisorReport::Failed(errno), _)) => break RunOutcome::NotStarted(errno),
            Some((SupervisorReport::Stopped(signal), _)) => {
                *rest = None;
                if terminal.stop_with_child(signal, child, leases.first()) {
                    channel.send(&SupervisorCommand::Continue)?;
                }
            }
            Some((SupervisorReport::Ending(_), _)) => {}
            Some((SupervisorReport::Over(end, cause), _)) => break RunOutcome::Ran(end, cause),
            None => {
                // The supervisor was killed. Its orphans are now our children, because we are a
                // subreaper.
                supervisor::kill_all();
                break RunOutcome::SupervisorGone;
            }
        }
    };
    terminal.take_back();
    Ok(outcome)
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

/// The terminal that `tenure` was started from, if there is one: C19 (job control on terminals).
pub(crate) struct Terminal {
    fd: Option<i32>,
    /// Whether this process gave the terminal to the child's group. A terminal that the shell took
    /// back must not be taken.
    lent: bool,
}

impl Terminal {
    /// Looks for the controlling terminal among the standard descriptors.
    pub(crate) fn find() -> Terminal {
        let standard = [
            (0, rustix::stdio::stdin()),
            (1, rustix::stdio::stdout()),
            (2, rustix::stdio::stderr()),
        ];
        let found = standard
            .into_iter()
            .find(|(_, fd)| isatty(fd) && tcgetpgrp(fd).is_ok());
        Terminal {
            fd: found.map(|(number, _)| number),
            lent: false,
        }
    }

    /// Returns whether there is a terminal.
    pub(crate) fn is_there(&self) -> bool {
        self.fd.is_some()
    }

    /// Returns the terminal if this process is in its foreground group. Then the child gets it.
    pub(crate) fn foreground(&self) -> Option<i32> {
        self.fd.filter(|fd| group_of(*fd) == Some(getpgrp()))
    }

    /// Prepares for changes of the foreground group. Must be called after the supervisor was
    /// forked.
    pub(crate) fn manage(&mut self) {
        if self.fd.is_some() {
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
        if self.fd.is_none() {
            return false;
        }
        // The child stopped because it is in the background, but we have the terminal: this follows
        // `bg` and then `fg`.
        if matches!(signal, SIGTTIN | SIGTTOU) && self.foreground().is_some() {
            self.lend(child);
            return true;
        }
        self.take_back();
        match lease.map(|lease| lease.safe_until.saturating_sub(tenure::Lease::now())) {
            None => {
                eprintln!("tenure: the command was stopped by signal {signal}; the lock stays held")
            }
            // A stopped process does not renew.
            Some(left) => eprintln!(
                "tenure: the command was stopped by signal {signal}; the lease expires in {} s; continue the command \
                 (fg or bg) before that, or it is killed",
                left.as_secs()
            ),
        }
        let _ = kill_process(getpid(), Signal::STOP);
        // The shell's `fg` or `bg` has continued us.
        self.lend(child);
        true
    }

    /// Gives the terminal to the child's group, if this process has it.
    fn lend(&mut self, child: Option<Pid>) {
        if let (Some(fd), Some(child)) = (self.foreground(), child) {
            self.lent = tcsetpgrp(descriptor(fd), child).is_ok();
        }
    }

    fn take_back(&mut self) {
        if let (Some(fd), true) = (self.fd, self.lent) {
            let _ = tcsetpgrp(descriptor(fd), getpgrp());
            self.lent = false;
        }
    }
}

fn group_of(fd: i32) -> Option<Pid> {
    tcgetpgrp(descriptor(fd)).ok()
}

fn descriptor(fd: i32) -> BorrowedFd<'static> {
    match fd {
        0 => rustix::stdio::stdin(),
        1 => rustix::stdio::stdout(),
        _ => rustix::stdio::stderr(),
    }
}
