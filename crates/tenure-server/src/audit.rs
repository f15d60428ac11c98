//! Audit log: one line for each call that acts on a hold of another owner, whatever its result. A
//! change of a namespace's policy ends all holds in it, so it is one of them.

use std::net::SocketAddr;

use serde_json::{Map, json};

use crate::auth::Caller;
use crate::status::Failure;

/// Whether calls of an RPC are audited, and at which level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audit {
    /// Not audited.
    No,
    /// Level INFO: the owner gets a release request.
    Info,
    /// Level WARN: the owner loses a hold.
    Warn,
}

/// One audit line. Written when the record is dropped, so a call whose client has disconnected is
/// recorded too.
#[derive(Debug)]
pub(crate) struct AuditRecord {
    pub(crate) audit: Audit,
    pub(crate) action: &'static str,
    pub(crate) victim: String,
    pub(crate) hold: Option<NamedHold>,
    /// The namespace whose policy changes.
    pub(crate) namespace: Option<String>,
    /// The client's address.
    pub(crate) peer: Option<SocketAddr>,
    /// Who called.
    pub(crate) caller: Option<Caller>,
    result: &'static str,
}

/// The hold that is ended, and the reason that the caller gave.
#[derive(Debug)]
pub(crate) struct NamedHold {
    pub(crate) path: String,
    pub(crate) fence: i64,
    pub(crate) actor: String,
    pub(crate) reason: String,
}

impl AuditRecord {
    /// Creates the record of a parsed call. `rpc::check` sets the level of its row.
    pub(crate) fn new(action: &'static str, victim: String) -> AuditRecord {
        AuditRecord {
            audit: Audit::No,
            action,
            victim,
            hold: None,
            namespace: None,
            peer: None,
            caller: None,
            result: "CANCELLED",
        }
    }

    /// Creates the record of a call that changes the policy of a namespace. Every owner in it loses
    /// its holds.
    pub(crate) fn of_policy(action: &'static str, namespace: String) -> AuditRecord {
        let mut record = AuditRecord::new(action, String::new());
        record.namespace = Some(namespace);
        record
    }

    /// Sets the result, `OK` or the code of the failure, and writes the line.
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
                    namespace = self.namespace.as_deref(),
                    victim = self.victim,
                    fence = hold.map(|hold| hold.fence),
                    actor = hold.map(|hold| hold.actor.as_str()),
                    reason = hold.map(|hold| hold.reason.as_str()),
                    peer = self.peer.map(|peer| peer.to_string()),
                    principal = self.caller.as_ref().map(|caller| caller.principal().as_str()),
                    result = self.result,
                )
            };
        }
        match self.audit {
            Audit::No => return,
            Audit::Info => line!(info),
            Audit::Warn => line!(warn),
        }
        let Some(log) = self.caller.as_ref().and_then(Caller::audit_log) else {
            return;
        };
        let mut fields = Map::new();
        let mut field = |name: &str, value| drop(fields.insert(name.to_owned(), value));
        field(
            "principal",
            json!(
                self.caller
                    .as_ref()
                    .map(|caller| caller.principal().as_str())
            ),
        );
        field("action", json!(self.action));
        match &self.namespace {
            Some(namespace) => field("namespace", json!(namespace)),
            None => field("victim", json!(self.victim)),
        }
        if let Some(hold) = hold {
            field("path", json!(hold.path));
            field("fence", json!(hold.fence));
            field("actor", json!(hold.actor));
            field("reason", json!(hold.reason));
        }
        field("peer", json!(self.peer.map(|peer| peer.to_string())));
        field("result", json!(self.result));
        log.record(fields);
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex, PoisonError};

    use serde_json::{Value, json};

    use super::*;
    use crate::status::Code;

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            log.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Runs `work` and returns the log lines that it writes.
    fn lines(work: impl FnOnce()) -> Vec<Value> {
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .json()
            .flatten_event(true)
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, work);
        let bytes = log.0.lock().unwrap();
        let text = String::from_utf8(bytes.clone()).unwrap();
        let read = |line| serde_json::from_str(line).unwrap();
        text.lines().map(read).collect()
    }

    fn record(audit: Audit) -> AuditRecord {
        let mut record = AuditRecord::new("force_release", "amy".to_owned());
        record.audit = audit;
        record
    }

    /// One line for every ending: answered, failed, or client disconnected.
    #[test]
    fn a_record_is_one_line_however_its_call_ends() {
        let written = lines(|| {
            record(Audit::Warn).end(&Ok(()));
            record(Audit::Info).end::<()>(&Err(Failure::new(Code::Unavailable, "no quorum")));
            drop(record(Audit::Warn));
        });
        let shown = written.iter().map(|line| (&line["level"], &line["result"]));
        assert_eq!(
            shown.collect::<Vec<_>>(),
            [
                (&json!("WARN"), &json!("OK")),
                (&json!("INFO"), &json!("UNAVAILABLE")),
                (&json!("WARN"), &json!("CANCELLED")),
            ]
        );
        assert!(written.iter().all(|line| line["victim"] == "amy"));
        // Unknown values are left out of the line.
        assert!(written.iter().all(|line| line.get("path").is_none()));
        assert_eq!(lines(|| record(Audit::No).end(&Ok(()))), [] as [Value; 0]);
    }

    /// A line about one hold contains path, fence, actor, reason and client address.
    #[test]
    fn a_named_hold_is_in_the_line() {
        let written = lines(|| {
            let mut record = record(Audit::Warn);
            record.hold = Some(NamedHold {
                path: "t:/a".to_owned(),
                fence: 7,
                actor: "ops".to_owned(),
                reason: String::new(),
            });
            record.peer = Some("127.0.0.1:7".parse().unwrap());
            record.end(&Ok(()));
        });
        let line = &written[0];
        let part = |name: &str| line[name].clone();
        assert_eq!(
            ["path", "fence", "actor", "reason", "peer"].map(part),
            [
                json!("t:/a"),
                json!(7),
                json!("ops"),
                json!(""),
                json!("127.0.0.1:7")
            ]
        );
    }
}
