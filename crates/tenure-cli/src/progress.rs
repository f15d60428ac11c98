//! Progress line of a waiting command: C9 (progress while waiting). On a terminal it is updated in
//! place; in a log there is one line per minute.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use tenure::Busy;

use crate::message;

/// Interval of lines in a log.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// Reports the blocker to the user while a request waits.
pub(crate) struct WaitProgress {
    since: Instant,
    sink: ProgressSink,
    last: Mutex<Option<Instant>>,
}

enum ProgressSink {
    /// With the width in columns.
    Terminal(usize),
    Log,
}

impl WaitProgress {
    /// Starts the clock. Standard error determines the form.
    pub(crate) fn new() -> WaitProgress {
        let sink = match rustix::termios::tcgetwinsize(rustix::stdio::stderr()) {
            Ok(size) => ProgressSink::Terminal(usize::from(size.ws_col).max(20)),
            Err(_) => ProgressSink::Log,
        };
        WaitProgress {
            since: Instant::now(),
            sink,
            last: Mutex::default(),
        }
    }

    /// Prints the progress. Backends call it repeatedly.
    pub(crate) fn tell(&self, busy: &Busy) {
        let now = Instant::now();
        let waited = now.duration_since(self.since);
        let mut last = self
            .last
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        let is_first = last.is_none();
        match self.sink {
            ProgressSink::Terminal(width) => {
                if is_first {
                    message::say(format_args!("waiting: {busy}"));
                }
                let line = clip(&line(busy, waited), width - 1);
                message::print(format!("\r\x1b[K{line}"));
                *last = Some(now);
            }
            ProgressSink::Log => {
                if last.is_none_or(|last| now.duration_since(last) >= LOG_EVERY) {
                    message::say(format_args!("waiting for {} s: {busy}", waited.as_secs()));
                    *last = Some(now);
                }
            }
        }
    }

    /// Clears the line, so that the command starts on an empty one.
    pub(crate) fn over(&self) {
        let last = self
            .last
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        if let (ProgressSink::Terminal(_), Some(_)) = (&self.sink, *last) {
            message::print("\r\x1b[K");
        }
        message::flush_in_between();
    }
}

/// Formats waiting time, queue position and holder, short enough for one line.
fn line(busy: &Busy, waited: Duration) -> String {
    let place = busy
        .position
        .map_or_else(String::new, |n| format!(", queue position {n}"));
    let holder = match &busy.blocker {
        Some(blocker) => format!(" behind {}", blocker.holder),
        None => String::new(),
    };
    format!("tenure: {} s{place}{holder}", waited.as_secs())
}

fn clip(text: &str, width: usize) -> String {
    text.chars()
        .filter(|c| !c.is_control())
        .take(width)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// C9: text of other processes cannot move the cursor or wrap the line.
    #[test]
    fn a_line_fits_and_stays_a_line() {
        assert_eq!(clip("a\r\nb\u{1b}[2Jc", 80), "ab[2Jc");
        assert_eq!(clip(&"x".repeat(200), 79).len(), 79);
    }
}
