//! The daemon: one table of RPCs, and the faces derived from it.

pub mod audit;
pub mod config;
mod convert;
pub mod daemon;
pub mod events;
pub mod faces;
pub(crate) mod handlers;
pub mod operate;
mod peers;
mod ports;
pub mod probe;
pub mod rpc;
mod session;
pub mod status;
pub mod telemetry;
mod under_way;
