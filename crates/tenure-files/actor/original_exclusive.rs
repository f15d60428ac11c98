//! A stand-in for the original's two sides of the exclusive lock: the tool that creates or truncates and
//! writes, and the server's question, with the fault that it never finds anybody dead.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// A lock that an original tool believes to hold.
pub(crate) struct OriginalHeld(PathBuf);

impl OriginalHeld {
    /// Create or truncate, then write: whatever stood there is overwritten.
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

    /// Delete by name, whoever's it is.
    pub(crate) fn release(self) {
        let _ = fs::remove_file(self.0);
    }
}

/// The original server's question: skip? A lock of a dead process counts as alive (its known fault).
pub(crate) fn should_skip(dir: &Path) -> bool {
    match fs::read(dir.join(".exclusive-lock")) {
        Err(error) => error.kind() != ErrorKind::NotFound,
        // Valid, malformed, invalid: every one of them means skip.
        Ok(_) => true,
    }
}
