//! The native add-on of the npm package `tenure`. The JavaScript files of the package wrap it; programs do
//! not use it.
//!
//! Only numbers and texts cross the border. A call has a number that JavaScript chooses; its result comes
//! through one function, `dispatch(number, kind, json)`, as do the events of guards. Guards are numbers too.

mod binding;
mod sidecar;

pub use binding::Binding;
