//! Transports of the tests: the same call over HTTP/1.1, HTTP/2, HTTP/3 and gRPC.

use std::process::Command;

use serde_json::{Value, json};
use tenure_wire::v1;
use tonic::client::Grpc;
use tonic::transport::Channel;
use tonic_prost::ProstCodec;

use super::support::Daemon;
use super::support::foreign::python_script;
use super::table::Step;

/// The answer of a call: the gRPC code and the message, if there is one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Answer {
    pub(crate) code: String,
    pub(crate) message: Value,
}

/// `/v1/setWaitEdge` for `SetWaitEdge`.
pub(crate) fn url(rpc: &str) -> String {
    let (first, rest) = rpc.split_at(1);
    format!("/v1/{}{rest}", first.to_ascii_lowercase())
}

/// An HTTP answer as the contract maps it, the status checked against the code.
pub(crate) fn from_http(rpc: &str, status: u64, body: &Value) -> Answer {
    if status == 200 {
        return Answer {
            code: "OK".to_owned(),
            message: body.clone(),
        };
    }
    let code = body["error"]["code"].as_str().unwrap_or("?").to_owned();
    let expected = match code.as_str() {
        "INVALID_ARGUMENT" | "OUT_OF_RANGE" => 400,
        "FAILED_PRECONDITION" => 412,
        "ABORTED" => 409,
        "RESOURCE_EXHAUSTED" => 429,
        "UNAVAILABLE" => 503,
        "UNAUTHENTICATED" => 401,
        "PERMISSION_DENIED" => 403,
        _ => 0,
    };
    assert_eq!(status, expected, "{rpc}: {body}");
    assert!(
        body["error"]["message"]
            .as_str()
            .is_some_and(|text| !text.is_empty())
    );
    Answer {
        code,
        message: json!({}),
    }
}

/// Over HTTP/1.1 without TLS, with a minimal client.
pub(crate) fn http1(daemon: &Daemon, steps: &[Step]) -> Vec<Answer> {
    let one = |step: &Step| {
        let (status, body) = daemon.post(&url(step.rpc), &step.request);
        from_http(step.rpc, u64::from(status), &body)
    };
    steps.iter().map(one).collect()
}

/// With curl and the given flags.
pub(crate) fn curl(daemon: &Daemon, flags: &[&str], scheme: &str, steps: &[Step]) -> Vec<Answer> {
    let one = |step: &Step| {
        let output = Command::new("curl")
            .args(["-sS", "-k", "--max-time", "30", "-w", "\n%{http_code}"])
            .args(["-H", "content-type: application/json", "--data-binary"])
            .arg(step.request.to_string())
            .args(flags)
            .arg(format!("{scheme}://{}{}", daemon.web, url(step.rpc)))
            .output()
            .expect("curl is needed for this test");
        let text = String::from_utf8(output.stdout).unwrap();
        let (body, status) = text.rsplit_once('\n').unwrap();
        let body = serde_json::from_str(body).unwrap_or_else(|_| panic!("{}: {text}", step.rpc));
        from_http(step.rpc, status.parse().unwrap(), &body)
    };
    steps.iter().map(one).collect()
}

/// Over HTTP/3 with aioquic.
pub(crate) fn http3(daemon: &Daemon, steps: &[Step]) -> Vec<Answer> {
    let requests: Vec<Value> = steps
        .iter()
        .map(|step| json!({"path": url(step.rpc), "body": step.request.to_string()}))
        .collect();
    let input = json!({"mode": "requests", "port": daemon.h3.port(), "requests": requests});
    let answers = python_script("quic.py", &input);
    let answers = answers.as_array().unwrap().iter();
    answers
        .zip(steps)
        .map(|(answer, step)| {
            let body = answer["body"].as_str().unwrap();
            let body =
                serde_json::from_str(body).unwrap_or_else(|_| panic!("{}: {answer}", step.rpc));
            from_http(step.rpc, answer["status"].as_u64().unwrap(), &body)
        })
        .collect()
}

/// Over gRPC with grpcio; also what reflection said.
pub(crate) fn grpcio(daemon: &Daemon, steps: &[Step]) -> (Vec<Answer>, Value) {
    let calls: Vec<Value> = steps
        .iter()
        .map(|step| json!({"rpc": step.rpc, "request": step.request}))
        .collect();
    let input = json!({"address": daemon.grpc.to_string(), "steps": calls});
    let output = python_script("grpc_walk.py", &input);
    let answers = output["steps"].as_array().unwrap().iter();
    let answers = answers
        .map(|answer| Answer {
            code: answer["code"].as_str().unwrap().to_owned(),
            message: answer.get("answer").cloned().unwrap_or_else(|| json!({})),
        })
        .collect();
    (answers, output["reflected"].clone())
}

/// Over gRPC with tonic; messages are converted by the JSON code of the daemon.
pub(crate) async fn tonic(daemon: &Daemon, steps: &[Step]) -> Vec<Answer> {
    let mut client = Grpc::new(daemon.channel().await);
    let mut answers = Vec::new();
    for step in steps {
        answers.push(tonic_call(&mut client, step, None).await);
    }
    answers
}

macro_rules! unary {
    ($client:ident, $step:ident, $key:ident, $($rpc:literal $request:ident $response:ident),+ $(,)?) => {
        match $step.rpc {
            $($rpc => {
                let request: v1::$request = serde_json::from_value($step.request.clone()).unwrap();
                let path = http::uri::PathAndQuery::from_static(concat!("/pathlockd.v1.PathLock/", $rpc));
                let codec = ProstCodec::<v1::$request, v1::$response>::default();
                $client.ready().await.unwrap();
                let mut request = tonic::Request::new(request);
                if let Some(key) = $key {
                    let value = format!("Bearer {key}").parse().unwrap();
                    request.metadata_mut().insert("authorization", value);
                }
                let answer = $client.unary(request, path, codec).await;
                answer.map(|answer| serde_json::to_value(answer.into_inner()).unwrap())
            })+
            other => panic!("{other} is not in the table"),
        }
    };
}

/// One call, with a key or without.
pub(crate) async fn tonic_call(
    client: &mut Grpc<Channel>,
    step: &Step,
    key: Option<&str>,
) -> Answer {
    let answer = unary!(client, step, key,
        "Acquire" AcquireRequest AcquireResponse,
        "SetNamespacePolicy" SetNamespacePolicyRequest SetNamespacePolicyResponse,
        "GetNamespacePolicy" GetNamespacePolicyRequest GetNamespacePolicyResponse,
        "DeleteNamespacePolicy" DeleteNamespacePolicyRequest DeleteNamespacePolicyResponse,
        "Release" ReleaseLocksRequest ReleaseResponse,
        "ReleaseAll" ReleaseAllRequest ReleaseResponse,
        "Renew" RenewRequest RenewResponse,
        "ForceRelease" ForceReleaseRequest ForceReleaseResponse,
        "AssertFencing" AssertFencingRequest AssertFencingResponse,
        "DetectCycle" DetectCycleRequest DetectCycleResponse,
        "IsBlocking" IsBlockingRequest IsBlockingResponse,
        "IncrFencingToken" IncrFencingTokenRequest IncrFencingTokenResponse,
        "SetWaitEdge" SetWaitEdgeRequest SetWaitEdgeResponse,
        "ClearWaitEdge" ClearWaitEdgeRequest ClearWaitEdgeResponse,
        "IsOwnerAlive" IsOwnerAliveRequest IsOwnerAliveResponse,
        "RequestRevoke" RequestRevokeRequest RequestRevokeResponse,
        "InspectPath" InspectPathRequest InspectPathResponse,
        "ListOwnerLocks" ListOwnerLocksRequest ListOwnerLocksResponse,
        "DumpLocks" DumpLocksRequest DumpLocksResponse,
        "Health" HealthRequest HealthResponse,
        "Explain" ExplainRequest ExplainResponse,
        "Break" BreakRequest BreakResponse,
        "ListNamespacePolicies" ListNamespacePoliciesRequest ListNamespacePoliciesResponse,
        "ListChildren" ListChildrenRequest ListChildrenResponse,
        "ListWaits" ListWaitsRequest ListWaitsResponse,
        "History" HistoryRequest HistoryResponse,
    );
    match answer {
        Ok(message) => Answer {
            code: "OK".to_owned(),
            message,
        },
        Err(status) => Answer {
            code: code_name(status.code()),
            message: json!({}),
        },
    }
}

/// `InvalidArgument` as the wire has it.
pub(crate) fn code_name(code: tonic::Code) -> String {
    let mut name = String::new();
    for letter in format!("{code:?}").chars() {
        if letter.is_ascii_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(letter.to_ascii_uppercase());
    }
    name
}
