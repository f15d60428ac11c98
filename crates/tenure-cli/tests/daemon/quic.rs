//! HTTP/3 with an independent client: early data, streams, limits.

use serde_json::{Value, json};

use super::support::Daemon;
use super::support::foreign::python_script;
use super::transports::url;

/// Every RPC with a URL of its own, and whether it only reads.
const READS: [&str; 13] = [
    "AssertFencing",
    "DetectCycle",
    "IsBlocking",
    "IsOwnerAlive",
    "GetNamespacePolicy",
    "InspectPath",
    "ListOwnerLocks",
    "DumpLocks",
    "Explain",
    "ListNamespacePolicies",
    "ListChildren",
    "ListWaits",
    "History",
];
const WRITES: [&str; 13] = [
    "Acquire",
    "Release",
    "ReleaseAll",
    "Renew",
    "ForceRelease",
    "IncrFencingToken",
    "SetWaitEdge",
    "ClearWaitEdge",
    "RequestRevoke",
    "SetNamespacePolicy",
    "DeleteNamespacePolicy",
    "Break",
    "NoSuchCall",
];

fn early(daemon: &Daemon, requests: &[Value]) -> Vec<Value> {
    let input = json!({"mode": "early", "port": daemon.h3.port(), "requests": requests});
    python_script("quic.py", &input).as_array().unwrap().clone()
}

/// In early data, reads are answered; other calls are answered with 425 and have no effect.
#[test]
fn early_data_is_for_reads_only() {
    let data = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(data.path());
    let post = |rpc: &str| json!({"path": url(rpc), "body": "{}"});
    let reads: Vec<Value> = READS.iter().map(|rpc| post(rpc)).collect();
    for (rpc, answer) in READS.iter().zip(early(&daemon, &reads)) {
        assert_eq!(
            answer["accepted"], true,
            "{rpc} went as early data: {answer}"
        );
        // Some want more than an empty message; the handler said so.
        let status = answer["status"].as_u64().unwrap();
        assert!([200, 400].contains(&status), "{rpc}: {answer}");
    }
    let others = [
        json!({"method": "GET", "path": "/v1/health", "headers": {}}),
        json!({"path": "/v1/health", "body": "{}"}),
        json!({"method": "GET", "path": "/metrics", "headers": {}}),
    ];
    for answer in early(&daemon, &others) {
        assert_eq!(
            (&answer["status"], &answer["accepted"]),
            (&json!(200), &json!(true)),
            "{answer}"
        );
    }
    let writes: Vec<Value> = WRITES.iter().map(|rpc| post(rpc)).collect();
    for (rpc, answer) in WRITES.iter().zip(early(&daemon, &writes)) {
        assert_eq!(
            answer["accepted"], true,
            "{rpc} went as early data: {answer}"
        );
        assert_eq!(
            (&answer["status"], &answer["body"]),
            (&json!(425), &json!("")),
            "{rpc}: {answer}"
        );
    }
    let lock = json!({"ownerId": "amy", "ttlMs": 60000, "requests": [{"path": "t:/a"}]});
    let acquire = json!({"path": "/v1/acquire", "body": lock.to_string()});
    assert_eq!(early(&daemon, &[acquire])[0]["status"], 425);
    let (_, found) = daemon.post("/v1/inspectPath", &json!({"path": "t:/a"}));
    assert_eq!(found["writeOwner"], "", "what came early was not done");
}

/// A client whose ClientHello takes two datagrams, as curl and browsers have it, is served, also if
/// the second datagram comes late.
#[test]
fn a_client_hello_of_two_datagrams_is_served() {
    let data = tempfile::tempdir().unwrap();
    for zero_rtt in ["true", "false"] {
        let data = data.path().join(zero_rtt);
        let daemon = Daemon::start_with(&data, &[("TENURE_WEB_ZERO_RTT", zero_rtt)]);
        for delay_ms in [0, 10] {
            let input = json!({"port": daemon.h3.port(), "rounds": 4, "delay_ms": delay_ms});
            let answer = python_script("curl_h3.py", &input);
            let expected = json!([200, 200, 200, 200]);
            assert_eq!(answer["statuses"], expected, "{delay_ms} ms late: {answer}");
        }
    }
}

/// With `web_zero_rtt` off no ticket allows early data, and everything is served after the handshake.
#[test]
fn early_data_can_be_switched_off() {
    let data = tempfile::tempdir().unwrap();
    let daemon = Daemon::start_with(data.path(), &[("TENURE_WEB_ZERO_RTT", "false")]);
    let acquire = json!({"ownerId": "amy", "ttlMs": 60000, "requests": [{"path": "t:/a"}]});
    let requests = [json!({"path": "/v1/acquire", "body": acquire.to_string()})];
    let answer = &early(&daemon, &requests)[0];
    assert_eq!(answer["offered"], false, "{answer}");
    assert_eq!(
        (&answer["status"], &answer["accepted"]),
        (&json!(200), &json!(false)),
        "{answer}"
    );
}

/// Errors over HTTP/3 have the same shape as elsewhere; a body that is too large is not dispatched.
#[test]
fn errors_look_the_same_over_http3() {
    let data = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(data.path());
    let json_type = json!({"content-type": "application/json"});
    let get = json!({"method": "GET", "path": "/v1/acquire", "headers": {}});
    let large = json!({"path": "/v1/acquire", "spaces": (4 << 20) + 1, "headers": json_type});
    let post = |path: &str, body: &str| json!({"path": path, "body": body});
    let untyped = json!({"path": "/v1/acquire", "body": "{}", "headers": {}});
    refused(
        &daemon,
        &[
            (post("/v1/acquire", "{"), 400, "INVALID_ARGUMENT"),
            (post("/v1/acquire", "[]"), 422, "INVALID_ARGUMENT"),
            (untyped, 415, "INVALID_ARGUMENT"),
            (post("/v1/nothing", "{}"), 404, "UNIMPLEMENTED"),
            (get, 405, "UNIMPLEMENTED"),
            (large, 413, "RESOURCE_EXHAUSTED"),
        ],
    );
}

/// A body that does not arrive over HTTP/3 ends with the deadline.
#[test]
fn a_body_that_does_not_come_over_http3_is_given_up() {
    let data = tempfile::tempdir().unwrap();
    let daemon = Daemon::start_with(data.path(), &[("TENURE_REQUEST_TIMEOUT_MS", "700")]);
    let half = json!({"path": "/v1/acquire", "body": "{\"ownerId\":", "unfinished": true});
    refused(&daemon, &[(half, 408, "DEADLINE_EXCEEDED")]);
}

/// Sends requests over one connection and compares status and code.
fn refused(daemon: &Daemon, requests: &[(Value, u16, &str)]) {
    let wanted: Vec<&Value> = requests.iter().map(|(request, _, _)| request).collect();
    let input = json!({"mode": "requests", "port": daemon.h3.port(), "requests": wanted});
    let answers = python_script("quic.py", &input);
    for ((request, status, code), answer) in requests.iter().zip(answers.as_array().unwrap()) {
        assert_eq!(answer["status"], json!(status), "{request}: {answer}");
        let body: Value = serde_json::from_str(answer["body"].as_str().unwrap()).unwrap();
        assert_eq!(body["error"]["code"], json!(code), "{request}: {answer}");
    }
}

/// Events come over HTTP/3 as they do elsewhere.
#[test]
fn events_come_over_http3() {
    let data = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(data.path());
    let revoke = json!({"path": "/v1/requestRevoke", "body": "{\"ownerId\":\"amy\"}"});
    let input = json!({
        "mode": "events",
        "port": daemon.h3.port(),
        "path": "/v1/events/sse?owner_id=amy",
        "count": 2,
        "then": [revoke, revoke],
    });
    let answer = python_script("quic.py", &input);
    assert_eq!(answer["status"], 200);
    assert_eq!(answer["headers"]["content-type"], "text/event-stream");
    let body = answer["body"].as_str().unwrap();
    let first = body.split("\n\n").next().unwrap();
    let (id, line) = first.split_once('\n').unwrap();
    let event: Value = serde_json::from_str(line.strip_prefix("data: ").unwrap()).unwrap();
    assert_eq!(id, format!("id: {}", event["id"]));
    assert_eq!(
        (&event["type"], &event["ownerId"]),
        (&json!("revoke"), &json!("amy"))
    );
}

/// More requests at once than a connection may have: the others wait, none is lost.
#[test]
fn requests_beyond_the_limit_wait() {
    let data = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(data.path());
    let request = json!({"path": "/v1/isOwnerAlive", "body": "{\"ownerId\":\"amy\"}"});
    let input =
        json!({"mode": "flood", "port": daemon.h3.port(), "request": request, "count": 600});
    let answers = python_script("quic.py", &input);
    let answers = answers.as_array().unwrap();
    assert_eq!(answers.len(), 600);
    assert!(answers.iter().all(|status| status == 200), "{answers:?}");
}

/// The TCP transports advertise HTTP/3.
#[test]
fn other_transports_name_http3() {
    let data = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(data.path());
    let (head, _) = daemon.get_text("/v1/health");
    let expected = format!("alt-svc: h3=\":{}\"; ma=86400", daemon.h3.port());
    assert!(head.to_ascii_lowercase().contains(&expected), "{head}");
    let without = Daemon::start_with(
        tempfile::tempdir().unwrap().path(),
        &[("TENURE_H3_LISTEN", "off")],
    );
    let (head, _) = without.get_text("/v1/health");
    assert!(!head.contains("alt-svc"), "{head}");
}
