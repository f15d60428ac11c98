//! `tenure run`: runs a command and holds a lock until its process group has ended. If the lock is
//! lost or `tenure` dies, it ends the whole process tree, unless an option says otherwise.
//!
//! The wrapper process holds the lock; the supervisor process starts, ends and reaps the child.

mod channel;
mod process_tree;
mod schedule;
mod signal_queue;
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
pub(crate) use signal_queue::SignalQueue;
pub(crate) use task::{Descriptor, OnDeath, OnLost, SupervisorTask};
