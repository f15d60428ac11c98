//! Deterministic state machines of Tenure: the lock rules, without I/O.
//!
//! There are two: [`Space`](space) holds the locks of one group, and the system machine holds the
//! state that spans groups. Commands go in with a [`Stamp`](value::Stamp); outcomes and events come
//! out. The crate has no I/O, no clock, no threads and no randomness, and no input makes it panic.
//!
//! | topic | module |
//! |---|---|
//! | paths, namespaces, ids and numbers that are valid by construction | [`path`], [`value`] |
//! | algorithms, modes and conflict reasons | [`policy`] |
//! | which namespace a path belongs to | [`namespace_table`] |
//! | commands (input) | [`command`] |
//! | outcomes and events (output) | [`outcome`], [`event`] |
//! | read-only queries | [`query`] |
//! | the locks of one group | [`space`] |
//! | state that spans groups | [`system`] |
//! | lease arithmetic of the leader | [`lease`] |
//! | deadlock detection | [`deadlock`] |
//! | keys, groups and grants | [`auth`] |
//! | quotas and activity limits of principals | [`limits`] |
//! | binary encoding | [`codec`] |
//! | text of others in text for people | [`text`] |

#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod auth;
mod byte_search;
pub mod codec;
pub mod command;
pub mod deadlock;
pub mod event;
mod event_log;
mod hash;
mod history;
mod idempotency;
mod idle_table;
pub mod lease;
pub mod limits;
pub mod namespace_table;
pub mod outcome;
pub mod path;
pub mod policy;
pub mod query;
mod segment;
mod sharded_table;
mod slab;
pub mod space;
pub mod system;
pub mod text;
mod tree;
pub mod value;
mod wait_lists;

pub use hash::Fingerprint;
