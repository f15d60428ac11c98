//! Limits of principals: quotas on the state that their owners keep, and limits on their activity.
//!
//! A row names a subject, a place and values. Quotas are decided by the space of the namespace, so
//! they are exact: the node that takes a request attaches the values to the command
//! ([`Quota`]), and every replica decides alike. Activity limits are kept by each node for itself.

use alloc::collections::BTreeMap;
use alloc::string::String;
use core::fmt;

use crate::auth::{InvalidAuth, Principal};
use crate::path::Namespace;

/// What a limit restricts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LimitKind {
    /// Held and waiting paths in one namespace. A waiting path counts, because it is granted
    /// without another decision.
    Paths,
    /// Waiting paths in one namespace.
    Waiting,
    /// Owners with a hold or a queued acquire in one namespace.
    Owners,
    /// Requests a second, weighted by their cost, on each node.
    Requests,
    /// Requests that may come at once after a pause.
    Burst,
    /// Open connections to one node.
    Connections,
    /// Open streams on one node: sessions, subscriptions and watches together.
    Streams,
    /// Open watches on one node.
    Watches,
    /// Open subscriptions on one node.
    Subscriptions,
}

impl LimitKind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [LimitKind; 9] = [
        LimitKind::Paths,
        LimitKind::Waiting,
        LimitKind::Owners,
        LimitKind::Requests,
        LimitKind::Burst,
        LimitKind::Connections,
        LimitKind::Streams,
        LimitKind::Watches,
        LimitKind::Subscriptions,
    ];

    /// Returns the name that people use.
    pub fn name(self) -> &'static str {
        match self {
            LimitKind::Paths => "paths",
            LimitKind::Waiting => "waiting",
            LimitKind::Owners => "owners",
            LimitKind::Requests => "requests",
            LimitKind::Burst => "burst",
            LimitKind::Connections => "connections",
            LimitKind::Streams => "streams",
            LimitKind::Watches => "watches",
            LimitKind::Subscriptions => "subscriptions",
        }
    }

    /// Returns the kind of this name.
    pub fn named(name: &str) -> Option<LimitKind> {
        LimitKind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Returns whether the limit is a quota on replicated state.
    pub fn is_quota(self) -> bool {
        matches!(
            self,
            LimitKind::Paths | LimitKind::Waiting | LimitKind::Owners
        )
    }

    fn is_rate(self) -> bool {
        matches!(self, LimitKind::Requests | LimitKind::Burst)
    }

    pub(crate) fn number(self) -> u8 {
        self as u8
    }

    pub(crate) fn from_number(number: u8) -> Option<LimitKind> {
        LimitKind::ALL.get(usize::from(number)).copied()
    }
}

/// The values of a row.
pub type LimitValues = BTreeMap<LimitKind, u64>;

/// Whom a row is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LimitSubject {
    /// Each principal, counted on its own.
    Everyone,
    /// All principals together.
    Total,
    /// One principal, or each member of a group, counted on its own.
    Of(Principal),
}

impl LimitSubject {
    /// Parses `everyone`, `total`, a principal or a group.
    pub fn parse(text: &str) -> Result<LimitSubject, InvalidAuth> {
        Ok(match text {
            "everyone" => LimitSubject::Everyone,
            "total" => LimitSubject::Total,
            name => LimitSubject::Of(Principal::parse(name)?),
        })
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        match self {
            LimitSubject::Everyone => "everyone",
            LimitSubject::Total => "total",
            LimitSubject::Of(principal) => principal.as_str(),
        }
    }
}

impl fmt::Display for LimitSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One row: the limits of a subject at and below a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitRow {
    /// Whom it limits.
    pub of: LimitSubject,
    /// The namespaces that it concerns: those at and below this one; `None` for all. A quota counts
    /// in each of these namespaces on its own.
    pub at: Option<Namespace>,
    /// The limits.
    pub values: LimitValues,
}

impl LimitRow {
    /// The largest value of a limit.
    pub const MAX_VALUE: u64 = 1 << 53;

    /// Fails if the row has no values, or values that have no meaning for its subject and place.
    pub fn check(&self) -> Result<(), InvalidAuth> {
        let is_total = self.of == LimitSubject::Total;
        let has_meaning = |kind: LimitKind| {
            kind.is_quota()
                || match self.at {
                    // All callers together have no limit on connections or streams here: the
                    // configuration of the node limits them.
                    None => !is_total || kind.is_rate(),
                    // The bucket of a namespace is shared by all callers.
                    Some(_) => is_total && kind.is_rate(),
                }
        };
        let is_valid = !self.values.is_empty()
            && self.values.iter().all(|(kind, value)| {
                has_meaning(*kind) && *value <= Self::MAX_VALUE && (*value > 0 || kind.is_quota())
            });
        match is_valid {
            true => Ok(()),
            false => Err(InvalidAuth::Limit),
        }
    }
}

/// Formats values as `paths=10,waiting=5`.
pub fn shown(values: &LimitValues) -> String {
    let mut text = String::new();
    for (kind, value) in values {
        let comma = if text.is_empty() { "" } else { "," };
        text.push_str(&alloc::format!("{comma}{}={value}", kind.name()));
    }
    text
}

/// The quotas that apply to one acquire: of its owner's principal, and of all principals together in
/// the namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// Of the principal.
    pub own: QuotaValues,
    /// Of all principals together.
    pub total: QuotaValues,
}

/// Quotas on the state in one namespace; `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaValues {
    /// [`LimitKind::Paths`].
    pub paths: Option<u64>,
    /// [`LimitKind::Waiting`].
    pub waiting: Option<u64>,
    /// [`LimitKind::Owners`].
    pub owners: Option<u64>,
}

impl QuotaValues {
    /// Returns whether nothing is limited.
    pub fn is_empty(&self) -> bool {
        *self == QuotaValues::default()
    }
}

/// Which quota an acquire would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QuotaScope {
    /// That of the owner's principal.
    Own,
    /// That of all principals together.
    Total,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_values_that_mean_something_for_its_subject_and_place() {
        let place = || Namespace::parse("vol:/a").ok();
        let row = |of: &str, at: Option<Namespace>, values: &[(LimitKind, u64)]| LimitRow {
            of: LimitSubject::parse(of).unwrap(),
            at,
            values: values.iter().copied().collect(),
        };
        for good in [
            row("everyone", None, &[(LimitKind::Paths, 0)]),
            row("key:ci", place(), &[(LimitKind::Owners, 3)]),
            row("total", place(), &[(LimitKind::Requests, 10)]),
            row("total", None, &[(LimitKind::Waiting, 10)]),
            row("group:ops", None, &[(LimitKind::Watches, 1)]),
        ] {
            assert_eq!(good.check(), Ok(()), "{good:?}");
        }
        for bad in [
            row("everyone", None, &[]),
            row("key:ci", place(), &[(LimitKind::Requests, 3)]),
            row("total", None, &[(LimitKind::Streams, 3)]),
            row("key:ci", None, &[(LimitKind::Requests, 0)]),
            row("key:ci", None, &[(LimitKind::Paths, u64::MAX)]),
        ] {
            assert_eq!(bad.check(), Err(InvalidAuth::Limit), "{bad:?}");
        }
        for kind in LimitKind::ALL {
            assert_eq!(LimitKind::named(kind.name()), Some(kind));
            assert_eq!(LimitKind::from_number(kind.number()), Some(kind));
        }
    }
}
