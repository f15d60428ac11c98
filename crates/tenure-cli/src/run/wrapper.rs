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

use super::channel::{Cause, Channel, OnAsk, Order, Report, Variables};
use super::keeper;
use super::schedule::Lease;
use super::sys;
use super::task::Task;
use super::tree::End;

/// A command that is over by then never needs the thread that looks after lock files.
const SHORT: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 20_000_000,
};

/// What a lock has to say while the child runs.
#[derive(Debug)]
pub(crate) enum News {
    /// A renewal of the lock with this number was confirmed.
    Renewed(usize, Lease),
    /// A lock is gone.
    Lost(String),
    /// Somebody asks for one.
    Asked(OnAsk, String),
}

/// Where the lock's own threads drop their news.
#[derive(Clone)]
pub(crate) struct Mailbox {
    sender: mpsc::Sender<News>,
    wake: std::sync::Arc<UnixStream>,
}

impl Mailbox {
    /// Drops one piece of news. Nobody there any more is no error: the child is over.
    pub(crate) fn drop_in(&self, news: News) {
        if self.sender.send(news).is_ok() {
            let _ = rustix::io::write(&*self.wake, &[1]);
        }
    }
}

/// The receiving side of a [`Mailbox`].
pub(crate) struct Inbox {
    news: mpsc::Receiver<News>,
    wake: UnixStream,
}

/// A mailbox and its inbox.
pub(crate) fn mailbox() -> io::Result<(Mailbox, Inbox)> {
    let (sender, news) = mpsc::channel();
    let (read, write) = UnixStream::pair()?;
    read.set_nonblocking(true)?;
    write.set_nonblocking(true)?;
    Ok((
        Mailbox {
            sender,
            wake: std::sync::Arc::new(write),
        },
        Inbox { news, wake: read },
    ))
}

/// How it ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The child ran.
    Ran(End, Cause),
    /// It could not be started, with the operating system's error.
    NotStarted(i32),
    /// A lock was gone before it could be started.
    LostBefore(String),
    /// The keeper was killed; the tree was ended here.
    KeeperGone,
}

/// What is started, and what it gets: variables, and the locked descriptors that they name (K38).
pub(crate) struct Start<'a> {
    pub(crate) task: Task,
    pub(crate) variables: Variables,
    pub(crate) descriptors: Vec<BorrowedFd<'a>>,
}

/// The leases of all locks. The first to run out counts: they are lost as one (C6).
#[derive(Default)]
struct Leases(BTreeMap<usize, Lease>);

impl Leases {
    /// Takes note of a renewal, and returns the lease that now runs out first.
    fn renew(&mut self, number: usize, lease: Lease) -> Lease {
        self.0.insert(number, lease);
        self.first().unwrap_or(lease)
    }

    fn first(&self) -> Option<Lease> {
        self.0
            .values()
            .copied()
            .min_by_key(|lease| lease.safe_until)
    }
}

/// Starts the child under locks that are held, and stays until it is over.
///
/// `early` is a signal that came before this could listen. The keeper waits for [`finish`] afterwards, when
/// the locks were given back. The heart of lock files has a rest until the command has run for a moment.
pub(crate) fn supervise(
    channel: &Channel,
    start: Start<'_>,
    inbox: &Inbox,
    terminal: &mut Terminal,
    early: impl FnOnce() -> Option<i32>,
    rest: &mut Option<HeartbeatPause>,
) -> io::Result<Outcome> {
    let (read, write) = UnixStream::pair()?;
    let mut signals = SignalDelivery::with_pipe(
        read,
        write,
        SignalOnly,
        [SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCONT],
    )?;
    let mut leases = Leases::default();
    // The keeper must know the deadline before there is anything to end.
    while let Ok(news) = inbox.news.try_recv() {
        match news {
            News::Lost(how) => return Ok(Outcome::LostBefore(how)),
            other => channel.send(&order(other, &mut leases))?,
        }
    }
    channel.send_with(
        &Order::Start(start.task, start.variables),
        &start.descriptors,
    )?;
    if let Some(signal) = early() {
        channel.send(&Order::Signal(signal))?;
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
                    let _ = channel.send(&Order::Signal(signal));
                }
            }
        }
        if ready.inbox {
            let _ = drain(&inbox.wake);
            while let Ok(news) = inbox.news.try_recv() {
                let _ = channel.send(&order(news, &mut leases));
            }
        }
        if !ready.channel {
            *rest = None;
            continue;
        }
        match channel.receive::<Report>()? {
            Some((Report::Started(pid), _)) => child = to_pid(pid),
            Some((Report::Failed(errno), _)) => break Outcome::NotStarted(errno),
            Some((Report::Stopped(signal), _)) => {
                *rest = None;
                if terminal.stop_with_child(signal, child, leases.first()) {
                    channel.send(&Order::Continue)?;
                }
            }
            Some((Report::Ending(_), _)) => {}
            Some((Report::Over(end, cause), _)) => break Outcome::Ran(end, cause),
            None => {
                // Killed from outside. What it kept has become ours.
                keeper::kill_all();
                break Outcome::KeeperGone;
            }
        }
    };
    terminal.take_back();
    Ok(outcome)
}

/// What the keeper is told of a lock's news.
fn order(news: News, leases: &mut Leases) -> Order {
    match news {
        News::Renewed(number, lease) => Order::Lease(leases.renew(number, lease)),
        News::Lost(how) => Order::Lost(how),
        News::Asked(action, who) => Order::Asked(action, who),
    }
}

/// Lets the keeper go: the lock was given back.
pub(crate) fn finish(channel: &Channel) {
    let _ = channel.send(&Order::Done);
}

struct Ready {
    channel: bool,
    signals: bool,
    inbox: bool,
}

/// Sleeps until there is something to do, or for the longest time given.
fn wait(
    channel: &Channel,
    signals: BorrowedFd<'_>,
    inbox: &Inbox,
    longest: Option<&Timespec>,
) -> io::Result<Ready> {
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
    Ok(Ready {
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

    /// Must be called after the keeper was forked: from then on `tenure` moves the terminal about.
    pub(crate) fn manage(&mut self) {
        if self.fd.is_some() {
            sys::ignore_background_output_signal();
        }
        // The child takes it for itself as it starts, if we have it.
        self.lent = self.foreground().is_some();
    }

    /// A stopped child stops `tenure` too; when the shell lets it go on, so does the child.
    /// Says whether the child is to go on.
    fn stop_with_child(&mut self, signal: i32, child: Option<Pid>, lease: Option<Lease>) -> bool {
        if self.fd.is_none() {
            return false;
        }
        // Stopped for want of a terminal that we have: `bg` and then `fg` come to this.
        if matches!(signal, SIGTTIN | SIGTTOU) && self.foreground().is_some() {
            self.lend(child);
            return true;
        }
        self.take_back();
        match lease.map(|lease| lease.safe_until.saturating_sub(keeper::now())) {
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
