//! `tenure run`: runs a command under a lock and makes sure that no process of it outlives the
//! lock.
//!
//! Two processes share the work: the wrapper holds the lock, the supervisor holds the child.

mod channel;
mod process_tree;
mod schedule;
mod spawn;
pub(crate) mod supervisor;
mod syscalls;
mod task;
pub(crate) mod wrapper;

pub(crate) use channel::{
    Channel, ChildEndCause, MOST_DESCRIPTORS, OnAsk, VariableValue, Variables,
};
pub(crate) use process_tree::ProcessEnd;
pub(crate) use schedule::ChildLease;
pub(crate) use syscalls::have_memory_ready;
pub(crate) use task::{Descriptor, OnDeath, OnLost, SupervisorTask};
