//! Errors of the log, each with a hint what to do next.

use std::io;

use crate::batch::GroupId;
use crate::index::Misuse;

/// The error of an operation of the running log.
///
/// All of them are final: the log accepts no more calls, and the node must end. A failed sync is
/// never retried, because the kernel may have dropped the unwritten pages and would report success.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The disk failed.
    #[error("cannot {action} {file}")]
    Io {
        /// The operation that failed.
        action: &'static str,
        /// The file.
        file: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The batch contradicts the content of the log. It was not written.
    #[error("the batch does not follow what the log holds")]
    Misuse(#[from] Misuse),
    /// An earlier operation failed.
    #[error("the log takes nothing more since an earlier failure: {cause}")]
    Poisoned {
        /// The first failure.
        cause: String,
    },
}

impl LogError {
    /// Returns what the operator should do next.
    pub fn hint(&self) -> &'static str {
        match self {
            LogError::Io { source, .. } if source.kind() == io::ErrorKind::StorageFull => {
                "free space on the disk of the data directory, then start the node again"
            }
            LogError::Io { .. } => {
                "check the disk (kernel log, SMART), then start the node again: what was answered \
                 is safe if the disk still has it, and the node refuses to start if it does not"
            }
            LogError::Misuse(_) => "this is a fault in Tenure: please report it with this message",
            LogError::Poisoned { .. } => "the first failure says what happened",
        }
    }
}

/// The error of a data directory that cannot be opened. Nothing in it was changed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The disk failed.
    #[error("cannot {action} {file}")]
    Io {
        /// The operation that failed.
        action: &'static str,
        /// The file.
        file: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// Another process uses the directory.
    #[error("another process uses the data directory {place}")]
    Locked {
        /// The directory.
        place: String,
    },
    /// Bytes that were durable are damaged. A node that lost a part of its log must not vote, so it
    /// does not start.
    #[error(
        "{file} is damaged at offset {offset}: {what} (groups concerned: {})",
        list(groups)
    )]
    Damaged {
        /// The log file.
        file: String,
        /// The offset of the first bad byte, as far as it is known.
        offset: u64,
        /// What is wrong there.
        what: &'static str,
        /// The groups that may have lost data.
        groups: Vec<GroupId>,
    },
    /// A file that the log needs is missing.
    #[error("{file} is missing (groups concerned: {})", list(groups))]
    Missing {
        /// The log or snapshot file.
        file: String,
        /// The groups that may have lost data.
        groups: Vec<GroupId>,
    },
    /// The directory contains files of a node but no log. It must not start with an empty log,
    /// because it would forget its votes and acknowledgements.
    #[error("there was a node here: {found} is there, but all log files are missing")]
    NoLog {
        /// A file that was found.
        found: String,
    },
    /// A file or record has a format version of another release.
    #[error("{file} has format version {found} at offset {offset}; this release knows {known}")]
    Version {
        /// The log file.
        file: String,
        /// The offset of the version.
        offset: u64,
        /// The version found.
        found: u32,
        /// The version that this release reads.
        known: u32,
    },
}

impl OpenError {
    /// Returns what the operator should do next.
    pub fn hint(&self) -> &'static str {
        match self {
            OpenError::Io { .. } => "check that the directory is there and belongs to this user",
            OpenError::Locked { .. } => {
                "stop the other process, or give this one its own directory"
            }
            OpenError::Damaged { .. } | OpenError::Missing { .. } | OpenError::NoLog { .. } => {
                "do not repair or delete the files by hand. If this is one of several nodes, let it \
                 rejoin as an empty learner under a new identity: `tenure cluster rejoin`. If it is \
                 the only one, put back the missing files, or restore a backup: `tenure cluster \
                 restore`"
            }
            OpenError::Version { .. } => "start the release that wrote it, or a newer one",
        }
    }
}

fn list(groups: &[GroupId]) -> String {
    const SHOWN: usize = 16;
    if groups.is_empty() {
        return "unknown".to_owned();
    }
    let mut text: Vec<String> = groups.iter().take(SHOWN).map(u64::to_string).collect();
    if groups.len() > SHOWN {
        text.push(format!("and {} more", groups.len() - SHOWN));
    }
    text.join(", ")
}
