//! The tests of the repository lock from outside: model, servers, faults, clocks.

mod model;
mod server;
mod support;
