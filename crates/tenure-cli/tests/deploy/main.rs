//! The files of `deploy/` with the programs that read them: systemd, logrotate, Prometheus, the schemas of
//! Kubernetes, and three nodes with the environment of the compose file.

#![allow(
    clippy::unwrap_used,
    reason = "a test fails where something is not as it must be"
)]

#[path = "../support/mod.rs"]
mod support;

mod compose;
mod kubernetes;
mod prometheus;
mod systemd;
mod tools;
