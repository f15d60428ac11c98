//! The faces: how clients meet the handlers. Bytes in, bytes out; nothing is decided here.

pub mod auth;
pub(crate) mod cluster;
pub mod grpc;
pub mod h3;
pub(crate) mod health;
pub mod json;
pub mod sse;
pub mod tcp;
pub mod tls;
