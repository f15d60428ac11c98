//! The error type of all backends.
//!
//! An error carries the holder, the reason, the queue position and the next step. Programs match on
//! the variants; `Display` and `to_json` are made from the same values.

use std::fmt;
use std::io;
use std::time::{Duration, SystemTime};

use serde::Serialize;
use tenure_base::printable;

use crate::address::Address;
#[cfg(feature = "files")]
use crate::error_messages;
use crate::values::{Class, Fence, HoldId, Holder, HolderLiveness, Mode, Verdict, millis};
use tenure_base::HumanDuration;

/// The reason why an operation on a lock failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The lock is held, and the caller did not want to wait.
    #[error("{0}")]
    Busy(Box<Busy>),
    /// The lock was still held when the time limit ended.
    #[error("timed out: {0}")]
    TimedOut(Box<Busy>),
    /// The lock was held and is lost.
    #[error("{0}")]
    Lost(Box<LostLock>),
    /// The request was refused, and waiting does not help.
    #[error("{0}")]
    Refused(Box<Refusal>),
    /// An argument is invalid. Nothing was changed.
    #[error("{0}")]
    Input(InputError),
    /// The backend does not support the request. Nothing was changed.
    #[error("{0}")]
    Unsupported(Box<Unsupported>),
    /// The daemon or the store could not be reached. A retry may succeed.
    #[error("{0}")]
    Unavailable(Box<Unavailable>),
    /// The caller is not authorized.
    #[error("{place}: not allowed: {what}")]
    Denied {
        /// The address.
        place: Box<Address>,
        /// The message of the other side.
        what: String,
    },
}

impl Error {
    /// Returns the class of the failure, for programs: K2 (one class per failure).
    pub fn class(&self) -> Class {
        match self {
            Error::Busy(busy) => busy.class,
            Error::TimedOut(_) => Class::Timeout,
            Error::Lost(_) => Class::Compromised,
            Error::Refused(refusal) => refusal.class,
            Error::Input(_) => Class::BadInput,
            Error::Unsupported(_) => Class::Unsupported,
            Error::Unavailable(_) | Error::Denied { .. } => Class::Io,
        }
    }

    /// Returns whether the lock is held by another owner, so that waiting may help.
    pub fn is_busy(&self) -> bool {
        matches!(self, Error::Busy(_) | Error::TimedOut(_))
    }

    /// Returns the blocker and the queue position of a busy error.
    pub fn busy(&self) -> Option<&Busy> {
        match self {
            Error::Busy(busy) | Error::TimedOut(busy) => Some(busy),
            _ => None,
        }
    }

    /// Returns the error as JSON for `--json`: `class`, `message`, and `busy` with the blocker.
    pub fn to_json(&self) -> serde_json::Value {
        let mut json = serde_json::json!({
            "class": self.class().name(),
            "message": self.to_string(),
        });
        if let Some(busy) = self.busy() {
            json["busy"] = serde_json::to_value(busy).unwrap_or_default();
        }
        json
    }

    pub(crate) fn input(about: impl Into<String>, what: impl Into<String>) -> Error {
        Error::Input(InputError::new(about, what))
    }

    pub(crate) fn refused(place: &Address, class: Class, what: impl Into<String>) -> Error {
        Error::Refused(Box::new(Refusal {
            place: place.clone(),
            class,
            what: what.into(),
            next: None,
            source: None,
        }))
    }

    pub(crate) fn unsupported(place: &Address, what: impl Into<String>) -> Error {
        Error::Unsupported(Box::new(Unsupported {
            place: place.clone(),
            what: what.into(),
        }))
    }

    /// Converts an error of the lock files. The decision counts more than the class: C15 (exit code
    /// follows the decision).
    #[cfg(feature = "files")]
    pub(crate) fn from_files(place: &Address, error: &tenure_files::Error) -> Error {
        let what = match error.os_error() {
            Some(os) if !error.what().contains("no such") => {
                format!("{}: {}", error.what(), error_messages::what(os))
            }
            Some(_) => error.what().to_owned(),
            None => error.what().to_owned(),
        };
        match (error.decision(), error.class()) {
            (_, Class::Timeout) => Error::TimedOut(Box::new(Busy::from_files(place, error, what))),
            (tenure_files::Decision::Wait | tenure_files::Decision::Skip, _) => {
                Error::Busy(Box::new(Busy::from_files(place, error, what)))
            }
            (_, Class::Compromised) => Error::Lost(Box::new(LostLock {
                place: place.clone(),
                cause: LostCause::Overwritten,
                what,
                seen: SystemTime::now(),
            })),
            (_, Class::BadInput) => Error::input(place.to_string(), what),
            (_, class) => Error::Refused(Box::new(Refusal {
                place: place.clone(),
                class,
                what,
                next: match error.os_error() {
                    _ if class == Class::Stale => {
                        Some(format!("look at it; to remove it: tenure break {place}"))
                    }
                    Some(os) => error_messages::next(os, error.path()),
                    None => None,
                },
                source: error.os_error().map(|os| io::Error::from(os.kind())),
            })),
        }
    }
}

/// Why a request has to wait, and what the caller can do about it.
#[derive(Clone, Debug, Serialize)]
pub struct Busy {
    /// The requested address.
    pub place: Address,
    /// The blocker, if it is known.
    pub blocker: Option<Blocker>,
    /// The queue position, counted from 1, if the backend has a queue.
    pub position: Option<u32>,
    /// The cycle of waiting owners that includes this request, if the request asked for the check:
    /// E5 (refuse on deadlock).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deadlock: Vec<String>,
    /// `Held`, or the reason why the lock counts as held.
    #[serde(serialize_with = "class_name")]
    pub class: Class,
    /// What is wrong. `Display` shows it if there is no blocker.
    pub what: String,
    /// The next step for a person.
    pub next: String,
}

fn class_name<S: serde::Serializer>(class: &Class, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(class.name())
}

impl Busy {
    pub(crate) fn new(place: &Address, blocker: Option<Blocker>, what: impl Into<String>) -> Busy {
        let next = match &blocker {
            Some(blocker) => blocker.next_step(),
            None => "try again".to_owned(),
        };
        Busy {
            place: place.clone(),
            blocker,
            position: None,
            deadlock: Vec::new(),
            class: Class::Held,
            what: what.into(),
            next,
        }
    }

    #[cfg(feature = "files")]
    fn from_files(place: &Address, error: &tenure_files::Error, what: String) -> Busy {
        let blocker = error
            .blocker()
            .map(|blocker| Blocker::from_files(place, blocker));
        Busy {
            class: error.class(),
            ..Busy::new(place, blocker, what)
        }
    }
}

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.blocker {
            // Scripts look for the sentences of the originals: P39 (fixed texts of the original).
            Some(blocker) if self.what.contains("repository ") => {
                write!(f, "{}: {}", self.place, printable(&self.what))?;
                write!(f, "; judged {}", blocker.verdict)?;
            }
            Some(blocker) => write!(f, "{}: {blocker}", self.place)?,
            None => write!(f, "{}: {}", self.place, printable(&self.what))?,
        }
        if let Some(position) = self.position {
            write!(f, "; number {position} in line")?;
        }
        if !self.deadlock.is_empty() {
            let circle: Vec<String> = self.deadlock.iter().map(|owner| printable(owner)).collect();
            write!(f, "; a deadlock: {}", circle.join(" waits for "))?;
        }
        write!(f, "; {}", self.next)
    }
}

/// A hold, or an earlier waiter, that blocks a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Blocker {
    /// The held address. It may be an ancestor or a descendant of the requested one.
    pub place: Address,
    /// The holder.
    pub holder: Holder,
    /// Whether it holds the lock or waits for it.
    pub standing: BlockerKind,
    /// Its mode.
    pub mode: Mode,
    /// The time since it acquired the lock.
    #[serde(serialize_with = "millis", rename = "held_ms")]
    pub held_for: Option<Duration>,
    /// The remaining lease; `None` if the backend has no leases.
    #[serde(serialize_with = "millis", rename = "lease_left_ms")]
    pub lease_left: Option<Duration>,
    /// Its fence.
    pub fence: Option<Fence>,
    /// Whether the holder is alive, with the evidence.
    pub verdict: Verdict,
    /// The id of exactly this hold.
    pub id: Option<HoldId>,
}

/// The kind of a blocker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum BlockerKind {
    /// It holds the lock.
    Holds,
    /// It waits, and came earlier.
    Waits,
}

impl Blocker {
    #[cfg(feature = "files")]
    pub(crate) fn from_files(place: &Address, blocker: &tenure_files::BlockingHolder) -> Blocker {
        let since = blocker.since.and_then(|since| since.elapsed().ok());
        Blocker {
            place: place.clone(),
            holder: Holder {
                // A lock file has one text for people. It is the purpose, except in exclusive
                // locks, where a tool writes its name.
                purpose: match place {
                    Address::Exclusive(_) => String::new(),
                    _ => blocker.name.clone().unwrap_or_default(),
                },
                name: match place {
                    Address::Exclusive(_) => blocker.name.clone().unwrap_or_default(),
                    _ => String::new(),
                },
                host: blocker.host.clone().unwrap_or_default(),
                pid: blocker.pid,
                ..Holder::default()
            },
            standing: BlockerKind::Holds,
            mode: Mode::Exclusive,
            held_for: since,
            lease_left: None,
            fence: None,
            verdict: blocker.verdict.into(),
            id: blocker.token.clone().map(HoldId::new),
        }
    }

    /// Returns the next step for a person.
    fn next_step(&self) -> String {
        let place = &self.place;
        match (place, self.verdict.life) {
            (_, HolderLiveness::Dead) => format!("to break it: tenure break {place}"),
            (Address::Upload { .. } | Address::Daemon { .. } | Address::Memory(_), _) => {
                format!("to ask for it: tenure ask {place}")
            }
            _ => format!("to see what you can do: tenure why {place}"),
        }
    }
}

impl fmt::Display for Blocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.standing, self.mode) {
            (BlockerKind::Waits, _) => write!(f, "{} came earlier and waits", self.holder)?,
            (BlockerKind::Holds, Mode::Exclusive) => write!(f, "held by {}", self.holder)?,
            (BlockerKind::Holds, mode) => write!(f, "held ({mode}) by {}", self.holder)?,
        }
        if let Some(held_for) = self.held_for {
            write!(f, ", for {}", HumanDuration(held_for))?;
        }
        match (self.standing, self.lease_left) {
            (BlockerKind::Waits, _) => Ok(()),
            (BlockerKind::Holds, Some(left)) => write!(f, ", lease left {}", HumanDuration(left)),
            (BlockerKind::Holds, None) => write!(f, "; judged {}", self.verdict),
        }
    }
}

/// A lock that was held and is lost. The work that it protected must stop.
#[derive(Clone, Debug, Serialize)]
pub struct LostLock {
    /// The address of the lock.
    pub place: Address,
    /// How it was lost.
    pub cause: LostCause,
    /// What was observed.
    pub what: String,
    /// When this process noticed it.
    #[serde(skip)]
    pub seen: SystemTime,
}

/// How a lock was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LostCause {
    /// The lease expired.
    Expired,
    /// No renewal was confirmed in time. The lock may still be held, but the holder must not rely
    /// on it.
    Unconfirmed,
    /// Another process broke it.
    Broken,
    /// The daemon ended it: a forced release or a policy change.
    Killed,
    /// Another record replaced it.
    Overwritten,
}

impl LostLock {
    pub(crate) fn new(place: &Address, cause: LostCause, what: impl Into<String>) -> LostLock {
        LostLock {
            place: place.clone(),
            cause,
            what: what.into(),
            seen: SystemTime::now(),
        }
    }
}

impl fmt::Display for LostLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = printable(&self.what);
        write!(
            f,
            "{}: the lock is lost: {what}; stop the work that it protected",
            self.place
        )
    }
}

impl std::error::Error for LostLock {}

impl From<LostLock> for Error {
    fn from(lost: LostLock) -> Error {
        Error::Lost(Box::new(lost))
    }
}

/// A refusal that waiting does not cure.
#[derive(Debug)]
pub struct Refusal {
    /// The address.
    pub place: Address,
    /// The class of the failure.
    pub class: Class,
    /// What is wrong.
    pub what: String,
    /// The next step, if it is known.
    pub next: Option<String>,
    /// The error of the operating system, if there is one.
    pub source: Option<io::Error>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, printable(&self.what))?;
        match &self.next {
            Some(next) => write!(f, "; {next}"),
            None => Ok(()),
        }
    }
}

/// An invalid argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputError {
    /// The argument.
    pub about: String,
    /// What is wrong with it.
    pub what: String,
}

impl InputError {
    /// `about` is the argument; `what` continues the sentence.
    pub(crate) fn new(about: impl Into<String>, what: impl Into<String>) -> InputError {
        InputError {
            about: about.into(),
            what: what.into(),
        }
    }
}

impl fmt::Display for InputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (about, what) = (printable(&self.about), printable(&self.what));
        // The sentence may begin with the argument itself.
        match what.starts_with(&format!("`{about}`")) {
            true => f.write_str(&what),
            false => write!(f, "`{about}` {what}"),
        }
    }
}

/// A request that the backend does not support.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsupported {
    /// The address.
    pub place: Address,
    /// What is not supported.
    pub what: String,
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Unsupported { place, what } = self;
        write!(
            f,
            "{place}: {what} (tenure doctor {place} shows what this place can do)"
        )
    }
}

/// The daemon or the store could not be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unavailable {
    /// The address.
    pub place: Address,
    /// What happened.
    pub what: String,
    /// What to do next, if it is known.
    pub next: Option<String>,
    /// When a retry makes sense.
    pub retry_after: Duration,
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = printable(&self.what);
        write!(f, "{}: {what}; ", self.place)?;
        match &self.next {
            Some(next) => f.write_str(next),
            None => write!(f, "try again in {}", HumanDuration(self.retry_after)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocker(place: &Address) -> Blocker {
        Blocker {
            place: place.clone(),
            holder: Holder {
                name: "ci-7".into(),
                host: "atlas".into(),
                pid: Some(4711),
                purpose: "reindex".into(),
                ..Holder::default()
            },
            standing: BlockerKind::Holds,
            mode: Mode::Exclusive,
            held_for: Some(Duration::from_secs(200)),
            lease_left: Some(Duration::from_secs(12)),
            fence: Fence::new(7),
            verdict: Verdict::new(HolderLiveness::Alive, "its lease runs"),
            id: Some(HoldId::new("ci-7@7")),
        }
    }

    /// C8 (message when busy): what, who, purpose, since when, remaining lease, queue position,
    /// next step.
    #[test]
    fn busy_says_who_since_when_and_what_to_do() {
        let place: Address = "tenant:/acme".parse().unwrap();
        let mut busy = Busy::new(&place, Some(blocker(&place)), "held");
        busy.position = Some(2);
        let text = Error::Busy(Box::new(busy)).to_string();
        assert_eq!(
            text,
            "tenant:/acme: held by ci-7 (pid 4711 on atlas) for reindex, for 3 min, lease left 12 s; \
             number 2 in line; to ask for it: tenure ask tenant:/acme"
        );
    }

    /// C8: text of other processes cannot send control characters to a terminal.
    #[test]
    fn foreign_text_is_escaped() {
        let place: Address = "tenant:/acme".parse().unwrap();
        let mut from = blocker(&place);
        from.holder.purpose = "\u{1b}[2J".into();
        let text = Busy::new(&place, Some(from), "held").to_string();
        assert!(!text.contains('\u{1b}'), "{text:?}");
    }

    /// The fields are stable for programs: durations are in milliseconds, places are addresses.
    #[test]
    fn json_carries_the_fields() {
        let place: Address = "tenant:/acme".parse().unwrap();
        let busy = Busy::new(&place, Some(blocker(&place)), "held");
        let json = Error::Busy(Box::new(busy)).to_json();
        assert_eq!(json["class"], "Held");
        assert_eq!(json["busy"]["blocker"]["held_ms"], 200_000);
        assert_eq!(json["busy"]["blocker"]["holder"]["pid"], 4711);
        assert_eq!(json["busy"]["place"], "tenant:/acme");
    }
}
