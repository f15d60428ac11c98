//! System calls that no safe crate offers: fork, ignoring a signal, mapping memory ahead. How a child is started is in `spawn.rs`.

#![allow(
    unsafe_code,
    reason = "fork, signal dispositions and the heap's end have no safe form; each block says why it is sound"
)]

use std::io;

/// Which side of a fork this is.
pub(crate) enum Forked {
    /// The new process.
    Child,
    /// The old one.
    Parent,
}

/// Makes a copy of this process. Must be called while there is one thread only (C4).
pub(crate) fn fork() -> io::Result<Forked> {
    // SAFETY: the caller has not started any thread yet, so no lock of the allocator or of the
    // standard library can be held by a thread that does not exist in the copy.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Forked::Child),
        _ => Ok(Forked::Parent),
    }
}

/// Lets this process use a terminal of which another group is in the foreground.
///
/// Only needed for `tcsetpgrp` (C19): everything else that this signal guards is left to the child,
/// which gets the usual disposition back.
pub(crate) fn ignore_background_output_signal() {
    // SAFETY: setting a signal to be ignored runs no code of ours.
    unsafe { libc::signal(libc::SIGTTOU, libc::SIG_IGN) };
}

/// Maps the memory that reading the arguments takes, in two calls. Page by page it would be a good part of the time of a
/// command that is over at once. A kernel that cannot (before 5.14) does it page by page.
pub(crate) fn have_memory_ready() {
    /// Less than the kernel maps for a stack at once, and about as much as is used.
    const STACK: usize = 96 << 10;
    const PAGE: usize = 4096;
    let heap = Box::new(0u8);
    let here = 0u8;
    let (heap, stack) = (
        std::ptr::from_ref::<u8>(&*heap) as usize,
        std::ptr::from_ref::<u8>(&here) as usize,
    );
    // SAFETY: asks for the heap's end, and changes nothing.
    let heap_end = unsafe { libc::sbrk(0) } as usize;
    let whole = |from: usize, to: usize| (from / PAGE * PAGE, to / PAGE * PAGE);
    for (from, to) in [whole(heap, heap_end), whole(stack - STACK, stack)] {
        if from < to {
            // SAFETY: mapped memory keeps what is in it; what is not mapped is an error, which is no matter.
            unsafe {
                libc::madvise(
                    from as *mut libc::c_void,
                    to - from,
                    libc::MADV_POPULATE_WRITE,
                )
            };
        }
    }
}
