//! What kind of storm a seed brings. Some faults show only where a rare moment comes often: every
//! weather but the first makes one such moment common.
//!
//! The weather is drawn beside the run's own dice, so a kept seed with its weather stays the same run
//! when another kind is added.

use crate::random::Random;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Weather {
    /// Any mix of all faults.
    Mixed,
    /// The same on a cluster that one founder began alone and the others joined.
    Founder,
    /// Leaders are cut off without knowing it, many read from them, and others lock elsewhere.
    Deposed,
    /// Disks and links are slow, and clients act in the moment in which their leases end.
    Brink,
    /// Clients want several locks one after the other, and block each other.
    Tangle,
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

impl Weather {
    /// All of them. Seeds draw the first seven; the others are asked for by name.
    pub const ALL: [Weather; 13] = [
        Weather::Mixed,
        Weather::Founder,
        Weather::Deposed,
        Weather::Brink,
        Weather::Tangle,
        Weather::Returning,
        Weather::Stalled,
        Weather::Combo,
        Weather::Tiny,
        Weather::Late,
        Weather::Crowd,
        Weather::Moves,
        Weather::Repeats,
    ];

    /// The weather of a seed.
    pub fn of(seed: u64) -> Weather {
        // Dice of its own, so that the other seeds keep the weather that they had before this kind was added.
        if Random::new(seed ^ 0x57a1_1ed0).below(16) == 0 {
            return Weather::Stalled;
        }
        match Random::new(seed ^ 0x77ea_7e25).below(20) {
            0..9 => Weather::Mixed,
            9 => Weather::Returning,
            10..13 => Weather::Founder,
            13..15 => Weather::Deposed,
            15..18 => Weather::Brink,
            _ => Weather::Tangle,
        }
    }

    /// The one of this name.
    pub fn called(name: &str) -> Option<Weather> {
        let mut all = Weather::ALL.into_iter();
        all.find(|weather| weather.name() == name)
    }

    /// As it is called on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Weather::Mixed => "mixed",
            Weather::Founder => "founder",
            Weather::Deposed => "deposed",
            Weather::Brink => "brink",
            Weather::Tangle => "tangle",
            Weather::Returning => "returning",
            Weather::Stalled => "stalled",
            Weather::Combo => "combo",
            Weather::Tiny => "tiny",
            Weather::Late => "late",
            Weather::Crowd => "crowd",
            Weather::Moves => "moves",
            Weather::Repeats => "repeats",
        }
    }
}
