//! The test processes of this crate, and fixtures that use them.

#![allow(dead_code, reason = "each test program uses its own part")]
#![allow(clippy::unwrap_used, reason = "in a test a panic is the message")]

pub(crate) mod actor;
pub(crate) mod contenders;
pub(crate) mod daemon;
pub(crate) mod network_fs;
pub(crate) mod postgres;
pub(crate) mod uploads;
