//! The repository lock on real stores, through its public face.

mod bucket;
mod directory;
mod lease;
