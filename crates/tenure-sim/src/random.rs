//! Seeded random numbers. All randomness of a run comes from one generator, so a seed determines
//! the run.

pub(crate) use tenure_random::SplitMix64 as SimRng;
