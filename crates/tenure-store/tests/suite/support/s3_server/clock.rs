//! The server's clock: real time, or a fixed time until it is set again.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

#[derive(Clone, Copy)]
enum State {
    Running,
    Standing { at_ms: i64 },
}

/// A clock that a test can set. Clones are the same clock.
#[derive(Clone)]
pub(crate) struct Clock(Arc<Mutex<State>>);

impl Clock {
    /// The real time of the machine.
    pub(crate) fn real() -> Clock {
        Clock(Arc::new(Mutex::new(State::Running)))
    }

    /// Stops the clock at this time (milliseconds since 1970).
    pub(crate) fn stand_at_ms(&self, at_ms: i64) {
        *self.state() = State::Standing { at_ms };
    }

    /// Advances the clock; a running clock is stopped.
    pub(crate) fn advance(&self, by: Duration) {
        let at_ms = self.now_ms() + by.as_millis() as i64;
        self.stand_at_ms(at_ms);
    }

    /// Returns the milliseconds since 1970.
    pub(crate) fn now_ms(&self) -> i64 {
        match *self.state() {
            State::Running => real_ms(),
            State::Standing { at_ms } => at_ms,
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().expect("no panic while the clock is read")
    }
}

fn real_ms() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("after 1970")
        .as_millis() as i64
}
