//! Inline executor: polls the requests of one HTTP/2 connection in the task of the connection.
//!
//! ```text
//!   socket ──▶ connection ──new requests──▶ in flight ──▶ node
//!   socket ◀── connection ◀────answers───── in flight ◀── node: one wake-up for many answers
//! ```
//!
//! With one task per request, every answer of the node would wake a task, and every task would wake
//! the connection. Here the node wakes the connection once, all answers are collected, and they
//! leave in one write.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use futures_util::Stream;
use futures_util::stream::FuturesUnordered;
use hyper::rt::Executor;

type PendingRequest = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The executor that hyper gets: queues the requests of a connection.
#[derive(Clone, Default)]
pub(crate) struct RequestQueue {
    requests: Arc<Mutex<Vec<PendingRequest>>>,
}

impl RequestQueue {
    fn take(&self) -> Vec<PendingRequest> {
        std::mem::take(&mut self.requests.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for RequestQueue {
    fn execute(&self, request: F) {
        // Hundreds of requests share one task, and tokio's cooperative budget is per task: without
        // this they would be suspended in the middle. Reads from the socket still use the budget.
        let request = Box::pin(tokio::task::unconstrained(request));
        self.requests
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(request);
    }
}

/// The requests of a connection that are in flight.
#[derive(Default)]
pub(crate) struct InlineExecutor {
    new: RequestQueue,
    under_way: FuturesUnordered<PendingRequest>,
}

impl InlineExecutor {
    /// Returns the executor for hyper's connection builder.
    pub(crate) fn executor(&self) -> RequestQueue {
        self.new.clone()
    }

    /// Polls requests in flight, then the connection, then the requests that it has just read.
    /// Requests that are in flight when the connection ends are dropped.
    pub(crate) fn poll<C: Future>(
        &mut self,
        connection: Pin<&mut C>,
        cx: &mut Context<'_>,
    ) -> Poll<C::Output> {
        self.go_on(cx);
        let ended = connection.poll(cx);
        self.under_way.extend(self.new.take());
        // A request that is answered here queues its response in the connection, which wakes this
        // task.
        self.go_on(cx);
        ended
    }

    fn go_on(&mut self, cx: &mut Context<'_>) {
        while let Poll::Ready(Some(())) = Pin::new(&mut self.under_way).poll_next(cx) {}
    }
}
