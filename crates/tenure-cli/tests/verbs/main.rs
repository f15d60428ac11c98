//! The verbs beside `run` and `serve`, as a shell meets them.

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
