//! What can go wrong, what it means, and what to do next.

use std::io;

use crate::batch::GroupId;
use crate::index::Misuse;

/// Why an operation of the running log failed. All of these are final: the log takes nothing more,
/// and the node must end. A failed sync is never tried again, because the kernel may have thrown
/// the unwritten pages away and would report success.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The disk failed.
    #[error("cannot {action} {file}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file it was tried on.
        file: String,
        /// What the system said.
        source: io::Error,
    },
    /// The program wanted to write what cannot follow what is there. Nothing was written.
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
    /// What to do next.
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

/// Why a data directory cannot be opened. Nothing in it was changed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The disk failed.
    #[error("cannot {action} {file}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file it was tried on.
        file: String,
        /// What the system said.
        source: io::Error,
    },
    /// Another process uses the directory.
    #[error("another process uses the data directory {place}")]
    Locked {
        /// The directory.
        place: String,
    },
    /// Something that was durable is no longer there. A node that lost part of its log must not
    /// vote, so it does not start.
    #[error(
        "{file} is damaged at offset {offset}: {what} (groups concerned: {})",
        list(groups)
    )]
    Damaged {
        /// The log file.
        file: String,
        /// Where the first bad byte stands, as far as that can be told.
        offset: u64,
        /// What was found.
        what: &'static str,
        /// The groups that may have lost something.
        groups: Vec<GroupId>,
    },
    /// A file that the log needs is not there.
    #[error("{file} is missing (groups concerned: {})", list(groups))]
    Missing {
        /// The log or snapshot file.
        file: String,
        /// The groups that may have lost something.
        groups: Vec<GroupId>,
    },
    /// Something of a node is here, and its log is not. An empty log must not take its place: the node
    /// would forget what it has promised.
    #[error("there was a node here: {found} is there, but all log files are missing")]
    NoLog {
        /// What is there of it.
        found: String,
    },
    /// A file or record was written by a release with another format.
    #[error("{file} has format version {found} at offset {offset}; this release knows {known}")]
    Version {
        /// The log file.
        file: String,
        /// Where the version stands.
        offset: u64,
        /// The version found.
        found: u32,
        /// The version this release reads.
        known: u32,
    },
}

impl OpenError {
    /// What to do next.
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
