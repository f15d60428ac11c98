//! The transports: how clients meet the handlers. Bytes in, bytes out; nothing is decided here.

pub(crate) mod admin;
pub mod admission;
pub mod auth;
mod body_limit;
pub(crate) mod coalesce;
pub(crate) mod connection;
pub(crate) mod framing;
pub mod grpc;
pub(crate) mod grpc_connection;
mod h2_body;
pub mod h3;
pub(crate) mod health;
mod inline_executor;
pub mod json;
pub mod openapi;
mod preface_timeout;
pub mod sse;
pub mod tcp;
pub mod tls;
pub(crate) mod unary;

/// The longest message on the gRPC port.
pub(crate) const MESSAGE: usize = 4 << 20;
