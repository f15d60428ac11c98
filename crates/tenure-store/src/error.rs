//! Error types: a class for programs, a message for people (K2 (one class per failure), K5 (content
//! of user messages)).

use std::time::Duration;

use tenure_files::Class;

use crate::address::{AddressError, RepositoryAddress};
use crate::envelope::KeyError;
use crate::lock_terms::{LockMode, SettingsError};
use crate::messages;
use crate::protocol::{AcquireRefusal, BlockingObject, LossCause, OpFailure, OpFailureKind};
use tenure_files::internal::HumanDuration;

/// The error of an operation on a repository lock.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text is not a repository address.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The settings contradict the protocol.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The key file is invalid.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The ttl is too long for sealed records: clients without the key treat an unreadable record
    /// as stale after 120 s (P24 (unparsable repository records)).
    #[error("sealed records need a ttl of at most 120 s, not {} s", .0.as_secs())]
    SealedTtl(Duration),
    /// Sealed records are required, and there is no key to open them.
    #[error(
        "sealed records are required, and no data key was given: pass the key file of the repository"
    )]
    NoDataKey,
    /// The store cannot be opened.
    #[error("{place}: cannot open the repository: {text}")]
    Open {
        /// The repository.
        place: Box<RepositoryAddress>,
        /// The cause.
        text: String,
        /// The class of the error.
        class: Class,
    },
    /// The store lacks a feature that the caller demanded or that the protocol needs.
    #[error("{place}: {what}")]
    Unsupported {
        /// The repository.
        place: Box<RepositoryAddress>,
        /// The missing feature.
        what: &'static str,
    },
    /// The lock was not acquired.
    #[error("{}", refusal_text(place, *mode, refusal))]
    Refused {
        /// The repository.
        place: Box<RepositoryAddress>,
        /// The requested mode.
        mode: LockMode,
        /// The reason.
        refusal: Box<AcquireRefusal>,
    },
    /// The lock was held and is lost.
    #[error("{place}: {}", loss_text(loss))]
    Lost {
        /// The repository.
        place: Box<RepositoryAddress>,
        /// How the lock was lost.
        loss: Box<Loss>,
    },
    /// This guard does not hold a lock: it was released before, or it is a copy in a forked child
    /// (K36 (idempotent release)).
    #[error("{place}: this handle does not hold the lock (released before, or inherited by fork)")]
    NotHeld {
        /// The repository.
        place: Box<RepositoryAddress>,
    },
    /// An operation on the store failed.
    #[error("{place}: {failure}")]
    Store {
        /// The repository.
        place: Box<RepositoryAddress>,
        /// The failure.
        failure: OpFailure,
    },
}

/// How a lock was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Loss {
    /// No refresh was confirmed in time (P32 (lease limit at 80 percent)). The lock can be revived
    /// (P34 (revive a lapsed lease)).
    Lapsed,
    /// The lock is lost for this cause and cannot be revived.
    For(LossCause),
}

impl Error {
    /// Returns the class of the error, for programs (K2).
    pub fn class(&self) -> Class {
        match self {
            Error::Address(_)
            | Error::Settings(_)
            | Error::Key(_)
            | Error::SealedTtl(_)
            | Error::NoDataKey => Class::BadInput,
            Error::Open { class, .. } => *class,
            Error::Unsupported { .. } => Class::Unsupported,
            Error::Refused { refusal, .. } => refusal.class(),
            Error::Lost { .. } => Class::Compromised,
            Error::NotHeld { .. } => Class::NotHeld,
            Error::Store { failure, .. } => failure.class(),
        }
    }

    /// Returns `true` if another holder or a faster acquirer is the reason, so that waiting may
    /// help (C15 (exit code follows the decision)).
    pub fn is_busy(&self) -> bool {
        self.blocker().is_some()
            || matches!(self, Error::Refused { refusal, .. }
                if matches!(**refusal, AcquireRefusal::LostRace { .. }))
    }

    /// Returns the object that blocks the request, if it is known.
    pub fn blocker(&self) -> Option<&BlockingObject> {
        match self {
            Error::Refused { refusal, .. } => refusal.blocker(),
            _ => None,
        }
    }

    /// Returns the sentence of the originals for a refusal with a known blocker, without the
    /// repository's name (P39 (fixed texts of the original)).
    pub fn original_sentence(&self) -> Option<String> {
        let Error::Refused { mode, refusal, .. } = self else {
            return None;
        };
        let blocker = refusal.blocker()?;
        Some(match **refusal {
            AcquireRefusal::LostRace { .. } => messages::lost_race(*mode, blocker),
            _ => messages::refused(*mode, blocker),
        })
    }
}

impl AcquireRefusal {
    /// Returns the class of the refusal, for programs (K2).
    pub fn class(&self) -> Class {
        match self {
            AcquireRefusal::Held(blocker) if blocker.object.record().is_none() => Class::Unreadable,
            AcquireRefusal::Held(_) => Class::Held,
            AcquireRefusal::LostRace { .. } => Class::LostRace,
            AcquireRefusal::TimedOut(_) => Class::Timeout,
            AcquireRefusal::Store(failure) => failure.class(),
            AcquireRefusal::LeftBehind { cause, .. } => cause.class(),
            AcquireRefusal::Fence => Class::Malformed,
            AcquireRefusal::TooSlow | AcquireRefusal::Cancelled => Class::Io,
        }
    }

    /// Returns the object that blocks the request, if it is known.
    pub fn blocker(&self) -> Option<&BlockingObject> {
        match self {
            AcquireRefusal::Held(blocker) | AcquireRefusal::TimedOut(blocker) => Some(blocker),
            AcquireRefusal::LostRace { to } => to.as_deref(),
            AcquireRefusal::LeftBehind { cause, .. } => cause.blocker(),
            AcquireRefusal::Store(_)
            | AcquireRefusal::Fence
            | AcquireRefusal::TooSlow
            | AcquireRefusal::Cancelled => None,
        }
    }
}

impl OpFailure {
    /// Returns the class of the failure, for programs (K2).
    pub fn class(&self) -> Class {
        match self.kind {
            OpFailureKind::Passing | OpFailureKind::Lasting => Class::Io,
            OpFailureKind::NotALock => Class::NotALock,
        }
    }
}

/// Message of a refusal (K5): repository, holder, since when, verdict, and the command to break it.
fn refusal_text(place: &RepositoryAddress, mode: LockMode, refusal: &AcquireRefusal) -> String {
    match refusal {
        AcquireRefusal::Held(blocker) => {
            format!(
                "{place}: {}{}",
                messages::refused(mode, blocker),
                judged(place, blocker)
            )
        }
        AcquireRefusal::TimedOut(blocker) => format!(
            "{place}: timed out: {}{}",
            messages::refused(mode, blocker),
            judged(place, blocker)
        ),
        AcquireRefusal::LostRace { to: Some(blocker) } => {
            format!(
                "{place}: {}{}",
                messages::lost_race(mode, blocker),
                judged(place, blocker)
            )
        }
        AcquireRefusal::LostRace { to: None } => {
            format!("{place}: another acquirer was faster; try again")
        }
        AcquireRefusal::Store(failure) => format!("{place}: {failure}; nothing was locked"),
        AcquireRefusal::LeftBehind {
            cause,
            key,
            failure,
        } => format!(
            "{}; and our own record {key} could not be removed ({failure}): it ends by itself when \
             its lease runs out",
            refusal_text(place, mode, cause)
        ),
        AcquireRefusal::Fence => format!(
            "{place}: the fencing counter index/lock.tenure/fence is damaged or used up; put a \
             number above every one given out so far into it, as {{\"fence\":N}}"
        ),
        AcquireRefusal::TooSlow => {
            format!("{place}: the store was too slow for a lock to be held safely; try again")
        }
        AcquireRefusal::Cancelled => format!("{place}: given up on request"),
    }
}

fn judged(place: &RepositoryAddress, blocker: &BlockingObject) -> String {
    let age = match (blocker.object.modified, blocker.object.store_now) {
        (Some(modified), Some(now)) => {
            format!(
                ", written {} ago",
                HumanDuration(crate::time::span(modified, now))
            )
        }
        (None, _) | (_, None) => String::new(),
    };
    format!(
        "; judged {}{age}; to break it: tenure break --id {} {place}",
        blocker.verdict, blocker.key
    )
}

fn loss_text(loss: &Loss) -> String {
    match loss {
        Loss::Lapsed => "the lock was lost: no refresh was confirmed in time".into(),
        Loss::For(LossCause::Expired) => "the lock was lost: its lease expired".into(),
        Loss::For(LossCause::Removed) => {
            "the lock was lost: another client removed its record".into()
        }
        Loss::For(LossCause::Overwritten(blocker)) => {
            format!("the lock was lost: {}", who(blocker, "replaced it"))
        }
        Loss::For(LossCause::Intruder(blocker)) => {
            format!(
                "the lock was lost: {}",
                who(blocker, "holds a conflicting lock")
            )
        }
    }
}

fn who(blocker: &BlockingObject, does: &str) -> String {
    match blocker.object.record() {
        Some(record) => format!(
            "{} (operation: {}) {does}",
            tenure_files::internal::printable(&record.holder),
            tenure_files::internal::printable(&record.operation)
        ),
        None => format!("an unreadable record {does}"),
    }
}
