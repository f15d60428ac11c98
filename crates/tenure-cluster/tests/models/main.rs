//! Model checks of the code that several threads of a node share, with `shuttle`: the scheduler
//! picks the next thread at random at every operation of a primitive, for thousands of executions.
//!
//! The modules below are the files of the crate, compiled on the primitives of `sync.rs`. Each
//! property has planted mistakes that the same model must find; `mutants.toml` lists mistakes in
//! the files themselves.

#![allow(
    clippy::unwrap_used,
    dead_code,
    reason = "a test fails where something is not as it must be; models use a part of each file"
)]

#[path = "../../src/commit_queue.rs"]
mod commit_queue;
#[path = "../../src/node_runner.rs"]
mod node_runner;
#[path = "../../src/reply_channel.rs"]
mod reply_channel;
mod sync;

mod commits;
mod replies;
mod steps;

use std::panic::{self, AssertUnwindSafe};

/// Number of executions of each model.
const EXECUTIONS: usize = 1_000;

/// Checks a model that must hold.
fn check(model: impl Fn() + Send + Sync + 'static) {
    shuttle::check_random(model, EXECUTIONS);
}

/// Checks a model with a planted mistake: an execution must fail with this message.
fn must_find(message: &str, model: impl Fn() + Send + Sync + 'static) {
    let found = panic::catch_unwind(AssertUnwindSafe(|| check(model)));
    let panic = found.expect_err("no execution shows the planted mistake");
    let said = panic.downcast_ref::<String>().cloned();
    let said = said.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
    let said = said.unwrap_or_default();
    assert!(said.contains(message), "another failure: {said}");
}
