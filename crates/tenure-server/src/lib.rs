//! The daemon: one set of handlers, and the faces derived from them.

pub mod config;
pub mod faces;
pub mod status;
