//! Tests of the repository lock on real stores, through its public API.

#![allow(
    clippy::unwrap_used,
    clippy::result_large_err,
    reason = "a test that cannot go on says so by panicking"
)]

mod bucket;
mod directory;
mod google;
mod lease;
