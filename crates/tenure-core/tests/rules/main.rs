//! Tests of the rules of `docs/spec`. `Scenario` translates test scripts into calls of the space's
//! API.

#![allow(
    clippy::unwrap_used,
    reason = "a test that panics has said what it wants to say"
)]

mod browse;
mod cluster_state;
mod codec;
mod grouped_commands;
mod growth;
mod limits;
mod matrix;
mod model_comparison;
mod moves;
mod queries;
mod random;
mod rng;
mod scenario;
mod scripts;
mod step;
mod system;
mod table;
mod tables;
mod values;

#[global_allocator]
static COUNTING: codec::Counting = codec::Counting;
