//! Prometheus export: `GET /metrics` in the text format.

use std::fmt::Write;

use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::header::CONTENT_TYPE;
use serde::Deserialize;
use tenure_cluster::BOUNDS_US;

use super::Telemetry;
use super::families::{MetricFamily, MetricPoints, OF_GROUPS};
use crate::status::{Code, Failure};
use crate::transport::json::error;

/// Builds the route.
pub(crate) fn router(telemetry: Telemetry) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .with_state(telemetry)
}

#[derive(Deserialize)]
struct Selection {
    /// One series per group and gauge is most of the text, so it is sent on request only.
    groups: Option<String>,
}

async fn metrics(
    State(telemetry): State<Telemetry>,
    selection: Result<Query<Selection>, QueryRejection>,
) -> Response {
    let with_groups = match selection.map(|selection| selection.0.groups) {
        Ok(None) => false,
        Ok(Some(value)) if value == "1" => true,
        Ok(Some(_)) | Err(_) => {
            let text = "`groups` is given at most once, with the value 1";
            return error(&Failure::new(Code::InvalidArgument, text));
        }
    };
    let mut families = telemetry.families().await;
    if !with_groups {
        families.retain(|family| !family.name.starts_with(OF_GROUPS));
    }
    let text = text(&families);
    (
        [(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")],
        text,
    )
        .into_response()
}

fn text(families: &[MetricFamily]) -> String {
    let mut out = String::new();
    for family in families {
        // Writing to a string cannot fail.
        let _ = write_family(&mut out, family);
    }
    out
}

fn write_family(out: &mut String, family: &MetricFamily) -> std::fmt::Result {
    let name = format!("tenure_{}", underscored(family.name));
    let help = family.help;
    match &family.points {
        MetricPoints::Counter(points) => {
            let name = format!("{name}_total");
            writeln!(out, "# HELP {name} {help}\n# TYPE {name} counter")?;
            for point in points {
                writeln!(out, "{name}{} {}", labels(&point.labels, None), point.value)?;
            }
        }
        MetricPoints::Gauge(points) => {
            writeln!(out, "# HELP {name} {help}\n# TYPE {name} gauge")?;
            for point in points {
                writeln!(out, "{name}{} {}", labels(&point.labels, None), point.value)?;
            }
        }
        MetricPoints::Histogram(points) => {
            let name = format!("{name}_seconds");
            writeln!(out, "# HELP {name} {help}\n# TYPE {name} histogram")?;
            for point in points {
                // Prometheus buckets are cumulative; ours are not.
                let mut below = 0;
                let bounds = BOUNDS_US.iter().map(|us| seconds(*us));
                let ends = bounds.chain(["+Inf".to_owned()]);
                for (end, count) in ends.zip(point.value.buckets) {
                    below += count;
                    let labels = labels(&point.labels, Some(&end));
                    writeln!(out, "{name}_bucket{labels} {below}")?;
                }
                let labels = labels(&point.labels, None);
                writeln!(out, "{name}_sum{labels} {}", seconds(point.value.sum_us))?;
                writeln!(out, "{name}_count{labels} {below}")?;
            }
        }
    }
    Ok(())
}

/// Formats microseconds as seconds, the unit that Prometheus wants, without rounding.
fn seconds(us: u64) -> String {
    let (whole, rest) = (us / 1_000_000, us % 1_000_000);
    if rest == 0 {
        return whole.to_string();
    }
    format!("{whole}.{rest:06}")
        .trim_end_matches('0')
        .to_owned()
}

fn underscored(name: &str) -> String {
    name.replace('.', "_")
}

/// Formats labels. Their values never come from clients, so the escaping of `{:?}` is sufficient.
fn labels(labels: &[(&'static str, String)], le: Option<&str>) -> String {
    let own = labels
        .iter()
        .map(|(key, value)| format!("{}={value:?}", underscored(key)));
    let all: Vec<String> = own.chain(le.map(|le| format!("le={le:?}"))).collect();
    if all.is_empty() {
        return String::new();
    }
    format!("{{{}}}", all.join(","))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::telemetry::calls::{CallCounters, Rpc, Transport};
    use crate::telemetry::families;

    #[test]
    fn buckets_are_cumulative_and_end_with_all() {
        let calls = CallCounters::default();
        for us in [50, 120, 2_000_000] {
            let took = Duration::from_micros(us);
            calls.record(Transport::Grpc, Rpc::Renew, tonic::Code::Ok, took);
        }
        let text = text(&families::of_calls(&calls));
        let one = r#"rpc_system="grpc",rpc_service="pathlockd.v1.PathLock",rpc_method="Renew",grpc_status_code="0",grpc_status_text="OK""#;
        for line in [
            format!("tenure_grpc_server_requests_total{{{one}}} 3"),
            format!("tenure_grpc_server_duration_seconds_bucket{{{one},le=\"0.0001\"}} 1"),
            format!("tenure_grpc_server_duration_seconds_bucket{{{one},le=\"0.00025\"}} 2"),
            format!("tenure_grpc_server_duration_seconds_bucket{{{one},le=\"+Inf\"}} 3"),
            format!("tenure_grpc_server_duration_seconds_sum{{{one}}} 2.00017"),
            format!("tenure_grpc_server_duration_seconds_count{{{one}}} 3"),
        ] {
            assert!(
                text.lines().any(|found| found == line),
                "{line}\nis not in\n{text}"
            );
        }
    }
}
