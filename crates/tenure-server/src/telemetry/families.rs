//! Metric families: the common source of the Prometheus and OTLP exports.
//!
//! Names are those of the specification with the prefix `tenure.`; the Prometheus names are derived
//! from them.

use tenure_cluster::{HistogramSnapshot, NodeMetrics};
use tenure_node::{GroupStatus, Role};

use super::calls::CallCounters;
use crate::auth::LimitRefusals;

/// One metric with all its points.
pub(crate) struct MetricFamily {
    /// Dotted name, without the prefix.
    pub(crate) name: &'static str,
    pub(crate) help: &'static str,
    pub(crate) points: MetricPoints,
}

/// The values of a family, each with its labels.
pub(crate) enum MetricPoints {
    /// Monotonic.
    Counter(Vec<MetricPoint<u64>>),
    /// Can rise and fall.
    Gauge(Vec<MetricPoint<u64>>),
    /// Durations in milliseconds.
    Histogram(Vec<MetricPoint<HistogramSnapshot>>),
}

pub(crate) struct MetricPoint<T> {
    pub(crate) labels: Vec<(&'static str, String)>,
    pub(crate) value: T,
}

/// Returns requests, errors and durations of calls.
pub(crate) fn of_calls(calls: &CallCounters) -> Vec<MetricFamily> {
    let (mut requests, mut errors, mut durations) = (Vec::new(), Vec::new(), Vec::new());
    for counted in calls.read() {
        let labels = vec![
            ("rpc.system", counted.transport.name().to_owned()),
            ("rpc.service", "pathlockd.v1.PathLock".to_owned()),
            ("rpc.method", counted.rpc.name().to_owned()),
            ("grpc.status_code", (counted.code as i32).to_string()),
            ("grpc.status_text", code_name(counted.code).to_owned()),
        ];
        let count = MetricPoint {
            labels: labels.clone(),
            value: counted.durations.count(),
        };
        if counted.code != tonic::Code::Ok {
            errors.push(MetricPoint {
                labels: labels.clone(),
                value: count.value,
            });
        }
        requests.push(count);
        durations.push(MetricPoint {
            labels,
            value: counted.durations,
        });
    }
    vec![
        MetricFamily {
            name: "grpc.server.requests",
            help: "Answered calls.",
            points: MetricPoints::Counter(requests),
        },
        MetricFamily {
            name: "grpc.server.errors",
            help: "Calls answered with an error.",
            points: MetricPoints::Counter(errors),
        },
        MetricFamily {
            name: "grpc.server.duration",
            help: "Duration of calls.",
            points: MetricPoints::Histogram(durations),
        },
    ]
}

/// Returns how many calls each limit has refused.
pub(crate) fn of_limits(refusals: &LimitRefusals) -> MetricFamily {
    let points = refusals.read().map(|(limit, value)| MetricPoint {
        labels: vec![("limit", limit.name().to_owned())],
        value,
    });
    MetricFamily {
        name: "limits.refused",
        help: "Calls refused by a quota or a limit of their principal.",
        points: MetricPoints::Counter(points.collect()),
    }
}

/// Returns the metrics of the node, its groups and its log.
pub(crate) fn of_node(report: &NodeMetrics) -> Vec<MetricFamily> {
    let status = &report.status;
    let waiting: usize = status.groups.iter().map(|group| group.waiting).sum();
    // The system group has no lock state, hence no counts.
    let spaces = || {
        status
            .groups
            .iter()
            .filter_map(|group| group.counts.as_ref())
    };
    let count = |is_counted: &dyn Fn(&GroupStatus) -> bool| {
        status
            .groups
            .iter()
            .filter(|group| is_counted(group))
            .count() as u64
    };
    let mut families = vec![
        gauge(
            "writer.queue_depth",
            "Operations in flight on this node.",
            waiting as u64,
        ),
        gauge(
            "calls.waiting",
            "Calls of clients that wait for an answer.",
            status.calls as u64,
        ),
        gauge("log.bytes", "Bytes of log files in use.", report.log_bytes),
        gauge("log.files", "Log files in use.", report.log_files),
        gauge(
            "log.unsynced_age",
            "Age in milliseconds of the oldest log write that is not durable yet.",
            status.unsynced_ms,
        ),
        MetricFamily {
            name: "log.sync_duration",
            help: "Duration of log syncs.",
            points: MetricPoints::Histogram(vec![MetricPoint {
                labels: Vec::new(),
                value: report.syncs.clone(),
            }]),
        },
        gauge(
            "leases",
            "Leases that have not expired, one per owner and namespace.",
            spaces().map(|counts| counts.leases).sum(),
        ),
        gauge(
            "holds",
            "Holds in force.",
            spaces().map(|counts| counts.claims).sum(),
        ),
        gauge(
            "waiters",
            "Queued acquires.",
            spaces().map(|counts| counts.waiters).sum(),
        ),
        gauge(
            "namespaces",
            "Namespaces with a hold, a waiter, a retained fence or a stored answer.",
            spaces().map(|counts| counts.namespaces).sum(),
        ),
        gauge(
            "remembered_fences",
            "Fences kept for paths that are not held.",
            spaces().map(|counts| counts.marks).sum(),
        ),
        gauge(
            "remembered_answers",
            "Answers kept for repeated requests.",
            spaces().map(|counts| counts.answers).sum(),
        ),
        gauge(
            "raft.groups",
            "Groups with a replica on this node.",
            status.groups.len() as u64,
        ),
        gauge(
            "raft.groups_led",
            "Groups that this node leads and serves.",
            count(&|group| group.serves),
        ),
        gauge(
            "raft.groups_without_leader",
            "Groups whose leader this node does not know.",
            count(&|group| group.leader.is_none()),
        ),
        gauge(
            "raft.replication_lag",
            "Number of entries that the slowest replica of all groups is behind; groups led here only.",
            status.groups.iter().map(replication_lag).max().unwrap_or(0),
        ),
    ];
    families.extend(GROUP_GAUGES.iter().map(|(name, help, read)| {
        MetricFamily {
            name,
            help,
            points: MetricPoints::Gauge(
                status
                    .groups
                    .iter()
                    .map(|group| MetricPoint {
                        labels: vec![("group", group.group.0.to_string())],
                        value: read(group),
                    })
                    .collect(),
            ),
        }
    }));
    families
}

fn replication_lag(group: &GroupStatus) -> u64 {
    let behind = group.progress.iter();
    let behind = behind.map(|(_, progress)| group.last.saturating_sub(progress.matched));
    behind.max().unwrap_or(0)
}

type MetricSource = fn(&GroupStatus) -> u64;

/// Start of the names of the metrics with one point per group.
pub(crate) const OF_GROUPS: &str = "raft.group.";

/// Gauges with one point per replica of this node.
const GROUP_GAUGES: &[(&str, &str, MetricSource)] = &[
    (
        "raft.group.role",
        "0 learner, 1 follower, 2 candidate, 3 leader.",
        |group| match group.role {
            Role::Follower => 1,
            Role::Candidate => 2,
            Role::Leader => 3,
        },
    ),
    (
        "raft.group.leader_id",
        "Number of the leader's node, 0 if unknown.",
        |group| {
            group
                .leader
                .map_or(0, |leader| u64::from(leader.node.number()))
        },
    ),
    (
        "raft.group.is_leader",
        "1 if this replica leads and serves requests, else 0.",
        |group| u64::from(group.serves),
    ),
    (
        "raft.group.last_applied_index",
        "Index of the last applied entry.",
        |group| group.applied,
    ),
    (
        "raft.group.last_log_index",
        "Index of the last entry of the log.",
        |group| group.last,
    ),
    (
        "raft.group.replication_lag",
        "Number of entries that the slowest replica is behind; leaders only.",
        replication_lag,
    ),
    (
        "raft.group.snapshot_index",
        "Index of the last entry that the snapshot covers.",
        |group| group.base,
    ),
    (
        "raft.group.membership_voters",
        "Number of voters.",
        |group| group.membership.voters.len() as u64,
    ),
    (
        "raft.group.membership_nodes",
        "Number of replicas, voters and learners.",
        |group| group.membership.everybody().len() as u64,
    ),
];

fn gauge(name: &'static str, help: &'static str, value: u64) -> MetricFamily {
    MetricFamily {
        name,
        help,
        points: MetricPoints::Gauge(vec![MetricPoint {
            labels: Vec::new(),
            value,
        }]),
    }
}

/// Returns the name of a gRPC code.
pub(crate) fn code_name(code: tonic::Code) -> &'static str {
    match code {
        tonic::Code::Ok => "OK",
        tonic::Code::Cancelled => "CANCELLED",
        tonic::Code::Unknown => "UNKNOWN",
        tonic::Code::InvalidArgument => "INVALID_ARGUMENT",
        tonic::Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        tonic::Code::NotFound => "NOT_FOUND",
        tonic::Code::AlreadyExists => "ALREADY_EXISTS",
        tonic::Code::PermissionDenied => "PERMISSION_DENIED",
        tonic::Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        tonic::Code::FailedPrecondition => "FAILED_PRECONDITION",
        tonic::Code::Aborted => "ABORTED",
        tonic::Code::OutOfRange => "OUT_OF_RANGE",
        tonic::Code::Unimplemented => "UNIMPLEMENTED",
        tonic::Code::Internal => "INTERNAL",
        tonic::Code::Unavailable => "UNAVAILABLE",
        tonic::Code::DataLoss => "DATA_LOSS",
        tonic::Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use tenure_node::Status;

    use super::*;

    /// Returns the text of docs/reference/metrics.md.
    fn reference() -> String {
        let report = NodeMetrics {
            status: Status {
                groups: Vec::new(),
                calls: 0,
                unreadable_frames: 0,
                malformed_appends: 0,
                unsynced_ms: 0,
            },
            log_files: 0,
            log_bytes: 0,
            syncs: HistogramSnapshot::default(),
        };
        let mut text = String::from(
            "# Metrics\n\n\
             Generated from the code (`telemetry/families.rs`); a test compares.\n\n\
             `GET /metrics` on the web port has them for Prometheus, an OTLP collector gets them by their dotted\n\
             names when the standard `OTEL_*` variables ask for it. Counters end in `_total`, durations are\n\
             seconds for Prometheus and milliseconds over OTLP. Prometheus gets the metrics of single groups\n\
             (`raft.group.…`) with `GET /metrics?groups=1` only: they are one series per group. The metrics of calls have the labels `rpc.system` (`grpc`, `http`), `rpc.service`,\n\
             `rpc.method`, `grpc.status_code` and `grpc.status_text`, those of groups have `group`.\n\n\
             | OTLP | Prometheus | kind | what |\n|---|---|---|---|\n",
        );
        let mut calls = of_calls(&CallCounters::default());
        calls.push(of_limits(&LimitRefusals::default()));
        for family in calls.iter().chain(&of_node(&report)) {
            let name = family.name.replace('.', "_");
            let (kind, end) = match family.points {
                MetricPoints::Counter(_) => ("counter", "_total"),
                MetricPoints::Gauge(_) => ("gauge", ""),
                MetricPoints::Histogram(_) => ("histogram", "_seconds"),
            };
            let (dotted, help) = (family.name, family.help);
            writeln!(
                text,
                "| `tenure.{dotted}` | `tenure_{name}{end}` | {kind} | {help} |"
            )
            .unwrap();
        }
        text
    }

    #[test]
    fn the_reference_of_the_metrics_is_current() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../docs/reference/metrics.md"
        );
        if std::env::var_os("TENURE_WRITE_REFERENCE").is_some() {
            std::fs::write(path, reference()).unwrap();
        }
        let kept = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            kept == reference(),
            "docs/reference/metrics.md is old: run this test with TENURE_WRITE_REFERENCE=1"
        );
    }
}
