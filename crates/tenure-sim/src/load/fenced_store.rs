//! The backing store that fences are for: it remembers the largest it has seen, per path.

use std::collections::BTreeMap;

use tenure_core::path::Path;
use tenure_core::value::OwnerId;

/// A write on its way.
#[derive(Clone, Debug)]
pub(crate) struct StoreWrite {
    pub(crate) owner: OwnerId,
    pub(crate) path: Path,
    pub(crate) fence: u64,
}

/// See the module.
#[derive(Default)]
pub(crate) struct FencedStore {
    largest: BTreeMap<Path, u64>,
}

impl FencedStore {
    /// Takes a write unless its fence is smaller than one that was seen.
    pub(crate) fn write(&mut self, write: &StoreWrite) -> bool {
        let largest = self.largest.entry(write.path.clone()).or_default();
        if write.fence < *largest {
            return false;
        }
        *largest = write.fence;
        true
    }
}
