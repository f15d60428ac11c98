//! Unix socket `tenure.sock` in the data directory: gRPC for processes of this machine, which the
//! kernel identifies by their user (SO_PEERCRED). Everyone may connect; what a user may do is decided
//! by its principal `unix:UID`.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UnixListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::connection::GrpcPort;
use super::grpc_connection;

const NAME: &str = "tenure.sock";
/// Time that open connections have to finish when the daemon stops; part of the 10 s of R169
/// (shutdown within 10 s).
const FAREWELL: Duration = Duration::from_secs(6);

/// The bound socket. Its file is removed when it is dropped.
pub(crate) struct Socket {
    listener: UnixListener,
    path: PathBuf,
}

impl Drop for Socket {
    fn drop(&mut self) {
        // A file that stays behind is replaced at the next start.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Binds the socket. Without it the daemon still serves TCP, so a failure is only reported: the path
/// may be too long, or the file system may have no sockets.
pub(crate) fn bind(data_dir: &Path) -> Option<Socket> {
    let path = data_dir.join(NAME);
    match try_bind(&path) {
        Ok(listener) => Some(Socket { listener, path }),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "no Unix socket");
            None
        }
    }
}

fn try_bind(path: &Path) -> io::Result<UnixListener> {
    // This process has locked the data directory, so an existing socket is a leftover.
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, Permissions::from_mode(0o666))?;
    Ok(listener)
}

/// Accepts connections until `stop` is set, then gives the open ones time to finish.
pub(crate) async fn serve(
    socket: Socket,
    connections: Arc<Semaphore>,
    port: Arc<GrpcPort>,
    mut stop: watch::Receiver<bool>,
) {
    let mut open = JoinSet::new();
    let end = stop.clone();
    loop {
        let accepted = tokio::select! {
            accepted = socket.listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => break,
            Some(_) = open.join_next() => continue,
        };
        let known = accepted.and_then(|(stream, _)| {
            let uid = stream.peer_cred()?.uid();
            Ok((stream, uid))
        });
        let (stream, uid) = match known {
            Ok(known) => known,
            Err(error) => {
                tracing::debug!(%error, "accept");
                // Out of descriptors: the pause prevents a busy loop.
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            }
        };
        let Ok(permit) = Arc::clone(&connections).try_acquire_owned() else {
            tracing::debug!(uid, "closed: too many connections");
            continue;
        };
        let served = grpc_connection::serve_local(stream, uid, Arc::clone(&port), end.clone());
        open.spawn(async {
            served.await;
            drop(permit);
        });
    }
    drop(socket);
    let _ = timeout(FAREWELL, async {
        while open.join_next().await.is_some() {}
    })
    .await;
}
