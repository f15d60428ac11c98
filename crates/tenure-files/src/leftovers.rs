//! Cleanup of private files that crashed processes left beside locks: drafts of records and guards
//! (`.tenure-`), and locks renamed for removal (`.dead-`). K20 (remove leftover private files).
//!
//! Such a file is removed if its `flock` is free and its ctime is more than a minute old. Records
//! kept aside for the operator (`.kept-`) are never removed.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, fstat, unlinkat};

use crate::clock::{Clock, age};
use crate::dir::{Dir, FileId};
use crate::error::{Error, Result};
use crate::record::{timestamp, try_flock};

/// Minimum time since the last change of a leftover.
pub(crate) const MIN_AGE: Duration = Duration::from_secs(60);

/// Removes leftovers in `dir` and returns their names.
///
/// # Errors
///
/// Fails if the directory cannot be listed. Files that cannot be removed are skipped.
pub fn leftovers(dir: &Dir, clock: Clock) -> Result<Vec<OsString>> {
    let now = clock.now_in(dir)?;
    let entries = std::fs::read_dir(dir.path())
        .map_err(|error| Error::io(dir.path(), "cannot list the directory", error))?;
    let names = entries.flatten().map(|entry| entry.file_name());
    Ok(names
        .filter(|name| is_private(name) && remove_if_left(dir, name, now))
        .collect())
}

/// Whether the name is `.<name>.tenure-<16 hex>` or `.<name>.dead-<16 hex>`.
fn is_private(name: &OsStr) -> bool {
    let bytes = name.as_bytes();
    let Some((rest, suffix)) = bytes.split_last_chunk::<16>() else {
        return false;
    };
    bytes[0] == b'.'
        && suffix
            .iter()
            .all(|d| matches!(d, b'0'..=b'9' | b'a'..=b'f'))
        && [&b".tenure-"[..], b".dead-"]
            .iter()
            .any(|word| rest.len() > word.len() + 1 && rest.ends_with(word))
}

fn remove_if_left(dir: &Dir, name: &OsStr, now: SystemTime) -> bool {
    let Ok(file) = dir.open_to_lock(name) else {
        return false;
    };
    let Ok(stat) = fstat(&file) else { return false };
    // Use the ctime: a rename updates it, but not the modification time.
    if age(now, timestamp(stat.st_ctime, stat.st_ctime_nsec)) <= MIN_AGE {
        return false;
    }
    let is_ours = try_flock(&file, dir, name).unwrap_or(false)
        && dir.leads_to(name, FileId::of(&stat)).unwrap_or(false);
    let how = match rustix::fs::FileType::from_raw_mode(stat.st_mode) {
        rustix::fs::FileType::RegularFile => AtFlags::empty(),
        rustix::fs::FileType::Directory => AtFlags::REMOVEDIR,
        _ => return false,
    };
    is_ours && unlinkat(dir, name, how).is_ok()
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use rustix::fs::{FlockOperation, flock};

    use super::*;

    /// K20: old, unlocked private files and guards are removed; young, locked, kept and foreign
    /// files stay.
    #[test]
    fn only_old_unlocked_private_names_are_cleaned() {
        let temp = tempfile::tempdir().unwrap();
        let dir = Dir::open(temp.path()).unwrap();
        let suffix = "0123456789abcdef";
        let file = |name: String| {
            std::fs::write(temp.path().join(&name), b"x").unwrap();
            name
        };
        let draft = file(format!(".state.lock.tenure-{suffix}"));
        let dead = file(format!(".state.lock.dead-{suffix}"));
        let guard = format!(".state.lock.reclaim.tenure-{suffix}");
        std::fs::create_dir(temp.path().join(&guard)).unwrap();
        let locked = file(format!(".busy.lock.tenure-{suffix}"));
        file(format!(".state.lock.kept-{suffix}"));
        file("state.lock".into());
        file(format!(".tenure-{suffix}"));
        file(".state.lock.tenure-short".into());
        let holder = File::open(temp.path().join(&locked)).unwrap();
        flock(&holder, FlockOperation::LockExclusive).unwrap();

        let now = SystemTime::now();
        assert!(
            leftovers(&dir, Clock::fixed(now)).unwrap().is_empty(),
            "all of them are young"
        );
        let later = Clock::fixed(now + MIN_AGE + Duration::from_secs(5));
        let mut cleaned = leftovers(&dir, later).unwrap();
        cleaned.sort();
        let mut expected: Vec<OsString> = [draft, dead, guard].map(OsString::from).into();
        expected.sort();
        assert_eq!(cleaned, expected);
        assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), 5);
    }
}
