//! The server's clock: real time plus an offset, or a moment that stands still until it is moved.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

#[derive(Clone, Copy)]
enum State {
    RealPlus { offset_ms: i64 },
    Standing { at_ms: i64 },
}

/// A clock which a test can set. Clones are the same clock.
#[derive(Clone)]
pub struct Clock(Arc<Mutex<State>>);

impl Clock {
    /// The machine's own time.
    pub fn real() -> Clock {
        Clock(Arc::new(Mutex::new(State::RealPlus { offset_ms: 0 })))
    }

    /// Real time, but this much ahead (or behind, if negative).
    pub fn skew_ms(&self, offset_ms: i64) {
        *self.state() = State::RealPlus { offset_ms };
    }

    /// Stands at this moment from now on (milliseconds since 1970).
    pub fn stand_at_ms(&self, at_ms: i64) {
        *self.state() = State::Standing { at_ms };
    }

    /// Moves on, whether it runs or stands.
    pub fn advance(&self, by: Duration) {
        let by = by.as_millis() as i64;
        match &mut *self.state() {
            State::RealPlus { offset_ms: at } | State::Standing { at_ms: at } => *at += by,
        }
    }

    /// Milliseconds since 1970.
    pub fn now_ms(&self) -> i64 {
        match *self.state() {
            State::RealPlus { offset_ms } => real_ms() + offset_ms,
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
