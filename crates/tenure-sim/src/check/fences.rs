//! At the store: who believes to hold a path is never refused, and nobody else gets through.
//!
//! Every new holder writes at once, so the store knows its fence. From then on a write of anybody
//! who held before is stale, and a write of the holder itself must pass.

use std::collections::BTreeMap;

use tenure_core::path::Path;
use tenure_core::value::OwnerId;

use super::{Fact, Finding, Seen};

/// See the module.
#[derive(Default)]
pub(super) struct Fences {
    /// Who wrote last to each path, and everybody who wrote before.
    last: BTreeMap<Path, OwnerId>,
    earlier: BTreeMap<Path, Vec<OwnerId>>,
}

impl Fences {
    pub(super) fn see(&mut self, fact: &Fact<'_>) -> Finding {
        let Fact::Wrote { owner, path, accepted, believes } = fact else {
            return Ok(Seen::Passed);
        };
        if !accepted {
            if *believes {
                return Err(format!("the store refused {owner}, who holds {path}: a fence went back"));
            }
            return Ok(Seen::Checked);
        }
        let earlier = self.earlier.entry((*path).clone()).or_default();
        if earlier.contains(owner) {
            return Err(format!("the store took a stale write of {owner} to {path}"));
        }
        let last = self.last.insert((*path).clone(), (*owner).clone());
        if let Some(last) = last
            && last != **owner
        {
            earlier.push(last);
        }
        Ok(Seen::Checked)
    }
}
