//! Fencing numbers of a directory: a counter that grows with every acquisition and never repeats
//! (K39 (fencing number per acquisition), K40 (fence counter file)).
//!
//! A holder takes its number after it got the lock, never before. The counter is rewritten in place
//! under `flock`; after a rename, two processes could hold locks on two different files.

use std::ffi::OsStr;
use std::fs::File;
use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, fstat, openat};
use rustix::io::Errno;

use crate::deadline::{Deadline, Wait};
use crate::dir::{Dir, FileId};
use crate::error::{Class, Error, Result};
use crate::publish::{Draft, Options};
use crate::record::{read_at_most, try_flock};

/// Name of the counter file in the directory of the lock.
pub(crate) const COUNTER: &str = ".tenure-fence";

/// How long a caller waits for the counter, even if its deadline has passed: another process uses it
/// for one write and one sync.
const GRACE: Duration = Duration::from_millis(500);
/// Poll intervals of a caller that waits for the counter.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// Size of the counter file: 20 digits and a newline.
const LENGTH: usize = 21;

/// Takes the next number. Creates the counter with `options` if it is missing.
///
/// The counter is always synced, whatever `options` say: a repeated number would be worse than
/// none.
/// Waits for other processes that use the counter, at most as long as the caller waits for its lock,
/// but at least [`GRACE`].
///
/// # Errors
///
/// `Malformed` if the counter file is damaged or all numbers are used; `Timeout`, or `Held` for a
/// caller that does not wait, if another process keeps the counter locked.
pub(crate) fn next(dir: &Dir, options: Options, wait_deadline: &Deadline) -> Result<NonZeroU64> {
    let name = OsStr::new(COUNTER);
    loop {
        let file = match open(dir)? {
            Some(file) => file,
            None => {
                create(dir, options)?;
                continue;
            }
        };
        lock(&file, dir, wait_deadline)?;
        let failed = |errno| Error::io(dir.join(name), "cannot use the fence counter", errno);
        let id = FileId::of(&fstat(&file).map_err(failed)?);
        // Tenure never removes the counter. If a user replaced it, start again with the new file.
        if !dir.leads_to(name, id).map_err(failed)? {
            continue;
        }
        let last = parse(&read_at_most(&file, LENGTH + 1).map_err(failed)?)
            .ok_or_else(|| malformed(dir, "is not 20 digits and a newline"))?;
        let next = last
            .checked_add(1)
            .and_then(NonZeroU64::new)
            .ok_or_else(|| malformed(dir, "has used up all numbers"))?;
        write(&file, next.get()).map_err(failed)?;
        return Ok(next);
    }
}

/// Locks the counter. Polls, because a thread that blocks in `flock` obeys neither deadline nor
/// cancellation.
fn lock(file: &File, dir: &Dir, wait_deadline: &Deadline) -> Result<()> {
    let name = OsStr::new(COUNTER);
    let least = Instant::now() + GRACE;
    let mut pause = SHORTEST_PAUSE;
    loop {
        if try_flock(file, dir, name)? {
            return Ok(());
        }
        let is_over =
            wait_deadline.is_cancelled() || (wait_deadline.is_over() && Instant::now() >= least);
        if is_over {
            let what = "another process keeps the fence counter locked";
            return Err(Error::new(wait_deadline.class(), dir.join(name), what)
                .next("find it with: fuser -v, or lslocks"));
        }
        wait_deadline.pause(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Returns the last number taken, or `None` if there is no counter.
pub(crate) fn last(dir: &Dir) -> Result<Option<u64>> {
    let Some(file) = open(dir)? else {
        return Ok(None);
    };
    if !dir.is_local() {
        // Locks may be mandatory there: without our own, the read may fail.
        lock(&file, dir, &Deadline::new(Wait::No, None))?;
    }
    let bytes = read_at_most(&file, LENGTH + 1)
        .map_err(|errno| Error::io(dir.join(COUNTER), "cannot read the fence counter", errno))?;
    parse(&bytes)
        .map(Some)
        .ok_or_else(|| malformed(dir, "is not 20 digits and a newline"))
}

fn open(dir: &Dir) -> Result<Option<File>> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    match openat(dir, COUNTER, flags, Mode::empty()) {
        Ok(fd) => Ok(Some(fd.into())),
        Err(Errno::NOENT) => Ok(None),
        Err(Errno::LOOP | Errno::ISDIR | Errno::NXIO) => Err(malformed(dir, "is not a file")),
        Err(errno) => Err(Error::io(
            dir.join(COUNTER),
            "cannot open the fence counter",
            errno,
        )),
    }
}

fn create(dir: &Dir, options: Options) -> Result<()> {
    let mut draft = Draft::new(dir, OsStr::new(COUNTER), options);
    draft.write(format!("{:020}\n", 0).as_bytes())?;
    draft.publish().map(drop)
}

fn write(file: &File, number: u64) -> rustix::io::Result<()> {
    let text = format!("{number:020}\n");
    if rustix::io::pwrite(file, text.as_bytes(), 0)? != LENGTH {
        return Err(Errno::IO);
    }
    rustix::fs::fdatasync(file)
}

fn parse(bytes: &[u8]) -> Option<u64> {
    let digits = bytes.strip_suffix(b"\n")?;
    if digits.len() != LENGTH - 1 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn malformed(dir: &Dir, what: &str) -> Error {
    Error::new(
        Class::Malformed,
        dir.join(COUNTER),
        format!("the fence counter {what}"),
    )
    .next("restore it from a backup, or write a number above all that were ever used")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// K39, K40: numbers grow and never repeat, also with concurrent takers.
    #[test]
    fn numbers_grow_and_never_repeat() {
        let temp = tempfile::tempdir().unwrap();
        let mut numbers: Vec<u64> = std::thread::scope(|scope| {
            let takers: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        let dir = Dir::open(temp.path()).unwrap();
                        (0..25)
                            .map(|_| {
                                next(
                                    &dir,
                                    Options::default(),
                                    &Deadline::new(Wait::Forever, None),
                                )
                                .unwrap()
                                .get()
                            })
                            .collect::<Vec<_>>()
                    })
                })
                .collect();
            takers
                .into_iter()
                .flat_map(|taker| taker.join().unwrap())
                .collect()
        });
        numbers.sort_unstable();
        assert_eq!(numbers, (1..=100).collect::<Vec<_>>());
        let dir = Dir::open(temp.path()).unwrap();
        assert_eq!(last(&dir).unwrap(), Some(100));
        let text = std::fs::read_to_string(temp.path().join(COUNTER)).unwrap();
        assert_eq!(text, "00000000000000000100\n");
    }

    /// K40: a damaged counter is an error and is not reset.
    #[test]
    fn a_damaged_counter_is_an_error() {
        let temp = tempfile::tempdir().unwrap();
        let dir = Dir::open(temp.path()).unwrap();
        let path = temp.path().join(COUNTER);
        for text in [
            "",
            "7\n",
            "00000000000000000007",
            "0000000000000000000x\n",
            "99999999999999999999\n",
        ] {
            std::fs::write(&path, text).unwrap();
            let error = next(
                &dir,
                Options::default(),
                &Deadline::new(Wait::Forever, None),
            )
            .unwrap_err();
            assert_eq!(error.class(), Class::Malformed, "{text:?}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
    }
}
