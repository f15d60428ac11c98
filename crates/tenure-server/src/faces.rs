//! The faces: how clients meet the handlers. Bytes in, bytes out; nothing is decided here.

pub mod admission;
pub mod auth;
mod body;
pub(crate) mod cluster;
pub(crate) mod connection;
pub mod grpc;
pub mod h3;
pub(crate) mod health;
pub mod json;
pub mod openapi;
mod patience;
pub mod sse;
pub mod tcp;
pub mod tls;
