//! What a user would pick instead: the same scenarios in the peers' own protocols.

pub(crate) mod etcd;
pub(crate) mod redis;
#[cfg(feature = "compare")]
pub(crate) mod redis_library;
pub(crate) mod zookeeper;
