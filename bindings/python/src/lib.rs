//! The native module `tenure._tenure`. The Python files of the package wrap it; programs do not use it.
//!
//! Every call that may wait has a last argument `done`. Without it the call blocks the thread, with
//! the GIL released and signals handled. With it the call returns at once, and `done(value, error)`
//! is called later from another thread.

mod calls;
mod client;
mod convert;
mod guard;
mod script;

use pyo3::prelude::*;

#[pymodule]
fn _tenure(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<client::Client>()?;
    module.add_class::<client::Watch>()?;
    module.add_class::<guard::Guard>()?;
    module.add_class::<guard::Guards>()?;
    module.add_class::<calls::Operation>()?;
    module.add_class::<script::Script>()?;
    module.add("VERSION", env!("CARGO_PKG_VERSION"))?;
    Ok(())
}
