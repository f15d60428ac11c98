//! The web console in a real browser, and HTTP for people with a command line.

use serde_json::{Value, json};

use super::support::Daemon;
use super::support::foreign::browser_script;

/// Every page, every action, sessions, reconnection, hostile text and a cluster of three nodes, in
/// headless Chromium: without an error in the browser, without a violation of the content security
/// policy, and without a finding of axe-core at 360 and 1440 px, in light and dark.
///
/// `TENURE_SCREENSHOTS=docs/console` also writes the pictures of the documentation.
#[test]
fn the_console_works_in_a_browser() {
    let data = tempfile::tempdir().unwrap();
    let screenshots = std::env::var("TENURE_SCREENSHOTS").ok();
    let summary = browser_script(
        "console.mjs",
        &json!({
            "binary": env!("CARGO_BIN_EXE_tenure"),
            "data": data.path(),
            "screenshots": screenshots,
        }),
    );
    assert_eq!(summary["pages"], 45, "{summary}");
    assert_eq!(summary["actions"], 8, "{summary}");
}

/// The first request of a person with `curl` leads on.
#[test]
fn the_root_is_an_index_and_probes_need_no_credentials() {
    let data = tempfile::tempdir().unwrap();
    let daemon = Daemon::start_with(data.path(), &[("TENURE_LOOPBACK", "authenticated")]);
    let (status, index) = daemon.get("/");
    assert_eq!(status, 200);
    assert!(index["links"]["/console"].is_string(), "{index}");
    for url in ["/healthz", "/readyz"] {
        let (status, body) = daemon.get(url);
        assert_eq!((status, &body["ok"]), (200, &json!(true)), "{url}");
    }
    let html =
        "GET / HTTP/1.1\r\nhost: localhost\r\naccept: text/html\r\nconnection: close\r\n\r\n";
    let html = String::from_utf8(daemon.raw(html.as_bytes())).unwrap();
    assert!(html.contains("href=\"/console\""), "{html}");
    let (head, page) = daemon.get_text("/console");
    assert!(page.contains("/console/app.js"), "{page}");
    let policy = head
        .lines()
        .find(|line| line.starts_with("content-security-policy:"))
        .unwrap();
    assert!(policy.contains("default-src 'none'"), "{policy}");
    assert!(!policy.contains("unsafe"), "{policy}");
    // The locks themselves are behind credentials.
    let (status, _) = daemon.post("/v1/listChildren", &json!({}));
    assert_eq!(status, 401);
}

/// The assets fit in 150 KB as they are sent.
#[test]
fn the_console_is_small() {
    let data = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(data.path());
    let mut all = 0;
    for name in ["", "/app.js", "/app.css", "/icon.svg"] {
        let request = format!(
            "GET /console{name} HTTP/1.1\r\nhost: localhost\r\naccept-encoding: gzip\r\nconnection: close\r\n\r\n"
        );
        let answer = daemon.raw(request.as_bytes());
        let head = String::from_utf8_lossy(&answer);
        assert!(
            head.contains("content-encoding: gzip"),
            "{name}: {head:.300}"
        );
        all += answer.len();
    }
    assert!(all < 150 << 10, "{all} bytes");
}

/// Errors are JSON on every path, and they name the field that is unknown.
#[test]
fn errors_are_json_and_name_unknown_fields() {
    let data = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(data.path());
    let message = |(status, body): (u16, Value)| {
        let text = body["error"]["message"].as_str().map(str::to_owned);
        (
            status,
            text.unwrap_or_else(|| panic!("no JSON error: {body}")),
        )
    };
    for url in [
        "/v1/events/sse",
        "/v1/watch/sse",
        "/console",
        "/healthz",
        "/",
        "/v1/whoami",
    ] {
        let (status, text) = message(daemon.post(url, &json!({})));
        assert_eq!((status, text.as_str()), (405, "use GET, HEAD"), "{url}");
    }
    let (status, _) = message(daemon.get("/v1/events/sse?owner_id=a&owner_id=b"));
    assert_eq!(status, 400);
    let (status, text) = message(daemon.post(
        "/v1/acquire",
        &json!({"owner": "amy", "ttlMs": 5000, "requests": [{"path": "t:/a"}]}),
    ));
    assert_eq!(status, 400);
    assert!(text.contains("did you mean `ownerId`?"), "{text}");
    // Unknown fields alone are ignored, as before.
    let body = json!({"ownerId": "amy", "ttlMs": 60000, "requests": [{"path": "t:/a"}], "x": 1});
    let (status, granted) = daemon.post("/v1/acquire?enums=names", &body);
    assert_eq!(
        (status, &granted["status"]),
        (200, &json!("ACQUIRE_STATUS_OK"))
    );
}

/// E20 (list children), E21 (list waits), E22 (History): what a daemon lists, page by page.
#[test]
fn children_waits_and_history_are_listed() {
    let data = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(data.path());
    let post = |rpc: &str, body: Value| {
        let (status, answer) = daemon.post(&format!("/v1/{rpc}"), &body);
        assert_eq!(status, 200, "{rpc}: {answer}");
        answer
    };
    let acquire = |owner: &str, path: &str| {
        post(
            "acquire",
            json!({"ownerId": owner, "ttlMs": 600_000, "queueTtlMs": 600_000, "requests": [{"path": path}],
                "holder": {"name": format!("{owner}.sh"), "host": "h", "pid": 7}}),
        )
    };
    for number in 0..25 {
        acquire("amy", &format!("vol:/a{number:02}/x/y"));
    }
    acquire("amy", "vol:/a03/z");
    acquire("bob", "vol:/a03/z");
    acquire("cid", "other:/b");
    let names = |answer: &Value| -> Vec<String> {
        let children = answer["children"].as_array().unwrap().iter();
        children
            .map(|child| child["name"].as_str().unwrap().to_owned())
            .collect()
    };
    let roots = post("listChildren", json!({}));
    assert_eq!(names(&roots), ["other", "vol"]);
    assert_eq!(roots["children"][1]["holds"], 26);
    assert_eq!(roots["children"][1]["waiters"], 1);
    let (mut after, mut all) = (String::new(), Vec::new());
    loop {
        let page = post(
            "listChildren",
            json!({"prefix": "vol", "after": after, "page": 7}),
        );
        all.extend(names(&page));
        if page["done"] == true {
            break;
        }
        after = page["next"].as_str().unwrap().to_owned();
    }
    let expected: Vec<String> = (0..25).map(|number| format!("a{number:02}")).collect();
    assert_eq!(all, expected);
    let below = post("listChildren", json!({"prefix": "vol:/a03"}));
    assert_eq!(names(&below), ["x", "z"]);
    let held = &below["children"][1];
    assert_eq!(held["holders"][0]["owner"], "amy");
    assert!(held["holders"][0]["leaseLeftMs"].as_u64().unwrap() > 500_000);
    let other = post("listChildren", json!({"prefix": "other"}));
    assert_eq!(other["children"][0]["path"], "other:/b");

    let waits = post("listWaits", json!({}));
    assert_eq!(waits["count"], 1);
    assert_eq!(waits["waits"][0]["owner"], "bob");
    assert_eq!(waits["waits"][0]["blockers"], json!(["amy"]));

    post("releaseAll", json!({"ownerId": "amy"}));
    let history = post("history", json!({"prefix": "vol:/a03/z"}));
    let spans = history["spans"].as_array().unwrap();
    assert_eq!(spans.len(), 2, "{history}");
    assert_eq!(
        (&spans[0]["owner"], &spans[0]["end"]),
        (&json!("amy"), &json!(4))
    );
    let (queued, granted) = (&spans[1]["queuedMs"], &spans[1]["grantedMs"]);
    assert!(
        queued.as_u64() > Some(0) && granted.as_u64() >= queued.as_u64(),
        "{history}"
    );
    assert_eq!(spans[1]["holder"]["name"], "bob.sh");
    assert_eq!(history["completeSinceMs"], 0, "nothing is missing");
}
