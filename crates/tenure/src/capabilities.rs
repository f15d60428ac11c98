//! Capabilities of the backends. A request that needs more is refused before anything is changed.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::address::Address;
use crate::error::Error;
use crate::values::{Mode, whole_millis};
use tenure_base::HumanDuration;

/// What the backend of an address supports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Capabilities {
    /// The modes.
    pub modes: Modes,
    /// The order in which waiters are granted the lock.
    pub order: Order,
    /// Whether holders get fences.
    pub fence: Fencing,
    /// The allowed lease times; `None` if a lock lasts as long as its holder.
    #[serde(serialize_with = "lease_millis")]
    pub lease: Option<RangeInclusive<Duration>>,
    /// How the end of a dead holder's lock is determined.
    pub liveness: Liveness,
    /// Whether a holder can be asked to release.
    pub ask: bool,
    /// Which processes see the lock.
    pub across: Across,
}

/// The modes of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Modes {
    /// Exclusive only.
    Exclusive,
    /// Exclusive and shared.
    Shared,
    /// Exclusive, shared, shared trees and permits.
    All,
}

/// The order among waiters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// First come, first served.
    Fair,
    /// No order: waiters poll, and the first to notice acquires the lock.
    None,
}

/// Which holders get a fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fencing {
    /// Every exclusive holder.
    Always,
    /// Holders that request one.
    OnRequest,
}

/// How a dead holder is detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Liveness {
    /// Not needed: lock and holder are in the same process.
    Shared,
    /// By the kernel lock on a local disk, otherwise by the process, otherwise by age.
    Kernel,
    /// By the end of its lease.
    Lease,
}

/// Which processes see a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Across {
    /// This process.
    Process,
    /// All processes on this machine, and all machines that mount the directory.
    Machine,
    /// All clients of the store.
    Store,
    /// All clients of the daemon.
    Cluster,
}

/// A capability that a caller requires; see [`Lock::require`](crate::Lock::require).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Need {
    /// A fence. Lock files assign one because of this request.
    Fence,
    /// First come, first served.
    FairOrder,
    /// A lease, so that the lock of a dead holder ends wherever that holder ran.
    Lease,
    /// Release requests to the holder.
    Ask,
}

impl Capabilities {
    /// Returns what the backend of `place` supports. Does no I/O.
    pub fn of(place: &Address) -> Capabilities {
        let file = Capabilities {
            modes: Modes::Exclusive,
            order: Order::None,
            fence: Fencing::OnRequest,
            lease: None,
            liveness: Liveness::Kernel,
            ask: false,
            across: Across::Machine,
        };
        match place {
            Address::Memory(_) => Capabilities {
                modes: Modes::All,
                order: Order::Fair,
                fence: Fencing::Always,
                liveness: Liveness::Shared,
                ask: true,
                across: Across::Process,
                ..file
            },
            Address::Sidecar(_) | Address::Exclusive(_) => file,
            Address::Upload { .. } => Capabilities { ask: true, ..file },
            #[cfg(feature = "store")]
            Address::Repository(_) => Capabilities {
                modes: Modes::Shared,
                fence: Fencing::Always,
                lease: Some(Duration::from_secs(30)..=Duration::from_secs(600)),
                liveness: Liveness::Lease,
                across: Across::Store,
                ..file
            },
            Address::Daemon { .. } => Capabilities {
                modes: Modes::All,
                order: Order::Fair,
                fence: Fencing::Always,
                lease: Some(Duration::from_millis(1)..=Duration::from_secs(7 * 86_400)),
                liveness: Liveness::Lease,
                ask: true,
                across: Across::Cluster,
            },
        }
    }

    /// Returns whether the backend has this mode.
    pub fn allows(&self, mode: Mode) -> bool {
        match mode {
            Mode::Exclusive => true,
            Mode::Shared => self.modes != Modes::Exclusive,
            Mode::SharedTree | Mode::Permit(_) => self.modes == Modes::All,
        }
    }

    /// Returns whether the backend has this capability.
    pub fn meets(&self, need: Need) -> bool {
        match need {
            Need::Fence => true,
            Need::FairOrder => self.order == Order::Fair,
            Need::Lease => self.lease.is_some(),
            Need::Ask => self.ask,
        }
    }

    pub(crate) fn require(&self, place: &Address, need: Need) -> Result<(), Error> {
        if self.meets(need) {
            return Ok(());
        }
        let what = match need {
            Need::Fence => "there are no fences here",
            Need::FairOrder => "there is no line to wait in here: who is quickest is next",
            Need::Lease => "there are no leases here: the lock lasts as long as its holder",
            Need::Ask => "a holder here cannot be asked to let go",
        };
        Err(Error::unsupported(place, what))
    }

    pub(crate) fn require_mode(&self, place: &Address, mode: Mode) -> Result<(), Error> {
        if self.allows(mode) {
            return Ok(());
        }
        let what = match mode {
            Mode::Exclusive | Mode::Shared => "there are no shared locks here",
            Mode::SharedTree => "there are no shared trees here",
            Mode::Permit(_) => "there are no permits here",
        };
        Err(Error::unsupported(place, what))
    }

    pub(crate) fn require_ttl(&self, place: &Address, ttl: Duration) -> Result<(), Error> {
        self.require(place, Need::Lease)?;
        match &self.lease {
            Some(range) if !range.contains(&ttl) => Err(Error::input(
                format!("ttl of {}", HumanDuration(ttl)),
                format!(
                    "is out of range at {place}: {} to {}",
                    HumanDuration(*range.start()),
                    HumanDuration(*range.end())
                ),
            )),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Capabilities {
    /// Formats one line per capability, as `tenure doctor` prints them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let modes = match self.modes {
            Modes::Exclusive => "exclusive",
            Modes::Shared => "exclusive, shared",
            Modes::All => "exclusive, shared, shared tree, permits",
        };
        let order = match self.order {
            Order::Fair => "fair: first come, first served",
            Order::None => "none: who is quickest is next",
        };
        let fence = match self.fence {
            Fencing::Always => "always",
            Fencing::OnRequest => "on request",
        };
        let liveness = match self.liveness {
            Liveness::Shared => "one process",
            Liveness::Kernel => "kernel lock on a local disk, else process, else age",
            Liveness::Lease => "lease",
        };
        let across = match self.across {
            Across::Process => "this process",
            Across::Machine => "this machine",
            Across::Store => "everybody who uses the store",
            Across::Cluster => "everybody who reaches the daemon",
        };
        writeln!(f, "modes     {modes}")?;
        writeln!(f, "order     {order}")?;
        writeln!(f, "fence     {fence}")?;
        match &self.lease {
            Some(range) => writeln!(
                f,
                "lease     {} to {}",
                HumanDuration(*range.start()),
                HumanDuration(*range.end())
            )?,
            None => writeln!(f, "lease     none: held as long as the holder lives")?,
        }
        writeln!(f, "liveness  {liveness}")?;
        writeln!(f, "ask       {}", if self.ask { "yes" } else { "no" })?;
        write!(f, "across    {across}")
    }
}

fn lease_millis<S: Serializer>(
    lease: &Option<RangeInclusive<Duration>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let range = lease
        .as_ref()
        .map(|range| [whole_millis(*range.start()), whole_millis(*range.end())]);
    range.serialize(serializer)
}
