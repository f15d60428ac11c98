//! The rules of Tenure: who holds what, who waits, who is next.
//!
//! Two deterministic machines, [`Space`](space) for the locks of one group and the system machine
//! for what spans groups. Commands go in with a [`Stamp`](value::Stamp), outcomes and events come out. There is
//! no I/O here, no clock, no thread and no randomness, and no input makes it panic.
//!
//! | to learn about | read |
//! |---|---|
//! | paths, namespaces, ids and numbers that are valid by construction | [`path`], [`value`] |
//! | algorithms, modes and the reasons for a refusal | [`policy`] |
//! | which namespace a path belongs to | [`namespace_table`] |
//! | what goes in | [`command`] |
//! | what comes out | [`outcome`], [`event`] |
//! | what can be asked without changing anything | [`query`] |
//! | the locks of one group | [`space`] |
//! | what spans groups | [`system`] |
//! | the pure part of what a leader decides about leases | [`lease`] |
//! | who waits for whom | [`deadlock`] |
//! | bytes | [`codec`] |

#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod byte_search;
pub mod codec;
pub mod command;
pub mod deadlock;
pub mod event;
mod event_log;
mod hash;
mod idle_table;
pub mod lease;
#[cfg(feature = "model")]
pub mod model;
pub mod namespace_table;
pub mod outcome;
pub mod path;
pub mod policy;
pub mod query;
mod segment;
mod slab;
pub mod space;
pub mod system;
mod tree;
pub mod value;
mod wait_lists;

pub use hash::Fingerprint;
