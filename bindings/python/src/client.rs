//! The client: acquires and inspects locks of every backend.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tenure::{Address, Busy, Error, Force, HoldId, Wait, WatchStream};
use tenure_bindings::{HeldGuard, HeldGuards, LockOptions, OnWait, Settings, less};
use tokio::sync::Mutex;

use crate::calls::{block_on, run};
use crate::convert::{address, exception, into_python, seconds, text};
use crate::guard::{Guard, Guards};

/// Settings, and the connections made with them.
#[pyclass(frozen, module = "tenure._tenure")]
pub(crate) struct Client(tenure_bindings::Client);

#[pymethods]
impl Client {
    #[new]
    #[pyo3(signature = (*, url=None, name=None, token=None, token_file=None, ca_file=None, pin=None,
        cert_file=None, key_file=None, allow_plaintext=false, durable=true, reclaim_by_age=false,
        stale=None, tenure_only=false))]
    #[allow(
        clippy::too_many_arguments,
        clippy::fn_params_excessive_bools,
        reason = "keyword arguments of Python"
    )]
    fn new(
        url: Option<String>,
        name: Option<String>,
        token: Option<String>,
        token_file: Option<PathBuf>,
        ca_file: Option<PathBuf>,
        pin: Option<String>,
        cert_file: Option<PathBuf>,
        key_file: Option<PathBuf>,
        allow_plaintext: bool,
        durable: bool,
        reclaim_by_age: bool,
        stale: Option<f64>,
        tenure_only: bool,
    ) -> PyResult<Client> {
        let identity = match (cert_file, key_file) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            _ => {
                let what = "cert_file and key_file go together: give both or none";
                return Err(PyValueError::new_err(what));
            }
        };
        Ok(Client(tenure_bindings::Client::new(Settings {
            url,
            name,
            token,
            token_file,
            ca_file,
            pin,
            identity,
            allow_plaintext,
            durable,
            reclaim_by_age,
            stale: stale.map(|stale| seconds("stale", stale)).transpose()?,
            tenure_only,
        })))
    }

    fn session(&self, owner: &str) -> Client {
        Client(self.0.session(owner))
    }

    /// Acquires one lock.
    #[pyo3(signature = (place, mode, permits, wait, ttl, ask, purpose, labels, fenced, refuse_deadlock,
        on_wait, done=None))]
    #[allow(
        clippy::too_many_arguments,
        clippy::fn_params_excessive_bools,
        reason = "arguments of one Python call"
    )]
    fn acquire(
        &self,
        py: Python<'_>,
        place: &Bound<'_, PyAny>,
        mode: &str,
        permits: Option<u32>,
        wait: Option<f64>,
        ttl: Option<f64>,
        ask: bool,
        purpose: Option<String>,
        labels: Option<BTreeMap<String, String>>,
        fenced: bool,
        refuse_deadlock: bool,
        on_wait: Option<Py<PyAny>>,
        done: Option<Py<PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let options = options(
            mode,
            permits,
            wait,
            ttl,
            ask,
            purpose,
            labels,
            fenced,
            refuse_deadlock,
            on_wait,
        )?;
        let address = address(place)?;
        if done.is_none() && address.is_file() {
            return self.acquire_file(py, &address, options);
        }
        let acquire = self
            .0
            .acquire(&address, &options)
            .map_err(|error| exception(py, &error))?;
        run(py, done, async move { acquire.await.map(Guard) })
    }

    /// Acquires several locks, all or none.
    #[pyo3(signature = (places, mode, permits, wait, ttl, ask, purpose, labels, fenced, refuse_deadlock,
        on_wait, done=None))]
    #[allow(
        clippy::too_many_arguments,
        clippy::fn_params_excessive_bools,
        reason = "arguments of one Python call"
    )]
    fn acquire_all(
        &self,
        py: Python<'_>,
        places: Vec<Bound<'_, PyAny>>,
        mode: &str,
        permits: Option<u32>,
        wait: Option<f64>,
        ttl: Option<f64>,
        ask: bool,
        purpose: Option<String>,
        labels: Option<BTreeMap<String, String>>,
        fenced: bool,
        refuse_deadlock: bool,
        on_wait: Option<Py<PyAny>>,
        done: Option<Py<PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let options = options(
            mode,
            permits,
            wait,
            ttl,
            ask,
            purpose,
            labels,
            fenced,
            refuse_deadlock,
            on_wait,
        )?;
        let addresses: Vec<Address> = places.iter().map(address).collect::<PyResult<_>>()?;
        let lock = self
            .0
            .lock_all(&addresses, &options)
            .map_err(|error| exception(py, &error))?;
        run(py, done, async move {
            let guards = lock.acquire().await?;
            Ok(Guards(HeldGuards::new(guards)))
        })
    }

    #[pyo3(signature = (place, done=None))]
    fn inspect(
        &self,
        py: Python<'_>,
        place: &Bound<'_, PyAny>,
        done: Option<Py<PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let (tenure, address) = self.library(place)?;
        run(py, done, async move {
            Ok(text(&tenure.inspect(&address).await?))
        })
    }

    #[pyo3(signature = (place, done=None))]
    fn list(
        &self,
        py: Python<'_>,
        place: &Bound<'_, PyAny>,
        done: Option<Py<PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let (tenure, address) = self.library(place)?;
        run(
            py,
            done,
            async move { Ok(text(&tenure.list(&address).await?)) },
        )
    }

    #[pyo3(signature = (place, reason, done=None))]
    fn ask(
        &self,
        py: Python<'_>,
        place: &Bound<'_, PyAny>,
        reason: Option<String>,
        done: Option<Py<PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let (tenure, address) = self.library(place)?;
        run(py, done, async move {
            Ok(text(&tenure.ask(&address, reason.as_deref()).await?))
        })
    }

    #[pyo3(signature = (place, id, force, reason, done=None))]
    fn break_hold(
        &self,
        py: Python<'_>,
        place: &Bound<'_, PyAny>,
        id: Option<String>,
        force: bool,
        reason: String,
        done: Option<Py<PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let (tenure, address) = self.library(place)?;
        let id = id.map(HoldId::new);
        let force = if force { Force::Yes } else { Force::No };
        run(py, done, async move {
            let broken = tenure.break_hold(&address, id.as_ref(), force, &reason);
            Ok(text(&broken.await?))
        })
    }

    #[pyo3(signature = (place, done=None))]
    fn watch(
        &self,
        py: Python<'_>,
        place: &Bound<'_, PyAny>,
        done: Option<Py<PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let (tenure, address) = self.library(place)?;
        run(py, done, async move {
            let stream = tenure.watch(&address).await?;
            Ok(Watch(Arc::new(Mutex::new(stream))))
        })
    }

    fn capabilities(&self, place: &Bound<'_, PyAny>) -> PyResult<String> {
        Ok(text(&tenure::Capabilities::of(&address(place)?)))
    }
}

impl Client {
    fn library(&self, place: &Bound<'_, PyAny>) -> PyResult<(tenure::Tenure, Address)> {
        let address = address(place)?;
        let library = self.0.library(&address);
        let library = library.map_err(|error| exception(place.py(), &error))?;
        Ok((library, address))
    }

    /// Acquires a lock file on this thread: one try without any other thread, and only a request that
    /// has to wait becomes a future, which signals can interrupt.
    fn acquire_file(
        &self,
        py: Python<'_>,
        address: &Address,
        options: LockOptions,
    ) -> PyResult<Py<PyAny>> {
        let raise = |error: Error| exception(py, &error);
        let began = Instant::now();
        let first = self.0.first_try(address, &options).map_err(raise)?;
        let guard = match (py.detach(|| first.acquire()), options.wait) {
            (Ok(guard), _) => guard.into_async(),
            (Err(Error::Busy(_)), Wait::For(_) | Wait::Forever) => {
                let mut options = options;
                options.wait = less(options.wait, began.elapsed());
                let lock = self.0.lock(address, &options).map_err(raise)?;
                block_on(py, lock.acquire())?.map_err(raise)?
            }
            (Err(error), _) => return Err(raise(error)),
        };
        into_python(py, Guard(HeldGuard::new(guard)))
    }
}

#[allow(
    clippy::too_many_arguments,
    clippy::fn_params_excessive_bools,
    reason = "arguments of one Python call"
)]
fn options(
    mode: &str,
    permits: Option<u32>,
    wait: Option<f64>,
    ttl: Option<f64>,
    ask: bool,
    purpose: Option<String>,
    labels: Option<BTreeMap<String, String>>,
    fenced: bool,
    refuse_deadlock: bool,
    on_wait: Option<Py<PyAny>>,
) -> PyResult<LockOptions> {
    let mut options = LockOptions {
        wait: match wait {
            None => Wait::Forever,
            Some(0.0) => Wait::No,
            Some(wait) if wait.is_infinite() && wait > 0.0 => Wait::Forever,
            Some(wait) => Wait::For(seconds("wait", wait)?),
        },
        ttl: ttl.map(|ttl| seconds("ttl", ttl)).transpose()?,
        ask,
        purpose,
        labels: labels.unwrap_or_default(),
        fenced,
        refuse_deadlock,
        on_wait: on_wait.map(|tell| {
            let tell: OnWait = Arc::new(move |busy: &Busy| {
                let busy = text(busy);
                let _ = Python::try_attach(|py| {
                    if let Err(error) = tell.call1(py, (busy,)) {
                        error.write_unraisable(py, Some(tell.bind(py)));
                    }
                });
            });
            tell
        }),
        ..LockOptions::default()
    };
    options
        .set_mode(mode, permits)
        .map_err(PyValueError::new_err)?;
    Ok(options)
}

/// A stream of changes.
#[pyclass(frozen, module = "tenure._tenure")]
pub(crate) struct Watch(Arc<Mutex<WatchStream>>);

#[pymethods]
impl Watch {
    /// Returns the next change as JSON, or `None` at the end or after `timeout` seconds.
    #[pyo3(signature = (timeout=None, done=None))]
    fn next(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
        done: Option<Py<PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let timeout = timeout
            .map(|timeout| seconds("timeout", timeout))
            .transpose()?;
        let stream = Arc::clone(&self.0);
        run(py, done, async move {
            let change = next_change(&stream);
            let change = match timeout {
                Some(time) => tenure_bindings::timeout(time, change).await.flatten(),
                None => change.await,
            };
            change
                .map(|change| change.map(|change| text(&change)))
                .transpose()
        })
    }
}

async fn next_change(stream: &Mutex<WatchStream>) -> Option<Result<tenure::ChangeEvent, Error>> {
    stream.lock().await.next().await
}
