//! Progress line of a waiting command: C9 (progress while waiting). On a terminal it is updated in
//! place; in a log there is one line per minute.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tenure::Busy;

use crate::message;

/// Interval of lines in a log.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// Shows how long something has taken, once it takes longer than a second. On a terminal the line is
/// updated in place; in a log there is one line per minute.
pub(crate) struct Ticker {
    stop: Sender<()>,
    thread: Option<JoinHandle<()>>,
}

impl Ticker {
    /// Starts the clock. `text` makes the line from the time since the start.
    pub(crate) fn start(text: impl Fn(Duration) -> String + Send + 'static) -> Ticker {
        let (stop, stopped) = channel::<()>();
        let thread = std::thread::Builder::new().name("tenure-progress".into());
        let thread = thread.spawn(move || {
            let (since, sink) = (Instant::now(), ProgressSink::find());
            let mut is_shown = false;
            let mut pause = match sink {
                ProgressSink::Terminal(_) => Duration::from_secs(1),
                ProgressSink::Log => LOG_EVERY,
            };
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(pause) {
                let line = text(since.elapsed());
                match sink {
                    ProgressSink::Terminal(width) => {
                        message::print(format!("\r\x1b[K{}", clip(&line, width - 1)));
                        is_shown = true;
                        pause = Duration::from_millis(500);
                    }
                    ProgressSink::Log => message::print(line + "\n"),
                }
            }
            if is_shown {
                message::print("\r\x1b[K");
            }
        });
        // Without a thread there is no progress, but the work goes on.
        Ticker {
            stop,
            thread: thread.ok(),
        }
    }

    fn end(&mut self) {
        let _ = self.stop.send(());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Ticker {
    /// Clears the line.
    fn drop(&mut self) {
        self.end();
    }
}

/// Reports the blocker to the user while a request waits.
pub(crate) struct WaitProgress {
    since: Instant,
    sink: ProgressSink,
    last: Mutex<Option<Instant>>,
    /// Runs until the blocker is known: a store takes a second to settle, a daemon may be away.
    ticker: Mutex<Option<Ticker>>,
}

#[derive(Clone, Copy)]
enum ProgressSink {
    /// With the width in columns.
    Terminal(usize),
    Log,
}

impl ProgressSink {
    fn find() -> ProgressSink {
        match rustix::termios::tcgetwinsize(rustix::stdio::stderr()) {
            Ok(size) => ProgressSink::Terminal(usize::from(size.ws_col).max(20)),
            Err(_) => ProgressSink::Log,
        }
    }
}

impl WaitProgress {
    /// Starts the clock. Standard error determines the form.
    pub(crate) fn new() -> WaitProgress {
        WaitProgress {
            since: Instant::now(),
            sink: ProgressSink::find(),
            last: Mutex::default(),
            ticker: Mutex::default(),
        }
    }

    /// Shows the time until the blocker is known. Only on a terminal: a log gets the first message of
    /// the blocker.
    pub(crate) fn tick(self: &Arc<Self>, what: String) {
        if let ProgressSink::Terminal(_) = self.sink {
            let ticker = Ticker::start(move |time| {
                format!("tenure: acquiring {what}, {} s", time.as_secs())
            });
            *self.ticker.lock().unwrap_or_else(PoisonError::into_inner) = Some(ticker);
        }
    }

    fn end_tick(&self) {
        let ticker = self
            .ticker
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        drop(ticker);
    }

    /// Prints the progress. Backends call it repeatedly.
    pub(crate) fn tell(&self, busy: &Busy) {
        self.end_tick();
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
        self.end_tick();
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
