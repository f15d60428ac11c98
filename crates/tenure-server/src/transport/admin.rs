//! gRPC service for cluster administration: status, drain, remove, backup (R164 (replication
//! factor), R166 (draining a node)).

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use axum::extract::ConnectInfo;
use futures_util::Stream;
use tenure_cluster::{ClusterReport, Draining, GroupReport, Handle};
use tenure_node::{GroupId, NodeId, ReplicaId};
use tenure_wire::cluster::cluster_server::Cluster;
use tenure_wire::cluster::{
    BackupChunk, BackupRequest, DrainRequest, DrainResponse, Group, Member, MembersRequest,
    MembersResponse, Node, RemoveRequest, RemoveResponse, StatusRequest, StatusResponse,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use crate::auth::caller;
use crate::config::FixedConfig;
use crate::offline::algorithm_name;

/// Size of one chunk of a backup, in bytes.
const CHUNK: usize = 256 * 1024;

/// Time limit for a leader to confirm its leadership.
const ROUND: Duration = Duration::from_secs(5);

/// The gRPC service `tenure.cluster.v1.Cluster`.
pub(crate) struct AdminService {
    node: Handle,
    fixed: FixedConfig,
}

impl AdminService {
    pub(crate) fn new(node: Handle, fixed: &FixedConfig) -> AdminService {
        AdminService {
            node,
            fixed: fixed.clone(),
        }
    }

    async fn cluster_report(&self) -> Result<ClusterReport, Status> {
        // A stopped node serves nothing, but the operator gets the reason.
        let cluster_report = self.node.cluster_report().await;
        cluster_report.ok_or_else(|| self.gone())
    }

    fn gone(&self) -> Status {
        match self.node.stopped() {
            Some(why) => Status::unavailable(format!("the node has stopped: {why}")),
            None => Status::unavailable("the node has stopped"),
        }
    }
}

#[tonic::async_trait]
impl Cluster for AdminService {
    async fn status(&self, _: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        let cluster_report = self.cluster_report().await?;
        let cluster = self.node.cluster();
        let other_clusters = self.node.rivals();
        let problems = self.node.problems();
        let picture = picture(&cluster_report, &self.fixed);
        Ok(Response::new(StatusResponse {
            cluster_id: cluster.map_or_else(String::new, |id| format!("{id:016x}")),
            healthy: picture.healthy && other_clusters.is_empty() && problems.is_empty(),
            other_clusters,
            problems,
            ..picture
        }))
    }

    async fn members(
        &self,
        _: Request<MembersRequest>,
    ) -> Result<Response<MembersResponse>, Status> {
        let nodes = self.node.members().await.ok_or_else(|| self.gone())?;
        let cluster = self.node.cluster();
        let nodes = nodes.into_iter().map(|node| Member {
            number: node.member.node.number(),
            up: node.up,
            public_address: node.public,
        });
        Ok(Response::new(MembersResponse {
            cluster_id: cluster.map_or_else(String::new, |id| format!("{id:016x}")),
            nodes: nodes.collect(),
        }))
    }

    async fn drain(
        &self,
        request: Request<DrainRequest>,
    ) -> Result<Response<DrainResponse>, Status> {
        let by = caller(&request)?;
        by.recordable()?;
        let peer = peer(&request);
        let request = request.into_inner();
        let wanted = if request.undo {
            Draining::No
        } else {
            Draining::Yes
        };
        let node = node_id(request.node)?;
        let drained = self.node.drain(node, wanted).await;
        tracing::warn!(
            target: "audit",
            action = "drain",
            node = request.node,
            undo = request.undo,
            principal = by.principal().as_str(),
            peer,
            result = result(&drained),
        );
        let what = format!("node {} undo {}", request.node, request.undo);
        by.record("drain", &what, result(&drained));
        drained.map_err(Status::failed_precondition)?;
        Ok(Response::new(DrainResponse {}))
    }

    async fn remove(
        &self,
        request: Request<RemoveRequest>,
    ) -> Result<Response<RemoveResponse>, Status> {
        let by = caller(&request)?;
        by.recordable()?;
        let peer = peer(&request);
        let request = request.into_inner();
        let node = node_id(request.node)?;
        let removed = self.node.remove(node).await;
        tracing::warn!(
            target: "audit",
            action = "remove",
            node = request.node,
            principal = by.principal().as_str(),
            peer,
            result = result(&removed),
        );
        by.record(
            "remove",
            &format!("node {}", request.node),
            result(&removed),
        );
        removed.map_err(Status::failed_precondition)?;
        Ok(Response::new(RemoveResponse {}))
    }

    type BackupStream = Pin<Box<dyn Stream<Item = Result<BackupChunk, Status>> + Send>>;

    async fn backup(
        &self,
        request: Request<BackupRequest>,
    ) -> Result<Response<Self::BackupStream>, Status> {
        let by = caller(&request)?;
        by.recordable()?;
        by.record("backup", "", "OK");
        let peer = peer(&request);
        let wanted = request.into_inner().groups;
        // A backup contains every owner and every path.
        tracing::warn!(
            target: "audit",
            action = "backup",
            groups = wanted.len(),
            principal = by.principal().as_str(),
            peer,
            result = "OK",
        );
        let status = self.node.status().await;
        let status = status.ok_or_else(|| self.gone())?;
        let led = status.groups.into_iter().filter(|group| group.serves);
        let groups: Vec<GroupId> = led
            .map(|group| group.group)
            .filter(|group| wanted.is_empty() || wanted.contains(&group.0))
            .collect();
        let (chunks, stream) = mpsc::channel(4);
        let node = self.node.clone();
        tokio::spawn(async move {
            for group in groups {
                // A group that this node no longer leads, or whose leadership it cannot confirm, is
                // left out. The client asks the current leader for it.
                let Some((index, state)) = node.state(group, ROUND).await else {
                    continue;
                };
                // `max(1)`: an empty state is still one chunk, so the client knows that the group
                // is included.
                for offset in (0..state.len().max(1)).step_by(CHUNK) {
                    let end = (offset + CHUNK).min(state.len());
                    let chunk = BackupChunk {
                        group: group.0,
                        index,
                        total: state.len() as u64,
                        offset: offset as u64,
                        data: state[offset..end].to_vec(),
                    };
                    if chunks.send(Ok(chunk)).await.is_err() {
                        return;
                    }
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }
}

/// Returns the client's address for the audit log.
fn peer<T>(request: &Request<T>) -> Option<String> {
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
    peer.map(|peer| peer.0.to_string())
}

/// Returns the result of an operation for the audit log.
fn result(outcome: &Result<(), String>) -> &'static str {
    match outcome {
        Ok(()) => "OK",
        Err(_) => "FAILED_PRECONDITION",
    }
}

fn node_id(number: u32) -> Result<NodeId, Status> {
    NodeId::new(number).ok_or_else(|| Status::invalid_argument("node numbers start at 1"))
}

/// Merges the reports of all nodes. A group's state is the report of the leader with the highest
/// term; without a leader, that of the replica that has applied most.
fn picture(cluster_report: &ClusterReport, fixed: &FixedConfig) -> StatusResponse {
    let group_count = u32::try_from(fixed.group_count).unwrap_or(u32::MAX);
    // `0..=`: the system group has the number `group_count`. A group that no node reports stays in
    // the list without a leader.
    let mut groups: BTreeMap<u32, Group> = (0..=group_count)
        .map(|number| {
            let unknown = Group {
                number,
                ..Group::default()
            };
            (number, unknown)
        })
        .collect();
    for report in &cluster_report.reports {
        for replica in &report.groups {
            let known = groups.entry(replica.group).or_default();
            if replica.leads && (known.leader == 0 || known.term < replica.term) {
                *known = group(cluster_report, report.member.node, replica);
            } else if known.leader == 0 && known.applied <= replica.applied {
                *known = Group {
                    leader: 0,
                    ..group(cluster_report, report.member.node, replica)
                };
            }
        }
    }
    let nodes: Vec<Node> = cluster_report
        .nodes
        .iter()
        .map(|node| {
            let report = cluster_report.report(node.member.node);
            // A node that did not report has zero counts; `reported` tells the difference.
            let count = |which: fn(&&GroupReport) -> bool| {
                let replicas = report.map_or(0, |one| one.groups.iter().filter(which).count());
                u32::try_from(replicas).unwrap_or(u32::MAX)
            };
            Node {
                number: node.member.node.number(),
                life: node.member.incarnation,
                up: node.up,
                for_ms: node.for_ms,
                draining: node.draining,
                peer_address: node.internal.clone(),
                public_address: node.public.clone(),
                leads: count(|replica| replica.leads),
                replicas: count(|_| true),
                reported: report.is_some(),
                name: node.name.clone(),
                release: report.map_or_else(String::new, |one| one.release.clone()),
                rules: report.map_or(0, |one| one.rules),
            }
        })
        .collect();
    let settled = |group: &Group| {
        group.leader != 0
            && !group.changing
            && group.learners.is_empty()
            && group.unconfirmed_voters.is_empty()
    };
    StatusResponse {
        answered_by: cluster_report.asked.node.number(),
        healthy: nodes.iter().all(|node| node.up) && groups.values().all(settled),
        nodes,
        groups: groups.into_values().collect(),
        group_count,
        routing_prefix_segments: u32::try_from(fixed.routing_prefix_segments).unwrap_or(u32::MAX),
        default_lock_algorithm: algorithm_name(fixed.default_algorithm).to_owned(),
        ..StatusResponse::default()
    }
}

fn group(cluster_report: &ClusterReport, leader: NodeId, replica: &GroupReport) -> Group {
    // A voter is confirmed if its node has reported and its disk is the one that the group knows.
    let is_confirmed = |voter: &ReplicaId| {
        let report = cluster_report.report(voter.node);
        report.is_some_and(|report| report.member.shares_disk(*voter))
    };
    let unconfirmed = replica.voters.iter().filter(|voter| !is_confirmed(voter));
    let numbers = |members: &[ReplicaId]| {
        let numbers = members.iter().map(|member| member.node.number());
        numbers.collect()
    };
    Group {
        number: replica.group,
        leader: leader.number(),
        term: replica.term,
        voters: numbers(&replica.voters),
        learners: numbers(&replica.learners),
        changing: replica.changing,
        applied: replica.applied,
        lag: replica.lag,
        holds: replica.holds,
        waiters: replica.waiters,
        rules: replica.rules,
        unconfirmed_voters: unconfirmed.map(|voter| voter.node.number()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use tenure_cluster::{NodeInfo, NodeReport};
    use tenure_core::policy::Algorithm;

    use super::*;

    fn member(node: u32, life: u32) -> ReplicaId {
        ReplicaId::new(NodeId::new(node).unwrap(), life)
    }

    fn node(member: ReplicaId) -> NodeInfo {
        NodeInfo {
            name: format!("tenure-{}", member.node.number() - 1),
            member,
            up: true,
            for_ms: 0,
            draining: false,
            internal: String::new(),
            public: String::new(),
            version: None,
        }
    }

    fn report(member: ReplicaId, groups: Vec<GroupReport>) -> NodeReport {
        NodeReport {
            member,
            release: "1.2.3".to_owned(),
            rules: 2,
            groups,
        }
    }

    /// A group whose voter lost its disk is not healthy, although the node is up again.
    #[test]
    fn a_voter_of_an_earlier_incarnation_is_not_healthy() {
        let fixed = FixedConfig {
            group_count: 0,
            routing_prefix_segments: 1,
            default_algorithm: Algorithm::RecursiveRw,
        };
        let led = GroupReport {
            group: 0,
            leads: true,
            term: 3,
            rules: 1,
            applied: 5,
            voters: vec![member(1, 7), member(2, 8)],
            learners: Vec::new(),
            changing: false,
            lag: 0,
            holds: 0,
            waiters: 0,
        };
        let cluster_report = |second: ReplicaId| ClusterReport {
            asked: member(1, 7),
            nodes: vec![node(member(1, 7)), node(second)],
            reports: vec![
                report(member(1, 7), vec![led.clone()]),
                report(second, Vec::new()),
            ],
        };
        let well = picture(&cluster_report(member(2, 8)), &fixed);
        assert!(well.healthy, "{well:?}");
        assert_eq!((well.groups[0].rules, well.nodes[1].rules), (1, 2));
        assert_eq!(well.nodes[1].release, "1.2.3");

        let wiped = picture(&cluster_report(member(2, 9)), &fixed);
        assert!(!wiped.healthy, "{wiped:?}");
        assert_eq!(wiped.groups[0].unconfirmed_voters, [2]);

        // Without a report it is unknown which disk the node runs on.
        let mut silent = cluster_report(member(2, 8));
        silent.reports.pop();
        let silent = picture(&silent, &fixed);
        assert!(!silent.healthy, "{silent:?}");
    }
}
