//! Transports: gRPC, JSON over HTTP/1.1, HTTP/2 and HTTP/3, Server-Sent Events. They convert bytes
//! to requests and answers to bytes; all decisions are made by the handlers and the node.

pub(crate) mod admin;
pub mod admission;
pub mod auth;
mod body_limit;
mod client_stream;
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
mod json_names;
pub(crate) mod memory_budget;
pub mod openapi;
mod preface_timeout;
pub mod sse;
pub mod tcp;
pub mod tls;
pub(crate) mod unary;
pub(crate) mod unix;
pub(crate) mod web_origin;

/// Maximum size of a message on the gRPC port, in bytes.
pub(crate) const MESSAGE: usize = 4 << 20;
