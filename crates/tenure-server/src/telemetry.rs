//! What the daemon says about itself: logs, metrics, traces, and an audit trail of forced actions.
//!
//! ```text
//!   a call ──▶ Calls: plain atomics ─┐
//!   the node ──▶ Report ─────────────┴─▶ families ──▶ GET /metrics (Prometheus)
//!   a call ──▶ a span, if asked for ─┐              └▶ OTLP, if asked for
//!                                    └─▶ OTLP
//! ```
//!
//! A call costs two readings of the clock and two additions. Whatever leaves the process is made from
//! the same families, so that two ways of looking cannot disagree.

use std::sync::Arc;
use std::time::Instant;

use http::HeaderMap;
use tenure_cluster::Handle;

mod calls;
mod families;
pub mod logs;
pub mod otlp;
mod prometheus;

pub use calls::{Face, Rpc};
pub(crate) use prometheus::router;

use calls::Calls;
use families::Family;
use otlp::{OpenSpan, Tracing};

use crate::status::Failure;

/// The telemetry of one daemon. Cheap to clone.
#[derive(Clone)]
pub struct Telemetry {
    inner: Arc<Inner>,
}

struct Inner {
    calls: Calls,
    node: Handle,
    tracing: Option<Tracing>,
}

impl Telemetry {
    /// Telemetry of a node and of the calls made to it.
    pub fn new(node: Handle, tracing: Option<Tracing>) -> Telemetry {
        let calls = Calls::default();
        Telemetry {
            inner: Arc::new(Inner {
                calls,
                node,
                tracing,
            }),
        }
    }

    /// A call begins.
    pub(crate) fn begin(&self, face: Face, rpc: Rpc, headers: &HeaderMap) -> Measured {
        let tracing = self.inner.tracing.as_ref();
        Measured {
            telemetry: self.clone(),
            face,
            rpc,
            begun: Instant::now(),
            span: tracing.map(|tracing| tracing.begin(rpc, headers)),
            code: tonic::Code::Cancelled,
        }
    }

    /// Everything there is to know, now.
    pub(crate) async fn families(&self) -> Vec<Family> {
        let mut families = families::of_calls(&self.inner.calls);
        if let Some(report) = self.inner.node.report().await {
            families.extend(families::of_node(&report));
        }
        families
    }
}

/// A call under way. One that is dropped was left by its client.
pub(crate) struct Measured {
    telemetry: Telemetry,
    face: Face,
    rpc: Rpc,
    begun: Instant,
    span: Option<OpenSpan>,
    code: tonic::Code,
}

impl Measured {
    /// The call is over.
    pub(crate) fn end<T>(self, result: &Result<T, Failure>) {
        self.end_with(match result {
            Ok(_) => tonic::Code::Ok,
            Err(failure) => failure.code.grpc(),
        });
    }

    /// The call is over with a code of gRPC.
    pub(crate) fn end_with(mut self, code: tonic::Code) {
        self.code = code;
    }
}

impl Drop for Measured {
    fn drop(&mut self) {
        let calls = &self.telemetry.inner.calls;
        calls.record(self.face, self.rpc, self.code, self.begun.elapsed());
        if let Some(span) = self.span.take() {
            span.end(self.face, self.rpc, self.code);
        }
    }
}
