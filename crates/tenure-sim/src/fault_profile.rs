//! Fault profiles: which faults a run injects, and how often.
//!
//! Some bugs show only in a rare situation. Every profile except the first makes one such situation
//! common.
//!
//! The profile is drawn from a generator of its own, not from the run's. So a stored seed with its
//! profile stays the same run when a profile is added.

use crate::random::SimRng;

/// A fault profile. [`FaultProfile::name`] gives its name on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultProfile {
    /// Any mix of all faults.
    Mixed,
    /// Any mix of faults, on a cluster that one node bootstrapped alone and that the others joined.
    Founder,
    /// Leaders are cut off without knowing it. Observers read from them while other clients lock
    /// elsewhere.
    Deposed,
    /// Disks and links are slow, and clients act at the moment when their leases end.
    Brink,
    /// Clients hold one lock while they wait for another, and block each other.
    Nest,
    /// Replicas are removed and added again on the same node, while voters with an old log return.
    Returning,
    /// Only disk hangs, client pauses and clock rates: a group whose majority can write must answer
    /// (gray failures).
    Stalled,
    /// Several faults at once for one group, and processes that die between two outputs of a step.
    Combo,
    /// Like `Combo`, with logs that are truncated at every opportunity and minimal limits.
    Tiny,
    /// Like `Combo`, with frames that arrive up to two minutes late.
    Late,
    /// Like `Combo`, with many groups and renewals that concern all of them.
    Crowd,
    /// Policy changes move paths between groups as soon as the previous change is answered.
    Moves,
    /// Groups of one voter: clusters of one node, and groups that shrink to one voter and grow again.
    Lone,
    /// Like `Brink`, with leaders that change every few seconds, pauses, and clocks at the extremes
    /// of the allowed rates.
    Edge,
    /// Disks that corrupt, lose, misplace or repeat writes, or report a sync that did not happen.
    Rot,
    /// Threads and connections that hang for up to minutes, and threads that rarely run.
    Starved,
    /// Clients reuse their owners, give every call a key, and send every call several times to
    /// several nodes. Two administrators change policies in the same way.
    Repeats,
}

impl FaultProfile {
    /// All profiles.
    pub const ALL: [FaultProfile; 17] = [
        FaultProfile::Mixed,
        FaultProfile::Founder,
        FaultProfile::Deposed,
        FaultProfile::Brink,
        FaultProfile::Nest,
        FaultProfile::Returning,
        FaultProfile::Stalled,
        FaultProfile::Combo,
        FaultProfile::Tiny,
        FaultProfile::Late,
        FaultProfile::Crowd,
        FaultProfile::Moves,
        FaultProfile::Repeats,
        FaultProfile::Lone,
        FaultProfile::Edge,
        FaultProfile::Rot,
        FaultProfile::Starved,
    ];

    /// The profiles of one in four seeds.
    const SPECIAL: [FaultProfile; 10] = [
        FaultProfile::Combo,
        FaultProfile::Tiny,
        FaultProfile::Late,
        FaultProfile::Crowd,
        FaultProfile::Moves,
        FaultProfile::Repeats,
        FaultProfile::Lone,
        FaultProfile::Edge,
        FaultProfile::Rot,
        FaultProfile::Starved,
    ];

    /// Returns the profile that a seed selects.
    pub fn of(seed: u64) -> FaultProfile {
        let mut special = SimRng::new(seed ^ 0x05ec_1a15);
        if special.below(4) == 0 {
            return special.pick(&FaultProfile::SPECIAL);
        }
        // A generator of its own: the seeds that do not draw `Stalled` keep the profile that they
        // had before it was added.
        if SimRng::new(seed ^ 0x57a1_1ed0).below(16) == 0 {
            return FaultProfile::Stalled;
        }
        match SimRng::new(seed ^ 0x77ea_7e25).below(20) {
            0..9 => FaultProfile::Mixed,
            9 => FaultProfile::Returning,
            10..13 => FaultProfile::Founder,
            13..15 => FaultProfile::Deposed,
            15..18 => FaultProfile::Brink,
            _ => FaultProfile::Nest,
        }
    }

    /// Returns the profile with this name.
    pub fn called(name: &str) -> Option<FaultProfile> {
        let mut all = FaultProfile::ALL.into_iter();
        all.find(|fault_profile| fault_profile.name() == name)
    }

    /// Whether the availability checker probes the groups during the fault phase. It knows which
    /// nodes can answer only if faults hit nodes rather than single messages.
    pub(crate) fn is_probed(self) -> bool {
        matches!(
            self,
            FaultProfile::Stalled | FaultProfile::Lone | FaultProfile::Rot | FaultProfile::Starved
        )
    }

    /// Whether the cluster is restored from a backup after the run. The profiles in which paths move
    /// between groups: a backup may contain a half-finished move.
    pub(crate) fn is_restored(self) -> bool {
        matches!(
            self,
            FaultProfile::Founder | FaultProfile::Moves | FaultProfile::Repeats
        )
    }

    /// Returns the name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            FaultProfile::Mixed => "mixed",
            FaultProfile::Founder => "founder",
            FaultProfile::Deposed => "deposed",
            FaultProfile::Brink => "brink",
            FaultProfile::Nest => "tangle",
            FaultProfile::Returning => "returning",
            FaultProfile::Stalled => "stalled",
            FaultProfile::Combo => "combo",
            FaultProfile::Tiny => "tiny",
            FaultProfile::Late => "late",
            FaultProfile::Crowd => "crowd",
            FaultProfile::Moves => "moves",
            FaultProfile::Repeats => "repeats",
            FaultProfile::Lone => "lone",
            FaultProfile::Edge => "edge",
            FaultProfile::Rot => "rot",
            FaultProfile::Starved => "starved",
        }
    }
}
