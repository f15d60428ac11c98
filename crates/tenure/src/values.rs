//! Value types that all backends share: mode, fence, holder, verdict, hold id.

use std::collections::BTreeMap;
use std::fmt;
use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

use serde::{Serialize, Serializer};
use tenure_base::printable;
pub use tenure_base::{Class, Wait};

/// The mode in which a lock is requested or held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// The only holder.
    #[default]
    Exclusive,
    /// Together with other shared holders.
    Shared,
    /// Shared, for a path and everything below it.
    SharedTree,
    /// One of this many permits.
    Permit(NonZeroU32),
}

impl Mode {
    /// Returns the name for programs: `exclusive`, `shared`, `shared-tree` or `permit`.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Exclusive => "exclusive",
            Mode::Shared => "shared",
            Mode::SharedTree => "shared-tree",
            Mode::Permit(_) => "permit",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mode::Permit(of) => write!(f, "permit (one of {of})"),
            other => f.write_str(other.name()),
        }
    }
}

impl Serialize for Mode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// A fencing token: a number that grows with every exclusive grant. The protected resource must
/// refuse smaller ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Fence(NonZeroU64);

impl Fence {
    /// Creates a fence; `None` for zero.
    pub fn new(number: u64) -> Option<Fence> {
        NonZeroU64::new(number).map(Fence)
    }

    /// Returns the number.
    pub fn get(self) -> u64 {
        self.0.get()
    }
}

impl From<NonZeroU64> for Fence {
    fn from(number: NonZeroU64) -> Fence {
        Fence(number)
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The description of a holder, for people.
///
/// Other processes write it, so it is untrusted text; `Display` escapes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Holder {
    /// The name of the holder.
    #[serde(serialize_with = "null_if_empty")]
    pub name: String,
    /// The host it runs on.
    #[serde(serialize_with = "null_if_empty")]
    pub host: String,
    /// Its process id on that host.
    pub pid: Option<u32>,
    /// What it holds the lock for.
    #[serde(serialize_with = "null_if_empty")]
    pub purpose: String,
    /// Additional labels.
    pub labels: BTreeMap<String, String>,
}

impl Holder {
    /// Describes this process: program name, host and pid.
    pub fn here() -> Holder {
        let program = std::env::args_os().next().map(std::path::PathBuf::from);
        let name = program
            .as_deref()
            .and_then(std::path::Path::file_name)
            .map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        Holder {
            name,
            host: tenure_base::host_name(),
            pid: Some(std::process::id()),
            ..Holder::default()
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let on = |host: &str| match host {
            "" => String::new(),
            host => format!(" on {}", printable(host)),
        };
        match (self.name.as_str(), self.pid) {
            ("", None) if self.host.is_empty() => f.write_str("an unknown holder")?,
            ("", None) => write!(f, "an unknown process{}", on(&self.host))?,
            ("", Some(pid)) => write!(f, "pid {pid}{}", on(&self.host))?,
            (name, None) => write!(f, "{}{}", printable(name), on(&self.host))?,
            (name, Some(pid)) => write!(f, "{} (pid {pid}{})", printable(name), on(&self.host))?,
        }
        match self.purpose.as_str() {
            "" => Ok(()),
            purpose => write!(f, " for {}", printable(purpose)),
        }
    }
}

/// Whether a holder is alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum HolderLiveness {
    /// Its process runs, or its lease has not ended.
    Alive,
    /// It cannot run any more.
    Dead,
    /// There is no proof of either.
    Unknown,
}

/// Whether a holder is alive, with the evidence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// The conclusion.
    pub life: HolderLiveness,
    /// The evidence: `its kernel lock is held`, `its lease runs`, …
    pub because: String,
}

impl Verdict {
    pub(crate) fn new(life: HolderLiveness, because: impl Into<String>) -> Verdict {
        Verdict {
            life,
            because: because.into(),
        }
    }
}

#[cfg(feature = "files")]
impl From<tenure_files::Verdict> for Verdict {
    fn from(verdict: tenure_files::Verdict) -> Verdict {
        use tenure_files::Verdict as Files;
        let life = match verdict {
            Files::Alive(_) => HolderLiveness::Alive,
            Files::Dead(_) => HolderLiveness::Dead,
            Files::Unknown(_) => HolderLiveness::Unknown,
        };
        // The text has the form "alive (its process runs)".
        let text = verdict.to_string();
        let because = text
            .split_once('(')
            .map_or(text.as_str(), |(_, because)| because.trim_end_matches(')'));
        Verdict::new(life, because)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let life = match self.life {
            HolderLiveness::Alive => "alive",
            HolderLiveness::Dead => "dead",
            HolderLiveness::Unknown => "unknown",
        };
        write!(f, "{life} ({})", printable(&self.because))
    }
}

/// The id of one hold.
///
/// It makes sure that a break hits this hold and no later one: the token of a lock file, the object
/// in a repository, owner and fence on the daemon.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct HoldId(String);

impl HoldId {
    /// Creates an id from the text that [`LockState`](crate::LockState) shows.
    pub fn new(text: impl Into<String>) -> HoldId {
        HoldId(text.into())
    }

    /// Builds an id from owner and fence. A later hold of the same owner has another fence.
    pub(crate) fn of(owner: &str, fence: Option<Fence>) -> HoldId {
        HoldId(format!("{owner}@{}", fence.map_or(0, Fence::get)))
    }

    /// Returns the text of the id.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for HoldId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&printable(&self.0))
    }
}

/// Serializes a text that is not known as null.
fn null_if_empty<S: Serializer>(text: &str, serializer: S) -> Result<S::Ok, S::Error> {
    match text {
        "" => serializer.serialize_none(),
        text => serializer.serialize_some(text),
    }
}

/// Serializes a duration as milliseconds.
pub(crate) fn millis<S: Serializer>(
    duration: &Option<Duration>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match duration {
        Some(duration) => serializer.serialize_some(&whole_millis(*duration)),
        None => serializer.serialize_none(),
    }
}

pub(crate) fn whole_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// C8: shows the name, pid, host and purpose that are known, without control characters.
    #[test]
    fn a_holder_is_named_as_far_as_it_is_known() {
        let mut holder = Holder::default();
        assert_eq!(holder.to_string(), "an unknown holder");
        holder.pid = Some(7);
        assert_eq!(holder.to_string(), "pid 7");
        holder.host = "atlas".into();
        assert_eq!(holder.to_string(), "pid 7 on atlas");
        holder.name = "ci\u{1b}[2J".into();
        holder.purpose = "nightly".into();
        assert_eq!(
            holder.to_string(),
            "ci\\u{1b}[2J (pid 7 on atlas) for nightly"
        );
    }
}
