//! The kinds of participants: a protocol of Tenure, or a stand-in of an original.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tenure_files::Durability;
use tenure_files::exclusive::{self, Cycle, ExclusiveServer, Quiesce, Tool};
use tenure_files::sidecar;
use tenure_files::upload::{self, FileLocker, UploadId, UploadLocker};
use tenure_files::{Error, Wait};

use crate::{original_exclusive, original_upload};

pub(crate) enum HolderSpec {
    Server(ExclusiveServer),
    Sidecar(Box<sidecar::Options>),
    Exclusive(Tool),
    Upload(FileLocker),
    OriginalUpload(PathBuf, original_upload::Times),
    OriginalExclusive(PathBuf),
}

/// A held lock of any kind.
pub(crate) enum HeldLock {
    Cycle(Cycle),
    Sidecar(sidecar::SidecarGuard),
    Exclusive(exclusive::ExclusiveGuard),
    Upload(upload::UploadGuard),
    OriginalUpload(original_upload::OriginalHeld),
    OriginalExclusive(original_exclusive::OriginalHeld),
}

/// `Ok`, or the class of the failure.
type ActorOutcome<T> = Result<T, String>;

impl HolderSpec {
    /// `sidecar`, `exclusive`, `exclusive-alone` (waits for cycles), `server` (runs cycles),
    /// `upload`, `upload-foreign-pids`, `original-upload`, `original-exclusive`.
    pub(crate) fn parse(text: &str, dir: &Path) -> HolderSpec {
        let upload = |foreign_pids| {
            let options = upload::Options {
                durability: Durability::Fast,
                foreign_pids,
                times: upload::UploadTimes {
                    holder_poll: NEVER,
                    acquirer_poll: NEVER,
                    ..upload::UploadTimes::default()
                },
                ..upload::Options::default()
            };
            HolderSpec::Upload(FileLocker::with(dir, options).unwrap())
        };
        match text {
            "exclusive" => {
                let tool = Tool::new(dir, "actor")
                    .unwrap()
                    .durability(Durability::Fast);
                HolderSpec::Exclusive(tool.quiesce(Quiesce::Skip).poll(NEVER))
            }
            "server" => HolderSpec::Server(ExclusiveServer::new(dir)),
            "exclusive-alone" => {
                let tool = Tool::new(dir, "actor")
                    .unwrap()
                    .durability(Durability::Fast);
                HolderSpec::Exclusive(tool.poll(NEVER))
            }
            "sidecar" => {
                let options = sidecar::Options::new(dir.join("state.json"));
                HolderSpec::Sidecar(Box::new(options.durability(Durability::Fast)))
            }
            "upload" => upload(false),
            "upload-foreign-pids" => upload(true),
            "original-upload" => HolderSpec::OriginalUpload(dir.to_owned(), fast()),
            "original-exclusive" => HolderSpec::OriginalExclusive(dir.to_owned()),
            _ => panic!("unknown participant: {text}"),
        }
    }

    pub(crate) fn acquire(
        &self,
        wait: Duration,
        on_request: Arc<dyn Fn() + Send + Sync>,
    ) -> ActorOutcome<HeldLock> {
        match self {
            HolderSpec::Exclusive(tool) => tool
                .acquire(Wait::For(wait))
                .map(HeldLock::Exclusive)
                .map_err(class),
            HolderSpec::Sidecar(options) => {
                let options = options.as_ref().clone().timeout(wait);
                let guard = sidecar::Manager::new("actor").acquire(&options);
                guard.map(HeldLock::Sidecar).map_err(class)
            }
            HolderSpec::Server(server) => loop {
                // A skipped cycle is retried as the next cycle.
                match server.begin_cycle() {
                    Ok(cycle) => return Ok(HeldLock::Cycle(cycle)),
                    Err(_) => std::thread::sleep(Duration::from_millis(1)),
                }
            },
            HolderSpec::Upload(locker) => {
                let id = UploadId::new("up").unwrap();
                let guard = locker.lock(&id, Wait::For(wait), Arc::new(move |_| on_request()));
                guard.map(HeldLock::Upload).map_err(class)
            }
            HolderSpec::OriginalUpload(dir, times) => {
                let times = original_upload::Times {
                    acquire_timeout: wait,
                    ..*times
                };
                let locker = original_upload::Locker::new(dir, "up", times);
                locker
                    .acquire(on_request)
                    .map(HeldLock::OriginalUpload)
                    .map_err(str::to_owned)
            }
            HolderSpec::OriginalExclusive(dir) => Ok(HeldLock::OriginalExclusive(
                original_exclusive::OriginalHeld::acquire(dir),
            )),
        }
    }
}

impl HeldLock {
    pub(crate) fn check(&self) -> ActorOutcome<()> {
        match self {
            HeldLock::Exclusive(guard) => guard.check().map_err(class),
            HeldLock::Upload(guard) => guard.check().map_err(class),
            HeldLock::Sidecar(guard) => guard.verify_still_held().map_err(class),
            // Originals never check their lock.
            HeldLock::OriginalUpload(_) | HeldLock::OriginalExclusive(_) | HeldLock::Cycle(_) => {
                Ok(())
            }
        }
    }

    pub(crate) fn release(self) -> ActorOutcome<()> {
        match self {
            HeldLock::Exclusive(guard) => guard.release().map_err(class),
            HeldLock::Upload(guard) => guard.release().map_err(class),
            HeldLock::Sidecar(guard) => guard.release().map_err(class),
            HeldLock::Cycle(cycle) => {
                drop(cycle);
                Ok(())
            }
            HeldLock::OriginalUpload(held) => {
                held.release();
                Ok(())
            }
            HeldLock::OriginalExclusive(held) => {
                held.release();
                Ok(())
            }
        }
    }
}

fn class(error: Error) -> String {
    error.class().to_string()
}

/// Poll interval of Tenure: longer than any test waits, so that every reaction is caused by an
/// event (K42: watch and poll).
const NEVER: Duration = Duration::from_secs(3600);

/// Poll intervals of the original, a thousand times faster than its defaults, because tests wait
/// for it.
fn fast() -> original_upload::Times {
    original_upload::Times {
        acquire_timeout: Duration::from_secs(20),
        holder_poll: Duration::from_millis(5),
        acquirer_poll: Duration::from_millis(2),
    }
}
