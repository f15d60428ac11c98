//! What a user would pick instead: the same scenarios in the peers' own protocols.

pub(crate) mod etcd;
pub(crate) mod redis;
pub(crate) mod zookeeper;
