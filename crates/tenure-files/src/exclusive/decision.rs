//! The result of the server's check whether to skip a database (X7 (answers of `should_skip`)),
//! with its log line and status fields.

use serde_json::{Map, Value};

use crate::error::{BlockingHolder, Class, Error, printable};

/// What the server must do with the database in this cycle.
#[derive(Debug)]
#[must_use = "a server that does not look at the answer works on a database that is not its own"]
pub enum CycleDecision {
    /// There is no lock: proceed.
    Proceed,
    /// The holder of the lock is dead, and the lock was removed (or would be, in a dry run):
    /// proceed.
    Removed(Box<BlockingHolder>),
    /// The lock is held or may be held: skip. The class is `Held` or `Foreign`.
    Locked(Box<BlockingHolder>, Class),
    /// The file cannot be judged or removed: skip.
    Failed(Option<Box<BlockingHolder>>, Error),
}

/// The kind of cycle, for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CycleKind<'a> {
    /// The cycle of the original protocol.
    Sync,
    /// Another kind, by its name: `export`, `import`.
    Other(&'a str),
}

impl CycleDecision {
    /// Returns whether the server must skip the database.
    pub fn skips(&self) -> bool {
        match self {
            CycleDecision::Proceed | CycleDecision::Removed(_) => false,
            CycleDecision::Locked(..) | CycleDecision::Failed(..) => true,
        }
    }

    /// Returns the holder of the lock, or of the lock that was just removed.
    pub fn blocker(&self) -> Option<&BlockingHolder> {
        match self {
            CycleDecision::Proceed => None,
            CycleDecision::Removed(blocker) | CycleDecision::Locked(blocker, _) => Some(blocker),
            CycleDecision::Failed(blocker, _) => blocker.as_deref(),
        }
    }

    /// Returns the name of the tool from the record.
    pub fn holder(&self) -> Option<&str> {
        self.blocker().and_then(|blocker| blocker.name.as_deref())
    }

    /// Returns the class of the reason for skipping. "Held" and "cannot tell" are different classes
    /// (X22 (exclusive address and verbs)).
    pub fn class(&self) -> Option<Class> {
        match self {
            CycleDecision::Proceed | CycleDecision::Removed(_) => None,
            CycleDecision::Locked(_, class) => Some(*class),
            CycleDecision::Failed(_, error) => Some(error.class()),
        }
    }

    /// Returns the line for the server's log, or `None` if there was no lock.
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

    /// Returns the members for the server's status report (X25 (server status fields)).
    pub fn status(&self) -> Map<String, Value> {
        let mut status = Map::new();
        status.insert("exclusive_lock_active".into(), Value::from(self.skips()));
        if let Some(holder) = self.holder().filter(|_| self.skips()) {
            status.insert("exclusive_lock_holder".into(), Value::from(holder));
        }
        status
    }
}
