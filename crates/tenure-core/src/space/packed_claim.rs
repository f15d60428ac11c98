//! Bit-packed claim: mode, algorithm and fence in eight bytes.
//!
//! A fence has 53 bits (R71: tokens never go back), which leaves room for the other two. There is
//! one packed claim per held path, so its size matters.

use core::fmt;
use core::num::NonZeroU64;

use crate::policy::{Algorithm, Mode};
use crate::value::Fence;

/// Mode, algorithm and fence of a claim in one word.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct PackedClaim(NonZeroU64);

/// Bit 0 is always set, so the packed value is never zero.
const THERE: NonZeroU64 = NonZeroU64::MIN;
const FENCE: u32 = 1;
const FENCE_BITS: u64 = (Fence::MINTED_END - 1) << FENCE;
const MODE: u32 = 54;
const ALGORITHM: u32 = 56;

impl PackedClaim {
    pub(super) fn new(mode: Mode, algorithm: Algorithm, fence: Option<Fence>) -> PackedClaim {
        let bits = ((mode as u64) << MODE) | ((algorithm as u64) << ALGORITHM);
        PackedClaim(THERE | bits).with_fence(fence)
    }

    pub(super) fn mode(self) -> Mode {
        match (self.0.get() >> MODE) & 3 {
            0 => Mode::Write,
            1 => Mode::Read,
            _ => Mode::ReadTree,
        }
    }

    pub(super) fn algorithm(self) -> Algorithm {
        match (self.0.get() >> ALGORITHM) & 7 {
            0 => Algorithm::RecursiveRw,
            1 => Algorithm::PointRw,
            2 => Algorithm::RecursiveWrite,
            3 => Algorithm::PointWrite,
            _ => Algorithm::Semaphore,
        }
    }

    pub(super) fn fence(self) -> Option<Fence> {
        Fence::from_number((self.0.get() & FENCE_BITS) >> FENCE)
    }

    #[must_use]
    pub(super) fn with_fence(self, fence: Option<Fence>) -> PackedClaim {
        let others = self.0.get() & !FENCE_BITS;
        PackedClaim(THERE | others | (fence.map_or(0, Fence::number) << FENCE))
    }
}

impl fmt::Debug for PackedClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Terms")
            .field("mode", &self.mode())
            .field("algorithm", &self.algorithm())
            .field("fence", &self.fence())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_terms_come_back() {
        let highest = Fence::from_number(Fence::MINTED_END - 1);
        for mode in [Mode::Write, Mode::Read, Mode::ReadTree] {
            for algorithm in Algorithm::ALL {
                for fence in [None, Fence::from_number(1), highest] {
                    let terms = PackedClaim::new(mode, algorithm, fence);
                    let found = (terms.mode(), terms.algorithm(), terms.fence());
                    assert_eq!(found, (mode, algorithm, fence));
                    assert_eq!(
                        terms.with_fence(None),
                        PackedClaim::new(mode, algorithm, None)
                    );
                }
            }
        }
    }
}
