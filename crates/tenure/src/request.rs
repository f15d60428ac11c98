//! An acquire request with all options, as the backends receive it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::address::Address;
use crate::capabilities::{Capabilities, Need};
use crate::error::{Busy, Error};
use crate::tuning::Tuning;
use crate::values::{Holder, Mode, Wait};
#[cfg(feature = "files")]
use tenure_files::Cancel;

/// A callback for waiting requests: gets the blocker and the queue position.
pub(crate) type OnWait = Arc<dyn Fn(&Busy) + Send + Sync>;

/// A request for one lock.
#[derive(Clone)]
pub(crate) struct Request {
    pub(crate) place: Address,
    pub(crate) mode: Mode,
    pub(crate) wait: Wait,
    pub(crate) ttl: Option<Duration>,
    pub(crate) holder: Holder,
    pub(crate) ask: bool,
    pub(crate) refuse_deadlock: bool,
    pub(crate) fenced: bool,
    /// The hold outlives this process and is bound to this pid on lock files: C13 (holds for
    /// scripts).
    pub(crate) follows: Option<u32>,
    /// The owner of a session. Without one, each lock gets its own owner.
    pub(crate) owner: Option<String>,
    pub(crate) needs: Vec<Need>,
    pub(crate) on_wait: Option<OnWait>,
    /// Cancels a blocking wait for a lock file.
    #[cfg(feature = "files")]
    pub(crate) cancel: Option<Cancel>,
    #[cfg_attr(
        not(feature = "files"),
        expect(dead_code, reason = "only lock files and repositories have options")
    )]
    pub(crate) tuning: Arc<Tuning>,
}

impl Request {
    pub(crate) fn new(place: Address, holder: Holder, tuning: Arc<Tuning>) -> Request {
        Request {
            place,
            mode: Mode::Exclusive,
            wait: Wait::Forever,
            ttl: None,
            holder,
            ask: false,
            refuse_deadlock: false,
            fenced: false,
            follows: None,
            owner: None,
            needs: Vec::new(),
            on_wait: None,
            #[cfg(feature = "files")]
            cancel: None,
            tuning,
        }
    }

    /// Refuses what the backend does not support, before anything is changed.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let here = Capabilities::of(&self.place);
        here.require_mode(&self.place, self.mode)?;
        if let Some(ttl) = self.ttl {
            here.require_ttl(&self.place, ttl)?;
        }
        if self.ask {
            here.require(&self.place, Need::Ask)?;
        }
        for need in &self.needs {
            here.require(&self.place, *need)?;
        }
        if self.refuse_deadlock && !matches!(self.place, Address::Daemon { .. }) {
            let what = "deadlocks are not looked for here: only the daemon sees who waits for whom";
            return Err(Error::unsupported(&self.place, what));
        }
        Ok(())
    }

    /// Returns the purpose, if it is not empty.
    pub(crate) fn purpose(&self) -> Option<String> {
        Some(self.holder.purpose.clone()).filter(|purpose| !purpose.is_empty())
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("place", &self.place)
            .field("mode", &self.mode)
            .field("wait", &self.wait)
            .field("ttl", &self.ttl)
            .finish_non_exhaustive()
    }
}
