//! Service manager: readiness, watchdog and inherited sockets by the protocols of systemd.
//!
//! Without `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `LISTEN_FDS` in the environment nothing here has an
//! effect.

use std::io;
use std::net::{SocketAddr, TcpListener};

use sd_notify::NotifyState;
use tenure_cluster::Handle;
use tokio::sync::watch;

use crate::transport::tcp::stopped;

#[allow(
    unsafe_code,
    reason = "the service manager passes sockets as numbers of descriptors"
)]
mod descriptor {
    use std::io;
    use std::os::fd::{BorrowedFd, OwnedFd, RawFd};

    /// Duplicates a descriptor that the service manager has passed to this process.
    pub(super) fn duplicate(number: RawFd) -> io::Result<OwnedFd> {
        // SAFETY: `sd_notify` has checked that the number is an open descriptor of this process, and
        // no code here closes descriptors by number, so it stays open during the call.
        unsafe { BorrowedFd::borrow_raw(number) }.try_clone_to_owned()
    }
}

/// Tells the service manager that clients are served.
pub(crate) fn ready() {
    send(&[NotifyState::Ready, NotifyState::Status("ready")]);
}

/// Shows one line of text in `systemctl status`.
pub(crate) fn status(text: &str) {
    send(&[NotifyState::Status(text)]);
}

/// Tells the service manager that the daemon stops.
pub(crate) fn stopping() {
    send(&[NotifyState::Stopping, NotifyState::Status("stopping")]);
}

/// Reports to the watchdog as long as the node answers, until the daemon stops. A node that is stuck
/// sends no report, so the service manager ends the process and starts a new one.
pub(crate) async fn watchdog(node: Handle, stop: watch::Receiver<bool>) {
    let Some(period) = sd_notify::watchdog_enabled() else {
        return;
    };
    let stopped = stopped(stop);
    tokio::pin!(stopped);
    loop {
        // `None`: the node has ended by itself, and so will the process.
        let reported = async {
            match node.vitals().await {
                Some(_) => send(&[NotifyState::Watchdog]),
                None => std::future::pending().await,
            }
            // Twice in a period, so that one late report does no harm.
            tokio::time::sleep(period / 2).await;
        };
        tokio::select! {
            () = reported => {}
            () = &mut stopped => return,
        }
    }
}

fn send(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "the service manager cannot be notified");
    }
}

/// Returns the socket that the service manager has bound for a key of the configuration. The
/// socket's name (`FileDescriptorName=`) is the key.
///
/// The socket must have the configured address: the daemon decides by that address whether it may
/// serve clients without credentials.
pub(crate) fn inherited(key: &str, address: SocketAddr) -> io::Result<Option<TcpListener>> {
    for (number, name) in sd_notify::listen_fds_with_names()? {
        if name != key {
            continue;
        }
        let listener = TcpListener::from(descriptor::duplicate(number)?);
        let bound = listener.local_addr()?;
        if bound != address {
            return Err(io::Error::other(format!(
                "the service manager has bound {bound} for it: write the same address into the \
                 configuration and into the socket unit"
            )));
        }
        listener.set_nonblocking(true)?;
        return Ok(Some(listener));
    }
    Ok(None)
}
