//! Stand-in for the file locker of the original upload server: the steps that the upload-lock
//! protocol describes for it, including its weaknesses.

use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, test_kill_process};

static NEXT: AtomicU64 = AtomicU64::new(0);

/// The three times of the original's configuration.
#[derive(Clone, Copy)]
pub(crate) struct Times {
    pub(crate) acquire_timeout: Duration,
    pub(crate) holder_poll: Duration,
    pub(crate) acquirer_poll: Duration,
}

pub(crate) struct Locker {
    lock: PathBuf,
    stop: PathBuf,
    times: Times,
}

/// A lock that the original holds.
pub(crate) struct OriginalHeld {
    lock: PathBuf,
    stop: PathBuf,
    done: Arc<AtomicBool>,
    watch: Option<JoinHandle<()>>,
}

enum OriginalAttempt {
    Ours,
    Busy,
    Again,
}

impl Locker {
    pub(crate) fn new(dir: &Path, id: &str, times: Times) -> Locker {
        let path = |suffix| dir.join(format!("{id}.{suffix}"));
        Locker {
            lock: path("lock"),
            stop: path("stop"),
            times,
        }
    }

    /// Steps 1 to 3: try, ask, sleep, until the deadline.
    pub(crate) fn acquire(
        &self,
        on_stop: Arc<dyn Fn() + Send + Sync>,
    ) -> Result<OriginalHeld, &'static str> {
        let deadline = Instant::now() + self.times.acquire_timeout;
        loop {
            match self.attempt() {
                OriginalAttempt::Ours => return Ok(self.hold(on_stop)),
                OriginalAttempt::Again => continue,
                OriginalAttempt::Busy => {}
            }
            fs::File::create(&self.stop).expect("the request can be made");
            if Instant::now() + self.times.acquirer_poll > deadline {
                return Err("failed to acquire lock before timeout");
            }
            thread::sleep(self.times.acquirer_poll);
        }
    }

    /// Step 1: private file, link, compare. Step 2: read the pid, delete by name what looks dead.
    fn attempt(&self) -> OriginalAttempt {
        let private = self.private_name();
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&private)
            .expect("the private file can be made");
        writeln!(file, "{}", std::process::id()).expect("the pid can be written");
        match fs::hard_link(&private, &self.lock) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => panic!("link: {error}"),
            _ => {}
        }
        let ours = same_file(&private, &self.lock);
        fs::remove_file(&private).expect("the private file can be removed");
        match ours {
            Some(true) => return OriginalAttempt::Ours,
            Some(false) => {}
            None => return OriginalAttempt::Again,
        }
        match fs::read_to_string(&self.lock) {
            Err(error) if error.kind() == ErrorKind::NotFound => OriginalAttempt::Again,
            read => {
                let first = read.unwrap_or_default();
                let pid = first
                    .lines()
                    .next()
                    .and_then(|line| line.trim().parse::<i32>().ok());
                if pid
                    .and_then(Pid::from_raw)
                    .is_some_and(|pid| test_kill_process(pid).is_ok())
                {
                    return OriginalAttempt::Busy;
                }
                let _ = fs::remove_file(&self.lock);
                OriginalAttempt::Again
            }
        }
    }

    fn private_name(&self) -> PathBuf {
        let mut name = self.lock.clone().into_os_string();
        let unique = NEXT.fetch_add(1, Ordering::SeqCst);
        name.push(format!(".{}{unique}", std::process::id()));
        PathBuf::from(name)
    }

    /// Step 4: polls for the request; reports it once and then stops polling.
    fn hold(&self, on_stop: Arc<dyn Fn() + Send + Sync>) -> OriginalHeld {
        let done = Arc::new(AtomicBool::new(false));
        let watch = thread::spawn({
            let done = Arc::clone(&done);
            let (stop, poll) = (self.stop.clone(), self.times.holder_poll);
            move || {
                while !done.load(Ordering::SeqCst) {
                    thread::park_timeout(poll);
                    if !done.load(Ordering::SeqCst) && stop.exists() {
                        return on_stop();
                    }
                }
            }
        });
        let (lock, stop) = (self.lock.clone(), self.stop.clone());
        OriginalHeld {
            lock,
            stop,
            done,
            watch: Some(watch),
        }
    }
}

impl OriginalHeld {
    /// Step 5: delete the lock if it has our pid, then delete the request.
    pub(crate) fn release(mut self) {
        self.done.store(true, Ordering::SeqCst);
        if let Some(watch) = self.watch.take() {
            watch.thread().unpark();
            let _ = watch.join();
        }
        let own = std::process::id().to_string();
        if fs::read_to_string(&self.lock).is_ok_and(|text| text.lines().next() == Some(&own)) {
            let _ = fs::remove_file(&self.lock);
        }
        let _ = fs::remove_file(&self.stop);
    }
}

fn same_file(a: &Path, b: &Path) -> Option<bool> {
    let (a, b) = (fs::symlink_metadata(a).ok()?, fs::metadata(b).ok()?);
    Some((a.dev(), a.ino()) == (b.dev(), b.ino()))
}
