//! The chores thread: what takes long and is waited for by nobody. Snapshots and spare log files.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

use tenure_log::{RealDisk, Snapshots, SpareJob};
use tenure_node::{Input, Snapshot};

use crate::inbox::{Inbox, Job};
use crate::journal::{Write, save};

/// One thing to do.
pub(crate) enum Chore {
    /// Save a group's state beside the log.
    Save(Snapshot),
    /// Fill the log's next file with zeros.
    Spare(SpareJob<RealDisk>),
}

/// Does chores until nobody has any more.
pub(crate) fn run(
    chores: &Receiver<Chore>,
    snapshots: &Snapshots<RealDisk>,
    inbox: &Arc<Inbox>,
    journal: &Sender<Write>,
) {
    for chore in chores {
        match chore {
            Chore::Save(snapshot) => match save(snapshots, &snapshot) {
                Ok(()) => inbox.push(Job::Input(Input::SnapshotSaved {
                    group: snapshot.group,
                    index: snapshot.index,
                })),
                Err(error) => {
                    // A disk that cannot keep a snapshot cannot be trusted with the log either.
                    let why = format!("{}: {error}", snapshot.group);
                    inbox.push(Job::Input(Input::WriteFailed { why }));
                }
            },
            Chore::Spare(job) => {
                let _ = journal.send(Write::Spare(job.run()));
            }
        }
    }
}
