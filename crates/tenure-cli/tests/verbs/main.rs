//! The commands besides `run` and `serve`, run from a shell.

#![allow(
    clippy::unwrap_used,
    reason = "a test fails where something is not as it must be"
)]

mod addresses;
mod break_lock;
mod holds;
mod inspect;
mod manuals;
mod protocols;
#[path = "../run/pty.rs"]
mod pty;
#[path = "../run/shell.rs"]
mod shell;
