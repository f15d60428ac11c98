//! Scripted locks for tests: busy, asked for, or lost on command.
//!
//! They test how a program reacts without a daemon and without waiting.
//!
//! ```
//! use tenure::testing::Script;
//! use tenure::{Error, LostCause};
//!
//! # async fn example() -> Result<(), Error> {
//! let script = Script::new();
//! // The program under test gets the place as its address.
//! let work = tenure::with(script.place(), async |guard| {
//!     script.lose(LostCause::Expired, "the network was cut");
//!     guard.lost().await;
//!     Ok::<_, Error>("never seen")
//! });
//! assert!(matches!(work.await, Err(Error::Lost(_))));
//! # Ok(()) }
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(example()).unwrap();
//! ```

use std::time::Duration;

use tenure_base::Token;

use crate::address::{Address, MemoryName};
use crate::backend::memory;
use crate::blocking::Guard;
use crate::error::{Error, LostCause};
use crate::signals::ReleaseRequest;
use crate::tenure::Tenure;
use crate::values::Holder;
use tenure_base::Lease;

/// A lock in memory with a random name, controlled by a test.
#[derive(Debug)]
pub struct Script {
    name: MemoryName,
}

impl Script {
    /// Creates a free lock.
    ///
    /// # Panics
    ///
    /// Never: the generated name is valid.
    pub fn new() -> Script {
        let name = format!("testing/{}", Token::random());
        Script {
            name: MemoryName::new(&name).expect("hex digits are a name"),
        }
    }

    /// Returns the address for the program under test.
    pub fn place(&self) -> Address {
        Address::Memory(self.name.clone())
    }

    /// Acquires the lock as another owner until the returned guard is dropped. Meanwhile the
    /// program under test finds the lock busy.
    pub fn occupy(&self, purpose: &str) -> Result<Guard, Error> {
        let stranger = Tenure::builder().name("another client").build()?;
        stranger
            .lock(self.place())?
            .blocking()
            .purpose(purpose)
            .acquire()
    }

    /// Makes the holders lose the lock with this cause; afterwards the lock is free. Returns the
    /// number of holders.
    pub fn lose(&self, cause: LostCause, what: &str) -> usize {
        memory::lose(self.name.path(), cause, what)
    }

    /// Sends a release request to the holders.
    pub fn ask(&self, reason: &str) {
        let request = ReleaseRequest {
            by: Holder {
                name: "another client".into(),
                ..Holder::default()
            },
            reason: Some(reason.to_owned()),
        };
        for signals in memory::signals_at(self.name.path()) {
            signals.ask(&request);
        }
    }

    /// Gives the holders a lease of this length, as if it had just been renewed.
    ///
    /// It is not renewed again: a guard that checks after 80 % of the ttl reports the lock as lost.
    pub fn lease(&self, ttl: Duration) {
        let lease = Lease::new(Lease::now(), ttl);
        for signals in memory::signals_at(self.name.path()) {
            signals.renew(lease);
        }
    }

    /// Returns whether the lock is held.
    pub fn is_held(&self) -> bool {
        !memory::signals_at(self.name.path()).is_empty()
    }
}

impl Default for Script {
    fn default() -> Script {
        Script::new()
    }
}
