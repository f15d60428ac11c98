//! The rules, told as tests. `Scenario` is the one place that knows the API of the space.

#![allow(
    clippy::unwrap_used,
    reason = "a test that panics has said what it wants to say"
)]

mod codec;
mod dice;
mod limits;
mod matrix;
mod moves;
mod random;
mod reading;
mod scenario;
mod scripts;
mod step;
mod system;
mod table;
mod tables;
mod together;
mod twins;
mod values;
mod world;

#[global_allocator]
static COUNTING: codec::Counting = codec::Counting;
