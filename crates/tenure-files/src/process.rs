//! Process checks through `/proc` and signal 0: whether a process runs, and when it started. Also
//! per-process state that a forked child must not inherit.
//!
//! A pid alone is not an identity. The start time in clock ticks distinguishes two processes that
//! used the same pid (K12 (ask the kernel for the process)).

use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Once, OnceLock};

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

/// Largest possible pid on Linux. A larger number in a record is not a pid (K15 (records without a
/// block)).
pub(crate) const PID_MAX: u32 = 1 << 22;

/// Returns `number` as a process id, or `None` if it is out of range. Never truncates (K15).
pub(crate) fn valid_pid(number: i64) -> Option<u32> {
    u32::try_from(number)
        .ok()
        .filter(|pid| (1..=PID_MAX).contains(pid))
}

/// Returns the pid of this process.
pub(crate) fn own_pid() -> u32 {
    std::process::id()
}

/// The state of a process id in our PID namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// The process runs, or we have no permission to signal it (K16 (permission denied means
    /// alive)).
    Running,
    /// Another process has this pid now: its start time differs.
    Reused,
    /// No such process, or a zombie without other threads (K13 (zombie processes)).
    Gone,
}

/// Returns the state of `pid`, which must have passed `valid_pid`; `start` is the start time from
/// the record (K12, K13, K16).
///
/// If `/proc` cannot be used, an existing process counts as running.
pub fn presence(pid: u32, start: Option<u64>) -> Presence {
    let Some(number) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
        return Presence::Running; // Not a pid: proves nothing (K3).
    };
    // Every other result, in particular EPERM, means that the process exists (K16).
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

/// Returns the start time of a process in clock ticks since boot, if it can be read. `/proc` must
/// show our PID namespace: elsewhere this number belongs to another process.
pub fn start_time(pid: u32) -> Option<u64> {
    proc_is_ours()
        .then(|| Stat::of(pid))
        .flatten()
        .map(|stat| stat.start)
}

/// Returns the start time of this process. `/proc/self` is this process in any `/proc`, also in one
/// that shows another PID namespace.
pub(crate) fn own_start_time() -> Option<u64> {
    Stat::parse(&fs::read("/proc/self/stat").ok()?).map(|stat| stat.start)
}

/// Inode number of the initial PID namespace (`PROC_PID_INIT_INO` in the Linux source).
const INITIAL_PID_NAMESPACE: u64 = 4_026_531_836;

/// Returns whether a process of another PID namespace may have this pid there, and this start time
/// if it is known.
///
/// The kernel lists the pids of a process in all its namespaces (`NSpid`), but only a judge in the
/// initial namespace sees every process. Elsewhere, or if `/proc` hides processes, the answer is
/// `true` (K3 (resolve doubt toward exclusion)).
pub(crate) fn may_run_in_another_namespace(
    pid: u32,
    start: Option<u64>,
    pidns: Option<u64>,
) -> bool {
    // With `hidepid`, process 1 is hidden from all who may not see every process.
    let sees_all = pidns == Some(INITIAL_PID_NAMESPACE)
        && proc_is_ours()
        && fs::read("/proc/1/status").is_ok();
    let Ok(processes) = fs::read_dir("/proc") else {
        return true;
    };
    if !sees_all {
        return true;
    }
    processes.flatten().any(|process| {
        let name = process.file_name();
        let Some(number) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else {
            return false;
        };
        let status = match fs::read_to_string(format!("/proc/{number}/status")) {
            Ok(status) => status,
            // It ended meanwhile, so it holds nothing.
            Err(error) if is_gone(&error) => return false,
            Err(_) => return true,
        };
        let has_pid = inner_pids(&status).any(|inner| inner == pid);
        has_pid && start.is_none_or(|start| Stat::of(number).is_none_or(|it| it.start == start))
    })
}

fn is_gone(error: &std::io::Error) -> bool {
    let errno = error.raw_os_error();
    errno == Some(libc::ENOENT) || errno == Some(libc::ESRCH)
}

/// Returns the pids of a process in the namespaces below ours: all but the first number of `NSpid`.
fn inner_pids(status: &str) -> impl Iterator<Item = u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let numbers = line.unwrap_or_default().split_ascii_whitespace().skip(1);
    numbers.filter_map(|number| number.parse().ok())
}

/// The fields of `/proc/<pid>/stat` used here.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    state: u8,
    start: u64,
}

impl Stat {
    fn of(pid: u32) -> Option<Stat> {
        Stat::parse(&fs::read(format!("/proc/{pid}/stat")).ok()?)
    }

    /// The command name may contain blanks and parentheses, so fields are counted from the last `)`
    /// (K7 (parse the process stat file)).
    fn parse(stat: &[u8]) -> Option<Stat> {
        let end_of_name = stat.iter().rposition(|&byte| byte == b')')?;
        let rest = std::str::from_utf8(&stat[end_of_name + 1..]).ok()?;
        let mut fields = rest.split_ascii_whitespace(); // The first of them is field 3.
        let state = *fields.next()?.as_bytes().first()?;
        // Field 22. Field 3 is consumed, so `nth(0)` is field 4.
        let start = fields.nth(22 - 4)?.parse().ok()?;
        Some(Stat { state, start })
    }

    fn has_ended(&self) -> bool {
        matches!(self.state, b'Z' | b'X' | b'x')
    }
}

/// Whether threads besides the main thread exist. A main thread that ended shows as a zombie while
/// other threads still work (K13).
fn has_other_threads(pid: u32) -> bool {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return false;
    };
    tasks
        .flatten()
        .any(|task| task.file_name().to_str() != Some(&pid.to_string()))
}

/// Whether `/proc` shows our PID namespace. In a container that mounts the host's `/proc`, the
/// start times would be those of other processes.
fn proc_is_ours() -> bool {
    fs::read_link("/proc/self")
        .is_ok_and(|link| link.to_str() == Some(own_pid().to_string().as_str()))
}

/// Identity of this process, distinct from its parent also if both have the same pid: process 1 of
/// a container may fork process 1 of another PID namespace.
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

/// A static value that each process initializes for itself. After a `fork` the child gets a new
/// one: the parent's may be locked by a thread that does not exist in the child.
pub(crate) struct PerProcess<T> {
    first: OnceLock<Generation<T>>,
}

/// The value of one process. A forked child appends its own to the list; the parent's stays
/// allocated.
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
    /// K15: only the numbers below our namespace count; ours was asked before.
    #[test]
    fn the_inner_pids_of_a_process_are_read() {
        let status = "Name:\tsleep\nNSpid:\t4711\t303\t7\nNSpgid:\t1\t9\n";
        assert_eq!(super::inner_pids(status).collect::<Vec<_>>(), [303, 7]);
        assert_eq!(super::inner_pids("NSpid:\t4711\n").count(), 0);
        assert_eq!(super::inner_pids("Name:\tx\n").count(), 0);
    }

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

    /// K12: our own start time matches the file, and a different one means a reused pid.
    #[test]
    fn another_start_time_means_the_number_was_reused() {
        let start = start_time(own_pid()).unwrap();
        assert_eq!(presence(own_pid(), Some(start)), Presence::Running);
        assert_eq!(presence(own_pid(), None), Presence::Running);
        assert_eq!(presence(own_pid(), Some(start + 1)), Presence::Reused);
    }

    /// K12, K13: a reaped process and a zombie are both gone.
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

    /// K15: numbers outside 1…2^22 are not pids, and are never truncated to 32 bits.
    #[test]
    fn large_and_small_numbers_are_not_pids() {
        assert_eq!(valid_pid(1), Some(1));
        assert_eq!(valid_pid(4_194_304), Some(4_194_304));
        for number in [0, -1, 4_194_305, 4_294_967_297, i64::MAX, i64::MIN] {
            assert_eq!(valid_pid(number), None, "{number}");
        }
    }
}
