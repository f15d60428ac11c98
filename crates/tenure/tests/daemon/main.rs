//! The daemon's client against a real daemon in a process of its own: killed, restarted, stopped, cut off, and behind a
//! relay that swallows answers.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../support/mod.rs"]
mod support;

mod access;
mod cluster;
mod exclusion;
mod faults;
mod holding;
mod lock_all;
mod waiting;

use std::time::Duration;

/// Longer than anything here takes.
pub(crate) const LONG: Duration = Duration::from_secs(30);
