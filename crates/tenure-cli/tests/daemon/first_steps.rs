//! The same table of calls over every transport, each on its own daemon: equal answers.

use serde_json::{Value, json};

use super::support::Daemon;
use super::support::foreign::{node_script, proto_root};
use super::table::{Step, other_form, steps, timeless};
use super::transports::{self, Answer};

fn daemon() -> (tempfile::TempDir, Daemon) {
    let data = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(data.path());
    (data, daemon)
}

/// Compares answers with the table and, once that is done, gives them back without times.
fn checked(steps: &[Step], answers: Vec<Answer>) -> Vec<Answer> {
    assert_eq!(steps.len(), answers.len());
    let checked = steps
        .iter()
        .zip(answers)
        .enumerate()
        .map(|(at, (step, answer))| {
            assert_eq!(
                answer.code, step.code,
                "step {at}, {}: {answer:?}",
                step.rpc
            );
            for (name, expected) in step.answer.as_object().unwrap() {
                let found = &answer.message[name];
                assert_eq!(
                    found, expected,
                    "step {at}, {}: {name} in {answer:?}",
                    step.rpc
                );
            }
            Answer {
                code: answer.code,
                message: timeless(answer.message),
            }
        });
    checked.collect()
}

/// What one transport answers, the others answer too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_is_the_same_on_every_transport() {
    let steps = steps();
    let called: std::collections::BTreeSet<&str> = steps.iter().map(|step| step.rpc).collect();
    assert_eq!(called.len(), 26, "every unary RPC is in the table");

    let (_data, first) = daemon();
    let expected = checked(&steps, transports::http1(&first, &steps));
    drop(first);

    let (_data, second) = daemon();
    let found = transports::tonic(&second, &steps).await;
    assert_eq!(checked(&steps, found), expected, "gRPC");

    // http and https, HTTP/1.1 and HTTP/2, all on one port.
    for (flags, scheme) in [
        (&["--http1.1"][..], "https"),
        (&["--http2"][..], "https"),
        (&["--http2-prior-knowledge"][..], "http"),
    ] {
        let (_data, daemon) = daemon();
        let found = transports::curl(&daemon, flags, scheme, &steps);
        assert_eq!(checked(&steps, found), expected, "curl {flags:?} {scheme}");
    }
}

/// Both forms of input mean the same.
#[test]
fn requests_may_be_written_either_way() {
    let steps = steps();
    let (_data, first) = daemon();
    let expected = checked(&steps, transports::http1(&first, &steps));
    let written: Vec<Step> = steps
        .into_iter()
        .map(|step| Step {
            request: other_form(&step.request),
            ..step
        })
        .collect();
    let (_data, second) = daemon();
    let found = transports::http1(&second, &written);
    assert_eq!(checked(&written, found), expected);
}

/// HTTP/3 with an independent client.
#[test]
fn every_call_works_over_http3() {
    let steps = steps();
    let (_data, first) = daemon();
    let expected = checked(&steps, transports::http1(&first, &steps));
    let (_data, second) = daemon();
    let found = transports::http3(&second, &steps);
    assert_eq!(checked(&steps, found), expected);
}

/// E11: gRPC with an independent client that finds the service by reflection.
#[test]
fn every_call_works_with_grpcio() {
    let steps = steps();
    let (_data, first) = daemon();
    let expected = checked(&steps, transports::http1(&first, &steps));
    let (_data, second) = daemon();
    let (found, reflected) = transports::grpcio(&second, &steps);
    assert_eq!(checked(&steps, found), expected);
    let methods = reflected["methods"].as_array().unwrap();
    assert_eq!(methods.len(), 30, "{reflected}");
    for service in ["pathlockd.v1.PathLock", "grpc.health.v1.Health"] {
        for version in ["v1", "v1alpha"] {
            let listed = reflected[version].as_array().unwrap();
            assert!(
                listed.contains(&json!(service)),
                "{service} in {version}: {reflected}"
            );
        }
    }
}

/// E11: the standard health service says what `Health` says.
#[tokio::test]
async fn the_standard_health_service_answers() {
    use tonic_health::pb::HealthCheckRequest;
    use tonic_health::pb::health_client::HealthClient;
    let (_data, daemon) = daemon();
    let mut client = HealthClient::new(daemon.channel().await);
    for service in ["", "pathlockd.v1.PathLock"] {
        let request = HealthCheckRequest {
            service: service.into(),
        };
        let answer = client.check(request.clone()).await.unwrap().into_inner();
        assert_eq!(answer.status, 1, "{service:?} is SERVING");
        let mut watched = client.watch(request).await.unwrap().into_inner();
        assert_eq!(watched.message().await.unwrap().unwrap().status, 1);
    }
    let unknown = HealthCheckRequest {
        service: "other".into(),
    };
    let refused = client.check(unknown).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::NotFound);
}

/// Node's clients: an EventSource as browsers have it, and gRPC with names for enums.
#[test]
fn clients_written_for_node_work() {
    let (_data, daemon) = daemon();
    let input = json!({
        "web": format!("http://{}", daemon.web),
        "grpc": daemon.grpc.to_string(),
        "proto": proto_root(),
    });
    let output = node_script("clients.mjs", &input);
    let revoked = &output["revoked"][0];
    assert_eq!(revoked["data"]["type"], "revoke", "{output}");
    assert_eq!(revoked["id"], json!(revoked["data"]["id"].to_string()));
    let by_name = &output["byName"];
    assert_eq!(
        by_name["granted"]["status"], "ACQUIRE_STATUS_OK",
        "{output}"
    );
    assert_eq!(by_name["queued"]["status"], "ACQUIRE_STATUS_QUEUED");
    assert_eq!(by_name["queued"]["reason"], "REASON_CODE_WRITE_LOCKED");
    assert_eq!(by_name["pages"], Value::from(vec!["node:/a/b"]));
}
