//! What the tests share.

pub mod s3_server;
