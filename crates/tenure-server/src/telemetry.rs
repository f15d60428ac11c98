//! What the daemon says about itself: logs, metrics, traces, and an audit trail of forced actions.
//!
//! ```text
//!   a call ──▶ Calls: plain atomics ─┐
//!   the node ──▶ Vitals ─────────────┴─▶ families ──▶ GET /metrics (Prometheus)
//!   a call ──▶ a span, if asked for ─┐              └▶ OTLP, if asked for
//!                                    └─▶ OTLP
//! ```
//!
//! A call costs two readings of the clock and two additions. Whatever leaves the process is made from
//! the same families, so that two ways of looking cannot disagree.

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

use crate::status::Failure;

/// The telemetry of one daemon. Cheap to clone.
#[derive(Clone)]
pub struct Telemetry {
    inner: Arc<Inner>,
}

struct Inner {
    calls: CallCounters,
    node: Handle,
    tracing: Option<Tracing>,
}

impl Telemetry {
    /// Telemetry of a node and of the calls made to it.
    pub fn new(node: Handle, tracing: Option<Tracing>) -> Telemetry {
        let calls = CallCounters::default();
        Telemetry {
            inner: Arc::new(Inner {
                calls,
                node,
                tracing,
            }),
        }
    }

    /// A call begins.
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

    /// An operation of a session is over: counted, without a span of its own.
    pub(crate) fn record<T>(
        &self,
        transport: Transport,
        rpc: Rpc,
        took: Duration,
        result: &Result<T, Failure>,
    ) {
        self.end(transport, rpc, code_of(result), took, None);
    }

    /// The span of a call that begins, if calls have spans.
    pub(crate) fn span(&self, rpc: Rpc, headers: &HeaderMap) -> Span {
        let tracing = self.inner.tracing.as_ref();
        tracing.map(|tracing| Box::new(tracing.begin(rpc, headers)))
    }

    /// A call is over.
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

    /// Everything there is to know, now.
    pub(crate) async fn families(&self) -> Vec<MetricFamily> {
        let mut families = families::of_calls(&self.inner.calls);
        if let Some(report) = self.inner.node.vitals().await {
            families.extend(families::of_node(&report));
        }
        families
    }
}

/// Boxed: few ask for traces, and every call in flight has room for it.
pub(crate) type Span = Option<Box<OpenSpan>>;

fn code_of<T>(result: &Result<T, Failure>) -> tonic::Code {
    match result {
        Ok(_) => tonic::Code::Ok,
        Err(failure) => failure.code.grpc(),
    }
}

/// A call in flight. One that is dropped was left by its client.
pub(crate) struct MeasuredCall<'a> {
    telemetry: &'a Telemetry,
    transport: Transport,
    rpc: Rpc,
    begun: Instant,
    span: Span,
    code: tonic::Code,
}

impl MeasuredCall<'_> {
    /// The call is over.
    pub(crate) fn end<T>(self, result: &Result<T, Failure>) {
        self.end_with(code_of(result));
    }

    /// The call is over with a code of gRPC.
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
