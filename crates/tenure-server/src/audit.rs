//! The audit record of a call that acts on a hold of another owner: one line in the log, however the call ends.

use std::net::SocketAddr;

use crate::status::Failure;

/// Whether calls of an RPC are audited, and how loud.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audit {
    /// They are not.
    No,
    /// The owner is asked.
    Info,
    /// The owner loses something.
    Warn,
}

/// What the line says. It is written when the record is dropped, so a call whose client has left is on record too.
#[derive(Debug)]
pub(crate) struct AuditRecord {
    pub(crate) audit: Audit,
    pub(crate) action: &'static str,
    pub(crate) victim: String,
    pub(crate) hold: Option<NamedHold>,
    /// Where the call came from.
    pub(crate) peer: Option<SocketAddr>,
    result: &'static str,
}

/// The one hold that is ended, and why.
#[derive(Debug)]
pub(crate) struct NamedHold {
    pub(crate) path: String,
    pub(crate) fence: i64,
    pub(crate) actor: String,
    pub(crate) reason: String,
}

impl AuditRecord {
    /// The record of a call that was read. Its row says whether it is kept.
    pub(crate) fn new(action: &'static str, victim: String) -> AuditRecord {
        AuditRecord {
            audit: Audit::No,
            action,
            victim,
            hold: None,
            peer: None,
            result: "CANCELLED",
        }
    }

    /// The call has ended: `OK`, or the code of the failure.
    pub(crate) fn end<T>(mut self, result: &Result<T, Failure>) {
        self.result = match result {
            Ok(_) => "OK",
            Err(failure) => failure.code.name(),
        };
    }
}

impl Drop for AuditRecord {
    fn drop(&mut self) {
        let hold = self.hold.as_ref();
        macro_rules! line {
            ($level:ident) => {
                tracing::$level!(
                    target: "audit",
                    action = self.action,
                    path = hold.map(|hold| hold.path.as_str()),
                    victim = self.victim,
                    fence = hold.map(|hold| hold.fence),
                    actor = hold.map(|hold| hold.actor.as_str()),
                    reason = hold.map(|hold| hold.reason.as_str()),
                    peer = self.peer.map(|peer| peer.to_string()),
                    result = self.result,
                )
            };
        }
        match self.audit {
            Audit::No => {}
            Audit::Info => line!(info),
            Audit::Warn => line!(warn),
        }
    }
}
