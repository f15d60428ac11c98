//! Telemetry of the daemon: Prometheus metrics, OTLP, logs.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point;
use prost::Message;
use serde_json::{Value, json};
use tenure_wire::v1;
use tenure_wire::v1::path_lock_client::PathLockClient;

use super::support::Daemon;

fn lock(owner: &str, path: &str) -> Value {
    json!({"ownerId": owner, "ttlMs": 60000, "requests": [{"path": path}]})
}

/// The metrics of the daemon as Prometheus reads them.
#[test]
fn metrics_count_what_happened() {
    let data = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(data.path());
    daemon.post("/v1/acquire", &lock("amy", "t:/a"));
    daemon.post("/v1/acquire", &lock("bob", "t:/a"));
    daemon.post("/v1/acquire", &lock("bob", "no path"));
    // One series per group only on request.
    let (_, brief) = daemon.get_text("/metrics");
    assert!(!brief.contains("tenure_raft_group_"), "{brief}");
    assert!(brief.contains("\ntenure_raft_groups_led 5\n"), "{brief}");
    let (head, text) = daemon.get_text("/metrics?groups=1");
    assert!(head.contains("text/plain; version=0.0.4"), "{head}");
    let value = |start: &str| {
        let line = text.lines().find(|line| line.starts_with(start));
        let line = line.unwrap_or_else(|| panic!("{start} is not in\n{text}"));
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    let acquires = |family: &str, code: &str| {
        format!(
            "tenure_grpc_server_{family}{{rpc_system=\"http\",rpc_service=\"pathlockd.v1.PathLock\",\
             rpc_method=\"Acquire\",grpc_status_code={code}"
        )
    };
    assert!((value(&acquires("requests_total", "\"0\"")) - 2.0).abs() < f64::EPSILON);
    assert!((value(&acquires("errors_total", "\"3\"")) - 1.0).abs() < f64::EPSILON);
    assert!((value(&acquires("duration_seconds_count", "\"0\"")) - 2.0).abs() < f64::EPSILON);
    assert!((value("tenure_holds") - 1.0).abs() < f64::EPSILON);
    assert!((value("tenure_waiters") - 1.0).abs() < f64::EPSILON);
    assert!((value("tenure_leases") - 1.0).abs() < f64::EPSILON);
    assert!(value("tenure_log_bytes") > 0.0);
    assert!(value("tenure_log_sync_duration_seconds_count") > 0.0);
    assert!((value("tenure_raft_group_role{group=\"0\"}") - 3.0).abs() < f64::EPSILON);
    assert!((value("tenure_raft_group_membership_voters{group=\"4\"}") - 1.0).abs() < f64::EPSILON);
}

/// R181: a collector gets spans with their parents, and metrics, when the standard variables say so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_gets_traces_and_metrics() {
    let (address, posts) = collector();
    let endpoint = format!("http://{address}");
    let data = tempfile::tempdir().unwrap();
    let daemon = Daemon::start_with(
        data.path(),
        &[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()),
            ("OTEL_EXPORTER_OTLP_HEADERS", "x-key=one%20two"),
            ("OTEL_SERVICE_NAME", "locks"),
            ("OTEL_RESOURCE_ATTRIBUTES", "deployment=test"),
            ("OTEL_METRIC_EXPORT_INTERVAL", "100"),
            ("OTEL_BSP_SCHEDULE_DELAY", "100"),
        ],
    );
    let mut client = PathLockClient::new(daemon.channel().await);
    let mut request = tonic::Request::new(v1::IsOwnerAliveRequest {
        owner_id: "amy".into(),
        ..Default::default()
    });
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    request
        .metadata_mut()
        .insert("traceparent", parent.parse().unwrap());
    client.is_owner_alive(request).await.unwrap();

    let (mut span, mut metric) = (None, None);
    while span.is_none() || metric.is_none() {
        let post = posts.recv_timeout(Duration::from_secs(60)).unwrap();
        assert_eq!(post.key.as_deref(), Some("one two"));
        match post.path.as_str() {
            "/v1/traces" => span = span.or(found_span(&post.body)),
            "/v1/metrics" => metric = metric.or(found_metric(&post.body)),
            other => panic!("an unknown signal: {other}"),
        }
    }
    let span = span.unwrap();
    assert_eq!(span.name, "pathlockd.v1.PathLock/IsOwnerAlive");
    assert_eq!(hex(&span.trace_id), "0af7651916cd43dd8448eb211c80319c");
    assert_eq!(hex(&span.parent_span_id), "b7ad6b7169203331");
    assert_eq!(text(&span.attributes, "rpc.system"), "grpc");
    assert_eq!(text(&span.attributes, "rpc.method"), "IsOwnerAlive");
    assert_eq!(text(&span.attributes, "grpc.status_text"), "OK");
    assert_eq!(metric.unwrap(), 1);
    assert_eq!(daemon.terminate(), Some(0));
}

/// R181: nothing is exported if the variables are not set or telemetry is switched off.
#[test]
fn without_the_variables_nothing_is_sent() {
    let (address, posts) = collector();
    let endpoint = format!("http://{address}");
    let data = tempfile::tempdir().unwrap();
    let off = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()),
        ("OTEL_SDK_DISABLED", "true"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "1"),
    ];
    let daemon = Daemon::start_with(data.path(), &off);
    daemon.post("/v1/acquire", &lock("amy", "t:/a"));
    // Pending data would have been sent at the end.
    assert_eq!(daemon.terminate(), Some(0));
    assert!(posts.try_recv().is_err());
}

/// Every forced action is logged at any level: what, to whom, by whom, why, and the result.
#[test]
fn forced_actions_are_written_down() {
    let data = tempfile::tempdir().unwrap();
    let log = data.path().join("log");
    let environment = [
        ("TENURE_LOG_FILE", log.to_str().unwrap()),
        ("TENURE_ROCKSDB_BLOCK_CACHE_MB", "7"),
        ("RUST_LOG", "error"),
    ];
    let daemon = Daemon::start_with(data.path(), &environment);
    daemon.post("/v1/acquire", &lock("amy", "t:/a"));
    let broken =
        json!({"path": "t:/a", "ownerId": "amy", "fence": 1, "actor": "ops", "reason": "stuck"});
    assert_eq!(daemon.post("/v1/break", &broken).0, 200);
    assert_eq!(daemon.post("/v1/break", &broken).0, 412);
    daemon.post("/v1/forceRelease", &json!({"victimId": "bob"}));
    daemon.post("/v1/requestRevoke", &json!({"ownerId": "cat"}));
    assert_eq!(daemon.terminate(), Some(0));
    let text = std::fs::read_to_string(log).unwrap();
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(lines.iter().all(|line| line["target"] == "audit"), "{text}");
    let shown: Vec<_> = lines
        .iter()
        .map(|line| {
            (
                line["action"].as_str().unwrap(),
                line["victim"].as_str().unwrap(),
                line["result"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        shown,
        [
            ("break", "amy", "OK"),
            ("break", "amy", "FAILED_PRECONDITION"),
            ("force_release", "bob", "OK"),
            ("request_revoke", "cat", "OK"),
        ]
    );
    assert_eq!(
        (&lines[0]["actor"], &lines[0]["reason"]),
        (&json!("ops"), &json!("stuck"))
    );
    assert!(
        lines[2]["peer"].as_str().unwrap().starts_with("127.0.0.1:"),
        "{text}"
    );
}

/// Forced actions over gRPC leave the same lines, with the address of the client.
#[tokio::test]
async fn forced_actions_over_grpc_are_written_down() {
    let data = tempfile::tempdir().unwrap();
    let log = data.path().join("log");
    let environment = [
        ("TENURE_LOG_FILE", log.to_str().unwrap()),
        ("RUST_LOG", "error"),
    ];
    let daemon = Daemon::start_with(data.path(), &environment);
    let mut client = PathLockClient::new(daemon.channel().await);
    let break_hold = v1::BreakRequest {
        path: "t:/a".into(),
        owner_id: "amy".into(),
        actor: "ops".into(),
        ..Default::default()
    };
    let status = client.r#break(break_hold).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::FailedPrecondition, "{status}");
    let force = v1::ForceReleaseRequest {
        victim_id: "bob".into(),
        ..Default::default()
    };
    client.force_release(force).await.unwrap();
    let owner_id = "cat".into();
    let revoke = v1::RequestRevokeRequest { owner_id };
    client.request_revoke(revoke).await.unwrap();
    // The node was not called, so nothing is logged.
    let nameless = v1::ForceReleaseRequest::default();
    client.force_release(nameless).await.unwrap_err();
    drop(client);
    assert_eq!(daemon.terminate(), Some(0));
    let text = std::fs::read_to_string(log).unwrap();
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let shown: Vec<_> = lines
        .iter()
        .map(|line| {
            let peer = line["peer"].as_str().unwrap();
            assert!(peer.starts_with("127.0.0.1:"), "{line}");
            ["action", "victim", "result"].map(|field| line[field].as_str().unwrap())
        })
        .collect();
    assert_eq!(
        shown,
        [
            ["break", "amy", "FAILED_PRECONDITION"],
            ["force_release", "bob", "OK"],
            ["request_revoke", "cat", "OK"],
        ]
    );
}

/// R180: settings without effect are accepted and named in one line; an unknown level is refused.
#[test]
fn the_log_names_what_is_ignored() {
    let data = tempfile::tempdir().unwrap();
    let log = data.path().join("log");
    let environment = [
        ("TENURE_LOG_FILE", log.to_str().unwrap()),
        ("TENURE_ROCKSDB_BLOCK_CACHE_MB", "7"),
        ("PATHLOCKD_GROUP_GC_BATCH", "9"),
    ];
    Daemon::start_with(data.path(), &environment).terminate();
    let text = std::fs::read_to_string(log).unwrap();
    let found = text
        .lines()
        .filter(|line| line.contains("have no effect"))
        .count();
    assert_eq!(found, 1, "{text}");
    assert!(
        text.contains("rocksdb_block_cache_mb") && text.contains("group_gc_batch"),
        "{text}"
    );
    let refused = Command::new(env!("CARGO_BIN_EXE_tenure"))
        .args(["serve"])
        .env("TENURE_DATA_DIR", data.path())
        .env("TENURE_LOG_LEVEL", "a=b=c")
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(125), "{told}");
    assert!(told.contains("log_level"), "{told}");
}

/// `--health-check` and `--config` without a verb, as orchestrators and old deployments use them.
#[test]
fn a_health_check_tells_by_its_exit_code() {
    let data = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(data.path());
    let check = |listen: String| {
        let file = data.path().join("tenure.toml");
        // Only where to ask matters.
        std::fs::write(
            &file,
            format!("listen = '{listen}'\nseed_nodes = ['a:1']\n"),
        )
        .unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
        let output = command
            .arg("--config")
            .arg(&file)
            .arg("--health-check")
            .output()
            .unwrap();
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    let listen = format!("0.0.0.0:{}", daemon.grpc.port());
    assert_eq!(check(listen.clone()), (Some(0), String::new()));
    daemon.kill();
    let (code, told) = check(listen);
    assert_eq!(code, Some(1), "{told}");
    assert!(told.contains("cannot connect to"), "{told}");
}

/// One POST that a collector got.
struct Post {
    path: String,
    key: Option<String>,
    body: Vec<u8>,
}

/// A collector that accepts everything.
fn collector() -> (SocketAddr, Receiver<Post>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, posts) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, sender) = (stream.unwrap(), sender.clone());
            std::thread::spawn(move || {
                let mut stream = stream;
                while let Some(post) = read_post(&mut stream) {
                    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
                    if sender.send(post).is_err() {
                        return;
                    }
                }
            });
        }
    });
    (address, posts)
}

fn read_post(stream: &mut TcpStream) -> Option<Post> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).ok()?;
    let header = |name: &str| {
        head.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name)
                .then(|| value.trim().to_owned())
        })
    };
    let mut body = vec![0; header("content-length")?.parse().ok()?];
    stream.read_exact(&mut body).ok()?;
    Some(Post {
        path: head.split(' ').nth(1)?.to_owned(),
        key: header("x-key"),
        body,
    })
}

fn found_span(body: &[u8]) -> Option<opentelemetry_proto::tonic::trace::v1::Span> {
    let request = ExportTraceServiceRequest::decode(body).unwrap();
    let resource = request.resource_spans[0].resource.as_ref().unwrap();
    assert_eq!(text(&resource.attributes, "service.name"), "locks");
    assert_eq!(text(&resource.attributes, "deployment"), "test");
    let spans = request
        .resource_spans
        .into_iter()
        .flat_map(|found| found.scope_spans);
    spans
        .flat_map(|found| found.spans)
        .find(|span| span.name.ends_with("/IsOwnerAlive"))
}

/// How many IsOwnerAlive were counted.
fn found_metric(body: &[u8]) -> Option<i64> {
    let request = ExportMetricsServiceRequest::decode(body).unwrap();
    let resource = request.resource_metrics[0].resource.as_ref().unwrap();
    assert_eq!(text(&resource.attributes, "service.name"), "locks");
    assert_eq!(
        text(&resource.attributes, "service.instance.id"),
        "tenure-0"
    );
    let metrics = &request.resource_metrics[0].scope_metrics[0].metrics;
    let names: Vec<&str> = metrics.iter().map(|metric| metric.name.as_str()).collect();
    for name in [
        "tenure.log.sync_duration",
        "tenure.raft.group.role",
        "tenure.writer.queue_depth",
    ] {
        assert!(names.contains(&name), "{name} is not in {names:?}");
    }
    let requests = metrics
        .iter()
        .find(|metric| metric.name == "tenure.grpc.server.requests")?;
    let Some(Data::Sum(sum)) = &requests.data else {
        panic!("{requests:?} is not a sum");
    };
    let point = sum
        .data_points
        .iter()
        .find(|point| text(&point.attributes, "rpc.method") == "IsOwnerAlive")?;
    match point.value {
        Some(number_data_point::Value::AsInt(number)) => Some(number),
        _ => None,
    }
}

fn text(attributes: &[KeyValue], key: &str) -> String {
    let found = attributes.iter().find(|attribute| attribute.key == key);
    match found.and_then(|found| found.value.as_ref()?.value.as_ref()) {
        Some(any_value::Value::StringValue(text)) => text.clone(),
        other => format!("{other:?}"),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
