//! Repository locks: shared and exclusive leases made of objects inside a bucket or directory.

#![allow(
    clippy::large_enum_variant,
    clippy::result_large_err,
    reason = "a process has a handful of machines; plain data reads better than boxes"
)]

pub mod judge;
pub mod key;
pub mod onion;
pub mod record;
pub mod steps;
pub mod terms;
pub mod time;
