//! What the tests share.

pub mod foreign;
pub mod original;
pub mod s3_server;
pub mod virtual_time;

pub use tenure_store::terms::Mode;
