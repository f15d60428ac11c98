//! `tenure`'s own side while the child runs: signals go in, reports come out, the lock's news is passed on.

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
use tenure_files::heartbeat::HeartbeatPause;

use super::channel::{
    Channel, ChildEndCause, OnAsk, SupervisorCommand, SupervisorReport, Variables,
};
use super::process_tree::ProcessEnd;
use super::schedule::ChildLease;
use super::supervisor;
use super::syscalls;
use super::task::SupervisorTask;

/// A command that is over by then never needs the thread that looks after lock files.
const SHORT: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 20_000_000,
};

/// What a lock has to say while the child runs.
#[derive(Debug)]
pub(crate) enum LockNotice {
    /// A renewal of the lock with this number was confirmed.
    Renewed(usize, ChildLease),
    /// A lock is gone.
    Lost(String),
    /// Somebody asks for one.
    Asked(OnAsk, String),
}

/// Where the lock's own threads drop their news.
#[derive(Clone)]
pub(crate) struct NoticeSender {
    sender: mpsc::Sender<LockNotice>,
    wake: std::sync::Arc<UnixStream>,
}

impl NoticeSender {
    /// Drops one piece of news. Nobody there any more is no error: the child is over.
    pub(crate) fn drop_in(&self, notice: LockNotice) {
        if self.sender.send(notice).is_ok() {
            let _ = rustix::io::write(&*self.wake, &[1]);
        }
    }
}

/// The receiving side of a [`NoticeSender`].
pub(crate) struct NoticeReceiver {
    notice: mpsc::Receiver<LockNotice>,
    wake: UnixStream,
}

/// A mailbox and its inbox.
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

/// How it ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RunOutcome {
    /// The child ran.
    Ran(ProcessEnd, ChildEndCause),
    /// It could not be started, with the operating system's error.
    NotStarted(i32),
    /// A lock was gone before it could be started.
    LostBefore(String),
    /// The supervisor was killed; the tree was ended here.
    SupervisorGone,
}

/// What is started, and what it gets: variables, and the locked descriptors that they name (K38).
pub(crate) struct ChildStart<'a> {
    pub(crate) task: SupervisorTask,
    pub(crate) variables: Variables,
    pub(crate) descriptors: Vec<BorrowedFd<'a>>,
}

/// The leases of all locks. The first to run out counts: they are lost as one (C6).
#[derive(Default)]
struct HeldLeases(BTreeMap<usize, ChildLease>);

impl HeldLeases {
    /// Takes note of a renewal, and returns the lease that now runs out first.
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

/// Starts the child under locks that are held, and stays until it is over.
///
/// `early` is a signal that came before this could listen. The supervisor waits for [`finish`] afterwards, when
/// the locks were given back. The heart of lock files has a rest until the command has run for a moment.
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
    // The supervisor must know the deadline before there is anything to end.
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
                // Killed from outside. What it kept has become ours.
                supervisor::kill_all();
                break RunOutcome::SupervisorGone;
            }
        }
    };
    terminal.take_back();
    Ok(outcome)
}

/// What the supervisor is told of a lock's news.
fn order(notice: LockNotice, leases: &mut HeldLeases) -> SupervisorCommand {
    match notice {
        LockNotice::Renewed(number, lease) => SupervisorCommand::Lease(leases.renew(number, lease)),
        LockNotice::Lost(how) => SupervisorCommand::Lost(how),
        LockNotice::Asked(action, who) => SupervisorCommand::Asked(action, who),
    }
}

/// Lets the supervisor go: the lock was given back.
pub(crate) fn finish(channel: &Channel) {
    let _ = channel.send(&SupervisorCommand::Done);
}

struct ReadySources {
    channel: bool,
    signals: bool,
    inbox: bool,
}

/// Sleeps until there is something to do, or for the longest time given.
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

/// The terminal that `tenure` was started from, if any (C19).
pub(crate) struct Terminal {
    fd: Option<i32>,
    /// Whether the child's group has it from us. What the shell took back is not ours to take.
    lent: bool,
}

impl Terminal {
    /// Looks for a terminal of this session among the standard descriptors.
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

    /// Whether there is one.
    pub(crate) fn is_there(&self) -> bool {
        self.fd.is_some()
    }

    /// The terminal, if this process is in its foreground: the child is to get it.
    pub(crate) fn foreground(&self) -> Option<i32> {
        self.fd.filter(|fd| group_of(*fd) == Some(getpgrp()))
    }

    /// Must be called after the supervisor was forked: from then on `tenure` moves the terminal about.
    pub(crate) fn manage(&mut self) {
        if self.fd.is_some() {
            syscalls::ignore_background_output_signal();
        }
        // The child takes it for itself as it starts, if we have it.
        self.lent = self.foreground().is_some();
    }

    /// A stopped child stops `tenure` too; when the shell lets it go on, so does the child.
    /// Says whether the child is to go on.
    fn stop_with_child(
        &mut self,
        signal: i32,
        child: Option<Pid>,
        lease: Option<ChildLease>,
    ) -> bool {
        if self.fd.is_none() {
            return false;
        }
        // Stopped for want of a terminal that we have: `bg` and then `fg` come to this.
        if matches!(signal, SIGTTIN | SIGTTOU) && self.foreground().is_some() {
            self.lend(child);
            return true;
        }
        self.take_back();
        match lease.map(|lease| lease.safe_until.saturating_sub(supervisor::now())) {
            None => {
                eprintln!("tenure: the command was stopped by signal {signal}; the lock stays held")
            }
            // Nobody renews while we are stopped.
            Some(left) => eprintln!(
                "tenure: the command was stopped by signal {signal}; its lease runs out in {} s, and the command \
                 is ended before that unless it goes on",
                left.as_secs()
            ),
        }
        let _ = kill_process(getpid(), Signal::STOP);
        // Here the shell's `fg` or `bg` has let us go on.
        self.lend(child);
        true
    }

    /// Gives the terminal to the child's group, if it is ours to give.
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
