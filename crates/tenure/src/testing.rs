//! Locks whose fate is scripted, so that programs can test what they do when a lock is busy, asked for or lost.
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
//! # tenure::blocking::wait(example()).unwrap();
//! ```

use std::time::Duration;

use tenure_files::identity::Token;

use crate::address::{Address, MemoryName};
use crate::backend::memory;
use crate::blocking::Guard;
use crate::error::{Error, LostCause};
use crate::lease::Lease;
use crate::signals::ReleaseRequest;
use crate::tenure::Tenure;
use crate::values::Holder;

/// The fate of one lock in memory, which nobody else knows by name.
#[derive(Debug)]
pub struct Script {
    name: MemoryName,
}

impl Script {
    /// A lock of its own.
    ///
    /// # Panics
    ///
    /// Never: the name that it makes is one.
    pub fn new() -> Script {
        let name = format!("testing/{}", Token::random());
        Script {
            name: MemoryName::new(&name).expect("hex digits are a name"),
        }
    }

    /// The address to hand to the program under test.
    pub fn place(&self) -> Address {
        Address::Memory(self.name.clone())
    }

    /// Somebody else has the lock until the guard is dropped: acquires find it busy, or wait.
    pub fn occupy(&self, purpose: &str) -> Result<Guard, Error> {
        let stranger = Tenure::builder().name("somebody else").build()?;
        stranger
            .lock_blocking(self.place())?
            .purpose(purpose)
            .acquire()
    }

    /// Whoever holds the lock loses it, for this reason; others can have it from now on. Says how many held it.
    pub fn lose(&self, cause: LostCause, what: &str) -> usize {
        memory::lose(self.name.path(), cause, what)
    }

    /// Somebody asks the holder to let go.
    pub fn ask(&self, reason: &str) {
        let request = ReleaseRequest {
            by: Holder {
                name: "somebody else".into(),
                ..Holder::default()
            },
            reason: Some(reason.to_owned()),
        };
        for signals in memory::signals_at(self.name.path()) {
            signals.ask(&request);
        }
    }

    /// The holder has a lease of this length from now on, as if it had just been renewed. Nobody renews it further: a
    /// guard that is looked at after 80 % of it has lost the lock.
    pub fn lease(&self, ttl: Duration) {
        let lease = Lease::new(Lease::now(), ttl);
        for signals in memory::signals_at(self.name.path()) {
            signals.renew(lease);
        }
    }

    /// Whether anybody holds the lock.
    pub fn is_held(&self) -> bool {
        !memory::signals_at(self.name.path()).is_empty()
    }
}

impl Default for Script {
    fn default() -> Script {
        Script::new()
    }
}
