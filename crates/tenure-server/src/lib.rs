//! The daemon: one table of RPCs, and the transports derived from it.

pub mod audit;
pub mod config;
mod convert;
pub mod daemon;
pub mod events;
pub(crate) mod handlers;
pub mod health_probe;
mod in_flight;
mod listeners;
pub mod offline;
mod peer_config;
pub mod rpc;
mod session;
pub mod status;
pub mod telemetry;
pub mod transport;
