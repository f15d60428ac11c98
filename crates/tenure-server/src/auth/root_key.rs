//! The first key. When the table was never changed, the node creates the key `root` with all rights
//! and writes it to `root.key` in its data directory, readable by its user only.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tenure_cluster::Handle;
use tenure_core::auth::{AuthChange, AuthCommand, AuthKey, Grant, Lockout, Principal, VerbSet};
use tenure_node::{Answer, ClientRequest, Failure};
use tokio::sync::watch;

use super::{ApiKey, now_ms};

/// Name of the file and of the key.
const FILE: &str = "root.key";
const NAME: &str = "root";
/// Time limit of one attempt, and the pause before the next.
const TIMEOUT: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_secs(2);

/// Creates the first key of a cluster, once. Ends when the table has a first version, whichever node
/// made it, or when the daemon stops.
pub(crate) async fn ensure_root_key(
    node: Handle,
    data_dir: PathBuf,
    mut stop: watch::Receiver<bool>,
) {
    let mut table = node.auth();
    let created = async {
        loop {
            // The node reads the table when it knows that every node supports it.
            let is_fresh = {
                let known = table.wait_for(Option::is_some).await;
                known.is_ok_and(|known| known.as_ref().is_some_and(|one| one.version() == 0))
            };
            if !is_fresh {
                return;
            }
            match create(&node, &data_dir).await {
                Ok(Created::Yes(path)) => {
                    tracing::info!(
                        "created the administrator's key: {} (needed beyond loopback, and with loopback = \"authenticated\")",
                        path.display()
                    );
                    return;
                }
                Ok(Created::ByAnother) => return,
                Err(error) => {
                    tracing::debug!(%error, "cannot create the administrator's key yet");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    };
    tokio::select! {
        () = created => {}
        _ = stop.wait_for(|stop| *stop) => {}
    }
}

enum Created {
    Yes(PathBuf),
    /// Another node was first.
    ByAnother,
}

async fn create(node: &Handle, data_dir: &Path) -> Result<Created, Box<dyn std::error::Error + Send + Sync>> {
    let key = ApiKey::generate()?;
    let path = data_dir.join(FILE);
    // The file first: a key that is in the table and in no file could never be used.
    let prepared = data_dir.join(format!("{FILE}.new"));
    write(&prepared, key.reveal())?;
    let principal = Principal::parse(&format!("key:{NAME}"))?;
    let command = AuthCommand {
        changes: vec![
            AuthChange::AddKey(AuthKey {
                id: key.id().to_owned(),
                name: NAME.to_owned(),
                hash: key.hash(),
                created_ms: now_ms(),
                expires_ms: None,
            }),
            AuthChange::Grant(Grant {
                to: principal,
                verbs: VerbSet::ALL,
                at: None,
            }),
        ],
        if_version: Some(0),
        lockout: Lockout::Refuse,
    };
    let request = Box::new(ClientRequest::ChangeAuth(Box::new(command)));
    match node.call(request, TIMEOUT).await {
        Ok(Answer::AuthChanged { .. }) => {
            std::fs::rename(&prepared, &path)?;
            Ok(Created::Yes(path))
        }
        Err(Failure::FailedPrecondition(_)) if is_taken(node) => {
            std::fs::remove_file(&prepared)?;
            Ok(Created::ByAnother)
        }
        Ok(other) => Err(format!("unexpected kind of answer: {other:?}").into()),
        // The change may have been applied: then the prepared file has the key.
        Err(failure) => Err(failure.into()),
    }
}

/// Returns whether the table has a first version that this node did not make.
fn is_taken(node: &Handle) -> bool {
    let table = node.auth();
    let table = table.borrow();
    table.as_ref().is_none_or(|table| table.version() > 0)
}

/// Writes a secret to a file that only this user can read.
fn write(path: &Path, secret: &str) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    // `create_new` follows no link that another process has put there.
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(secret.as_bytes())?;
    file.write_all(b"\n")?;
    file.sync_all()
}
