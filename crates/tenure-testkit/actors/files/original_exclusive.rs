//! Stand-in for both sides of the original exclusive lock: the tool, which creates or truncates the
//! file and writes it, and the check of the server, including its fault that it never finds a
//! holder dead.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// A lock that an original tool believes it holds.
pub(crate) struct OriginalHeld(PathBuf);

impl OriginalHeld {
    /// Creates or truncates, then writes: an existing lock is overwritten.
    pub(crate) fn acquire(dir: &Path) -> OriginalHeld {
        let path = dir.join(".exclusive-lock");
        let host = rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned();
        let pid = std::process::id();
        let record = format!(
            "{{\n  \"holder\": \"original\",\n  \"pid\": {pid},\n  \"hostname\": \"{host}\",\n  \
             \"started_at\": \"2026-03-07T09:00:00Z\",\n  \"version\": \"1.0.0\"\n}}"
        );
        fs::write(&path, record).expect("the record can be written");
        OriginalHeld(path)
    }

    /// Deletes by name, even another holder's lock.
    pub(crate) fn release(self) {
        let _ = fs::remove_file(self.0);
    }
}

/// The original server's check whether to skip. The lock of a dead process counts as held (known
/// fault).
pub(crate) fn should_skip(dir: &Path) -> bool {
    match fs::read(dir.join(".exclusive-lock")) {
        Err(error) => error.kind() != ErrorKind::NotFound,
        // Valid, malformed or invalid: all mean skip.
        Ok(_) => true,
    }
}
