//! Shared support code of the tests.

pub(crate) mod foreign;
pub(crate) mod original;
pub(crate) mod s3_server;
pub(crate) mod virtual_time;

pub(crate) use tenure_store::LockMode;
