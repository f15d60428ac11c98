//! Clients of comparable servers: the same scenarios in their own protocols.

pub(crate) mod etcd;
pub(crate) mod redis;
pub(crate) mod redis_library;
pub(crate) mod zookeeper;
