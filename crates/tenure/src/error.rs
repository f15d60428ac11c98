//! How things end when they do not end well: one error for every backend, with the holder, the reason, the place
//! in line and the next step. Programs match on it; people read `Display`. Both come from the same values.

use std::fmt;
use std::io;
use std::time::{Duration, SystemTime};

use serde::Serialize;
use tenure_files::error::{Decision, printable};

use crate::address::Address;
use crate::values::{Class, Fence, HoldId, Holder, HolderLiveness, Mode, Verdict, millis, span};

/// Why a lock was not taken, kept, given back or looked at.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Held, and the caller did not want to wait.
    #[error("{0}")]
    Busy(Box<Busy>),
    /// Held, and still held when the time was up.
    #[error("{0}")]
    TimedOut(Box<Busy>),
    /// It was held, and is not any more.
    #[error("{0}")]
    Lost(Box<LostLock>),
    /// A refusal that no waiting cures.
    #[error("{0}")]
    Refused(Box<Refusal>),
    /// An argument that makes no sense. Nothing was touched.
    #[error("{0}")]
    Input(InputError),
    /// The backend cannot do what was asked of it. Nothing was touched.
    #[error("{0}")]
    Unsupported(Box<Unsupported>),
    /// Nobody could be asked; later it may work.
    #[error("{0}")]
    Unavailable(Box<Unavailable>),
    /// The caller may not do this.
    #[error("{place}: not allowed: {what}")]
    Denied {
        /// Where.
        place: Box<Address>,
        /// What the other side said.
        what: String,
    },
}

impl Error {
    /// What kind of failure it is, for programs (K2).
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

    /// Whether somebody else has it: waiting may help.
    pub fn is_busy(&self) -> bool {
        matches!(self, Error::Busy(_) | Error::TimedOut(_))
    }

    /// Who is in the way, if somebody is.
    pub fn busy(&self) -> Option<&Busy> {
        match self {
            Error::Busy(busy) | Error::TimedOut(busy) => Some(busy),
            _ => None,
        }
    }

    /// The exit code of a command that ends with it (C2, C15, C16).
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Busy(_) => 75,
            Error::TimedOut(_) => 124,
            Error::Lost(_) => 120,
            Error::Input(_) | Error::Unsupported(_) => 2,
            Error::Refused(_) | Error::Unavailable(_) | Error::Denied { .. } => 125,
        }
    }

    /// The same as values, for `--json`: `class`, `message`, and what is known of the blocker.
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

    /// An error of the lock files, in the words of all backends (C15: the decision counts more than the class).
    pub(crate) fn from_files(place: &Address, error: &tenure_files::Error) -> Error {
        let what = match error.os_error() {
            Some(os) => format!("{}: {os}", error.what()),
            None => error.what().to_owned(),
        };
        match (error.decision(), error.class()) {
            (_, Class::Timeout) => Error::TimedOut(Box::new(Busy::from_files(place, error, what))),
            (Decision::Wait | Decision::Skip, _) => {
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
                next: (class == Class::Stale)
                    .then(|| format!("look at it; to remove it: tenure break {place}")),
                source: error.os_error().map(|os| io::Error::from(os.kind())),
            })),
        }
    }
}

/// Who is in the way of a request, and what to do about it.
#[derive(Clone, Debug, Serialize)]
pub struct Busy {
    /// What was wanted.
    pub place: Address,
    /// Who has it, as far as is known.
    pub blocker: Option<Blocker>,
    /// The place in line, counted from 1, where there is a line.
    pub position: Option<u32>,
    /// Owners that wait for each other in a circle with this request, where that was looked for (E5).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deadlock: Vec<String>,
    /// `Held`, or why it counts as held.
    #[serde(serialize_with = "class_name")]
    pub class: Class,
    /// The fact, where no blocker tells it.
    pub what: String,
    /// What a person can do now.
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

/// A hold that is in the way, or is shown: who, how, since when, and how its life was judged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Blocker {
    /// What is held: it may lie above or below what was wanted.
    pub place: Address,
    /// Who holds it.
    pub holder: Holder,
    /// Whether it holds, or came earlier and waits.
    pub standing: BlockerKind,
    /// How.
    pub mode: Mode,
    /// For how long.
    #[serde(serialize_with = "millis", rename = "held_ms")]
    pub held_for: Option<Duration>,
    /// What is left of its lease; none where there are no leases.
    #[serde(serialize_with = "millis", rename = "lease_left_ms")]
    pub lease_left: Option<Duration>,
    /// Its fence.
    pub fence: Option<Fence>,
    /// Whether it lives, and how we know.
    pub verdict: Verdict,
    /// Names this hold and no later one.
    pub id: Option<HoldId>,
}

/// How somebody is in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum BlockerKind {
    /// It holds.
    Holds,
    /// It does not hold yet, but came earlier.
    Waits,
}

impl Blocker {
    pub(crate) fn from_files(place: &Address, blocker: &tenure_files::BlockingHolder) -> Blocker {
        let since = blocker.since.and_then(|since| since.elapsed().ok());
        Blocker {
            place: place.clone(),
            holder: Holder {
                // A lock file has one text for people; it says what for, except where a tool signs with its name.
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

    /// What a person can do about it.
    fn next_step(&self) -> String {
        let place = &self.place;
        match (place, self.verdict.life) {
            (_, HolderLiveness::Dead) => format!("to break it: tenure break {place}"),
            (Address::Upload { .. } | Address::Daemon { .. } | Address::Memory(_), _) => {
                format!("to ask for it: tenure ask {place}")
            }
            _ => format!("to break it: tenure break --force {place}"),
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
            write!(f, ", for {}", span(held_for))?;
        }
        match (self.standing, self.lease_left) {
            (BlockerKind::Waits, _) => Ok(()),
            (BlockerKind::Holds, Some(left)) => write!(f, ", lease left {}", span(left)),
            (BlockerKind::Holds, None) => write!(f, "; judged {}", self.verdict),
        }
    }
}

/// A lock that was held and is gone. The work that it protected must stop.
#[derive(Clone, Debug, Serialize)]
pub struct LostLock {
    /// Which lock.
    pub place: Address,
    /// What kind of end it was.
    pub cause: LostCause,
    /// What was seen.
    pub what: String,
    /// When it was noticed.
    #[serde(skip)]
    pub seen: SystemTime,
}

/// How a lock was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LostCause {
    /// The lease ran out.
    Expired,
    /// No renewal was confirmed in time: it may still be ours, and nobody may believe so.
    Unconfirmed,
    /// Somebody broke it.
    Broken,
    /// The daemon took it away: a forced release or a policy change.
    Killed,
    /// Another's record stands in its place.
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

/// A refusal that no waiting cures.
#[derive(Debug)]
pub struct Refusal {
    /// Where.
    pub place: Address,
    /// Its class.
    pub class: Class,
    /// What is wrong.
    pub what: String,
    /// What to do about it, where that is known.
    pub next: Option<String>,
    /// The error of the operating system beneath.
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

/// An argument that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputError {
    /// What was given.
    pub about: String,
    /// What is wrong with it.
    pub what: String,
}

impl InputError {
    /// `about` is what was given; `what` completes the sentence.
    pub(crate) fn new(about: impl Into<String>, what: impl Into<String>) -> InputError {
        InputError {
            about: about.into(),
            what: what.into(),
        }
    }
}

impl fmt::Display for InputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` {}", printable(&self.about), printable(&self.what))
    }
}

/// What a backend cannot do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsupported {
    /// Where.
    pub place: Address,
    /// What it cannot do.
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

/// Nobody could be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unavailable {
    /// Where.
    pub place: Address,
    /// What happened.
    pub what: String,
    /// When another try makes sense.
    pub retry_after: Duration,
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = printable(&self.what);
        write!(
            f,
            "{}: {what}; try again in {}",
            self.place,
            span(self.retry_after)
        )
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

    /// C8: what, who, what for, since when, lease left, place in line, and the next step.
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

    /// C8: what others wrote cannot move the cursor of whoever reads it.
    #[test]
    fn foreign_text_is_escaped() {
        let place: Address = "tenant:/acme".parse().unwrap();
        let mut from = blocker(&place);
        from.holder.purpose = "\u{1b}[2J".into();
        let text = Busy::new(&place, Some(from), "held").to_string();
        assert!(!text.contains('\u{1b}'), "{text:?}");
    }

    /// The fields are stable for programs: durations are milliseconds, places are addresses.
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
