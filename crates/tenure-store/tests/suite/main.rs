//! Black-box tests of the repository lock: model check, servers, faults, clocks.

#![allow(
    clippy::print_stdout,
    reason = "states, rounds and requests are counted to be read"
)]
#![allow(
    clippy::large_enum_variant,
    clippy::result_large_err,
    reason = "a test has a handful of machines; plain data reads better than boxes"
)]

mod clocks;
mod contention;
mod costs;
mod faults;
mod foreign_servers;
mod intruders;
mod levels;
mod model;
mod processes;
mod server;
mod sigkill;
mod support;
mod vectors;
