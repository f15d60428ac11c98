//! Processes: do they run, when did they start, and state that a `fork` must not inherit.
//!
//! A pid alone is not an identity; the start time in clock ticks tells two users of one number
//! apart (K12). Everything here reads `/proc` and sends signal 0, nothing else.

use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Once, OnceLock};

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

/// The largest pid Linux can be set to; a larger number in a record is not a pid (K15).
pub const PID_MAX: u32 = 1 << 22;

/// A process id in a possible range, from a number in a record. Never truncates (K15).
pub fn valid_pid(number: i64) -> Option<u32> {
    u32::try_from(number)
        .ok()
        .filter(|pid| (1..=PID_MAX).contains(pid))
}

/// This process.
pub fn own_pid() -> u32 {
    std::process::id()
}

/// What the kernel says about a process id of our own PID namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It runs, also when we may not signal it (K16).
    Running,
    /// It runs under this number, but began at another time: the number was reused.
    Reused,
    /// There is no such process, or nothing of it runs any more (K13).
    Gone,
}

/// Asks the kernel about `pid`, which must have passed [`valid_pid`]; `start` is the start time
/// that the record claims (K12, K13, K16).
pub fn presence(pid: u32, start: Option<u64>) -> Presence {
    let Some(number) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
        return Presence::Running; // Not a pid: nothing may be concluded from it (K3).
    };
    // Any other answer, EPERM above all, means that there is such a process (K16).
    if test_kill_process(number) == Err(Errno::SRCH) {
        return Presence::Gone;
    }
    if !proc_is_ours() {
        return Presence::Running;
    }
    let Some(stat) = Stat::of(pid) else {
        return Presence::Running;
    };
    if start.is_some_and(|start| start != stat.start) {
        return Presence::Reused;
    }
    if stat.has_ended() && !has_other_threads(pid) {
        return Presence::Gone;
    }
    Presence::Running
}

/// The start time of a process, if it can be read.
pub fn start_time(pid: u32) -> Option<u64> {
    Stat::of(pid).map(|stat| stat.start)
}

/// The parts of `/proc/<pid>/stat` that matter here.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    state: u8,
    start: u64,
}

impl Stat {
    fn of(pid: u32) -> Option<Stat> {
        Stat::parse(&fs::read(format!("/proc/{pid}/stat")).ok()?)
    }

    /// The command name may hold blanks and parentheses, so fields are counted from the last `)`
    /// (K7).
    fn parse(stat: &[u8]) -> Option<Stat> {
        let end_of_name = stat.iter().rposition(|&byte| byte == b')')?;
        let rest = std::str::from_utf8(&stat[end_of_name + 1..]).ok()?;
        let mut fields = rest.split_ascii_whitespace(); // The first of them is field 3.
        let state = *fields.next()?.as_bytes().first()?;
        let start = fields.nth(22 - 4)?.parse().ok()?;
        Some(Stat { state, start })
    }

    fn has_ended(&self) -> bool {
        matches!(self.state, b'Z' | b'X' | b'x')
    }
}

/// A main thread that ended shows as a zombie while other threads still work (K13).
fn has_other_threads(pid: u32) -> bool {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return false;
    };
    tasks
        .flatten()
        .any(|task| task.file_name().to_str() != Some(&pid.to_string()))
}

/// Whether `/proc` shows our own PID namespace. A container that mounts its host's `/proc` would
/// otherwise compare start times of strangers.
fn proc_is_ours() -> bool {
    fs::read_link("/proc/self")
        .is_ok_and(|link| link.to_str() == Some(own_pid().to_string().as_str()))
}

/// Which process this is, told apart from its parent also where both have the same number: process
/// 1 of a container may fork process 1 of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Incarnation {
    pid: u32,
    forks: u32,
}

static FORKS: AtomicU32 = AtomicU32::new(0);

impl Incarnation {
    pub(crate) fn current() -> Incarnation {
        static COUNTING: Once = Once::new();
        COUNTING.call_once(|| {
            #[allow(unsafe_code, reason = "std cannot tell that the process was forked")]
            // SAFETY: the handler only adds to an atomic, which is allowed after a fork.
            unsafe {
                libc::pthread_atfork(None, None, Some(count_fork));
            }
        });
        Incarnation {
            pid: own_pid(),
            forks: FORKS.load(Ordering::Relaxed),
        }
    }
}

extern "C" fn count_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// A value that every process makes for itself. After a `fork` the child gets a fresh one: the
/// parent's might be locked by a thread that does not exist in the child.
pub(crate) struct PerProcess<T> {
    first: OnceLock<Generation<T>>,
}

struct Generation<T> {
    process: Incarnation,
    value: T,
    after_fork: OnceLock<Box<Generation<T>>>,
}

impl<T: Default> PerProcess<T> {
    pub(crate) const fn new() -> PerProcess<T> {
        PerProcess {
            first: OnceLock::new(),
        }
    }

    pub(crate) fn get(&self) -> &T {
        let process = Incarnation::current();
        let fresh = || Generation {
            process,
            value: T::default(),
            after_fork: OnceLock::new(),
        };
        let mut generation = self.first.get_or_init(fresh);
        while generation.process != process {
            generation = generation.after_fork.get_or_init(|| Box::new(fresh()));
        }
        &generation.value
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    /// K7: a command name with blanks and parentheses.
    #[test]
    fn fields_are_counted_after_the_last_parenthesis() {
        let stat = b"77 (a) S 1 (b) Z) R 1 77 77 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 918273 9 9";
        assert_eq!(
            Stat::parse(stat),
            Some(Stat {
                state: b'R',
                start: 918_273
            })
        );
        assert_eq!(Stat::parse(b"77 (cut"), None);
        assert_eq!(Stat::parse(b"77 (cut) R 1 2"), None);
    }

    /// K12: our own start time is the one in the file, and another one means a reused number.
    #[test]
    fn another_start_time_means_the_number_was_reused() {
        let start = start_time(own_pid()).unwrap();
        assert_eq!(presence(own_pid(), Some(start)), Presence::Running);
        assert_eq!(presence(own_pid(), None), Presence::Running);
        assert_eq!(presence(own_pid(), Some(start + 1)), Presence::Reused);
    }

    /// K12, K13: ended and reaped, and ended but not reaped, are both gone.
    #[test]
    fn a_zombie_without_threads_is_gone() {
        let mut child = Command::new("sh")
            .args(["-c", "read x"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let pid = child.id();
        assert_eq!(presence(pid, None), Presence::Running);
        let pidfd = rustix::process::pidfd_open(
            Pid::from_child(&child),
            rustix::process::PidfdFlags::empty(),
        )
        .unwrap();
        drop(child.stdin.take());
        let mut ended = [rustix::event::PollFd::new(
            &pidfd,
            rustix::event::PollFlags::IN,
        )];
        rustix::event::poll(&mut ended, None).unwrap();
        assert_eq!(presence(pid, None), Presence::Gone, "a zombie");
        child.wait().unwrap();
        assert_eq!(presence(pid, None), Presence::Gone, "reaped");
    }

    /// K15: numbers outside 1…2^22 are not pids, and are never cut to 32 bits.
    #[test]
    fn large_and_small_numbers_are_not_pids() {
        assert_eq!(valid_pid(1), Some(1));
        assert_eq!(valid_pid(4_194_304), Some(4_194_304));
        for number in [0, -1, 4_194_305, 4_294_967_297, i64::MAX, i64::MIN] {
            assert_eq!(valid_pid(number), None, "{number}");
        }
    }
}
