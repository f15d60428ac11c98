//! Daemon: gRPC, HTTP and Server-Sent Events in front of a cluster node.
//!
//! `rpc` is the table of all RPCs; gRPC, JSON, Session, OpenAPI, telemetry and the audit log are
//! derived from it. `daemon` starts and stops the process.

pub mod audit;
pub mod audit_log;
pub mod auth;
pub mod config;
mod console;
mod convert;
pub mod daemon;
pub mod events;
#[cfg(test)]
mod fuzz;
pub(crate) mod handlers;
pub mod health_probe;
mod in_flight;
mod listeners;
pub mod offline;
mod peer_config;
pub mod rpc;
pub mod secret_file;
mod service_manager;
mod session;
pub mod status;
pub mod telemetry;
pub mod transport;
