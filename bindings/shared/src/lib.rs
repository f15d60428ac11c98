//! What the Python and the Node binding share: settings and options as plain values, guards with
//! interior mutability, errors as JSON, a thread that runs futures.
//!
//! The protocols are in the library `tenure`; there is none here.

mod client;
mod error;
mod executor;
mod guard;

pub use client::{Client, LockOptions, OnWait, Settings, less};
pub use error::error_json;
pub use executor::{Task, blocking, spawn, timeout};
pub use guard::{EventListener, GuardEntry, HeldGuard, HeldGuards};
