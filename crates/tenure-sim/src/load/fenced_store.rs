//! Fenced store: a store that refuses writes with a fence smaller than the largest it has seen, per
//! path.

use std::collections::BTreeMap;

use tenure_core::path::Path;
use tenure_core::value::OwnerId;

/// A write to the store.
#[derive(Clone, Debug)]
pub(crate) struct StoreWrite {
    pub(crate) owner: OwnerId,
    pub(crate) path: Path,
    pub(crate) fence: u64,
}

/// The largest fence per path.
#[derive(Default)]
pub(crate) struct FencedStore {
    largest: BTreeMap<Path, u64>,
}

impl FencedStore {
    /// Accepts a write unless its fence is smaller than an earlier one.
    pub(crate) fn write(&mut self, write: &StoreWrite) -> bool {
        let largest = self.largest.entry(write.path.clone()).or_default();
        if write.fence < *largest {
            return false;
        }
        *largest = write.fence;
        true
    }
}
