//! The daemon: one set of handlers, and the faces derived from them.

pub mod config;
mod convert;
pub mod daemon;
pub mod events;
pub mod faces;
pub mod handlers;
pub mod operate;
mod peers;
mod ports;
pub mod probe;
mod session;
pub mod status;
pub mod telemetry;
mod under_way;
