//! Cancellation of a waiting acquire by a signal.
//!
//! A killed waiter for a lock file leaves no lock behind. On the daemon its queue entry would stay
//! and be granted to a dead process; in a repository a record just written would stay. There, a
//! signal first withdraws the request and then takes its default action.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;
use tenure::{Address, Tenure};
use tenure_files::internal::block_on;
use tokio::sync::oneshot;

/// Time limit for the withdrawal.
const WITHDRAW_TIMEOUT: Duration = Duration::from_secs(2);

/// Catches the signals that end a wait.
pub(crate) struct Interrupts {
    first: oneshot::Receiver<i32>,
}

impl Interrupts {
    /// Installs the handlers. From now on a signal does not end the process.
    pub(crate) fn catch() -> io::Result<Interrupts> {
        let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP, SIGQUIT])?;
        let (sender, first) = oneshot::channel();
        std::thread::Builder::new()
            .name("tenure-signals".into())
            .spawn(move || {
                if let Some(signal) = signals.forever().next() {
                    let _ = sender.send(signal);
                }
            })?;
        Ok(Interrupts { first })
    }

    /// Runs `work` on this thread. If a signal arrives first, drops `work`, which withdraws the
    /// request, and returns the signal.
    pub(crate) fn unless<T>(&mut self, work: impl Future<Output = T>) -> Result<T, i32> {
        let mut work = pin!(work);
        let mut first = pin!(&mut self.first);
        block_on(poll_fn(|context| {
            if let Poll::Ready(value) = work.as_mut().poll(context) {
                return Poll::Ready(Ok(value));
            }
            match first.as_mut().poll(context) {
                Poll::Ready(Ok(signal)) => Poll::Ready(Err(signal)),
                Poll::Ready(Err(_)) | Poll::Pending => Poll::Pending,
            }
        }))
    }

    /// Returns a signal that arrived after the wait, if there is one.
    pub(crate) fn pending(&mut self) -> Option<i32> {
        self.first.try_recv().ok()
    }
}

/// Ends this process by the signal after the withdrawal had time to arrive.
///
/// The withdrawal runs in the background. One more call to the same daemon or store is answered
/// after it.
pub(crate) fn die_of(signal: i32, tenure: &Tenure, places: &[Address]) -> ! {
    let (tenure, places) = (tenure.clone(), places.to_vec());
    let (sender, done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for place in places.iter().filter(|place| !place.is_file()) {
            let _ = block_on(tenure.inspect(place));
        }
        let _ = sender.send(());
    });
    let _ = done.recv_timeout(WITHDRAW_TIMEOUT);
    let _ = signal_hook::low_level::emulate_default_handler(signal);
    std::process::exit(128 + signal)
}
