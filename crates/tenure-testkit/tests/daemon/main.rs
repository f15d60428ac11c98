//! The client against a real daemon in its own process: killed, restarted, stopped, disconnected,
//! and behind a relay that holds back answers.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../support/mod.rs"]
mod support;

mod access;
mod calls;
mod cluster;
mod exclusion;
mod failover;
mod faults;
mod holding;
mod lock_all;
mod waiting;

use std::time::Duration;

/// Longer than any step takes.
pub(crate) const LONG: Duration = Duration::from_secs(30);
