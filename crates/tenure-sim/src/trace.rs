//! Trace of a run: one line per change, and a hash over all of them.
//!
//! ```text
//!   12.345678  c3       asks     #41 acquire c3-7 t:/0 write ttl 5000 at node 2
//!   seconds    actor    action   details
//! ```
//!
//! Lines are printed only in a replay. The hash is always computed: it compares two runs of one
//! seed without storing either.

use std::fmt::{Arguments, Write as _};

use xxhash_rust::xxh3::Xxh3;

use crate::time::{SECOND, SimTime};

/// The trace of a run.
pub(crate) struct Trace {
    hash: Box<Xxh3>,
    line: String,
    print: Printing,
}

/// Whether trace lines are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Printing {
    /// Only the hash is computed.
    Off,
    /// Every line is written to standard error.
    On,
}

impl Trace {
    pub(crate) fn new(print: Printing) -> Trace {
        Trace {
            hash: Box::new(Xxh3::new()),
            line: String::new(),
            print,
        }
    }

    /// Adds a line.
    pub(crate) fn say(&mut self, now: SimTime, who: Arguments<'_>, what: Arguments<'_>) {
        self.line.clear();
        let (whole, part) = (now / SECOND, now % SECOND);
        // Writing to a string cannot fail.
        let _ = write!(self.line, "{whole:>5}.{part:06}  {who}  {what}");
        self.hash.update(self.line.as_bytes());
        if self.print == Printing::On {
            eprintln!("{}", self.line);
        }
    }

    /// Adds bytes to the hash only.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        self.hash.update(bytes);
    }

    pub(crate) fn digest(&self) -> u64 {
        self.hash.digest()
    }
}
