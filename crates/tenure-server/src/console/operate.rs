//! Status and administration of the cluster as JSON: the gRPC services `Cluster` and `Auth`, as far
//! as the console needs them.

use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use http::Request;
use serde::Deserialize;
use serde_json::{Value, json};
use tenure_wire::auth::WhoAmIRequest;
use tenure_wire::auth::auth_server::Auth;
use tenure_wire::cluster::cluster_server::Cluster;
use tenure_wire::cluster::{
    DrainRequest, Group, Node, RemoveRequest, StatusRequest, StatusResponse,
};

use crate::auth::{AuthService, Caller};
use crate::status::{Code, Failure};
use crate::transport::admin::AdminService;
use crate::transport::json::{error, wrong_method};

/// Longest body of a request.
const BODY: usize = 4096;

/// The services behind the routes.
#[derive(Clone)]
pub(crate) struct Operators {
    pub(crate) cluster: Arc<AdminService>,
    pub(crate) auth: Arc<AuthService>,
}

/// Builds the routes. Their verbs are in `auth/authorization.rs`.
pub(crate) fn router(operators: Operators) -> Router {
    Router::new()
        .route("/v1/whoami", get(who_am_i))
        .route("/v1/cluster/status", get(status))
        .route("/v1/cluster/drain", post(drain))
        .route("/v1/cluster/remove", post(remove))
        .method_not_allowed_fallback(wrong_method)
        .with_state(operators)
}

/// Makes the gRPC request of the same caller.
fn of_caller<M>(request: &Request<Body>, message: M) -> tonic::Request<M> {
    let mut asked = tonic::Request::new(message);
    if let Some(caller) = request.extensions().get::<Caller>() {
        asked.extensions_mut().insert(caller.clone());
    }
    if let Some(peer) = request
        .extensions()
        .get::<axum::extract::ConnectInfo<std::net::SocketAddr>>()
    {
        asked.extensions_mut().insert(*peer);
    }
    asked
}

fn answer<M>(
    found: Result<tonic::Response<M>, tonic::Status>,
    body: impl FnOnce(M) -> Value,
) -> Response {
    match found {
        Ok(found) => Json(body(found.into_inner())).into_response(),
        Err(status) => error(&failure(&status)),
    }
}

fn failure(status: &tonic::Status) -> Failure {
    let code = match status.code() {
        tonic::Code::InvalidArgument => Code::InvalidArgument,
        tonic::Code::FailedPrecondition => Code::FailedPrecondition,
        tonic::Code::PermissionDenied => Code::PermissionDenied,
        tonic::Code::Unauthenticated => Code::Unauthenticated,
        tonic::Code::Internal => Code::Internal,
        _ => Code::Unavailable,
    };
    Failure::new(code, status.message())
}

async fn who_am_i(State(operators): State<Operators>, request: Request<Body>) -> Response {
    let is_anonymous = request
        .extensions()
        .get::<Caller>()
        .is_none_or(Caller::is_anonymous);
    let found = operators
        .auth
        .who_am_i(of_caller(&request, WhoAmIRequest {}));
    answer(found.await, |found| {
        let grants = found.grants.iter();
        json!({
            "principal": found.principal,
            "anonymous": is_anonymous,
            "administrator": found.administrator,
            "groups": found.groups,
            "grants": grants
                .map(|grant| json!({ "verbs": grant.verbs, "at": grant.at }))
                .collect::<Vec<_>>(),
        })
    })
}

#[derive(Deserialize)]
struct StatusQuery {
    groups: Option<String>,
}

async fn status(
    State(operators): State<Operators>,
    Query(query): Query<StatusQuery>,
    request: Request<Body>,
) -> Response {
    let found = operators
        .cluster
        .status(of_caller(&request, StatusRequest {}));
    let with_groups = query.groups.as_deref() != Some("0");
    answer(found.await, |found| status_json(&found, with_groups))
}

fn status_json(found: &StatusResponse, with_groups: bool) -> Value {
    let node = |node: &Node| {
        json!({
            "number": node.number,
            "name": node.name,
            "up": node.up,
            "forMs": node.for_ms,
            "draining": node.draining,
            "peerAddress": node.peer_address,
            "publicAddress": node.public_address,
            "leads": node.leads,
            "replicas": node.replicas,
            "reported": node.reported,
            "release": node.release,
            "rules": node.rules,
        })
    };
    let group = |group: &Group| {
        json!({
            "number": group.number,
            "leader": group.leader,
            "term": group.term,
            "voters": group.voters,
            "learners": group.learners,
            "changing": group.changing,
            "applied": group.applied,
            "lag": group.lag,
            "holds": group.holds,
            "waiters": group.waiters,
            "unconfirmedVoters": group.unconfirmed_voters,
        })
    };
    let groups = found.groups.iter();
    let without_leader = groups.clone().filter(|group| group.leader == 0).count();
    json!({
        "clusterId": found.cluster_id,
        "answeredBy": found.answered_by,
        "healthy": found.healthy,
        "problems": found.problems,
        "otherClusters": found.other_clusters,
        "groupCount": found.group_count,
        "defaultLockAlgorithm": found.default_lock_algorithm,
        "nodes": found.nodes.iter().map(node).collect::<Vec<_>>(),
        "holds": groups.clone().map(|group| group.holds).sum::<u64>(),
        "waiters": groups.clone().map(|group| group.waiters).sum::<u64>(),
        "groupsWithoutLeader": without_leader,
        "groups": if with_groups { groups.map(group).collect() } else { Vec::new() },
    })
}

#[derive(Deserialize)]
struct NodeOrder {
    node: u32,
    #[serde(default)]
    undo: bool,
}

async fn order(request: Request<Body>) -> Result<(NodeOrder, Request<Body>), Failure> {
    let (head, body) = request.into_parts();
    let body = to_bytes(body, BODY).await;
    let order = body
        .ok()
        .and_then(|body| serde_json::from_slice(&body).ok());
    let order = order.ok_or_else(|| {
        Failure::new(Code::InvalidArgument, "the body must be {\"node\": NUMBER}")
    })?;
    Ok((order, Request::from_parts(head, Body::empty())))
}

async fn drain(State(operators): State<Operators>, request: Request<Body>) -> Response {
    let (order, request) = match order(request).await {
        Ok(read) => read,
        Err(failure) => return error(&failure),
    };
    let message = DrainRequest {
        node: order.node,
        undo: order.undo,
    };
    let done = operators.cluster.drain(of_caller(&request, message));
    answer(done.await, |_| json!({}))
}

async fn remove(State(operators): State<Operators>, request: Request<Body>) -> Response {
    let (order, request) = match order(request).await {
        Ok(read) => read,
        Err(failure) => return error(&failure),
    };
    let message = RemoveRequest { node: order.node };
    let done = operators.cluster.remove(of_caller(&request, message));
    answer(done.await, |_| json!({}))
}
