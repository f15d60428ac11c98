//! `tenure run` as a shell meets it: exit codes, signals, descriptors, terminals, losses, deaths,
//! and nothing left behind.

#![allow(
    clippy::unwrap_used,
    reason = "a test fails where something is not as it must be"
)]

mod basics;
mod exit_codes;
mod killed_processes;
mod losses;
mod pty;
mod shell;
mod signals;
mod terminal;
mod trees;
