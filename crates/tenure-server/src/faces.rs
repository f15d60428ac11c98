//! The faces: how clients meet the handlers. Bytes in, bytes out; nothing is decided here.

pub mod admission;
pub mod auth;
mod body;
pub(crate) mod cluster;
pub(crate) mod connection;
pub(crate) mod framing;
pub mod grpc;
pub mod h3;
pub(crate) mod health;
pub(crate) mod herd;
pub(crate) mod http2;
pub mod json;
pub mod openapi;
mod patience;
mod requests;
pub mod sse;
mod streams;
pub mod tcp;
pub mod tls;
pub(crate) mod unary;

/// The longest message on the gRPC port.
pub(crate) const MESSAGE: usize = 4 << 20;
