//! What can go wrong, for people and for programs (K2, K5).

use std::time::Duration;

use tenure_files::Class;

use crate::address::{AddressError, RepositoryAddress};
use crate::envelope::KeyError;
use crate::lock_terms::{LockMode, SettingsError};
use crate::messages;
use crate::protocol::{AcquireRefusal, BlockingObject, LossCause, OpFailure, OpFailureKind};
use crate::time::HumanDuration;

/// A lock that was not taken, kept, given back or looked at.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address names no repository.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The settings contradict the protocol.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The key file is none.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A sealed record of a long lease would be taken for stale by everybody without the key.
    #[error("sealed records need a ttl of at most 120 s, not {} s", .0.as_secs())]
    SealedTtl(Duration),
    /// The store cannot be opened at all.
    #[error("{place}: cannot open the repository: {text}")]
    Open {
        /// Which repository.
        place: Box<RepositoryAddress>,
        /// What is wrong.
        text: String,
        /// The class of it.
        class: Class,
    },
    /// The store lacks something that was demanded, or that locks cannot do without.
    #[error("{place}: {what}")]
    Unsupported {
        /// Which repository.
        place: Box<RepositoryAddress>,
        /// What it lacks.
        what: &'static str,
    },
    /// The lock was not taken.
    #[error("{}", refusal_text(place, *mode, refusal))]
    Refused {
        /// Which repository.
        place: Box<RepositoryAddress>,
        /// What was wanted.
        mode: LockMode,
        /// Why not.
        refusal: Box<AcquireRefusal>,
    },
    /// The lock was held, and is not any more.
    #[error("{place}: {}", loss_text(loss))]
    Lost {
        /// Which repository.
        place: Box<RepositoryAddress>,
        /// How it was lost.
        loss: Box<Loss>,
    },
    /// This handle holds nothing: released before, or come over `fork` (K36).
    #[error("{place}: this handle does not hold the lock (released before, or inherited by fork)")]
    NotHeld {
        /// Which repository.
        place: Box<RepositoryAddress>,
    },
    /// The store could not be asked.
    #[error("{place}: {failure}")]
    Store {
        /// Which repository.
        place: Box<RepositoryAddress>,
        /// What it said.
        failure: OpFailure,
    },
}

/// How a lock was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Loss {
    /// No refresh was confirmed in time (P32). It may be revived (P34).
    Lapsed,
    /// For good.
    For(LossCause),
}

impl Error {
    /// The class, for programs (K2).
    pub fn class(&self) -> Class {
        match self {
            Error::Address(_) | Error::Settings(_) | Error::Key(_) | Error::SealedTtl(_) => {
                Class::BadInput
            }
            Error::Open { class, .. } => *class,
            Error::Unsupported { .. } => Class::Unsupported,
            Error::Refused { refusal, .. } => refusal.class(),
            Error::Lost { .. } => Class::Compromised,
            Error::NotHeld { .. } => Class::NotHeld,
            Error::Store { failure, .. } => failure.class(),
        }
    }

    /// Whether somebody else has it, so that waiting may help (C15).
    pub fn is_busy(&self) -> bool {
        self.blocker().is_some()
            || matches!(self, Error::Refused { refusal, .. }
                if matches!(**refusal, AcquireRefusal::LostRace { .. }))
    }

    /// Who is in the way.
    pub fn blocker(&self) -> Option<&BlockingObject> {
        match self {
            Error::Refused { refusal, .. } => refusal.blocker(),
            _ => None,
        }
    }

    /// The exit code of a command that ends with this (C2, C15).
    pub fn exit_code(&self) -> u8 {
        match self.class() {
            Class::Timeout => Class::Timeout.exit_code(),
            _ if self.is_busy() => Class::Held.exit_code(),
            class => class.exit_code(),
        }
    }
}

impl AcquireRefusal {
    /// The class, for programs (K2).
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

    /// Who is in the way.
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
    /// The class, for programs (K2).
    pub fn class(&self) -> Class {
        match self.kind {
            OpFailureKind::Passing | OpFailureKind::Lasting => Class::Io,
            OpFailureKind::NotALock => Class::NotALock,
        }
    }
}

/// K5: the resource, the holder, since when, the judgement, and the way out.
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
            "{place}: waited in vain: {}{}",
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
        Loss::For(LossCause::Expired) => "the lock was lost: its lease ran out".into(),
        Loss::For(LossCause::Removed) => "the lock was lost: somebody removed its record".into(),
        Loss::For(LossCause::Overwritten(blocker)) => {
            format!("the lock was lost: {}", who(blocker, "stands in its place"))
        }
        Loss::For(LossCause::Intruder(blocker)) => {
            format!("the lock was lost: {}", who(blocker, "works beside us"))
        }
    }
}

fn who(blocker: &BlockingObject, does: &str) -> String {
    match blocker.object.record() {
        Some(record) => format!(
            "{} (operation: {}) {does}",
            tenure_files::error::printable(&record.holder),
            tenure_files::error::printable(&record.operation)
        ),
        None => format!("an unreadable record {does}"),
    }
}
