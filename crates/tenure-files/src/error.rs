//! How things end: the decision of a check (K1), the class of a failure (K2), and a message that
//! names the holder and the next step (K5).
//!
//! Programs compare [`Class`]; people read `Display`. Both come from the same value, so they cannot
//! disagree.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::liveness::Verdict;

/// The result of every operation here that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// What a check of a lock says to do (K1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Decision {
    /// No lock stands in the way.
    Proceed,
    /// Held; may be retried.
    Wait,
    /// Do not go on, and do not touch the lock.
    Refuse,
    /// The lock is dead: remove it safely and go on.
    Reclaim,
    /// Exclusive protocol only: leave this database alone in this cycle.
    Skip,
}

/// What kind of failure it was (K2). Exactly one per failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// A live or possibly live holder has it, and the caller asked not to wait.
    Held,
    /// The deadline or the retry budget ran out while it was held.
    Timeout,
    /// It looks dead, but policy forbids removing it without approval.
    Stale,
    /// Read completely, but does not parse or breaks the rules of its protocol.
    Malformed,
    /// Exists, but cannot be read or decoded.
    Unreadable,
    /// A directory, symlink, FIFO, socket, device, or a file that cannot be a lock record.
    NotALock,
    /// More bytes than the protocol allows.
    TooLarge,
    /// A holder whose life cannot be checked from here.
    Foreign,
    /// Another acquirer overtook us.
    LostRace,
    /// We held it, and the record is no longer ours.
    Compromised,
    /// This handle does not hold it (also: released before).
    NotHeld,
    /// The directory the lock lives in does not exist.
    NotFound,
    /// An argument is out of range, or a name would leave its directory.
    BadInput,
    /// The file system lacks something the caller demanded.
    Unsupported,
    /// Any other error of the operating system.
    Io,
}

impl Class {
    /// The class as it is written in JSON output.
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

    /// The exit code of a command that ends with this class (K2, C2).
    pub fn exit_code(self) -> u8 {
        match self {
            Class::Held | Class::Foreign | Class::LostRace => 75,
            Class::Timeout => 124,
            Class::Compromised => 120,
            Class::BadInput => 2,
            Class::Stale
            | Class::Malformed
            | Class::Unreadable
            | Class::NotALock
            | Class::TooLarge
            | Class::NotHeld
            | Class::NotFound
            | Class::Unsupported
            | Class::Io => 125,
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Who is in the way, as far as the record tells, and how we judged it (K5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockingHolder {
    /// The address a person would type, such as `sidecar:/var/lib/app/state.json`.
    pub address: String,
    /// The holder's process id as the holder sees it.
    pub pid: Option<u32>,
    /// The holder's host name.
    pub host: Option<String>,
    /// The holder's name or operation, where the protocol has one.
    pub name: Option<String>,
    /// The holder's token, if it is a Tenure.
    pub token: Option<String>,
    /// Since when it is held.
    pub since: Option<SystemTime>,
    /// What we concluded about its life.
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

/// A failure: its class, what it was about, who was in the way, and the OS error beneath.
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
    /// A failure of this class about `path`; `what` completes the sentence "`path`: …".
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

    /// An OS error that no rule gives a class of its own.
    pub fn io(
        path: impl AsRef<Path>,
        what: impl Into<String>,
        source: impl Into<io::Error>,
    ) -> Error {
        Error::new(Class::Io, path, what).caused_by(source)
    }

    /// Adds who is in the way.
    #[must_use]
    pub fn blocked_by(mut self, blocker: BlockingHolder) -> Error {
        self.0.blocker = Some(blocker);
        self
    }

    /// Adds the OS error beneath.
    #[must_use]
    pub fn caused_by(mut self, source: impl Into<io::Error>) -> Error {
        self.0.source = Some(source.into());
        self
    }

    /// Adds what a person can do about it.
    #[must_use]
    pub fn next(mut self, next: impl Into<String>) -> Error {
        self.0.next = Some(next.into());
        self
    }

    /// The decision behind it, where that is not the usual one of its class.
    #[must_use]
    pub fn decided(mut self, decision: Decision) -> Error {
        self.0.decision = decision;
        self
    }

    /// The decision behind it (K1): a later attempt may succeed only after `Wait`.
    pub fn decision(&self) -> Decision {
        self.0.decision
    }

    /// How a command ends with it: the decision counts more than the class (C15).
    pub fn exit_code(&self) -> u8 {
        match (self.0.decision, self.0.class) {
            (Decision::Wait | Decision::Skip, class) if class != Class::Timeout => 75,
            (_, class) => class.exit_code(),
        }
    }

    /// The class, for programs.
    pub fn class(&self) -> Class {
        self.0.class
    }

    /// The file this is about.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// The fact alone, without path, holder and hint.
    pub fn what(&self) -> &str {
        &self.0.what
    }

    /// Who is in the way.
    pub fn blocker(&self) -> Option<&BlockingHolder> {
        self.0.blocker.as_ref()
    }

    /// The OS error beneath, if any.
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

/// Foreign text as it may be shown on a terminal: control characters escaped.
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

    /// K2: the exit codes of the classes.
    #[test]
    fn classes_end_with_their_exit_codes() {
        assert_eq!(Class::Held.exit_code(), 75);
        assert_eq!(Class::Foreign.exit_code(), 75);
        assert_eq!(Class::LostRace.exit_code(), 75);
        assert_eq!(Class::Timeout.exit_code(), 124);
        assert_eq!(Class::Compromised.exit_code(), 120);
        assert_eq!(Class::BadInput.exit_code(), 2);
        assert_eq!(Class::Stale.exit_code(), 125);
    }

    /// C15: held means 75, also when the class is `Unreadable`.
    #[test]
    fn the_exit_code_follows_the_decision() {
        let unreadable = || Error::new(Class::Unreadable, "x", "may not be read");
        assert_eq!(unreadable().exit_code(), 125);
        assert_eq!(unreadable().decided(Decision::Wait).exit_code(), 75);
        assert_eq!(Error::new(Class::Timeout, "x", "in vain").exit_code(), 124);
        assert_eq!(Error::new(Class::Held, "x", "held").exit_code(), 75);
    }
}
