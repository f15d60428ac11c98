//! The first key. When the table was never changed, the node creates the key `root` with all rights
//! and writes it to `root.key` in its data directory, readable by its user only. The file
//! `auth-reset`, which `tenure auth reset` writes, orders a new one: access to the data directory is
//! proof enough.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tenure_cluster::Handle;
use tenure_core::auth::{
    AuthChange, AuthCommand, AuthKey, AuthTable, Grant, Lockout, OwnerPatterns, Principal, VerbSet,
};
use tenure_node::{Answer, ClientRequest, Failure};
use tokio::sync::watch;

use super::{ApiKey, now_ms};

/// Name of the file and of the key.
const FILE: &str = "root.key";
const NAME: &str = "root";
/// The order to create a new key.
const ORDER: &str = "auth-reset";
/// Time limit of one attempt, and the pause before the next.
const TIMEOUT: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_secs(2);

/// Creates the first key of a cluster, once, or a new one if that is ordered. Ends when the table has a first version, whichever node
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
            let known = match table.wait_for(Option::is_some).await {
                Ok(known) => known.clone(),
                Err(_) => return,
            };
            let Some(known) = known else { return };
            let is_ordered = data_dir.join(ORDER).exists();
            if known.version() > 0 && !is_ordered {
                return;
            }
            match create(&node, &data_dir, &known).await {
                Ok(path) => {
                    tracing::info!(
                        "created the administrator's key: {} (needed beyond loopback, and with loopback = \"authenticated\")",
                        path.display()
                    );
                    return;
                }
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

async fn create(
    node: &Handle,
    data_dir: &Path,
    table: &AuthTable,
) -> Result<PathBuf, Box<dyn std::error::Error + Send + Sync>> {
    let key = ApiKey::generate()?;
    let path = data_dir.join(FILE);
    // The file first: a key that is in the table and in no file could never be used.
    let prepared = data_dir.join(format!("{FILE}.new"));
    write(&prepared, key.reveal())?;
    let principal = Principal::parse(&format!("key:{NAME}"))?;
    let older = table.keys().filter(|key| key.name == NAME);
    let mut changes: Vec<_> = older
        .map(|key| AuthChange::RemoveKey(key.id.clone()))
        .collect();
    changes.extend([
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
            owners: OwnerPatterns::default(),
        }),
    ]);
    let command = AuthCommand {
        changes,
        if_version: Some(table.version()),
        lockout: Lockout::Refuse,
    };
    let request = Box::new(ClientRequest::ChangeAuth(Box::new(command)));
    match node.call(request, TIMEOUT).await {
        Ok(Answer::AuthChanged { .. }) => {
            std::fs::rename(&prepared, &path)?;
            match std::fs::remove_file(data_dir.join(ORDER)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
                _ => {}
            }
            Ok(path)
        }
        // Another node was faster, or an administrator: look again.
        Err(Failure::FailedPrecondition(why)) => {
            std::fs::remove_file(&prepared)?;
            Err(why.into())
        }
        Ok(other) => Err(format!("unexpected kind of answer: {other:?}").into()),
        // The change may have been applied: then the prepared file has the key.
        Err(failure) => Err(failure.into()),
    }
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
