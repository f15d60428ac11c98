//! The requests of one HTTP/2 connection, answered in the task of the connection.
//!
//! ```text
//!   socket ──▶ connection ──new requests──▶ in flight ──▶ node
//!   socket ◀── connection ◀────answers───── in flight ◀── node: one wake-up for all of its turn
//! ```
//!
//! With a task per request, every answer of the node would wake a task, and every task the connection.
//! Here the node wakes the connection once, all answers are taken, and they leave in one write.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use futures_util::Stream;
use futures_util::stream::FuturesUnordered;
use hyper::rt::Executor;

type PendingRequest = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Where HTTP/2 puts the requests of a connection.
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
        // Hundreds share a task, whose budget is meant for one; reading from the socket still counts.
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
    /// For the builder of the connection.
    pub(crate) fn executor(&self) -> RequestQueue {
        self.new.clone()
    }

    /// Takes what has come for requests, then lets the connection read and write, then begins what it has
    /// read. Requests that are still in flight when the connection ends are dropped.
    pub(crate) fn poll<C: Future>(
        &mut self,
        connection: Pin<&mut C>,
        cx: &mut Context<'_>,
    ) -> Poll<C::Output> {
        self.go_on(cx);
        let ended = connection.poll(cx);
        self.under_way.extend(self.new.take());
        // What is answered at once wakes the connection by itself.
        self.go_on(cx);
        ended
    }

    fn go_on(&mut self, cx: &mut Context<'_>) {
        while let Poll::Ready(Some(())) = Pin::new(&mut self.under_way).poll_next(cx) {}
    }
}
