//! Messages on standard error that never block or fail their sender.
//!
//! Standard error may be a full pipe, a stopped terminal or a closed socket. A process that ends a
//! command after a lock loss must not wait for it, so a thread of its own writes the lines. The
//! thread exists only while there are lines.

use std::collections::VecDeque;
use std::fmt::Display;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

/// Further lines are dropped while so many wait for a reader.
const MOST_WAITING: usize = 64;
/// Time limit for the last lines of a process.
const AT_THE_END: Duration = Duration::from_secs(1);
/// Time limit for lines that must precede the output of another process.
const IN_BETWEEN: Duration = Duration::from_millis(100);

struct MessageQueue {
    lines: VecDeque<Vec<u8>>,
    has_thread: bool,
}

static QUEUE: Mutex<MessageQueue> = Mutex::new(MessageQueue {
    lines: VecDeque::new(),
    has_thread: false,
});
static WRITTEN: Condvar = Condvar::new();

/// Prints a line with the name of the program in front.
pub(crate) fn say(text: impl Display) {
    print(format!("tenure: {text}\n"));
}

/// Prints text as it is.
pub(crate) fn print(text: impl Into<String>) {
    let mut queue = lock();
    if queue.lines.len() >= MOST_WAITING {
        return;
    }
    queue.lines.push_back(text.into().into_bytes());
    if !queue.has_thread {
        let thread = std::thread::Builder::new().name("tenure-stderr".into());
        queue.has_thread = thread.spawn(write_lines).is_ok();
        if !queue.has_thread {
            queue.lines.clear();
        }
    }
}

/// Waits for the reader of the last lines, but not without limit. Call it before the process ends.
pub(crate) fn flush() {
    flush_within(AT_THE_END);
}

/// Waits a moment, so that the lines come before what another process prints next.
pub(crate) fn flush_in_between() {
    flush_within(IN_BETWEEN);
}

fn flush_within(limit: Duration) {
    let until = Instant::now() + limit;
    let mut queue = lock();
    while queue.has_thread {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        queue = WRITTEN
            .wait_timeout(queue, left)
            .unwrap_or_else(PoisonError::into_inner)
            .0;
    }
}

fn write_lines() {
    loop {
        let line = {
            let mut queue = lock();
            match queue.lines.pop_front() {
                Some(line) => line,
                None => {
                    queue.has_thread = false;
                    WRITTEN.notify_all();
                    return;
                }
            }
        };
        write(&line);
    }
}

/// Writes all bytes. A reader that is gone is no error.
fn write(mut bytes: &[u8]) {
    let stderr = rustix::stdio::stderr();
    while !bytes.is_empty() {
        match rustix::io::write(stderr, bytes) {
            Ok(0) => return,
            Ok(length) => bytes = &bytes[length..],
            Err(Errno::INTR) => {}
            // Another process made the shared pipe non-blocking.
            Err(Errno::AGAIN) => {
                let _ = poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], None);
            }
            Err(_) => return,
        }
    }
}

fn lock() -> MutexGuard<'static, MessageQueue> {
    QUEUE.lock().unwrap_or_else(PoisonError::into_inner)
}
