//! `tenure run`: a command under a lock, and nothing of it left when the lock goes.

mod channel;
mod keeper;
mod schedule;
mod sys;
mod tree;
mod wrapper;
