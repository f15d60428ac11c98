//! Classes of failures, the same for all protocols: K2 (one class per failure).

use std::fmt;

/// The class of a failure (K2). Every failure has exactly one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// A live or possibly live holder has the lock, and the caller asked not to wait.
    Held,
    /// The deadline or the retry budget ran out while the lock was held.
    Timeout,
    /// The lock looks dead, but policy forbids removing it without approval.
    Stale,
    /// The record was read completely, but does not parse or breaks the rules of its protocol.
    Malformed,
    /// The record exists, but cannot be read or decoded.
    Unreadable,
    /// The path is a directory, symlink, FIFO, socket, device, or a file that cannot be a lock
    /// record.
    NotALock,
    /// The file is larger than the protocol allows.
    TooLarge,
    /// The holder runs on another host or in another PID namespace, so this process cannot check
    /// whether it is alive.
    Foreign,
    /// Another acquirer was faster.
    LostRace,
    /// This process held the lock, and the record is no longer its own.
    Compromised,
    /// This handle does not hold the lock, or released it before.
    NotHeld,
    /// The directory of the lock does not exist.
    NotFound,
    /// An argument is out of range, or a name would leave its directory.
    BadInput,
    /// The file system lacks a feature that the caller requires.
    Unsupported,
    /// Any other operating system error.
    Io,
}

impl Class {
    /// Returns the name of the class as used in JSON output.
    pub fn name(self) -> &'static str {
        match self {
            Class::Held => "Held",
            Class::Timeout => "Timeout",
            Class::Stale => "Stale",
            Class::Malformed => "Malformed",
            Class::Unreadable => "Unreadable",
            Class::NotALock => "NotALock",
            Class::TooLarge => "TooLarge",
            Class::Foreign => "Foreign",
            Class::LostRace => "LostRace",
            Class::Compromised => "Compromised",
            Class::NotHeld => "NotHeld",
            Class::NotFound => "NotFound",
            Class::BadInput => "BadInput",
            Class::Unsupported => "Unsupported",
            Class::Io => "Io",
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
