//! The lock model of Tenure on an engine that a team runs already.
//!
//! The engine keeps one log. Each client has a copy of the state machine of `tenure-core` and applies
//! the log to it. So there are no lock rules per engine, only a [`LogDriver`] with five operations.
//!
//! ```text
//!   client ── Attempt ──append at the next place──▶ engine: entries, snapshot, beat rows
//!      ▲                                                  │
//!      └──────── LogCopy ◀──────entries───────────────────┘
//!   holder ── beat ──▶ its row        waiter ── Observer: row unchanged for a ttl ──▶ append Expire
//! ```
//!
//! | part | module |
//! |---|---|
//! | what is in the log | [`entry`] |
//! | what the log amounts to | [`replica`] |
//! | how a call gets into the log, once | [`attempt`] |
//! | when a lease has ended | [`observer`] |
//! | what an engine must do | [`driver`]; in memory: [`memory`] |
//!
//! These parts have no I/O and no clock; `tenure-models` checks them in all interleavings. The feature
//! `service` adds the client that runs them, and serves the daemon's protocol within the process.

pub mod attempt;
pub mod driver;
#[cfg(feature = "service")]
mod engine;
pub mod entry;
pub mod memory;
pub mod observer;
#[cfg(feature = "postgres")]
pub mod postgres;
pub mod replica;
#[cfg(feature = "service")]
pub mod service;

pub use driver::{DriverError, LogDriver};
#[cfg(feature = "service")]
pub use engine::Engine;
