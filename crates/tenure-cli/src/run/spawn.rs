//! Process creation with `clone(CLONE_VM | CLONE_VFORK)`: the child shares the memory until `exec`.
//!
//! The standard library would fork, because of the steps before `exec`. For a short command,
//! copying the page tables takes longer than everything else that the supervisor does.

#![allow(
    unsafe_code,
    reason = "the moment between clone and exec has no safe form; each block says why it is sound"
)]

use std::collections::BTreeMap;
use std::ffi::{CString, OsString, c_char, c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStringExt;
use std::ptr;

use rustix::process::{Pid, WaitOptions, waitpid};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};

/// Signals with handlers in the supervisor. The child must not run them: they would act on the
/// shared memory.
pub(super) const HANDLED: [c_int; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGCHLD];

/// Signals whose dispositions the child gets back as they were when `tenure` started. The Rust
/// runtime ignores SIGPIPE from the start.
pub(super) const RESTORED: [c_int; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, libc::SIGTTOU];

/// Stack of the child, without the copy of the arguments. The search along `PATH` has the largest
/// frame.
const STACK_BYTES: usize = 64 << 10;

/// A command and its environment in the form of `exec`.
pub(super) struct Program {
    words: Vec<CString>,
    environment: Vec<CString>,
}

impl Program {
    /// Creates a program. The first word is searched along `PATH`.
    pub(super) fn new(
        words: Vec<OsString>,
        environment: BTreeMap<OsString, OsString>,
    ) -> io::Result<Program> {
        let words = words.into_iter().map(|word| CString::new(word.into_vec()));
        let environment = environment.into_iter().map(|(name, value)| {
            let mut variable = name.into_vec();
            variable.push(b'=');
            variable.extend(value.into_vec());
            CString::new(variable)
        });
        let program = Program {
            words: words.collect::<Result<_, _>>()?,
            environment: environment.collect::<Result<_, _>>()?,
        };
        match program.words.is_empty() {
            true => Err(io::ErrorKind::InvalidInput.into()),
            false => Ok(program),
        }
    }
}

/// Steps of the child before `exec`.
#[derive(Clone, Copy)]
pub(super) struct BeforeExec {
    /// Kills the child when this parent dies: C4 (keeper and process group).
    pub(super) dies_with: Option<Pid>,
    /// The group that the child joins; otherwise it leads its own.
    pub(super) joins: Option<Pid>,
    /// Signals that were ignored when `tenure` started, as a bit set. The child ignores them, too.
    pub(super) ignored: u64,
    /// Makes the child's group the foreground group of the terminal on this descriptor: C19 (job
    /// control on terminals).
    pub(super) terminal: Option<c_int>,
}

/// Data of the child in the shared memory, and the place for its error.
struct ChildSetup {
    words: *const *const c_char,
    environment: *const *const c_char,
    steps: BeforeExec,
    error: c_int,
}

/// Starts a child in its process group. Returns after `exec`, or with the reason
/// why it failed.
pub(super) fn spawn(program: &Program, steps: BeforeExec) -> io::Result<Pid> {
    let words = pointers(&program.words);
    let environment = pointers(&program.environment);
    let mut birth = ChildSetup {
        words: words.as_ptr(),
        environment: environment.as_ptr(),
        steps,
        error: 0,
    };
    // `execvpe` passes a script without `#!` to the shell, with a copy of the arguments on the
    // stack. `u128` gives the alignment that a stack needs.
    let height = (STACK_BYTES + size_of_val(&words[..])) / size_of::<u128>();
    let mut stack: Vec<MaybeUninit<u128>> = Vec::with_capacity(height);
    // SAFETY: the child runs on its own stack, which is aligned and grows downwards from the end of
    // its memory. This thread is suspended until the child has called `exec` or ended
    // (CLONE_VFORK), so everything that `birth` points to stays valid and unshared. All signals are
    // blocked meanwhile: a handler would run in the child.
    let (pid, failed) = unsafe {
        let mut all = MaybeUninit::uninit();
        let mut before = MaybeUninit::uninit();
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        let pid = libc::clone(
            become_program,
            stack.as_mut_ptr().add(height).cast(),
            libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD,
            ptr::from_mut(&mut birth).cast(),
        );
        let failed = io::Error::last_os_error();
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut());
        (pid, failed)
    };
    if pid < 0 {
        return Err(failed);
    }
    let pid = Pid::from_raw(pid).ok_or(failed)?;
    match birth.error {
        0 => Ok(pid),
        error => {
            waitpid(Some(pid), WaitOptions::empty())?;
            Err(io::Error::from_raw_os_error(error))
        }
    }
}

/// Returns the addresses of the strings with the terminating null of `exec`.
fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    let all = strings.iter().map(|one| one.as_ptr());
    all.chain([ptr::null()]).collect()
}

/// Runs in the child. It returns only after a failure.
extern "C" fn become_program(birth: *mut c_void) -> c_int {
    // SAFETY: `spawn` passes its own `ChildSetup` and waits. Only async-signal-safe calls follow,
    // and nothing allocates. Signal dispositions are the child's own (no CLONE_SIGHAND).
    unsafe {
        let birth = &mut *birth.cast::<ChildSetup>();
        if let Err(error) = prepare(birth.steps) {
            birth.error = error;
            return 127;
        }
        libc::execvpe(*birth.words, birth.words, birth.environment);
        birth.error = *libc::__errno_location();
    }
    127
}

/// # Safety
///
/// Must be called only in a child before `exec`.
unsafe fn prepare(steps: BeforeExec) -> Result<(), c_int> {
    // SAFETY: the caller's contract.
    unsafe {
        let errno = || *libc::__errno_location();
        let group = steps.joins.map_or(0, |group| group.as_raw_nonzero().get());
        if libc::setpgid(0, group) != 0 {
            return Err(errno());
        }
        if let Some(parent) = steps.dies_with {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(errno());
            }
            // The parent may have died before the call above.
            if libc::getppid() != parent.as_raw_nonzero().get() {
                libc::_exit(128 + libc::SIGKILL);
            }
        }
        if let Some(terminal) = steps.terminal {
            // A terminal that is gone must not prevent the start.
            libc::signal(libc::SIGTTOU, libc::SIG_IGN);
            libc::tcsetpgrp(terminal, libc::getpid());
        }
        // The Rust runtime ignores SIGPIPE, and `exec` would pass that on.
        for signal in HANDLED.into_iter().chain([libc::SIGTTOU, libc::SIGPIPE]) {
            let disposition = match steps.ignored & 1 << signal {
                0 => libc::SIG_DFL,
                _ => libc::SIG_IGN,
            };
            libc::signal(signal, disposition);
        }
        let mut none = MaybeUninit::uninit();
        libc::sigemptyset(none.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), ptr::null_mut());
    }
    Ok(())
}
