//! Permissions of files that contain secrets: private keys and the configuration.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The reason why a file with a secret is not used.
#[derive(Debug, thiserror::Error)]
pub enum SecretFileError {
    /// Other users may change it.
    #[error("{what} {path} can be changed by every user: run chmod o-w {quoted}")]
    Writable {
        /// What the file contains.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The file, quoted for a shell.
        quoted: String,
    },
    /// It cannot be examined.
    #[error("cannot read {what} {path}")]
    Unreadable {
        /// What the file contains.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// Checks the permissions of a file with a secret. A file that every user may write is refused; for
/// one that every user may read a warning is logged, because orchestrators mount secrets that way.
pub fn check(what: &'static str, path: &Path) -> Result<(), SecretFileError> {
    let found = std::fs::metadata(path).map_err(|source| SecretFileError::Unreadable {
        what,
        path: path.to_owned(),
        source,
    })?;
    // Devices and pipes have no content of their own.
    if !found.is_file() {
        return Ok(());
    }
    let quoted = || tenure_core::text::shell_quoted(&path.to_string_lossy()).into_owned();
    if found.mode() & 0o002 != 0 {
        return Err(SecretFileError::Writable {
            what,
            path: path.to_owned(),
            quoted: quoted(),
        });
    }
    if found.mode() & 0o004 != 0 {
        tracing::warn!(
            "{what} {} can be read by every user: run chmod o-r {}",
            path.display(),
            quoted()
        );
    }
    Ok(())
}
