//! `tenure run`: a command under a lock, and nothing of it left when the lock goes.

mod channel;
pub(crate) mod keeper;
mod schedule;
mod spawn;
mod sys;
mod task;
mod tree;
pub(crate) mod wrapper;

pub(crate) use channel::{Cause, Channel, MOST_DESCRIPTORS, OnAsk, Value, Variables};
pub(crate) use schedule::Lease;
pub(crate) use sys::have_memory_ready;
pub(crate) use task::{Descriptor, OnDeath, OnLost, Task};
pub(crate) use tree::End;
