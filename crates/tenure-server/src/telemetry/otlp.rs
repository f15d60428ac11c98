//! OTLP export over HTTP, enabled by the standard `OTEL_*` variables and off by default (R181
//! (OpenTelemetry variables)).
//!
//! Traces use the SDK: one span per call, with the parent from `traceparent`. Metrics are the
//! families of `/metrics`, sent every `OTEL_METRIC_EXPORT_INTERVAL` and once at shutdown.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{Span, SpanKind, Status, Tracer, TracerProvider};
use opentelemetry::{Context, KeyValue};
use opentelemetry_otlp::{ExporterBuildError, Protocol, SpanExporter, WithExportConfig};
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::{self as common, any_value};
use opentelemetry_proto::tonic::metrics::v1 as wire;
use opentelemetry_proto::tonic::resource::v1::Resource as WireResource;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use percent_encoding::percent_decode_str;
use prost::Message;
use tenure_cluster::BOUNDS_US;
use thiserror::Error;
use tokio::sync::watch;

use super::Telemetry;
use super::calls::{Rpc, Transport};
use super::families::{MetricFamily, MetricPoint, MetricPoints, code_name};

/// Time limit for the last export at shutdown.
const FAREWELL: Duration = Duration::from_secs(1);

/// The reason why the requested export is impossible.
#[derive(Debug, Error)]
pub enum OtlpError {
    /// The trace exporter cannot be created.
    #[error("cannot set up the export of traces")]
    Traces(#[from] ExporterBuildError),
    /// The HTTP client for metrics cannot be created.
    #[error("cannot set up the export of metrics")]
    Metrics(#[from] reqwest::Error),
    /// A variable has an invalid value.
    #[error("{name} = {value:?} is not supported: use {expected}")]
    Variable {
        /// The variable.
        name: String,
        /// Its value.
        value: String,
        /// The allowed values.
        expected: &'static str,
    },
}

/// Lookup of environment variables.
pub struct Environment<'a>(pub &'a dyn Fn(&str) -> Option<String>);

impl Environment<'_> {
    /// Returns the value of a variable; empty counts as unset.
    fn get(&self, name: &str) -> Option<String> {
        (self.0)(name).filter(|value| !value.trim().is_empty())
    }

    /// Returns the variable of one signal, or the general one.
    fn of(&self, signal: &str, what: &str) -> Option<String> {
        self.get(&format!("OTEL_EXPORTER_OTLP_{signal}_{what}"))
            .or_else(|| self.get(&format!("OTEL_EXPORTER_OTLP_{what}")))
    }

    /// Returns whether a signal is exported. Off without an endpoint and without the exporter
    /// `otlp`.
    fn wants(&self, signal: &str) -> Result<bool, OtlpError> {
        let disabled = self.get("OTEL_SDK_DISABLED");
        if disabled.is_some_and(|value| value.trim().eq_ignore_ascii_case("true")) {
            return Ok(false);
        }
        let name = format!("OTEL_{signal}_EXPORTER");
        let on = match self.get(&name).as_deref().map(str::trim) {
            Some("otlp") => true,
            Some("none") => false,
            Some(value) => {
                return Err(OtlpError::Variable {
                    value: value.to_owned(),
                    name,
                    expected: "otlp or none",
                });
            }
            None => self.of(signal, "ENDPOINT").is_some(),
        };
        match self.of(signal, "PROTOCOL").as_deref() {
            Some(value) if on && value.trim() != "http/protobuf" => Err(OtlpError::Variable {
                name: "OTEL_EXPORTER_OTLP_PROTOCOL".to_owned(),
                value: value.to_owned(),
                expected: "http/protobuf",
            }),
            _ => Ok(on),
        }
    }

    fn millis(&self, name: &str) -> Option<Duration> {
        let millis = self.get(name)?.trim().parse().ok()?;
        Some(Duration::from_millis(millis))
    }

    /// Returns the resource attributes of both signals.
    fn resource(&self, node: &str) -> Resource {
        let named = self.get("OTEL_SERVICE_NAME").is_some()
            || self
                .get("OTEL_RESOURCE_ATTRIBUTES")
                .is_some_and(|text| text.contains("service.name="));
        let builder = Resource::builder().with_attributes([
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::new("service.instance.id", node.to_owned()),
        ]);
        if named {
            builder.build()
        } else {
            builder.with_service_name("tenure").build()
        }
    }
}

/// The exports of a daemon.
#[derive(Default)]
pub struct Signals {
    /// Traces.
    pub tracing: Option<Tracing>,
    /// Metrics.
    pub pusher: Option<Pusher>,
}

impl Signals {
    /// Creates the exports that the environment requests. `node` is the name of this node.
    pub fn asked_for(environment: &Environment<'_>, node: &str) -> Result<Signals, OtlpError> {
        Ok(Signals {
            tracing: Tracing::begin_if_asked(environment, node)?,
            pusher: Pusher::if_asked(environment, node)?,
        })
    }
}

/// Creates spans and exports them.
pub struct Tracing {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
}

impl Tracing {
    /// Starts tracing if the environment requests it.
    fn begin_if_asked(
        environment: &Environment<'_>,
        node: &str,
    ) -> Result<Option<Tracing>, OtlpError> {
        if !environment.wants("TRACES")? {
            return Ok(None);
        }
        // The exporter itself reads endpoint, headers and timeout from the environment.
        let exporter = SpanExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpBinary)
            .build()?;
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_resource(environment.resource(node))
            .build();
        let tracer = provider.tracer("tenure");
        Ok(Some(Tracing { provider, tracer }))
    }

    pub(crate) fn begin(&self, rpc: Rpc, headers: &HeaderMap) -> OpenSpan {
        let context = if headers.contains_key("traceparent") {
            TraceContextPropagator::new().extract(&Headers(headers))
        } else {
            Context::new()
        };
        let builder = self.tracer.span_builder(rpc.full_name());
        let builder = builder.with_kind(SpanKind::Server);
        OpenSpan(self.tracer.build_with_context(builder, &context))
    }

    /// Exports the remaining spans. Blocks for at most `FAREWELL`.
    fn end(&self) {
        if let Err(error) = self.provider.shutdown_with_timeout(FAREWELL) {
            tracing::warn!(%error, "the last traces were not sent");
        }
    }
}

impl Telemetry {
    /// Exports the remaining spans. Blocks for a short time.
    pub(crate) fn end_tracing(&self) {
        if let Some(tracing) = &self.inner.tracing {
            tracing.end();
        }
    }
}

struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(HeaderName::as_str).collect()
    }
}

/// The span of a call in flight.
pub(crate) struct OpenSpan(opentelemetry_sdk::trace::Span);

impl OpenSpan {
    pub(crate) fn end(mut self, transport: Transport, rpc: Rpc, code: tonic::Code) {
        let span = &mut self.0;
        span.set_attribute(KeyValue::new("rpc.system", transport.name()));
        span.set_attribute(KeyValue::new("rpc.service", "pathlockd.v1.PathLock"));
        span.set_attribute(KeyValue::new("rpc.method", rpc.name()));
        span.set_attribute(KeyValue::new("grpc.status_code", i64::from(code as i32)));
        span.set_attribute(KeyValue::new("grpc.status_text", code_name(code)));
        if code != tonic::Code::Ok {
            span.set_status(Status::error(code_name(code)));
        }
        span.end();
    }
}

/// Exports metrics periodically.
pub struct Pusher {
    client: reqwest::Client,
    url: String,
    every: Duration,
    resource: WireResource,
}

impl Pusher {
    /// Creates the exporter if the environment requests it.
    fn if_asked(environment: &Environment<'_>, node: &str) -> Result<Option<Pusher>, OtlpError> {
        if !environment.wants("METRICS")? {
            return Ok(None);
        }
        let own = environment.get("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT");
        let all = || {
            let base = environment.get("OTEL_EXPORTER_OTLP_ENDPOINT");
            let base = base.unwrap_or_else(|| "http://localhost:4318".to_owned());
            format!("{}/v1/metrics", base.trim_end_matches('/'))
        };
        let timeout = environment
            .millis("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT")
            .or_else(|| environment.millis("OTEL_EXPORTER_OTLP_TIMEOUT"));
        let client = reqwest::Client::builder()
            .default_headers(headers(environment)?)
            .timeout(timeout.unwrap_or(Duration::from_secs(10)))
            .build()?;
        let every = environment.millis("OTEL_METRIC_EXPORT_INTERVAL");
        Ok(Some(Pusher {
            client,
            url: own.unwrap_or_else(all),
            every: every
                .unwrap_or(Duration::from_secs(60))
                .max(Duration::from_millis(1)),
            resource: resource(&environment.resource(node)),
        }))
    }

    /// Exports until the daemon stops, then one last time.
    pub(crate) async fn run(self, telemetry: Telemetry, mut stop: watch::Receiver<bool>) {
        let begun = now();
        loop {
            let stopped = tokio::select! {
                () = tokio::time::sleep(self.every) => false,
                _ = stop.wait_for(|stop| *stop) => true,
            };
            let families = telemetry.families().await;
            let body = request(&families, self.resource.clone(), begun).encode_to_vec();
            let sending = self.send(body);
            if !stopped {
                sending.await;
                continue;
            }
            let _ = tokio::time::timeout(FAREWELL, sending).await;
            return;
        }
    }

    async fn send(&self, body: Vec<u8>) {
        let sent = self
            .client
            .post(&self.url)
            .header(http::header::CONTENT_TYPE, "application/x-protobuf")
            .body(body)
            .send()
            .await
            .and_then(reqwest::Response::error_for_status);
        if let Err(error) = sent {
            tracing::warn!(%error, "metrics were not sent");
        }
    }
}

/// Parses `key=value,key=value` with percent-encoded values.
fn headers(environment: &Environment<'_>) -> Result<HeaderMap, OtlpError> {
    let mut headers = HeaderMap::new();
    let Some(text) = environment.of("METRICS", "HEADERS") else {
        return Ok(headers);
    };
    for pair in text.split(',').filter(|pair| !pair.trim().is_empty()) {
        let parsed = pair.split_once('=').and_then(|(key, value)| {
            let name: HeaderName = key.trim().parse().ok()?;
            let value: Vec<u8> = percent_decode_str(value.trim()).collect();
            Some((name, HeaderValue::from_bytes(&value).ok()?))
        });
        let (name, value) = parsed.ok_or_else(|| OtlpError::Variable {
            name: "OTEL_EXPORTER_OTLP_HEADERS".to_owned(),
            // Headers contain secrets, so the value is not shown.
            value: "(secret)".to_owned(),
            expected: "key=value pairs separated by commas",
        })?;
        headers.insert(name, value);
    }
    Ok(headers)
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    u64::try_from(since.unwrap_or_default().as_nanos()).unwrap_or(u64::MAX)
}

fn resource(resource: &Resource) -> WireResource {
    WireResource {
        attributes: resource
            .iter()
            .map(|(key, value)| attribute(key.as_str(), value.to_string()))
            .collect(),
        ..Default::default()
    }
}

fn attribute(key: &str, value: String) -> common::KeyValue {
    common::KeyValue {
        key: key.to_owned(),
        value: Some(common::AnyValue {
            value: Some(any_value::Value::StringValue(value)),
        }),
        ..Default::default()
    }
}

fn request(
    families: &[MetricFamily],
    resource: WireResource,
    begun: u64,
) -> ExportMetricsServiceRequest {
    let times = MetricInterval { begun, now: now() };
    let scope = common::InstrumentationScope {
        name: "tenure".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..Default::default()
    };
    let scope_metrics = vec![wire::ScopeMetrics {
        scope: Some(scope),
        metrics: families
            .iter()
            .map(|family| metric(family, times))
            .collect(),
        ..Default::default()
    }];
    ExportMetricsServiceRequest {
        resource_metrics: vec![wire::ResourceMetrics {
            resource: Some(resource),
            scope_metrics,
            ..Default::default()
        }],
    }
}

#[derive(Clone, Copy)]
struct MetricInterval {
    begun: u64,
    now: u64,
}

fn metric(family: &MetricFamily, times: MetricInterval) -> wire::Metric {
    let cumulative = wire::AggregationTemporality::Cumulative.into();
    let (unit, data) = match &family.points {
        MetricPoints::Counter(points) => (
            "1",
            wire::metric::Data::Sum(wire::Sum {
                data_points: points.iter().map(|point| number(point, times)).collect(),
                aggregation_temporality: cumulative,
                is_monotonic: true,
            }),
        ),
        MetricPoints::Gauge(points) => (
            "1",
            wire::metric::Data::Gauge(wire::Gauge {
                data_points: points.iter().map(|point| number(point, times)).collect(),
            }),
        ),
        MetricPoints::Histogram(points) => (
            "ms",
            wire::metric::Data::Histogram(wire::Histogram {
                data_points: points
                    .iter()
                    .map(|point| wire::HistogramDataPoint {
                        attributes: attributes(&point.labels),
                        start_time_unix_nano: times.begun,
                        time_unix_nano: times.now,
                        count: point.value.count(),
                        sum: Some(millis(point.value.sum_us)),
                        bucket_counts: point.value.buckets.to_vec(),
                        explicit_bounds: BOUNDS_US.iter().map(|us| millis(*us)).collect(),
                        ..Default::default()
                    })
                    .collect(),
                aggregation_temporality: cumulative,
            }),
        ),
    };
    wire::Metric {
        name: format!("tenure.{}", family.name),
        description: family.help.to_owned(),
        unit: unit.to_owned(),
        data: Some(data),
        ..Default::default()
    }
}

fn number(point: &MetricPoint<u64>, times: MetricInterval) -> wire::NumberDataPoint {
    let value = i64::try_from(point.value).unwrap_or(i64::MAX);
    wire::NumberDataPoint {
        attributes: attributes(&point.labels),
        start_time_unix_nano: times.begun,
        time_unix_nano: times.now,
        value: Some(wire::number_data_point::Value::AsInt(value)),
        ..Default::default()
    }
}

fn attributes(labels: &[(&'static str, String)]) -> Vec<common::KeyValue> {
    let attributes = labels.iter();
    attributes
        .map(|(key, value)| attribute(key, value.clone()))
        .collect()
}

#[allow(
    clippy::cast_precision_loss,
    reason = "a sum of durations may round in its sixteenth digit"
)]
fn millis(us: u64) -> f64 {
    us as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wants(variables: &[(&str, &str)], signal: &str) -> Option<bool> {
        let get = |name: &str| {
            let found = variables.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        Environment(&get).wants(signal).ok()
    }

    /// R181: off without an endpoint and an `otlp` exporter; each signal can be enabled separately.
    #[test]
    fn nothing_is_sent_unless_asked_for() {
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318");
        assert_eq!(wants(&[], "TRACES"), Some(false));
        assert_eq!(wants(&[endpoint], "TRACES"), Some(true));
        assert_eq!(wants(&[endpoint], "METRICS"), Some(true));
        assert_eq!(
            wants(&[("OTEL_TRACES_EXPORTER", "otlp")], "TRACES"),
            Some(true)
        );
        assert_eq!(
            wants(&[("OTEL_TRACES_EXPORTER", "otlp")], "METRICS"),
            Some(false)
        );
        assert_eq!(
            wants(&[endpoint, ("OTEL_METRICS_EXPORTER", "none")], "METRICS"),
            Some(false)
        );
        assert_eq!(
            wants(&[endpoint, ("OTEL_SDK_DISABLED", "TRUE")], "TRACES"),
            Some(false)
        );
        let own = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://c/x");
        assert_eq!(wants(&[own], "METRICS"), Some(true));
        assert_eq!(wants(&[own], "TRACES"), Some(false));
        assert_eq!(wants(&[("OTEL_TRACES_EXPORTER", "jaeger")], "TRACES"), None);
        assert_eq!(
            wants(
                &[endpoint, ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")],
                "TRACES"
            ),
            None
        );
        assert_eq!(
            wants(&[("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")], "TRACES"),
            Some(false)
        );
    }

    #[test]
    fn headers_are_decoded_and_never_shown() {
        let get = |name: &str| {
            (name == "OTEL_EXPORTER_OTLP_HEADERS").then(|| "api-key=a%20b, x=1".to_owned())
        };
        let read = headers(&Environment(&get)).unwrap();
        assert_eq!(
            (&read["api-key"], &read["x"]),
            (
                &HeaderValue::from_static("a b"),
                &HeaderValue::from_static("1")
            )
        );
        let bad = |_: &str| Some("hunter2".to_owned());
        let error = headers(&Environment(&bad)).unwrap_err().to_string();
        assert!(!error.contains("hunter2"), "{error}");
    }
}
