//! Background I/O thread: slow work that no other thread waits for (snapshots, spare log files).

use std::sync::mpsc::{Receiver, Sender};

use tenure_log::{RealDisk, Snapshots, SpareJob};
use tenure_node::{Input, SnapshotImage};

use crate::driver::Runner;
use crate::job::Job;
use crate::log_writer::{LogJob, save};

/// A job of the background thread.
pub(crate) enum BackgroundJob {
    /// Saves the state of a group beside the log.
    Save(SnapshotImage),
    /// Encodes the state of a group for a peer.
    Encode(SnapshotImage),
    /// Fills the next log file with zeros.
    Spare(SpareJob<RealDisk>),
}

/// Runs jobs until all senders are dropped.
pub(crate) fn run(
    background: &Receiver<BackgroundJob>,
    snapshots: &Snapshots<RealDisk>,
    runner: &Runner,
    log_writer: &Sender<LogJob>,
) {
    for job in background {
        match job {
            BackgroundJob::Save(image) => match save(snapshots, &image.encode()) {
                Ok(()) => runner.push(Job::Input(Input::SnapshotSaved {
                    group: image.group,
                    index: image.index,
                })),
                Err(error) => {
                    // A disk that cannot store a snapshot cannot be trusted with the log either.
                    let why = format!("{}: {error}", image.group);
                    runner.push(Job::Input(Input::WriteFailed { why }));
                }
            },
            BackgroundJob::Encode(image) => {
                runner.push(Job::Input(Input::SnapshotEncoded(image.encode())));
            }
            BackgroundJob::Spare(job) => {
                let _ = log_writer.send(LogJob::Spare(job.run()));
            }
        }
    }
}
