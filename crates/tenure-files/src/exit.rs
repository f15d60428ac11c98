//! Release at process exit: held locks are released and reclaim guards removed, at a normal exit,
//! and on signals if the program asks for it (S27 (release on exit), K37 (release on signals)).
//! Sidecar locks with `retain_on_exit` stay.
//!
//! The crate installs no signal handler unless the program calls [`release_on_signals`]. After
//! SIGKILL nothing runs; other processes then prove the holder's death (see
//! [`liveness`](crate::liveness)).

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError, Weak};
use std::thread;

use rustix::event::{EventfdFlags, eventfd};

use crate::hold::FileHolding;
use crate::process::PerProcess;

/// A function that runs when the process exits.
pub(crate) type ExitHook = fn();

static HOOKS: Mutex<Vec<ExitHook>> = Mutex::new(Vec::new());

/// Registers `hook` for a normal exit. Registering the same hook again has no effect.
pub(crate) fn at_exit(hook: ExitHook) {
    static REGISTERED: Once = Once::new();
    let mut hooks = HOOKS.lock().unwrap_or_else(PoisonError::into_inner);
    if !hooks.iter().any(|&known| std::ptr::fn_addr_eq(known, hook)) {
        hooks.push(hook);
    }
    drop(hooks);
    REGISTERED.call_once(|| {
        #[allow(
            unsafe_code,
            reason = "std has no exit hook; the handler below is a plain C function"
        )]
        // SAFETY: `run_hooks` is `extern "C"`, takes nothing and never unwinds.
        unsafe {
            libc::atexit(run_hooks);
        }
    });
}

extern "C" fn run_hooks() {
    // The exiting thread may already hold this mutex: never block here.
    let hooks = HOOKS
        .try_lock()
        .map(|hooks| hooks.clone())
        .unwrap_or_default();
    for hook in hooks {
        let _ = std::panic::catch_unwind(hook);
    }
}

/// Holds without a table of their own (exclusive and upload locks), for the exit hook.
static HOLDS: PerProcess<Mutex<Vec<Weak<FileHolding>>>> = PerProcess::new();

/// Releases `hold` when the process exits, if it is still held then.
pub(crate) fn release_at_exit(hold: &Arc<FileHolding>) {
    at_exit(release_holds);
    let mut holds = HOLDS.get().lock().unwrap_or_else(PoisonError::into_inner);
    holds.retain(|known| known.strong_count() > 0);
    holds.push(Arc::downgrade(hold));
}

/// Does not block: the exiting thread may hold the mutex.
fn release_holds() {
    if let Ok(holds) = HOLDS.get().try_lock() {
        for hold in holds.iter().filter_map(Weak::upgrade) {
            let _ = hold.release();
        }
    }
}

/// The signals that release locks (K37).
const SIGNALS: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// The eventfd that the signal handler writes to; -1 before `release_on_signals`.
static BELL: AtomicI32 = AtomicI32::new(-1);

/// The pid of the process that called `release_on_signals`. A forked child inherits the handler and
/// the eventfd, but did not ask for the release: there the default action applies.
static ASKED: AtomicI32 = AtomicI32::new(0);

/// Releases all held locks on SIGINT, SIGTERM and SIGHUP before the signal ends the
/// process.
///
/// Signals that the program ignores or handles itself are not changed. Starts one thread. Further
/// calls have no effect.
///
/// # Errors
///
/// Returns the OS error if no eventfd, thread or signal handler can be created.
pub fn release_on_signals() -> std::io::Result<()> {
    static INSTALLED: Mutex<bool> = Mutex::new(false);
    let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    if *installed {
        return Ok(());
    }
    let bell = eventfd(0, EventfdFlags::CLOEXEC)?;
    BELL.store(bell.as_raw_fd(), Ordering::SeqCst);
    ASKED.store(rustix::process::getpid().as_raw_pid(), Ordering::SeqCst);
    thread::Builder::new()
        .name("tenure-exit".into())
        .spawn(move || answer(&bell))?;
    for signal in SIGNALS {
        install(signal)?;
    }
    *installed = true;
    Ok(())
}

#[allow(unsafe_code, reason = "sigaction has no safe form in std or rustix")]
fn install(signal: i32) -> std::io::Result<()> {
    // SAFETY: `sigaction` structs are plain data for which all zeroes are valid; the handler is
    // async-signal-safe (one `write` to a descriptor that is never closed).
    unsafe {
        let mut current: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(signal, std::ptr::null(), &mut current) != 0 {
            return Err(std::io::Error::last_os_error());
        }
        if current.sa_sigaction != libc::SIG_DFL {
            return Ok(());
        }
        let mut ours: libc::sigaction = std::mem::zeroed();
        ours.sa_sigaction = ring as extern "C" fn(i32) as usize;
        ours.sa_flags = libc::SA_RESTART;
        if libc::sigaction(signal, &ours, std::ptr::null_mut()) != 0 {
            return Err(std::io::Error::last_os_error());
        }
    }
    Ok(())
}

/// The signal handler: writes the signal number to the eventfd and returns.
#[allow(
    unsafe_code,
    reason = "a signal handler may only make raw, async-signal-safe calls"
)]
extern "C" fn ring(signal: i32) {
    let word = u64::try_from(signal).unwrap_or(0);
    // SAFETY: all of these calls are async-signal-safe; the eight bytes are on this stack; errno is
    // restored, so that the interrupted code sees its own.
    unsafe {
        if libc::getpid() != ASKED.load(Ordering::SeqCst) {
            end_by(signal);
            return;
        }
        let errno = *libc::__errno_location();
        libc::write(BELL.load(Ordering::SeqCst), (&raw const word).cast(), 8);
        *libc::__errno_location() = errno;
    }
}

/// Waits for a signal, runs the exit hooks, and then applies the default action of the signal.
fn answer(bell: &OwnedFd) {
    let mut word = [0; 8];
    while rustix::io::read(bell, &mut word).is_err() {}
    run_hooks();
    // An eventfd adds up its writes, so after several signals the sum may be no signal number. Any
    // of them ends the process, so SIGTERM is used then.
    let number = i32::try_from(u64::from_ne_bytes(word)).unwrap_or(libc::SIGTERM);
    let signal = if SIGNALS.contains(&number) {
        number
    } else {
        libc::SIGTERM
    };
    #[allow(unsafe_code, reason = "see `end_by`")]
    // SAFETY: see `end_by`.
    unsafe {
        end_by(signal);
    }
}

/// Ends the process by the default action of `signal`. Async-signal-safe.
#[allow(
    unsafe_code,
    reason = "signal and kill have no safe form for the default action"
)]
unsafe fn end_by(signal: i32) {
    // SAFETY: plain system calls with valid arguments.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::kill(libc::getpid(), signal);
    }
}
