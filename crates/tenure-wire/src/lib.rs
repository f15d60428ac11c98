//! Protobuf types of Tenure: `pathlockd.v1` with Tenure's additions, `tenure.cluster.v1` and `tenure.auth.v1`.
//!
//! Generated from the files under `proto/` when the crate is built. The same types serve gRPC
//! (prost) and JSON (serde): JSON responses contain every field, with enums and integers as
//! numbers; JSON requests may also use enum names, decimal strings, `null` and snake_case (see
//! [`json`]).
//!
//! These types are used only at the boundaries: the daemon's transports and handlers, and the
//! client, convert them to and from the values of `tenure-core`.

pub mod json;
#[cfg(feature = "tls")]
pub mod tls;

/// Package `pathlockd.v1`.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::allow_attributes_without_reason,
    clippy::doc_markdown,
    clippy::large_enum_variant,
    reason = "generated code; the proto file documents it"
)]
pub mod v1 {
    tonic::include_proto!("pathlockd.v1");
}

/// Package `tenure.cluster.v1`: cluster status and administration.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::allow_attributes_without_reason,
    clippy::doc_markdown,
    reason = "generated code; the proto file documents it"
)]
pub mod cluster {
    tonic::include_proto!("tenure.cluster.v1");
}

/// Package `tenure.auth.v1`: identity and permissions.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::allow_attributes_without_reason,
    clippy::doc_markdown,
    reason = "generated code; the proto file documents it"
)]
pub mod auth {
    tonic::include_proto!("tenure.auth.v1");
}

/// Encoded descriptors of the lock service, for gRPC reflection and the OpenAPI document.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// Encoded descriptors of the service for identity and permissions.
pub const AUTH_DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/auth.bin"));

/// Encoded descriptors of the cluster administration service.
pub const CLUSTER_DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/cluster.bin"));
