//! Signals of the wrapper as a readable descriptor (`signalfd`).
//!
//! The signals are blocked, so none of them ends `tenure` before it has released its locks. A
//! signal that was ignored when `tenure` started, as HUP under `nohup`, stays ignored: the kernel
//! discards it.

#![allow(
    unsafe_code,
    reason = "signal masks and signalfd have no safe form; each block says why it is sound"
)]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use tenure_files::Cancel;

/// Signals that end a wait, and that are forwarded to a running command.
const FORWARDED: [i32; 6] = [SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2];

/// A signal that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReceivedSignal {
    pub(crate) number: i32,
    /// The kernel sent it for a key or a hang-up, so the whole foreground group has it.
    pub(crate) from_terminal: bool,
}

/// The queue of the blocked signals of this process.
pub(crate) struct SignalQueue {
    fd: Arc<OwnedFd>,
    signals: Mutex<Vec<i32>>,
}

impl SignalQueue {
    /// Blocks the signals and opens their queue. Must be called before the first thread starts,
    /// because a thread that does not block them would receive them.
    pub(crate) fn open() -> io::Result<SignalQueue> {
        let set = signal_set(&FORWARDED);
        block(&set)?;
        // SAFETY: `set` is initialized; the call returns a new descriptor or -1.
        let fd = unsafe { libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new, and no other value owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(SignalQueue {
            fd: Arc::new(fd),
            signals: Mutex::new(FORWARDED.into()),
        })
    }

    /// Queues one more signal.
    pub(super) fn add(&self, signal: i32) -> io::Result<()> {
        let mut signals = self.signals.lock().unwrap_or_else(PoisonError::into_inner);
        signals.push(signal);
        let set = signal_set(&signals);
        block(&set)?;
        // SAFETY: `set` is initialized, and the descriptor is a signalfd, whose set is replaced.
        match unsafe { libc::signalfd(self.fd.as_raw_fd(), &set, 0) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }

    /// Returns a handle that cancels waits when a signal arrives.
    pub(crate) fn cancel(&self) -> Cancel {
        Cancel::when_readable(Arc::clone(&self.fd))
    }

    /// Returns the next signal, without blocking.
    pub(crate) fn next(&self) -> Option<ReceivedSignal> {
        // `struct signalfd_siginfo`: the number is at 0, the code at 8.
        let mut info = [0u8; size_of::<libc::signalfd_siginfo>()];
        loop {
            match rustix::io::read(&*self.fd, &mut info) {
                Ok(length) if length == info.len() => break,
                Err(rustix::io::Errno::INTR) => {}
                Ok(_) | Err(_) => return None,
            }
        }
        let field =
            |at: usize| i32::from_ne_bytes([info[at], info[at + 1], info[at + 2], info[at + 3]]);
        Some(ReceivedSignal {
            number: field(0),
            from_terminal: field(8) == libc::SI_KERNEL,
        })
    }
}

impl AsFd for SignalQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn signal_set(signals: &[i32]) -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: `sigemptyset` initializes the set; the numbers are valid signals.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in signals {
            libc::sigaddset(set.as_mut_ptr(), *signal);
        }
        set.assume_init()
    }
}

fn block(set: &libc::sigset_t) -> io::Result<()> {
    // SAFETY: `set` is initialized; blocking a signal runs no code.
    match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, set, std::ptr::null_mut()) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}
