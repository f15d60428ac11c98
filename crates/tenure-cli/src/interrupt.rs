//! Cancellation of an acquire by a signal: K37 (release on signals).
//!
//! A killed acquire would leave something behind: a lock that other programs respect, a release
//! request, a queue entry that is granted to a dead process. So a signal first withdraws the
//! request and releases what is held, and then takes its default action.

use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::AsFd;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use tenure::{Address, Tenure};
use tenure_files::internal::block_on;
use tokio::sync::oneshot;

use crate::message;
use crate::run::SignalQueue;

/// Time limit for the withdrawal.
const WITHDRAW_TIMEOUT: Duration = Duration::from_secs(2);

/// Runs `work` on this thread. If a signal arrives first, drops `work`, which withdraws the
/// request, and returns the signal.
pub(crate) fn unless<T>(
    queue: &Arc<SignalQueue>,
    work: impl Future<Output = T>,
) -> io::Result<Result<T, i32>> {
    let (sender, arrived) = oneshot::channel();
    let watched = Arc::clone(queue);
    std::thread::Builder::new()
        .name("tenure-signals".into())
        .spawn(move || {
            let mut fds = [PollFd::from_borrowed_fd(watched.as_fd(), PollFlags::IN)];
            while poll(&mut fds, None).is_err() {}
            let _ = sender.send(());
        })?;
    let (mut work, mut arrived) = (pin!(work), pin!(arrived));
    Ok(block_on(poll_fn(|context| {
        if let Poll::Ready(value) = work.as_mut().poll(context) {
            return Poll::Ready(Ok(value));
        }
        match arrived.as_mut().poll(context) {
            Poll::Ready(_) => {
                let signal = queue.next().map_or(libc::SIGTERM, |signal| signal.number);
                Poll::Ready(Err(signal))
            }
            Poll::Pending => Poll::Pending,
        }
    })))
}

/// Ends this process by the signal after the withdrawal had time to arrive.
///
/// The withdrawal runs in the background. One more call to the same daemon or store is answered
/// after it.
pub(crate) fn die_of(signal: i32, tenure: &Tenure, places: &[Address]) -> ! {
    let places: Vec<Address> = places
        .iter()
        .filter(|place| !place.is_file())
        .cloned()
        .collect();
    if !places.is_empty() {
        let tenure = tenure.clone();
        let (sender, done) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for place in &places {
                let _ = block_on(tenure.inspect(place));
            }
            let _ = sender.send(());
        });
        let _ = done.recv_timeout(WITHDRAW_TIMEOUT);
    }
    die(signal)
}

/// Ends this process by the signal.
pub(crate) fn die(signal: i32) -> ! {
    message::flush();
    let _ = signal_hook::low_level::emulate_default_handler(signal);
    std::process::exit(128 + signal)
}
