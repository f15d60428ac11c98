//! `tenure run` from a shell: exit codes, signals, descriptors, terminals, losses, kills, and no
//! process left behind.

#![allow(
    clippy::unwrap_used,
    reason = "a test fails where something is not as it must be"
)]

mod basics;
mod exit_codes;
mod interrupts;
mod killed_processes;
mod losses;
mod pty;
mod shell;
mod signals;
mod stderr;
mod terminal;
mod trees;
