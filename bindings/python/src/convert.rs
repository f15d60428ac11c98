//! Converts values between Rust and Python. Structured values travel as JSON text, which the package
//! turns into its dataclasses and exceptions.

use std::path::PathBuf;
use std::time::Duration;

use pyo3::BoundObject;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyString;
use serde_json::Value;
use tenure::{Address, Error};

/// Makes a Python object of a value.
pub(crate) fn into_python<T>(py: Python<'_>, value: T) -> PyResult<Py<PyAny>>
where
    T: for<'py> IntoPyObject<'py>,
{
    let object = value.into_pyobject(py).map_err(Into::into)?;
    Ok(object.into_any().unbind())
}

/// JSON text for the package.
pub(crate) fn text(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// Makes the exception of an error. The package defines the classes.
pub(crate) fn exception(py: Python<'_>, error: &Error) -> PyErr {
    raised(py, &tenure_bindings::error_json(error))
}

/// Makes the exception of an error that is JSON.
pub(crate) fn raised(py: Python<'_>, error: &Value) -> PyErr {
    static MAKE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let make = MAKE.get_or_try_init(py, || {
        let module = py.import("tenure._errors")?;
        PyResult::Ok(module.getattr("from_json")?.unbind())
    });
    let made = make.and_then(|make| make.call1(py, (error.to_string(),)));
    match made {
        Ok(made) => PyErr::from_value(made.into_bound(py)),
        Err(error) => error,
    }
}

/// Reads an address: text is parsed, a path object is always a sidecar lock.
pub(crate) fn address(object: &Bound<'_, PyAny>) -> PyResult<Address> {
    let py = object.py();
    if let Ok(text) = object.cast::<PyString>() {
        let address: Result<Address, Error> = text.to_string().parse();
        return address.map_err(|error| exception(py, &error));
    }
    if object.hasattr("__fspath__")? {
        return Ok(Address::Sidecar(object.extract::<PathBuf>()?));
    }
    let kind = object.get_type().name()?.to_string();
    let what = format!("an address is a str or a path object, not {kind}");
    Err(PyTypeError::new_err(what))
}

/// Reads seconds.
pub(crate) fn seconds(name: &str, seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|_| {
        PyValueError::new_err(format!("{name} must be a number of seconds, not {seconds}"))
    })
}
