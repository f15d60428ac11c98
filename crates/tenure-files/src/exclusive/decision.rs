//! The answer to the server's question "shall I skip this database?" (X7), and what a log and a status
//! page say of it.

use serde_json::{Map, Value};

use crate::error::{BlockingHolder, Class, Error, printable};

/// What the server shall do with the database in this cycle.
#[derive(Debug)]
#[must_use = "a server that does not look at the answer works on a database that is not its own"]
pub enum CycleDecision {
    /// No lock: go on.
    Proceed,
    /// There was a lock whose holder is dead; it is gone now (or would be, in a dry run): go on.
    Removed(Box<BlockingHolder>),
    /// Held, or held for all we can tell: skip. The class is `Held` or `Foreign`.
    Locked(Box<BlockingHolder>, Class),
    /// Something stands there that cannot be judged or removed: skip.
    Failed(Option<Box<BlockingHolder>>, Error),
}

/// What kind of cycle asks; it appears in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CycleKind<'a> {
    /// The cycle of the published protocol.
    Sync,
    /// Another one, by its own word: `export`, `import`.
    Other(&'a str),
}

impl CycleDecision {
    /// Whether the database must be left alone.
    pub fn skips(&self) -> bool {
        match self {
            CycleDecision::Proceed | CycleDecision::Removed(_) => false,
            CycleDecision::Locked(..) | CycleDecision::Failed(..) => true,
        }
    }

    /// Who holds it, or held it until just now.
    pub fn blocker(&self) -> Option<&BlockingHolder> {
        match self {
            CycleDecision::Proceed => None,
            CycleDecision::Removed(blocker) | CycleDecision::Locked(blocker, _) => Some(blocker),
            CycleDecision::Failed(blocker, _) => blocker.as_deref(),
        }
    }

    /// The name of the tool, as the lock says it.
    pub fn holder(&self) -> Option<&str> {
        self.blocker().and_then(|blocker| blocker.name.as_deref())
    }

    /// Why it is skipped, for programs: "held" and "cannot tell" are different classes (X22).
    pub fn class(&self) -> Option<Class> {
        match self {
            CycleDecision::Proceed | CycleDecision::Removed(_) => None,
            CycleDecision::Locked(_, class) => Some(*class),
            CycleDecision::Failed(_, error) => Some(error.class()),
        }
    }

    /// The line for the server's log; nothing to say if there was no lock.
    pub fn log_line(&self, work: CycleKind) -> Option<String> {
        let (object, name) = match work {
            CycleKind::Sync => ("database", "sync"),
            CycleKind::Other(word) => (word, word),
        };
        let holder = || printable(self.holder().unwrap_or("unknown"));
        match self {
            CycleDecision::Proceed => None,
            CycleDecision::Removed(_) => Some(format!(
                "Removed stale lock ({}), proceeding with {name}",
                holder()
            )),
            CycleDecision::Locked(..) => {
                Some(format!("Skipping {object} (locked by {})", holder()))
            }
            CycleDecision::Failed(_, error) => Some(format!(
                "Skipping {object} (lock check failed: {})",
                printable(error.what())
            )),
        }
    }

    /// The members that a server's status report carries (X25).
    pub fn status(&self) -> Map<String, Value> {
        let mut status = Map::new();
        status.insert("exclusive_lock_active".into(), Value::from(self.skips()));
        if let Some(holder) = self.holder().filter(|_| self.skips()) {
            status.insert("exclusive_lock_holder".into(), Value::from(holder));
        }
        status
    }
}
