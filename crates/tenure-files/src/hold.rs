//! A lock file held by this process: heartbeat (K33 (heartbeat in place)), loss detection (K34
//! (detect a lost lock)) and release (K36 (idempotent release)).
//!
//! ```text
//!   Held ──check fails──▶ Lost        listeners run once, also those registered later
//!     └──release──▶ Released          a second release returns `NotHeld`
//! ```
//!
//! Only the process that acquired the lock acts on it. A copy of the handle in a forked child
//! shares the descriptor, so a release there would succeed and drop the parent's lock. The copy
//! therefore does nothing (K36).

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use rustix::fs::{AtFlags, Mode, OFlags, openat, unlinkat};
use rustix::io::Errno;

use crate::dir::{Dir, FileId};
use crate::error::{Class, Error, Result};
use crate::heartbeat::Callback;
use crate::identity::{BEAT_DIGITS, FENCE_ROOM, TOKEN_DIGITS, Token};
use crate::process::Incarnation;
use crate::publish::{PublishMethod, Published};
use crate::record::{OpenRecord, read_at_most, try_flock};
use crate::record_layout;
use crate::remove::{Removal, no_pause, take_away};

/// The loss of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// What the check found.
    pub cause: LossCause,
    /// When the check found it.
    pub seen: SystemTime,
}

/// The way in which a lock was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LossCause {
    /// The lock file no longer exists.
    Gone,
    /// The name refers to another file.
    Replaced,
    /// The file is the same, but its content was replaced.
    Overwritten,
    /// The lease expired before a refresh was confirmed (K35 (lease time)).
    Expired,
}

impl fmt::Display for LossCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LossCause::Gone => "the lock file was removed",
            LossCause::Replaced => "another file stands in its place",
            LossCause::Overwritten => "the lock file was overwritten",
            LossCause::Expired => "the lease ran out",
        })
    }
}

/// A lock that this process holds. The protocols' guards wrap it; the heartbeat thread shares it
/// through an `Arc`.
pub struct FileHolding {
    dir: Arc<Dir>,
    name: OsString,
    file: File,
    id: FileId,
    way: PublishMethod,
    token: Token,
    token_at: u64,
    process: Incarnation,
    state: Mutex<HoldState>,
}

struct HoldState {
    phase: HoldPhase,
    bytes: Vec<u8>,
    beat: u64,
    listeners: Vec<LossListener>,
}

enum HoldPhase {
    Held,
    Lost(Loss),
    Released,
}

type LossListener = Box<dyn FnOnce(&Loss) + Send>;

impl FileHolding {
    /// Creates the hold of a record that was just published with exactly `bytes`, which contain
    /// `token`.
    pub(crate) fn new(
        dir: Arc<Dir>,
        name: &OsStr,
        published: Published,
        bytes: Vec<u8>,
        token: Token,
    ) -> FileHolding {
        let token_at = find(&bytes, token.to_string().as_bytes()).unwrap_or(bytes.len()) as u64;
        FileHolding {
            dir,
            name: name.to_owned(),
            file: published.file,
            id: published.id,
            way: published.way,
            token,
            token_at,
            process: Incarnation::current(),
            state: Mutex::new(HoldState {
                phase: HoldPhase::Held,
                bytes,
                beat: 0,
                listeners: Vec::new(),
            }),
        }
    }

    /// Takes over a hold that follows the life of another process (C13 (holds for scripts)),
    /// identified by its token: for `renew` and `unlock`.
    ///
    /// # Errors
    ///
    /// `NotHeld` if the record is gone or has another token.
    pub(crate) fn adopt(
        dir: Arc<Dir>,
        name: &OsStr,
        limit: usize,
        token: Token,
    ) -> Result<FileHolding> {
        let path = dir.join(name);
        let not_held = |what: &str| Error::new(Class::NotHeld, &path, what);
        let record = OpenRecord::open(&dir, name, limit)?
            .ok_or_else(|| not_held("there is no lock any more"))?;
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file: File = openat(&dir, name, flags, Mode::empty())
            .map_err(|errno| Error::io(&path, "cannot open the lock", errno))?
            .into();
        // The record was opened read-only and is now opened again for writing. Compare both files
        // and the name, because the lock may have been replaced between the two opens.
        let same = dir
            .leads_to(name, record.id())
            .and_then(|same| Ok(same && FileId::of(&rustix::fs::fstat(&file)?) == record.id()))
            .map_err(|errno| Error::io(&path, "cannot stat the lock", errno))?;
        if !same || find(record.bytes(), token.to_string().as_bytes()).is_none() {
            return Err(not_held("the lock is another's now"));
        }
        let published = Published {
            file,
            id: record.id(),
            way: PublishMethod::Tmpfile,
            modified: record.modified(),
        };
        let bytes = record.bytes().to_vec();
        let beat = record_layout::beat_at(&bytes).and_then(|at| {
            std::str::from_utf8(&bytes[at..at + BEAT_DIGITS])
                .ok()?
                .parse()
                .ok()
        });
        let hold = FileHolding::new(dir, name, published, bytes, token);
        hold.lock().beat = beat.unwrap_or(0);
        Ok(hold)
    }

    /// Returns the path of the lock file, for messages.
    pub fn path(&self) -> PathBuf {
        self.dir.join(&self.name)
    }

    /// Returns the directory of the lock file.
    pub(crate) fn dir(&self) -> &Dir {
        &self.dir
    }

    /// Returns the file name in the directory.
    pub(crate) fn name(&self) -> &OsStr {
        &self.name
    }

    /// Returns the token of this acquisition.
    pub fn token(&self) -> Token {
        self.token
    }

    /// Returns how the record was published (`publish` in the output of `tenure why`).
    pub fn way(&self) -> PublishMethod {
        self.way
    }

    /// Returns whether this process acquired the lock. A forked child did not (K36).
    pub(crate) fn is_ours(&self) -> bool {
        self.process == Incarnation::current()
    }

    /// Returns whether a check has found the lock lost.
    pub(crate) fn is_lost(&self) -> bool {
        matches!(self.lock().phase, HoldPhase::Lost(_))
    }

    /// Returns the record as this process last wrote it.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.lock().bytes.clone()
    }

    /// Checks that this process still holds the lock (K34).
    ///
    /// If not, the hold becomes lost and all listeners run.
    ///
    /// # Errors
    ///
    /// `Compromised` if the lock is lost, `NotHeld` if it was released or this is a forked copy.
    pub(crate) fn check(&self) -> Result<()> {
        self.check_and_notify(&|callback| callback())
    }

    /// Checks the lock like [`check`](FileHolding::check); `notify` runs the listeners of a loss.
    pub(crate) fn check_and_notify(&self, notify: &dyn Fn(Callback)) -> Result<()> {
        self.must_be_ours()?;
        let mut state = self.lock();
        match &state.phase {
            HoldPhase::Released => return Err(self.not_held()),
            HoldPhase::Lost(loss) => return Err(self.compromised(loss)),
            HoldPhase::Held => {}
        }
        match self.look()? {
            None => Ok(()),
            Some(cause) => {
                let loss = Loss {
                    cause,
                    seen: SystemTime::now(),
                };
                state.phase = HoldPhase::Lost(loss.clone());
                let listeners = std::mem::take(&mut state.listeners);
                drop(state); // Listeners may call methods of this hold: run them without the mutex.
                let error = self.compromised(&loss);
                for listener in listeners {
                    let loss = loss.clone();
                    notify(Box::new(move || listener(&loss)));
                }
                Err(error)
            }
        }
    }

    /// Writes the next heartbeat in place (K33) and checks the lock before and after the write
    /// (K34).
    pub fn beat(&self) -> Result<()> {
        self.beat_and_notify(&|callback| callback())
    }

    /// Writes the next heartbeat like [`beat`](FileHolding::beat); `notify` runs the listeners of a
    /// loss.
    pub(crate) fn beat_and_notify(&self, notify: &dyn Fn(Callback)) -> Result<()> {
        self.check_and_notify(notify)?;
        {
            let mut state = self.lock();
            if !matches!(state.phase, HoldPhase::Held) {
                return Err(self.not_held());
            }
            let Some(at) = record_layout::beat_at(&state.bytes) else {
                return Ok(());
            };
            let beat = (state.beat + 1) % 10_u64.pow(BEAT_DIGITS as u32);
            let digits = format!("{beat:0BEAT_DIGITS$}");
            pwrite_exactly(&self.file, digits.as_bytes(), at as u64)
                .map_err(|errno| Error::io(self.path(), "cannot write the heartbeat", errno))?;
            state.beat = beat;
            state.bytes[at..at + BEAT_DIGITS].copy_from_slice(digits.as_bytes());
        }
        self.check_and_notify(notify)
    }

    /// Writes the fencing number into the space reserved in the record (K39 (fencing number per
    /// acquisition)).
    ///
    /// # Errors
    ///
    /// `BadInput` if the record was written without that space.
    pub(crate) fn write_fence(&self, fence: NonZeroU64) -> Result<()> {
        self.must_be_ours()?;
        let mut state = self.lock();
        let Some(at) = record_layout::fence_at(&state.bytes) else {
            return Err(Error::new(
                Class::BadInput,
                self.path(),
                "the record has no room for a fence",
            ));
        };
        let digits = format!("{fence:<FENCE_ROOM$}");
        pwrite_exactly(&self.file, digits.as_bytes(), at as u64)
            .map_err(|errno| Error::io(self.path(), "cannot write the fence", errno))?;
        state.bytes[at..at + FENCE_ROOM].copy_from_slice(digits.as_bytes());
        Ok(())
    }

    /// Registers `listener`, which runs once when the lock is lost. Runs it immediately if the lock
    /// is already lost. It never runs after a release.
    pub fn on_lost(&self, listener: impl FnOnce(&Loss) + Send + 'static) {
        let mut state = self.lock();
        match &state.phase {
            HoldPhase::Held => state.listeners.push(Box::new(listener)),
            HoldPhase::Lost(loss) => {
                let loss = loss.clone();
                drop(state);
                listener(&loss);
            }
            HoldPhase::Released => {}
        }
    }

    /// Returns how the lock was lost, or `None` if it is held or released.
    #[cfg(test)]
    pub(crate) fn loss(&self) -> Option<Loss> {
        match &self.lock().phase {
            HoldPhase::Lost(loss) => Some(loss.clone()),
            HoldPhase::Held | HoldPhase::Released => None,
        }
    }

    /// Releases the lock: removes the record if it is still ours, byte for byte (K36).
    ///
    /// # Errors
    ///
    /// `NotHeld` on a second call. `Compromised` if the record was changed or replaced; the file is
    /// then left alone.
    pub fn release(&self) -> Result<()> {
        self.must_be_ours()?;
        let mut state = self.lock();
        let phase = std::mem::replace(&mut state.phase, HoldPhase::Released);
        state.listeners.clear();
        match phase {
            HoldPhase::Released => Err(self.not_held()),
            HoldPhase::Lost(loss) => Err(self.compromised(&loss)),
            HoldPhase::Held => self.remove(&state.bytes),
        }
    }

    /// Ends the hold without removing the record: for `retain_on_exit`, and for holds that outlive
    /// this process.
    pub fn leave(&self) {
        if self.is_ours() {
            let mut state = self.lock();
            state.phase = HoldPhase::Released;
            state.listeners.clear();
        }
    }

    fn remove(&self, bytes: &[u8]) -> Result<()> {
        // The descriptor of a published record already has the flock; the one of an adopted record
        // may not (C13). The flock is needed before the removal (K24 (lock before removal)).
        if !try_flock(&self.file, &self.dir, &self.name)? {
            let what = "another process is about to remove it";
            return Err(Error::new(Class::Compromised, self.path(), what));
        }
        let lost = |cause| {
            Err(self.compromised(&Loss {
                cause,
                seen: SystemTime::now(),
            }))
        };
        if let Some(cause) = self.look_at_name()? {
            return lost(cause);
        }
        // Compare all bytes, and with them the token: a record that another program edited is not
        // ours to remove.
        let now = read_at_most(&self.file, bytes.len() + 1)
            .map_err(|errno| Error::io(self.path(), "cannot read the lock", errno))?;
        if now != bytes {
            return lost(LossCause::Overwritten);
        }
        match take_away(&self.dir, &self.name, self.id, &no_pause) {
            Ok(Removal::Removed) => Ok(()),
            Ok(Removal::Busy | Removal::Changed) => lost(LossCause::Replaced),
            // A full disk may have no room for the second name. The record is ours, locked and
            // compared just now, so it is removed by its name.
            Err(error) if is_full(&error) => match self.look_at_name()? {
                None => unlinkat(&self.dir, &self.name, AtFlags::empty())
                    .map_err(|errno| Error::io(self.path(), "cannot remove the lock", errno)),
                Some(cause) => lost(cause),
            },
            Err(error) => Err(error),
        }
    }

    /// The two checks of K34: the name still refers to our file, and the file still has our token.
    fn look(&self) -> Result<Option<LossCause>> {
        if let Some(cause) = self.look_at_name()? {
            return Ok(Some(cause));
        }
        let mut token = [0; TOKEN_DIGITS];
        match rustix::io::pread(&self.file, &mut token, self.token_at) {
            Ok(read) => {
                let is_ours = token[..read] == *self.token.to_string().as_bytes();
                Ok((!is_ours).then_some(LossCause::Overwritten))
            }
            // The server has removed our file.
            Err(Errno::STALE) => Ok(Some(LossCause::Gone)),
            Err(errno) => Err(Error::io(self.path(), "cannot check the lock", errno)),
        }
    }

    fn look_at_name(&self) -> Result<Option<LossCause>> {
        match self.dir.stat(&self.name) {
            Ok(stat) if FileId::of(&stat) == self.id => Ok(None),
            Ok(_) => Ok(Some(LossCause::Replaced)),
            // `STALE`: the server has removed the directory.
            Err(Errno::NOENT | Errno::STALE) => Ok(Some(LossCause::Gone)),
            Err(errno) => Err(Error::io(self.path(), "cannot check the lock", errno)),
        }
    }

    fn must_be_ours(&self) -> Result<()> {
        if self.is_ours() {
            return Ok(());
        }
        let what = "this copy of the handle came over fork; only the process that acquired acts";
        Err(Error::new(Class::NotHeld, self.path(), what))
    }

    fn not_held(&self) -> Error {
        Error::new(Class::NotHeld, self.path(), "the lock was released before")
    }

    fn compromised(&self, loss: &Loss) -> Error {
        Error::new(
            Class::Compromised,
            self.path(),
            format!("the lock was lost: {}", loss.cause),
        )
        .next("stop the work that it protected")
    }

    fn lock(&self) -> MutexGuard<'_, HoldState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes the next heartbeat of a record through an inherited descriptor (K38 (inherit the locked
/// descriptor)): for a process that outlives the one that acquired the lock.
///
/// A record with another token is another holder's, and is left alone. So is one without a
/// heartbeat.
pub fn beat_inherited(record: impl AsFd, token: &[u8]) -> rustix::io::Result<()> {
    let bytes = read_at_most(&record, INHERITED_LIMIT)?;
    let (Some(at), Some(_)) = (record_layout::beat_at(&bytes), find(&bytes, token)) else {
        return Ok(());
    };
    let digits = std::str::from_utf8(&bytes[at..at + BEAT_DIGITS]);
    let Some(beat) = digits.ok().and_then(|digits| digits.parse::<u64>().ok()) else {
        return Ok(());
    };
    let beat = (beat + 1) % 10_u64.pow(BEAT_DIGITS as u32);
    pwrite_exactly(
        record,
        format!("{beat:0BEAT_DIGITS$}").as_bytes(),
        at as u64,
    )
}

/// Longer than any record that Tenure writes.
const INHERITED_LIMIT: usize = 1 << 20;

impl AsFd for FileHolding {
    /// Returns the locked descriptor, for a child process that keeps the lock (K38 (inherit the
    /// locked descriptor)).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl fmt::Debug for FileHolding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold")
            .field("path", &self.path())
            .field("token", &self.token)
            .finish()
    }
}

/// Whether an operation failed for lack of space.
fn is_full(error: &Error) -> bool {
    let errno = error.os_error().and_then(Errno::from_io_error);
    matches!(errno, Some(Errno::NOSPC | Errno::DQUOT))
}

fn pwrite_exactly(file: impl AsFd, bytes: &[u8], at: u64) -> rustix::io::Result<()> {
    match rustix::io::pwrite(file, bytes, at)? {
        written if written == bytes.len() => Ok(()),
        _ => Err(rustix::io::Errno::IO),
    }
}

/// Returns the last occurrence: our block comes after the caller's members.
fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    // Fast path: the first byte excludes most positions without a full comparison.
    let first = part.first()?;
    bytes
        .windows(part.len())
        .rposition(|window| window[0] == *first && window == part)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::identity::Identity;
    use crate::publish::{Draft, Durability, Options};
    use crate::record_layout::{FenceRoom, RecordLayout};

    const NAME: &str = "state.lock";

    struct Place {
        temp: tempfile::TempDir,
    }

    impl Place {
        fn new() -> Place {
            Place {
                temp: tempfile::tempdir().unwrap(),
            }
        }
        fn path(&self) -> PathBuf {
            self.temp.path().join(NAME)
        }
        fn dir(&self) -> Arc<Dir> {
            Arc::new(Dir::open(self.temp.path()).unwrap())
        }
        fn acquire(&self) -> FileHolding {
            let (dir, name, token) = (self.dir(), OsStr::new(NAME), Token::random());
            let own = Identity::own(token, dir.is_local());
            let block = record_layout::identity(&own, FenceRoom::ForFence, RecordLayout::Indented);
            let bytes =
                record_layout::join([("tenure", block)], RecordLayout::Indented).into_bytes();
            let options = Options {
                durability: Durability::Fast,
                ..Options::default()
            };
            let mut draft = Draft::new(&dir, name, options);
            draft.write(&bytes).unwrap();
            let published = draft.publish().unwrap().unwrap();
            drop(draft);
            FileHolding::new(dir, name, published, bytes, token)
        }
        fn identity(&self) -> Identity {
            let bytes = std::fs::read(self.path()).unwrap();
            Identity::in_record(&record_layout::parse_object(&bytes).unwrap()).unwrap()
        }
    }

    /// K33, K21: the beat grows in place, the file stays the same, and so does its length.
    #[test]
    fn a_heartbeat_is_written_in_place() {
        let place = Place::new();
        let hold = place.acquire();
        let before = std::fs::metadata(place.path()).unwrap();
        hold.beat().unwrap();
        hold.beat().unwrap();
        assert_eq!(place.identity().beat.as_deref(), Some("0000000002"));
        let after = std::fs::metadata(place.path()).unwrap();
        use std::os::unix::fs::MetadataExt;
        assert_eq!((before.ino(), before.len()), (after.ino(), after.len()));
        assert!(after.modified().unwrap() >= before.modified().unwrap());
        assert_eq!(hold.bytes(), std::fs::read(place.path()).unwrap());
        hold.release().unwrap();
    }

    /// K39: the fence is written into the reserved space, and the record still parses.
    #[test]
    fn the_fence_is_written_in_place() {
        let place = Place::new();
        let hold = place.acquire();
        assert_eq!(place.identity().fence, None);
        hold.write_fence(NonZeroU64::new(42).unwrap()).unwrap();
        assert_eq!(place.identity().fence, Some(42));
        hold.write_fence(NonZeroU64::MAX).unwrap();
        assert_eq!(place.identity().fence, Some(u64::MAX));
        hold.release().unwrap();
    }

    /// K34: removal, replacement and overwriting are each detected; a listener runs once, also one
    /// that is registered later, and the hold stays lost.
    #[test]
    fn a_lost_lock_is_noticed_and_stays_lost() {
        let remove = |place: &Place| std::fs::remove_file(place.path()).unwrap();
        let replace = |place: &Place| {
            std::fs::copy(place.path(), place.temp.path().join("other")).unwrap();
            std::fs::rename(place.temp.path().join("other"), place.path()).unwrap();
        };
        let overwrite = |place: &Place| {
            let file = std::fs::OpenOptions::new()
                .write(true)
                .open(place.path())
                .unwrap();
            file.set_len(0).unwrap();
            file.write_all_at(b"{\"holder\": \"other\"}", 0).unwrap();
        };
        type Damage<'a> = &'a dyn Fn(&Place);
        let cases: [(LossCause, Damage<'_>); 3] = [
            (LossCause::Gone, &remove),
            (LossCause::Replaced, &replace),
            (LossCause::Overwritten, &overwrite),
        ];
        for (cause, damage) in cases {
            let place = Place::new();
            let hold = place.acquire();
            let told = Arc::new(AtomicUsize::new(0));
            let count = Arc::clone(&told);
            hold.on_lost(move |loss| {
                assert_eq!(loss.cause, cause);
                count.fetch_add(1, Ordering::Relaxed);
            });
            hold.check().unwrap();
            damage(&place);
            let left = std::fs::read(place.path()).ok();
            assert_eq!(
                hold.check().unwrap_err().class(),
                Class::Compromised,
                "{cause:?}"
            );
            assert_eq!(hold.beat().unwrap_err().class(), Class::Compromised);
            assert_eq!(told.load(Ordering::Relaxed), 1);
            assert_eq!(hold.loss().unwrap().cause, cause);
            let count = Arc::clone(&told);
            hold.on_lost(move |_| {
                count.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(told.load(Ordering::Relaxed), 2);
            assert_eq!(hold.release().unwrap_err().class(), Class::Compromised);
            assert_eq!(
                std::fs::read(place.path()).ok(),
                left,
                "{cause:?}: hands off"
            );
        }
    }

    /// K36: the second release is `NotHeld`; a changed byte keeps the file.
    #[test]
    fn release_is_once_and_only_of_our_own_bytes() {
        let place = Place::new();
        let hold = place.acquire();
        hold.release().unwrap();
        assert!(!place.path().exists());
        assert_eq!(hold.release().unwrap_err().class(), Class::NotHeld);
        assert_eq!(hold.check().unwrap_err().class(), Class::NotHeld);

        let hold = place.acquire();
        let file = std::fs::OpenOptions::new()
            .append(true)
            .open(place.path())
            .unwrap();
        std::io::Write::write_all(&mut &file, b" ").unwrap();
        assert_eq!(hold.release().unwrap_err().class(), Class::Compromised);
        assert!(place.path().exists());
        assert_eq!(std::fs::read_dir(place.temp.path()).unwrap().count(), 1);
    }

    /// C13: a hold is adopted only with its token.
    #[test]
    fn a_hold_is_adopted_by_its_token() {
        let place = Place::new();
        let hold = place.acquire();
        hold.beat().unwrap();
        let token = hold.token();
        hold.leave();
        assert_eq!(hold.release().unwrap_err().class(), Class::NotHeld);
        drop(hold); // Ends its flock; a hold that follows another process has none either.
        let name = OsStr::new(NAME);
        let stranger = FileHolding::adopt(place.dir(), name, 1 << 20, Token::random());
        assert_eq!(stranger.unwrap_err().class(), Class::NotHeld);
        let adopted = FileHolding::adopt(place.dir(), name, 1 << 20, token).unwrap();
        adopted.beat().unwrap();
        assert_eq!(place.identity().beat.as_deref(), Some("0000000002"));
        adopted.release().unwrap();
        assert!(!place.path().exists());
        let late = FileHolding::adopt(place.dir(), name, 1 << 20, token);
        assert_eq!(late.unwrap_err().class(), Class::NotHeld);
    }
}
