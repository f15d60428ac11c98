//! The tests of the repository lock from outside: model, servers, faults, clocks.

mod clocks;
mod contention;
mod costs;
mod faults;
mod foreign_servers;
mod model;
mod server;
mod sigkill;
mod support;
mod vectors;
