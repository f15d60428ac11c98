//! The background thread: what takes long and is waited for by nobody. Snapshots and spare log files.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

use tenure_log::{RealDisk, Snapshots, SpareJob};
use tenure_node::{Input, Snapshot};

use crate::inbox::{Inbox, Job};
use crate::log_writer::{LogJob, save};

/// One thing to do.
pub(crate) enum BackgroundJob {
    /// Save a group's state beside the log.
    Save(Snapshot),
    /// Fill the log's next file with zeros.
    Spare(SpareJob<RealDisk>),
}

/// Does chores until nobody has any more.
pub(crate) fn run(
    background: &Receiver<BackgroundJob>,
    snapshots: &Snapshots<RealDisk>,
    inbox: &Arc<Inbox>,
    log_writer: &Sender<LogJob>,
) {
    for job in background {
        match job {
            BackgroundJob::Save(snapshot) => match save(snapshots, &snapshot) {
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
            BackgroundJob::Spare(job) => {
                let _ = log_writer.send(LogJob::Spare(job.run()));
            }
        }
    }
}
