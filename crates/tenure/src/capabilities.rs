//! What each backend can promise. A call that needs more is refused before anything is touched.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::address::Address;
use crate::error::Error;
use crate::values::{Mode, span, whole_millis};

/// What a place can do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Capabilities {
    /// Which modes it has.
    pub modes: Modes,
    /// Who is next.
    pub order: Order,
    /// Whether there are fences.
    pub fence: Fencing,
    /// How long leases may be; none where a lock lasts as long as its holder.
    #[serde(serialize_with = "lease_millis")]
    pub lease: Option<RangeInclusive<Duration>>,
    /// How the death of a holder is noticed.
    pub liveness: Liveness,
    /// Whether a holder can be asked to let go.
    pub ask: bool,
    /// How far the lock is seen.
    pub across: Across,
}

/// Modes beyond exclusive, which every backend has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Modes {
    /// Exclusive only.
    Exclusive,
    /// Exclusive and shared.
    Shared,
    /// Exclusive, shared, shared trees, permits.
    All,
}

/// Who gets a lock next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// Who came first.
    Fair,
    /// Who is quickest.
    None,
}

/// Whether holders get a growing number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fencing {
    /// Every exclusive holder.
    Always,
    /// Those who ask for it.
    OnRequest,
}

/// How the death of a holder is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Liveness {
    /// It cannot die without the lock: they live in one process.
    Shared,
    /// By the kernel's lock on a local disk, else by its process, else by age.
    Kernel,
    /// By the end of its lease.
    Lease,
}

/// How far a lock is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Across {
    /// In this process.
    Process,
    /// On this machine, and wherever the directory is mounted.
    Machine,
    /// Wherever the store is.
    Store,
    /// Wherever the daemon is.
    Cluster,
}

/// Something a caller cannot do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Need {
    /// A fence with the lock. Lock files take one when this is asked for.
    Fence,
    /// First come, first served.
    FairOrder,
    /// The end of a dead holder is noticed by a lease, wherever it was.
    Lease,
    /// A holder can be asked to let go.
    Ask,
}

impl Capabilities {
    /// What the backend of this place can do. Nothing is touched to find out.
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

    /// Whether this mode exists here.
    pub fn allows(&self, mode: Mode) -> bool {
        match mode {
            Mode::Exclusive => true,
            Mode::Shared => self.modes != Modes::Exclusive,
            Mode::SharedTree | Mode::Permit(_) => self.modes == Modes::All,
        }
    }

    /// Whether this need is met here.
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
                format!("ttl of {}", span(ttl)),
                format!(
                    "is out of range at {place}: {} to {}",
                    span(*range.start()),
                    span(*range.end())
                ),
            )),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Capabilities {
    /// One line for each capability, as `tenure doctor` prints them.
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
                span(*range.start()),
                span(*range.end())
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
