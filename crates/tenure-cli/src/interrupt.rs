//! A wait that a signal may end without leaving a place in line behind.
//!
//! A lock file's waiter leaves nothing behind when it dies. On the daemon and in a repository it would: its
//! place would be granted to nobody. So there a signal first withdraws the request, and then has its way.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;
use tenure::{Address, Tenure, blocking};
use tokio::sync::oneshot;

/// How long a withdrawal may take before we go all the same.
const WITHDRAW_TIMEOUT: Duration = Duration::from_secs(2);

/// Catches the signals that end a wait.
pub(crate) struct Interrupts {
    first: oneshot::Receiver<i32>,
}

impl Interrupts {
    /// From now on signals are noted instead of ending us.
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

    /// Does the work on this thread; the signal that came before it was done, if one did. The work is dropped
    /// then, and so withdrawn.
    pub(crate) fn unless<T>(&mut self, work: impl Future<Output = T>) -> Result<T, i32> {
        let mut work = pin!(work);
        let mut first = pin!(&mut self.first);
        blocking::wait(poll_fn(|context| {
            if let Poll::Ready(value) = work.as_mut().poll(context) {
                return Poll::Ready(Ok(value));
            }
            match first.as_mut().poll(context) {
                Poll::Ready(Ok(signal)) => Poll::Ready(Err(signal)),
                Poll::Ready(Err(_)) | Poll::Pending => Poll::Pending,
            }
        }))
    }

    /// A signal that came since, if one did.
    pub(crate) fn pending(&mut self) -> Option<i32> {
        self.first.try_recv().ok()
    }
}

/// Ends this process by the signal, after the withdrawal had time to arrive: one more answer from the same
/// place means that what was sent before it is there.
pub(crate) fn die_of(signal: i32, tenure: &Tenure, places: &[Address]) -> ! {
    let (tenure, places) = (tenure.clone(), places.to_vec());
    let (sender, done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for place in places.iter().filter(|place| !place.is_file()) {
            let _ = blocking::wait(tenure.inspect(place));
        }
        let _ = sender.send(());
    });
    let _ = done.recv_timeout(WITHDRAW_TIMEOUT);
    let _ = signal_hook::low_level::emulate_default_handler(signal);
    std::process::exit(128 + signal)
}
