//! The protocol, rule by rule, on a store of a few lines.

mod acquire;
mod breaking;
mod fence;
mod hold;
mod judging;
mod probe;
mod revive;

use std::time::Duration;

use super::world::World;
use super::{Blocker, Hold, Released, Survey};
use crate::judge::Sightings;
use crate::key::Key;
use crate::terms::{Level, Mode};

const LEVELS: [Level; 3] = [Level::Nothing, Level::Writes, Level::Deletes];
const MODES: [Mode; 2] = [Mode::Exclusive, Mode::Shared];

fn seconds(number: u64) -> Duration {
    Duration::from_secs(number)
}

fn shared_key() -> Key {
    Key::Shared("2026-03-07T09:00:00.482913Z".into())
}

fn release(world: &mut World, mut hold: Hold) -> Released {
    hold.release();
    world.drive(hold)
}

fn survey(world: &mut World) -> Vec<Blocker> {
    let survey = Survey::all(world.terms(), Sightings::default());
    world.drive(survey).unwrap().0.locks
}
