//! Starts a child that borrows this process's memory until it has become another program.
//!
//! The standard library copies the process first, because of what has to be done before exec here. For a command that
//! is over at once, copying takes longer than everything else the supervisor does.

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

/// The signals for which a supervisor has handlers. A child must not run them: they would act on what it borrows.
pub(super) const HANDLED: [c_int; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGCHLD];

/// What the child's stack needs for all but the words: the search along `PATH` has the longest frame.
const STACK_BYTES: usize = 64 << 10;

/// A command and its environment, as exec wants them.
pub(super) struct Program {
    words: Vec<CString>,
    environment: Vec<CString>,
}

impl Program {
    /// The first word is what is looked for along `PATH`.
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

/// What a child does before it is another program.
#[derive(Clone, Copy)]
pub(super) struct BeforeExec {
    /// Ends the child when its parent dies (C4).
    pub(super) dies_with: Option<Pid>,
    /// Makes its group the foreground group of the terminal on this descriptor (C19).
    pub(super) terminal: Option<c_int>,
}

/// What the child finds in the memory that it borrows, and where it leaves why it failed.
struct ChildSetup {
    words: *const *const c_char,
    environment: *const *const c_char,
    steps: BeforeExec,
    error: c_int,
}

/// Starts a child as the leader of its own group. Returns when it runs, or with the reason why it does not.
pub(super) fn spawn(program: &Program, steps: BeforeExec) -> io::Result<Pid> {
    let words = pointers(&program.words);
    let environment = pointers(&program.environment);
    let mut birth = ChildSetup {
        words: words.as_ptr(),
        environment: environment.as_ptr(),
        steps,
        error: 0,
    };
    // A script without `#!` is given to the shell, with a copy of the words on the stack. Aligned as a stack must be.
    let height = (STACK_BYTES + size_of_val(&words[..])) / size_of::<u128>();
    let mut stack: Vec<MaybeUninit<u128>> = Vec::with_capacity(height);
    // SAFETY: the child runs on a stack of its own, which is aligned and grows downwards from the end of its memory.
    // This thread stands still until the child has become another program or has ended (CLONE_VFORK), so everything
    // that `birth` points to stays in place and nobody else touches it. All signals are held back meanwhile: a handler of
    // ours would run in the child.
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

/// The addresses of the strings, with the null at the end that exec looks for.
fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    let all = strings.iter().map(|one| one.as_ptr());
    all.chain([ptr::null()]).collect()
}

/// The child's side. Whatever it returns with, it has failed.
extern "C" fn become_program(birth: *mut c_void) -> c_int {
    // SAFETY: `spawn` passes its own `ChildSetup` and waits. Only async-signal-safe calls follow, and nothing allocates;
    // signal dispositions are the child's own (no CLONE_SIGHAND).
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
/// Only for a child before exec.
unsafe fn prepare(steps: BeforeExec) -> Result<(), c_int> {
    // SAFETY: as the caller's.
    unsafe {
        let errno = || *libc::__errno_location();
        if libc::setpgid(0, 0) != 0 {
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
            // A terminal that is gone is no reason not to run.
            libc::signal(libc::SIGTTOU, libc::SIG_IGN);
            libc::tcsetpgrp(terminal, libc::getpid());
        }
        // The runtime ignores SIGPIPE, which a program would inherit.
        for signal in HANDLED.into_iter().chain([libc::SIGTTOU, libc::SIGPIPE]) {
            libc::signal(signal, libc::SIG_DFL);
        }
        let mut none = MaybeUninit::uninit();
        libc::sigemptyset(none.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), ptr::null_mut());
    }
    Ok(())
}
