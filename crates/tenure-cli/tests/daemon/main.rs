//! The daemon from the view of its clients: real processes, real sockets, independent clients.

#![allow(
    clippy::unwrap_used,
    reason = "a test fails where something is not as it must be"
)]

#[path = "../support/mod.rs"]
mod support;

mod bad_clients;
mod console;
mod events;
mod exposure;
mod first_steps;
mod innocent;
mod limits;
mod openapi;
mod permissions;
mod principal_limits;
mod quic;
mod shutdown;
mod table;
mod telemetry;
mod transports;
