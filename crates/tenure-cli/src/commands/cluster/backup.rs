//! `tenure cluster backup`: writes the state of all Raft groups to one file.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use serde_json::json;
use tenure_server::offline::{ArchiveWriter, cluster_of, facts};
use tenure_wire::cluster::{BackupRequest, StatusResponse};

use super::{AdminClient, ClusterReport, DaemonAddress, block_on, said};
use crate::progress::Ticker;

/// How long groups without a leader are retried.
const BACKUP_TIMEOUT: Duration = Duration::from_secs(60);

/// Write the states of all groups to a file.
///
/// Each group is consistent on its own; different groups may be copied at different times. The file has
/// checksums and a manifest, and gets its name when it is complete. Restore it with
/// `tenure cluster restore`.
#[derive(Args)]
pub(crate) struct Backup {
    /// The backup file to create.
    file: PathBuf,
    #[command(flatten)]
    daemon: DaemonAddress,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
}

impl Backup {
    pub(super) fn run(self) -> Result<ClusterReport, String> {
        let count = block_on(self.write())?;
        let file = self.file.display().to_string();
        let text = format!("saved {count} groups in {file}");
        Ok(ClusterReport::done(
            text,
            json!({ "file": file, "groups": count }),
        ))
    }

    async fn write(&self) -> Result<usize, String> {
        let exists = || {
            let file = self.file.display();
            format!(
                "{file} exists, and a backup does not overwrite a file: choose another name, or remove it first"
            )
        };
        if self.file.symlink_metadata().is_ok() {
            return Err(exists());
        }
        let mut asked = self.daemon.client().await?;
        let status = asked.status().await?;
        let facts = facts(&status).ok_or(
            "the daemon's answer cannot be read: it runs another release; use the `tenure` of that release",
        )?;
        let failed = |error: std::io::Error| format!("{}: {error}", self.file.display());
        let partial = PartialFile::create(&self.file).map_err(failed)?;
        let out = BufWriter::new(partial.file.try_clone().map_err(failed)?);
        let mut archive = ArchiveWriter::new(out, &facts, cluster_of(&status)).map_err(failed)?;
        let mut missing: BTreeSet<u32> = (0..=facts.group_count).collect();
        let count = missing.len();
        let end = Instant::now() + BACKUP_TIMEOUT;
        let saved = Arc::new(AtomicUsize::new(0));
        let shown = Arc::clone(&saved);
        let _ticker = Ticker::start(move |_| {
            format!(
                "tenure: saved {} of {count} groups",
                shown.load(Ordering::Relaxed)
            )
        });
        while !missing.is_empty() {
            let status = asked.status().await?;
            for (node, groups) in leaders(&status, &missing) {
                let mut client = if node == status.answered_by {
                    self.daemon.client().await?
                } else {
                    let address = public_address(&status, node);
                    self.daemon.client_at(&address).await?
                };
                for (group, index, state) in take(&mut client, groups).await? {
                    archive.group(group, index, &state).map_err(failed)?;
                    missing.remove(&group);
                    saved.store(count - missing.len(), Ordering::Relaxed);
                }
            }
            if !missing.is_empty() && Instant::now() > end {
                return Err(format!(
                    "no backup was made: groups {missing:?} have had no leader for {} s; start the missing nodes, \
                     then try again (tenure cluster status shows them)",
                    BACKUP_TIMEOUT.as_secs()
                ));
            }
        }
        let out = archive.finish().map_err(failed)?;
        out.into_inner()
            .map_err(|error| failed(error.into_error()))?;
        match partial.finish(&self.file) {
            Ok(()) => Ok(count),
            // The name may have been taken while the backup was written.
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Err(exists()),
            Err(error) => Err(failed(error)),
        }
    }
}

/// A backup that is not complete yet. Removed when it is dropped before.
///
/// A backup contains every owner and path, so only its user may read it. Its name is random and the
/// file must not exist: in a directory that others may write to, a link with a name that can be
/// guessed would make the backup overwrite another file.
struct PartialFile {
    file: File,
    path: Option<PathBuf>,
}

impl PartialFile {
    fn create(target: &Path) -> std::io::Result<PartialFile> {
        let mut random = [0; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        let mut name = target.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{:016x}.partial", u64::from_ne_bytes(random)));
        let path = target.with_file_name(name);
        let file = std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)?;
        Ok(PartialFile {
            file,
            path: Some(path),
        })
    }

    /// Makes the file durable and gives it its name. Fails if the name is taken.
    fn finish(mut self, target: &Path) -> std::io::Result<()> {
        self.file.sync_all()?;
        if let Some(path) = &self.path {
            match renameat_with(CWD, path, CWD, target, RenameFlags::NOREPLACE) {
                // This file system cannot rename in this way.
                Err(Errno::INVAL | Errno::NOSYS) if target.symlink_metadata().is_err() => {
                    std::fs::rename(path, target)?;
                }
                renamed => renamed?,
            }
        }
        self.path = None;
        let directory = target
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty());
        File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            // Without it the user removes the file.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Returns the missing groups by the node that leads them.
fn leaders(status: &StatusResponse, missing: &BTreeSet<u32>) -> BTreeMap<u32, Vec<u32>> {
    let mut leaders: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for group in &status.groups {
        if group.leader != 0 && missing.contains(&group.number) {
            leaders.entry(group.leader).or_default().push(group.number);
        }
    }
    leaders
}

fn public_address(status: &StatusResponse, node: u32) -> String {
    let known = status.nodes.iter().find(|one| one.number == node);
    known.map_or_else(String::new, |node| node.public_address.clone())
}

/// Reads the complete states of these groups from a node.
async fn take(
    client: &mut AdminClient,
    groups: Vec<u32>,
) -> Result<Vec<(u32, u64, Vec<u8>)>, String> {
    let request = BackupRequest { groups };
    let answer = client.inner.backup(request).await.map_err(said)?;
    let mut chunks = answer.into_inner();
    let mut states = Vec::new();
    let mut open: Option<(u32, u64, Vec<u8>)> = None;
    while let Some(chunk) = chunks.message().await.map_err(said)? {
        if chunk.offset == 0 {
            open = Some((chunk.group, chunk.index, Vec::new()));
        }
        let Some((group, index, mut state)) = open.take() else {
            return Err(
                "the daemon sent the state of a group without its first part; try again".to_owned(),
            );
        };
        let fits = group == chunk.group && index == chunk.index;
        if !fits || state.len() as u64 != chunk.offset {
            return Err("the daemon sent parts of a group out of order; try again".to_owned());
        }
        state
            .write_all(&chunk.data)
            .map_err(|error| error.to_string())?;
        if state.len() as u64 == chunk.total {
            states.push((group, index, state));
        } else {
            open = Some((group, index, state));
        }
    }
    Ok(states)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    /// Nothing that another user has planted is followed, and nothing stays behind.
    #[test]
    fn a_backup_is_written_to_a_new_file_of_its_user() {
        let directory = tempfile::tempdir().unwrap();
        let (target, victim) = (directory.path().join("bk"), directory.path().join("victim"));
        std::fs::write(&victim, "precious").unwrap();
        std::os::unix::fs::symlink(&victim, directory.path().join("bk.partial")).unwrap();
        std::os::unix::fs::symlink(&victim, &target).unwrap();

        drop(PartialFile::create(&target).unwrap());
        let names = || std::fs::read_dir(directory.path()).unwrap().count();
        assert_eq!(names(), 3, "an abandoned backup is removed");

        let finish = || {
            let mut partial = PartialFile::create(&target).unwrap();
            partial.file.write_all(b"state").unwrap();
            partial.finish(&target)
        };
        let taken = finish().unwrap_err();
        assert_eq!(taken.kind(), std::io::ErrorKind::AlreadyExists);
        assert_eq!(names(), 3, "a backup whose name is taken is removed");
        std::fs::remove_file(&target).unwrap();
        finish().unwrap();
        assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
        assert_eq!(std::fs::read(&target).unwrap(), b"state");
        let found = std::fs::symlink_metadata(&target).unwrap();
        assert!(found.is_file());
        assert_eq!(found.mode() & 0o777, 0o600);
        assert_eq!(names(), 3);
    }
}
