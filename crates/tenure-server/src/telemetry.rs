//! Telemetry: logs, metrics, traces, and the export by Prometheus and OTLP.
//!
//! ```text
//!   call ──▶ CallCounters (atomics) ─┐
//!   node ──▶ NodeMetrics ────────────┴─▶ MetricFamily ──▶ GET /metrics (Prometheus)
//!   call ──▶ span, if enabled ───────┐               └──▶ OTLP, if enabled
//!                                    └──▶ OTLP
//! ```
//!
//! A call costs two clock readings and two atomic additions. Both exports are made from the same
//! families, so they cannot disagree.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::HeaderMap;
use tenure_cluster::Handle;

mod calls;
mod families;
pub mod logs;
pub mod otlp;
mod prometheus;

pub use calls::{Rpc, Transport};
pub(crate) use prometheus::router;

use calls::CallCounters;
use families::MetricFamily;
use otlp::{OpenSpan, Tracing};

use crate::auth::LimitRefusals;
use crate::status::Failure;

/// The telemetry of one daemon. Cheap to clone.
#[derive(Clone)]
pub struct Telemetry {
    inner: Arc<Inner>,
}

struct Inner {
    calls: CallCounters,
    limit_refusals: Arc<LimitRefusals>,
    node: Handle,
    tracing: Option<Tracing>,
}

impl Telemetry {
    /// Creates the telemetry of a node and of the calls made to it.
    pub fn new(node: Handle, tracing: Option<Tracing>) -> Telemetry {
        let calls = CallCounters::default();
        Telemetry {
            inner: Arc::new(Inner {
                calls,
                limit_refusals: Arc::default(),
                node,
                tracing,
            }),
        }
    }

    /// Returns the counters of calls that a limit refused.
    pub(crate) fn limit_refusals(&self) -> Arc<LimitRefusals> {
        Arc::clone(&self.inner.limit_refusals)
    }

    /// Starts to measure a call.
    pub(crate) fn begin(
        &self,
        transport: Transport,
        rpc: Rpc,
        headers: &HeaderMap,
    ) -> MeasuredCall<'_> {
        MeasuredCall {
            telemetry: self,
            transport,
            rpc,
            begun: Instant::now(),
            span: self.span(rpc, headers),
            code: tonic::Code::Cancelled,
        }
    }

    /// Counts a finished operation of a session. Operations have no span.
    pub(crate) fn record<T>(
        &self,
        transport: Transport,
        rpc: Rpc,
        took: Duration,
        result: &Result<T, Failure>,
    ) {
        self.end(transport, rpc, code_of(result), took, None);
    }

    /// Opens the span of a call, if tracing is enabled.
    pub(crate) fn span(&self, rpc: Rpc, headers: &HeaderMap) -> Span {
        let tracing = self.inner.tracing.as_ref();
        tracing.map(|tracing| Box::new(tracing.begin(rpc, headers)))
    }

    /// Counts a finished call and ends its span.
    pub(crate) fn end(
        &self,
        transport: Transport,
        rpc: Rpc,
        code: tonic::Code,
        took: Duration,
        span: Span,
    ) {
        self.inner.calls.record(transport, rpc, code, took);
        if let Some(span) = span {
            span.end(transport, rpc, code);
        }
    }

    /// Collects all metrics. Those of the node are missing if it has stopped.
    pub(crate) async fn families(&self) -> Vec<MetricFamily> {
        let mut families = families::of_calls(&self.inner.calls);
        families.push(families::of_limits(&self.inner.limit_refusals));
        if let Some(report) = self.inner.node.vitals().await {
            families.extend(families::of_node(&report));
        }
        families
    }
}

/// Boxed, because tracing is rarely enabled and every call in flight has room for it.
pub(crate) type Span = Option<Box<OpenSpan>>;

fn code_of<T>(result: &Result<T, Failure>) -> tonic::Code {
    match result {
        Ok(_) => tonic::Code::Ok,
        Err(failure) => failure.code.grpc(),
    }
}

/// A call that is measured. If dropped without `end`, it is counted as cancelled by the client.
pub(crate) struct MeasuredCall<'a> {
    telemetry: &'a Telemetry,
    transport: Transport,
    rpc: Rpc,
    begun: Instant,
    span: Span,
    code: tonic::Code,
}

impl MeasuredCall<'_> {
    /// Ends the call with this result.
    pub(crate) fn end<T>(self, result: &Result<T, Failure>) {
        self.end_with(code_of(result));
    }

    /// Ends the call with this gRPC code.
    pub(crate) fn end_with(mut self, code: tonic::Code) {
        self.code = code;
    }
}

impl Drop for MeasuredCall<'_> {
    fn drop(&mut self) {
        let (took, span) = (self.begun.elapsed(), self.span.take());
        self.telemetry
            .end(self.transport, self.rpc, self.code, took, span);
    }
}
