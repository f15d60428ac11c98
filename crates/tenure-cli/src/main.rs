//! The `tenure` command.

mod run;

fn main() {}
