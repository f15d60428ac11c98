//! Every unary RPC with requests and their answers: the same on every transport.

use serde_json::{Value, json};

/// One call and its answer.
pub(crate) struct Step {
    pub(crate) rpc: &'static str,
    pub(crate) request: Value,
    /// The code of gRPC.
    pub(crate) code: &'static str,
    /// Fields that the answer must have, with these values.
    pub(crate) answer: Value,
}

fn ok(rpc: &'static str, request: Value, answer: Value) -> Step {
    Step {
        rpc,
        request,
        code: "OK",
        answer,
    }
}

fn fails(rpc: &'static str, request: Value, code: &'static str) -> Step {
    Step {
        rpc,
        request,
        code,
        answer: json!({}),
    }
}

/// Calls of all RPCs on an empty daemon.
pub(crate) fn steps() -> Vec<Step> {
    let lock = |owner: &str, path: &str| json!({"ownerId": owner, "ttlMs": 60000, "requests": [{"path": path}]});
    let permit = |owner: &str, permits: u32| json!({"ownerId": owner, "ttlMs": 60000, "requests": [{"path": "sem:/s/x", "permits": permits}]});
    let mut with_words = lock("amy", "t:/a/b");
    with_words["holder"] =
        json!({"name": "Amy", "host": "h", "pid": 7, "purpose": "p", "labels": {"k": "v"}});
    let mut held = lock("bob", "t:/a");
    held["requests"][0]["state"] = json!(1);
    let mut stale = lock("cat", "t:/a/c");
    stale["fencingToken"] = json!(1);
    let mut no_wait = lock("cat", "t:/a");
    no_wait["noWait"] = json!(true);
    vec![
        ok("Health", json!({}), json!({"ok": true, "detail": "ready"})),
        ok(
            "SetNamespacePolicy",
            json!({"namespace": "sem:/s", "algorithm": 4}),
            json!({}),
        ),
        ok(
            "GetNamespacePolicy",
            json!({"namespace": "sem:/s"}),
            json!({"algorithm": 4, "explicit": true}),
        ),
        ok(
            "GetNamespacePolicy",
            json!({"namespace": "t:/a"}),
            json!({"algorithm": 0, "explicit": false}),
        ),
        // E13: rows in byte order, and whether that was all.
        ok(
            "SetNamespacePolicy",
            json!({"namespace": "pt", "algorithm": 3}),
            json!({}),
        ),
        ok(
            "ListNamespacePolicies",
            json!({}),
            json!({"rows": [{"namespace": "pt", "algorithm": 3}, {"namespace": "sem:/s", "algorithm": 4}], "done": true}),
        ),
        ok(
            "ListNamespacePolicies",
            json!({"page": 1}),
            json!({"rows": [{"namespace": "pt", "algorithm": 3}], "done": false}),
        ),
        ok(
            "ListNamespacePolicies",
            json!({"after": "pt", "page": 5}),
            json!({"rows": [{"namespace": "sem:/s", "algorithm": 4}], "done": true}),
        ),
        ok(
            "Acquire",
            permit("amy", 2),
            json!({"status": 0, "fencingToken": 0, "namespace": "sem:/s"}),
        ),
        ok(
            "Acquire",
            permit("bob", 3),
            json!({"status": 1, "reason": 8, "owner": "2"}),
        ),
        ok(
            "Acquire",
            with_words,
            json!({"status": 0, "path": "", "owner": "", "reason": 0, "fencingToken": 1, "currentFencingToken": 0, "namespace": "t:/a"}),
        ),
        ok(
            "Acquire",
            lock("bob", "t:/a"),
            json!({"status": 3, "path": "t:/a/b", "owner": "amy", "reason": 4, "position": 1}),
        ),
        ok(
            "Acquire",
            no_wait,
            json!({"status": 1, "reason": 17, "owner": "bob"}),
        ),
        ok(
            "Acquire",
            stale,
            json!({"status": 3, "reason": 17, "owner": "bob"}),
        ),
        ok(
            "Explain",
            json!({"path": "t:/a", "ownerId": "dan"}),
            json!({"free": false, "namespace": "t:/a", "rule": "R45"}),
        ),
        ok(
            "IsBlocking",
            json!({"conflictPath": "t:/a/b", "conflictOwner": "amy", "reason": 4}),
            json!({"blocking": true}),
        ),
        fails(
            "IsBlocking",
            json!({"conflictPath": "t:/a/b", "conflictOwner": "amy", "reason": 7}),
            "INVALID_ARGUMENT",
        ),
        ok(
            "SetWaitEdge",
            json!({"ownerId": "amy", "conflictOwner": "bob", "ttlMs": 60000}),
            json!({}),
        ),
        ok(
            "DetectCycle",
            json!({"startOwnerId": "bob"}),
            json!({"kind": 1, "chain": ["bob", "amy"]}),
        ),
        ok("ClearWaitEdge", json!({"ownerId": "amy"}), json!({})),
        ok(
            "DetectCycle",
            json!({"startOwnerId": "bob", "maxDepth": 0}),
            json!({"kind": 0, "chain": []}),
        ),
        ok(
            "IsOwnerAlive",
            json!({"ownerId": "bob"}),
            json!({"alive": true}),
        ),
        ok(
            "IsOwnerAlive",
            json!({"ownerId": "bob", "domains": ["sem:/s"]}),
            json!({"alive": false}),
        ),
        ok(
            "InspectPath",
            json!({"path": "t:/a/b"}),
            json!({"writeOwner": "amy", "readOwners": [], "hasFence": true, "fence": 1, "claimOwner": "", "semaphoreOwners": []}),
        ),
        ok(
            "InspectPath",
            json!({"path": "sem:/s/x"}),
            json!({"semaphoreOwners": ["amy"], "hasFence": false}),
        ),
        ok(
            "ListOwnerLocks",
            json!({"ownerId": "amy", "domains": ["t:/a"]}),
            json!({"alive": true, "locks": [{"path": "t:/a/b", "mode": 0}]}),
        ),
        ok(
            "AssertFencing",
            json!({"ownerId": "amy", "fencingToken": 1, "paths": ["t:/a/b"]}),
            json!({"status": 0}),
        ),
        ok(
            "AssertFencing",
            json!({"ownerId": "bob", "fencingToken": 1, "paths": ["t:/a/b"]}),
            json!({"status": 1, "path": "t:/a/b", "reason": 18}),
        ),
        ok("RequestRevoke", json!({"ownerId": "amy"}), json!({})),
        ok(
            "Renew",
            json!({"ownerId": "amy", "ttlMs": 60000, "domains": ["t:/a"]}),
            json!({"status": 0, "revokeRequested": true}),
        ),
        ok(
            "Renew",
            json!({"ownerId": "nobody", "ttlMs": 60000}),
            json!({"status": 1, "reason": 14, "revokeRequested": false}),
        ),
        ok(
            "IncrFencingToken",
            json!({"idempotencyKey": "once"}),
            json!({}),
        ),
        ok(
            "IncrFencingToken",
            json!({"idempotencyKey": "once"}),
            json!({}),
        ),
        ok("DumpLocks", json!({"ownerPage": 512}), json!({})),
        ok(
            "ListChildren",
            json!({"prefix": "t"}),
            json!({"done": true}),
        ),
        fails("ListChildren", json!({"prefix": ":"}), "INVALID_ARGUMENT"),
        ok("ListWaits", json!({"page": 5}), json!({"missingGroups": 0})),
        ok(
            "History",
            json!({"prefix": "t:/a/b"}),
            json!({"cut": false}),
        ),
        fails(
            "DumpLocks",
            json!({"cursor": [1, 2, 3]}),
            "INVALID_ARGUMENT",
        ),
        fails(
            "DeleteNamespacePolicy",
            json!({"namespace": "sem:/s"}),
            "FAILED_PRECONDITION",
        ),
        fails(
            "Break",
            json!({"path": "t:/a/b", "ownerId": "bob", "fence": 1}),
            "FAILED_PRECONDITION",
        ),
        ok(
            "Break",
            json!({"path": "t:/a/b", "ownerId": "amy", "fence": 1, "reason": "stuck", "actor": "ops"}),
            json!({}),
        ),
        ok("Acquire", held, json!({"status": 0, "namespace": "t:/a"})),
        ok(
            "Release",
            json!({"ownerId": "bob", "requests": [{"path": "t:/a"}]}),
            json!({}),
        ),
        ok("ForceRelease", json!({"victimId": "amy"}), json!({})),
        ok(
            "ReleaseAll",
            json!({"ownerId": "cat", "delWaitKey": true}),
            json!({}),
        ),
        ok(
            "DeleteNamespacePolicy",
            json!({"namespace": "sem:/s"}),
            json!({}),
        ),
        ok("DumpLocks", json!({}), json!({"entries": []})),
        fails("Acquire", json!({}), "INVALID_ARGUMENT"),
        fails("Acquire", lock("amy", "t:/"), "INVALID_ARGUMENT"),
        fails(
            "Acquire",
            json!({"ownerId": "a", "ttlMs": 1, "requests": [{"path": "t:/a", "mode": 9}]}),
            "INVALID_ARGUMENT",
        ),
        ok(
            "SetWaitEdge",
            json!({"ownerId": "amy", "conflictOwner": "bob", "ttlMs": 60000, "idempotencyKey": "k"}),
            json!({}),
        ),
        fails(
            "SetWaitEdge",
            json!({"ownerId": "amy", "conflictOwner": "cat", "ttlMs": 60000, "idempotencyKey": "k"}),
            "INVALID_ARGUMENT",
        ),
    ]
}

/// The same request as a person or another program would write it: snake_case, decimal strings,
/// names of enum values, base64, `null` for what is absent.
pub(crate) fn other_form(value: &Value) -> Value {
    let Value::Object(fields) = value else {
        return match value {
            Value::Array(items) => items.iter().map(other_form).collect(),
            other => other.clone(),
        };
    };
    let mut written = serde_json::Map::new();
    for (name, value) in fields {
        let value = match (name.as_str(), value) {
            ("mode", Value::Number(n)) if n.as_u64() == Some(0) => json!("MODE_WRITE"),
            ("state", Value::Number(n)) if n.as_u64() == Some(1) => json!("LOCK_STATE_HELD"),
            ("algorithm", Value::Number(n)) if n.as_u64() == Some(4) => {
                json!("LOCK_ALGORITHM_SEMAPHORE")
            }
            ("algorithm", Value::Number(n)) if n.as_u64() == Some(3) => {
                json!("LOCK_ALGORITHM_POINT_WRITE")
            }
            ("reason", Value::Number(n)) if n.as_u64() == Some(4) => {
                json!("REASON_CODE_DESCENDANT_WRITE_LOCKED")
            }
            ("reason", Value::Number(n)) if n.as_u64() == Some(7) => {
                json!("REASON_CODE_STALE_FENCING_TOKEN")
            }
            ("cursor", Value::Array(_)) => json!("AQID"),
            (_, Value::Number(number)) => json!(number.to_string()),
            ("labels", labels) => labels.clone(),
            (_, other) => other_form(other),
        };
        written.insert(snake(name), value);
    }
    written.insert(
        "domains".to_owned(),
        fields.get("domains").cloned().unwrap_or(Value::Null),
    );
    Value::Object(written)
}

fn snake(name: &str) -> String {
    let mut out = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() {
            out.push('_');
        }
        out.push(letter.to_ascii_lowercase());
    }
    out
}

/// Removes values that depend on the clock.
pub(crate) fn timeless(mut value: Value) -> Value {
    fn forget(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                fields.remove("heldMs");
                fields.remove("leaseLeftMs");
                for time in ["waitedMs", "atMs", "queuedMs", "grantedMs", "endedMs"] {
                    fields.remove(time);
                }
                fields.values_mut().for_each(forget);
            }
            Value::Array(items) => items.iter_mut().for_each(forget),
            _ => {}
        }
    }
    forget(&mut value);
    value
}
