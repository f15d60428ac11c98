//! Runs a future for a caller that blocks, or for an event loop.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use tenure::Error;
use tenure_bindings::Task;

use crate::convert::{exception, into_python};

/// How often a blocked thread lets Python handle signals. Python runs its handlers in the main thread
/// only, and a signal does not wake a thread that waits in Rust.
const SIGNALS_EVERY: Duration = Duration::from_millis(50);

/// An asynchronous call that runs.
#[pyclass(frozen, module = "tenure._tenure")]
pub(crate) struct Operation(Task);

#[pymethods]
impl Operation {
    /// Cancels the call. `done` may still be called if it had finished.
    fn cancel(&self) {
        self.0.cancel();
    }
}

/// What a finished call becomes in Python.
pub(crate) type Outcome<T> = Result<T, Error>;

/// Runs `work`: blocks if there is no `done`, otherwise runs it in the background.
pub(crate) fn run<T>(
    py: Python<'_>,
    done: Option<Py<PyAny>>,
    work: impl Future<Output = Outcome<T>> + Send + 'static,
) -> PyResult<Py<PyAny>>
where
    T: for<'py> IntoPyObject<'py> + Send + 'static,
{
    match done {
        None => match block_on(py, work)? {
            Ok(value) => into_python(py, value),
            Err(error) => Err(exception(py, &error)),
        },
        Some(done) => {
            let task = tenure_bindings::spawn(async move {
                let outcome = work.await;
                // No interpreter any more: the program ends, and with it the event loop.
                let _ = Python::try_attach(move |py| finish(py, &done, outcome));
            });
            Ok(Py::new(py, Operation(task))?.into_any())
        }
    }
}

fn finish<T>(py: Python<'_>, done: &Py<PyAny>, outcome: Outcome<T>)
where
    T: for<'py> IntoPyObject<'py>,
{
    let result = match outcome {
        Ok(value) => into_python(py, value),
        Err(error) => Err(exception(py, &error)),
    };
    let called = match result {
        Ok(value) => done.call1(py, (value, py.None())),
        Err(error) => done.call1(py, (py.None(), error)),
    };
    if let Err(error) = called {
        error.write_unraisable(py, Some(done.bind(py)));
    }
}

/// Runs `work` on this thread, with the GIL released. A signal handler that raises ends the wait and
/// drops `work`: an acquire that is dropped leaves nothing behind.
pub(crate) fn block_on<T: Send>(
    py: Python<'_>,
    work: impl Future<Output = T> + Send,
) -> PyResult<T> {
    let mut work = pin!(work);
    loop {
        let polled = py.detach(|| poll_for(work.as_mut(), SIGNALS_EVERY));
        match polled {
            Poll::Ready(value) => return Ok(value),
            Poll::Pending => py.check_signals()?,
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Unpark>) {
        self.0.unpark();
    }
}

fn poll_for<T>(mut work: Pin<&mut impl Future<Output = T>>, time: Duration) -> Poll<T> {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let until = Instant::now() + time;
    loop {
        if let Poll::Ready(value) = work.as_mut().poll(&mut context) {
            return Poll::Ready(value);
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Poll::Pending;
        }
        thread::park_timeout(left);
    }
}
