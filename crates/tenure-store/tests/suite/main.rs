//! The tests of the repository lock from outside: model, servers, faults, clocks.

mod clocks;
mod contention;
mod faults;
mod model;
mod server;
mod support;
