//! Guards of held locks.

use std::future::Future;
use std::sync::Arc;

use pyo3::prelude::*;
use tenure_bindings::{HeldGuard, HeldGuards};

use crate::calls::run;
use crate::convert::address;

/// A held lock.
#[pyclass(frozen, module = "tenure._tenure")]
pub(crate) struct Guard(pub(crate) Arc<HeldGuard>);

#[pymethods]
impl Guard {
    #[getter]
    fn address(&self) -> String {
        self.0.address().to_string()
    }

    #[getter]
    fn mode(&self) -> &'static str {
        self.0.mode().name()
    }

    #[getter]
    fn owner(&self) -> &str {
        self.0.owner()
    }

    #[getter]
    fn fence(&self) -> Option<u64> {
        self.0.fence()
    }

    #[getter]
    fn held(&self) -> bool {
        self.0.is_held()
    }

    #[getter]
    fn lock_file(&self) -> Option<std::path::PathBuf> {
        self.0.lock_file()
    }

    /// Seconds; infinite without a lease, zero after the release.
    #[getter]
    fn valid_for(&self) -> f64 {
        match self.0.valid_for() {
            None => 0.0,
            Some(None) => f64::INFINITY,
            Some(Some(left)) => left.as_secs_f64(),
        }
    }

    #[pyo3(signature = (done=None))]
    fn check(&self, py: Python<'_>, done: Option<Py<PyAny>>) -> PyResult<Py<PyAny>> {
        let guard = Arc::clone(&self.0);
        run(py, done, async move { guard.check().await })
    }

    #[pyo3(signature = (done=None))]
    fn release(&self, py: Python<'_>, done: Option<Py<PyAny>>) -> PyResult<Py<PyAny>> {
        let guard = Arc::clone(&self.0);
        match done {
            None => run(py, None, async move { guard.release().await }),
            done => run(py, done, async move { guard.release_in_background().await }),
        }
    }

    #[pyo3(signature = (timeout=None, done=None))]
    fn lost(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
        done: Option<Py<PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        within(py, timeout, done, self.0.lost())
    }

    #[pyo3(signature = (timeout=None, done=None))]
    fn release_requested(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
        done: Option<Py<PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        within(py, timeout, done, self.0.release_requested())
    }

    #[getter]
    fn requested(&self) -> Option<String> {
        self.0.requested().map(|request| request.to_string())
    }

    /// Calls `listener(kind, json)` on the thread for callbacks.
    fn listen(&self, listener: Py<PyAny>) {
        self.0.listen(Arc::new(move |kind, event| {
            let _ = Python::try_attach(|py| {
                if let Err(error) = listener.call1(py, (kind, event.to_string())) {
                    error.write_unraisable(py, Some(listener.bind(py)));
                }
            });
        }));
    }
}

/// Waits for an event at most `timeout` seconds.
fn within(
    py: Python<'_>,
    timeout: Option<f64>,
    done: Option<Py<PyAny>>,
    event: impl Future<Output = Option<serde_json::Value>> + Send + 'static,
) -> PyResult<Py<PyAny>> {
    let timeout = timeout
        .map(|timeout| crate::convert::seconds("timeout", timeout))
        .transpose()?;
    run(py, done, async move {
        let event = match timeout {
            Some(time) => tenure_bindings::timeout(time, event).await.flatten(),
            None => event.await,
        };
        Ok(event.map(|event| event.to_string()))
    })
}

/// Several locks that are held together.
#[pyclass(frozen, module = "tenure._tenure")]
pub(crate) struct Guards(pub(crate) Arc<HeldGuards>);

#[pymethods]
impl Guards {
    /// Address, mode and fence of each lock.
    #[getter]
    fn entries(&self) -> Vec<(String, &'static str, Option<u64>)> {
        let entries = self.0.entries().into_iter();
        entries
            .map(|entry| (entry.address, entry.mode.name(), entry.fence))
            .collect()
    }

    #[getter]
    fn valid_for(&self) -> f64 {
        match self.0.valid_for() {
            None => 0.0,
            Some(None) => f64::INFINITY,
            Some(Some(left)) => left.as_secs_f64(),
        }
    }

    #[pyo3(signature = (place, done=None))]
    fn add(
        &self,
        py: Python<'_>,
        place: &Bound<'_, PyAny>,
        done: Option<Py<PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let (guards, place) = (Arc::clone(&self.0), address(place)?);
        run(py, done, async move { guards.add(&place).await })
    }

    #[pyo3(signature = (place, done=None))]
    fn remove(
        &self,
        py: Python<'_>,
        place: &Bound<'_, PyAny>,
        done: Option<Py<PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let (guards, place) = (Arc::clone(&self.0), address(place)?);
        run(py, done, async move { guards.remove(&place).await })
    }

    #[pyo3(signature = (done=None))]
    fn check(&self, py: Python<'_>, done: Option<Py<PyAny>>) -> PyResult<Py<PyAny>> {
        let guards = Arc::clone(&self.0);
        run(py, done, async move { guards.check().await })
    }

    #[pyo3(signature = (timeout=None, done=None))]
    fn lost(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
        done: Option<Py<PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        within(py, timeout, done, self.0.lost())
    }

    #[pyo3(signature = (timeout=None, done=None))]
    fn release_requested(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
        done: Option<Py<PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        within(py, timeout, done, self.0.release_requested())
    }

    #[pyo3(signature = (done=None))]
    fn release(&self, py: Python<'_>, done: Option<Py<PyAny>>) -> PyResult<Py<PyAny>> {
        let guards = Arc::clone(&self.0);
        run(py, done, async move { guards.release().await })
    }
}
