//! Scripted locks for tests: busy, asked for, or lost on command.

use std::sync::Mutex;
use std::sync::PoisonError;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tenure::LostCause;

use crate::convert::{exception, seconds};

/// A lock in memory that a test controls.
#[pyclass(frozen, module = "tenure._tenure")]
pub(crate) struct Script {
    script: tenure::testing::Script,
    occupied: Mutex<Option<tenure::blocking::Guard>>,
}

#[pymethods]
impl Script {
    #[new]
    fn new() -> Script {
        Script {
            script: tenure::testing::Script::new(),
            occupied: Mutex::new(None),
        }
    }

    #[getter]
    fn address(&self) -> String {
        self.script.place().to_string()
    }

    #[getter]
    fn held(&self) -> bool {
        self.script.is_held()
    }

    /// Makes another owner hold the lock.
    fn occupy(&self, py: Python<'_>, purpose: &str) -> PyResult<()> {
        let occupied = py.detach(|| self.script.occupy(purpose));
        let occupied = occupied.map_err(|error| exception(py, &error))?;
        *self.lock() = Some(occupied);
        Ok(())
    }

    /// Ends `occupy`.
    fn vacate(&self, py: Python<'_>) -> PyResult<()> {
        let Some(occupied) = self.lock().take() else {
            return Ok(());
        };
        py.detach(|| occupied.release())
            .map_err(|error| exception(py, &error))
    }

    /// Makes the holders lose the lock. Returns how many there were.
    fn lose(&self, cause: &str, what: &str) -> PyResult<usize> {
        let cause = match cause {
            "expired" => LostCause::Expired,
            "unconfirmed" => LostCause::Unconfirmed,
            "broken" => LostCause::Broken,
            "killed" => LostCause::Killed,
            "overwritten" => LostCause::Overwritten,
            other => {
                return Err(PyValueError::new_err(format!(
                    "unknown cause {other:?}: use expired, unconfirmed, broken, killed or overwritten"
                )));
            }
        };
        Ok(self.script.lose(cause, what))
    }

    /// Sends a release request to the holders.
    fn ask(&self, reason: &str) {
        self.script.ask(reason);
    }

    /// Gives the holders a lease that is not renewed.
    fn lease(&self, ttl: f64) -> PyResult<()> {
        self.script.lease(seconds("ttl", ttl)?);
        Ok(())
    }
}

impl Script {
    fn lock(&self) -> std::sync::MutexGuard<'_, Option<tenure::blocking::Guard>> {
        self.occupied.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
