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

pub use tenure_base::{Class, printable};

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
