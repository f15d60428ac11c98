//! Tests of the protocol by rule, on an in-memory store.

mod acquire;
mod break_lock;
mod fence;
mod hold;
mod probe;
mod revive;
mod staleness;

use std::time::Duration;

use super::fake_store::FakeStore;
use super::{BlockingObject, HoldProcedure, ListLocks, Released};
use crate::key::ObjectKey;
use crate::lock_terms::{ConditionLevel, LockMode};
use crate::staleness::Observations;

const LEVELS: [ConditionLevel; 3] = [
    ConditionLevel::Nothing,
    ConditionLevel::Writes,
    ConditionLevel::Deletes,
];
const MODES: [LockMode; 2] = [LockMode::Exclusive, LockMode::Shared];

fn seconds(number: u64) -> Duration {
    Duration::from_secs(number)
}

fn shared_key() -> ObjectKey {
    ObjectKey::Shared("2026-03-07T09:00:00.482913Z".into())
}

fn release(fake: &mut FakeStore, mut hold: HoldProcedure) -> Released {
    hold.release();
    fake.drive(hold)
}

fn listing(fake: &mut FakeStore) -> Vec<BlockingObject> {
    let listing = ListLocks::all(fake.terms(), Observations::default());
    fake.drive(listing).unwrap().0.locks
}
