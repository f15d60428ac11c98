//! The wire types of Tenure: `pathlockd.v1` and Tenure's additions as Rust types.
//!
//! Generated from the files under `proto/` when the crate is built. The same types serve
//! gRPC (prost) and the JSON facade (serde): JSON answers have every field, enums and integers as
//! numbers; JSON requests may also use names, decimal strings, `null` and snake_case (see [`json`]).
//!
//! These types stop at the edges: the daemon's faces and the client convert them to and from the
//! values of `tenure-core`.

pub mod json;

/// Package `pathlockd.v1`.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::allow_attributes_without_reason,
    clippy::doc_markdown,
    clippy::large_enum_variant,
    reason = "generated code; the proto file has the words"
)]
pub mod v1 {
    tonic::include_proto!("pathlockd.v1");
}

/// Package `tenure.cluster.v1`: how an operator looks at a cluster and changes it.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::allow_attributes_without_reason,
    clippy::doc_markdown,
    reason = "generated code; the proto file has the words"
)]
pub mod cluster {
    tonic::include_proto!("tenure.cluster.v1");
}

/// The encoded descriptors of the lock service, for server reflection and the OpenAPI document.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// Those of the operators' service.
pub const CLUSTER_DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/cluster.bin"));
