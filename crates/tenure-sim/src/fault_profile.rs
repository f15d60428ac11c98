//! What kind of fault phase a seed brings. Some faults show only where a rare moment comes often: every
//! fault profile but the first makes one such moment common.
//!
//! The fault profile is drawn beside the run's own random numbers, so a kept seed with its fault profile stays the same run
//! when another kind is added.

use crate::random::SimRng;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultProfile {
    /// Any mix of all faults.
    Mixed,
    /// The same on a cluster that one founder began alone and the others joined.
    Founder,
    /// Leaders are cut off without knowing it, many read from them, and others lock elsewhere.
    Deposed,
    /// Disks and links are slow, and clients act in the moment in which their leases end.
    Brink,
    /// Clients want several locks one after the other, and block each other.
    Nest,
    /// Replicas are removed and added again on the same node, while voters that know little come back.
    Returning,
    /// Disks hang, and nothing else happens: groups whose majority can write must answer (gray failures).
    Stalled,
    /// Several troubles at once for one group, and processes that die in the middle of something.
    Combo,
    /// The same with logs that are cut at every chance, and room for nearly nothing.
    Tiny,
    /// The same with frames that arrive up to two minutes late.
    Late,
    /// The same with many groups, and renewals that concern all of them.
    Crowd,
    /// Policies move paths between groups as fast as they are answered.
    Moves,
    /// Clients use their owners again and again, give everything a key, and send every call several times,
    /// to several nodes; two administrators change policies in the same way.
    Repeats,
}

impl FaultProfile {
    /// All of them. Seeds draw the first seven; the others are asked for by name.
    pub const ALL: [FaultProfile; 13] = [
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
    ];

    /// The fault profile of a seed.
    pub fn of(seed: u64) -> FaultProfile {
        // Dice of its own, so that the other seeds keep the fault profile that they had before this kind was added.
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

    /// The one of this name.
    pub fn called(name: &str) -> Option<FaultProfile> {
        let mut all = FaultProfile::ALL.into_iter();
        all.find(|fault_profile| fault_profile.name() == name)
    }

    /// As it is called on the command line.
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
        }
    }
}
