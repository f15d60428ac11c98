//! Errors of lock operations: the decision of a check (K1 (one decision per check)), the class of a
//! failure (K2 (one class per failure)), and a message that names the holder and the next step (K5
//! (content of user messages)).
//!
//! Programs compare [`Class`]; people read the `Display` text. Both come from the same value and
//! cannot disagree.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::liveness::Verdict;

/// Result type of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// The decision of a check (K1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Decision {
    /// No lock prevents the operation.
    Proceed,
    /// The lock is held; the caller may retry.
    Wait,
    /// The caller must not continue and must not touch the lock.
    Refuse,
    /// The holder is dead: the caller removes the lock safely and continues.
    Reclaim,
    /// Exclusive protocol only: the server leaves this database alone in this cycle.
    Skip,
}

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

/// The holder that blocks an operation, as far as its record says, with the verdict on its liveness
/// (K5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockingHolder {
    /// The address of the lock as a user types it, such as `sidecar:/var/lib/app/state.json`.
    pub address: String,
    /// The holder's process id in its own PID namespace.
    pub pid: Option<u32>,
    /// The holder's host name.
    pub host: Option<String>,
    /// The holder's name or operation, where the protocol has one.
    pub name: Option<String>,
    /// The holder's token, if the holder is a Tenure process.
    pub token: Option<String>,
    /// The time since which the lock is held.
    pub since: Option<SystemTime>,
    /// The verdict on the holder's liveness.
    pub verdict: Verdict,
}

impl fmt::Display for BlockingHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.name, self.pid) {
            (Some(name), Some(pid)) => write!(f, "{} (pid {pid})", printable(name))?,
            (Some(name), None) => write!(f, "{}", printable(name))?,
            (None, Some(pid)) => write!(f, "pid {pid}")?,
            (None, None) => f.write_str("an unknown holder")?,
        }
        if let Some(host) = &self.host {
            write!(f, " on {}", printable(host))?;
        }
        if let Some(since) = self.since.and_then(crate::clock::format) {
            write!(f, " since {since}")?;
        }
        write!(f, "; judged {}", self.verdict)
    }
}

/// An error: its class, the file, the blocking holder, and the underlying OS error.
#[derive(Debug)]
pub struct Error(Box<Inner>);

#[derive(Debug)]
struct Inner {
    class: Class,
    path: PathBuf,
    what: String,
    decision: Decision,
    blocker: Option<BlockingHolder>,
    next: Option<String>,
    source: Option<io::Error>,
}

impl Error {
    /// Creates an error of this class about `path`; `what` completes the sentence "`path`: …".
    ///
    /// The decision is `Wait` for `Held`, `Timeout`, `Foreign` and `LostRace`, and `Refuse`
    /// otherwise.
    pub fn new(class: Class, path: impl AsRef<Path>, what: impl Into<String>) -> Error {
        let decision = match class {
            Class::Held | Class::Timeout | Class::Foreign | Class::LostRace => Decision::Wait,
            _ => Decision::Refuse,
        };
        Error(Box::new(Inner {
            class,
            path: path.as_ref().to_owned(),
            what: what.into(),
            decision,
            blocker: None,
            next: None,
            source: None,
        }))
    }

    /// Creates an error of class [`Class::Io`] from an OS error.
    pub(crate) fn io(
        path: impl AsRef<Path>,
        what: impl Into<String>,
        source: impl Into<io::Error>,
    ) -> Error {
        Error::new(Class::Io, path, what).caused_by(source)
    }

    /// Adds the blocking holder.
    #[must_use]
    pub(crate) fn blocked_by(mut self, blocker: BlockingHolder) -> Error {
        self.0.blocker = Some(blocker);
        self
    }

    /// Adds the underlying OS error.
    #[must_use]
    pub(crate) fn caused_by(mut self, source: impl Into<io::Error>) -> Error {
        self.0.source = Some(source.into());
        self
    }

    /// Adds the next step for the user. It replaces the default hint (`tenure break …`).
    #[must_use]
    pub(crate) fn next(mut self, next: impl Into<String>) -> Error {
        self.0.next = Some(next.into());
        self
    }

    /// Sets the decision, where it differs from the default of the class.
    #[must_use]
    pub fn decided(mut self, decision: Decision) -> Error {
        self.0.decision = decision;
        self
    }

    /// Returns the decision (K1). A later attempt may succeed only after `Wait`.
    pub fn decision(&self) -> Decision {
        self.0.decision
    }

    /// Returns the class.
    pub fn class(&self) -> Class {
        self.0.class
    }

    /// Returns the path of the file concerned.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Returns the description without path, holder and hint.
    pub fn what(&self) -> &str {
        &self.0.what
    }

    /// Returns the blocking holder, if known.
    pub fn blocker(&self) -> Option<&BlockingHolder> {
        self.0.blocker.as_ref()
    }

    /// Returns the underlying OS error, if any.
    pub fn os_error(&self) -> Option<&io::Error> {
        self.0.source.as_ref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner {
            path,
            what,
            blocker,
            next,
            ..
        } = &*self.0;
        write!(f, "{}: {what}", printable(&path.to_string_lossy()))?;
        if let Some(blocker) = blocker {
            write!(f, ": {blocker}")?;
        }
        match (next, blocker) {
            (Some(next), _) => write!(f, "; {next}"),
            (None, Some(blocker)) => {
                write!(
                    f,
                    "; to break it: tenure break {}",
                    printable(&blocker.address)
                )
            }
            (None, None) => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_ref().map(|source| source as _)
    }
}

/// Escapes control characters and bidirectional overrides in foreign text, so that it can be
/// printed on a terminal.
pub fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}') {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::liveness::{Proof, Verdict};

    /// K5: a message names the resource, the holder, since when, the judgement and the next step.
    #[test]
    fn a_message_names_holder_time_judgement_and_next_step() {
        let error =
            Error::new(Class::Held, "/srv/state.json.lock", "held").blocked_by(BlockingHolder {
                address: "sidecar:/srv/state.json".into(),
                pid: Some(40217),
                host: Some("atlas-3\u{1b}[2J".into()),
                name: None,
                token: None,
                since: Some(SystemTime::UNIX_EPOCH),
                verdict: Verdict::Alive(Proof::KernelLock),
            });
        let text = error.to_string();
        for part in [
            "/srv/state.json.lock",
            "pid 40217",
            "atlas-3",
            "1970-01-01T00:00:00Z",
            "alive",
            "tenure break sidecar:/srv/state.json",
        ] {
            assert!(text.contains(part), "{part:?} is missing in {text:?}");
        }
        assert!(
            !text.contains('\u{1b}'),
            "an escape sequence got through: {text:?}"
        );
    }
}
