//! Who takes part: a protocol of Tenure's, or the stand-in of an original.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tenure_files::exclusive::{self, Cycle, Quiesce, Server, Tool};
use tenure_files::publish::Durability;
use tenure_files::sidecar;
use tenure_files::upload::{self, FileLocker, UploadId, UploadLocker};
use tenure_files::{Error, Wait};

use crate::{original_exclusive, original_upload};

pub(crate) enum Who {
    Server(Server),
    Sidecar(Box<sidecar::Options>),
    Exclusive(Tool),
    Upload(FileLocker),
    OriginalUpload(PathBuf, original_upload::Times),
    OriginalExclusive(PathBuf),
}

/// A held lock of any kind.
pub(crate) enum Held {
    Cycle(Cycle),
    Sidecar(sidecar::Guard),
    Exclusive(exclusive::Guard),
    Upload(upload::Guard),
    OriginalUpload(original_upload::Held),
    OriginalExclusive(original_exclusive::Held),
}

/// `Ok`, or the class of the failure.
type Outcome<T> = Result<T, String>;

impl Who {
    /// `sidecar`, `exclusive`, `exclusive-alone` (waits for cycles), `server` (runs cycles),
    /// `upload`, `upload-foreign-pids`, `original-upload`, `original-exclusive`.
    pub(crate) fn parse(text: &str, dir: &Path) -> Who {
        let upload = |foreign_pids| {
            let options = upload::Options {
                durability: Durability::Fast,
                foreign_pids,
                times: upload::Times {
                    holder_poll: NEVER,
                    acquirer_poll: NEVER,
                    ..upload::Times::default()
                },
                ..upload::Options::default()
            };
            Who::Upload(FileLocker::with(dir, options).unwrap())
        };
        match text {
            "exclusive" => {
                let tool = Tool::new(dir, "actor")
                    .unwrap()
                    .durability(Durability::Fast);
                Who::Exclusive(tool.quiesce(Quiesce::Skip).poll(NEVER))
            }
            "server" => Who::Server(Server::new(dir)),
            "exclusive-alone" => {
                let tool = Tool::new(dir, "actor")
                    .unwrap()
                    .durability(Durability::Fast);
                Who::Exclusive(tool.poll(NEVER))
            }
            "sidecar" => {
                let options = sidecar::Options::new(dir.join("state.json"));
                Who::Sidecar(Box::new(options.durability(Durability::Fast)))
            }
            "upload" => upload(false),
            "upload-foreign-pids" => upload(true),
            "original-upload" => Who::OriginalUpload(dir.to_owned(), fast()),
            "original-exclusive" => Who::OriginalExclusive(dir.to_owned()),
            _ => panic!("nobody is called {text}"),
        }
    }

    pub(crate) fn acquire(
        &self,
        wait: Duration,
        on_request: Arc<dyn Fn() + Send + Sync>,
    ) -> Outcome<Held> {
        match self {
            Who::Exclusive(tool) => tool
                .acquire(Wait::For(wait))
                .map(Held::Exclusive)
                .map_err(class),
            Who::Sidecar(options) => {
                let options = options.as_ref().clone().timeout(wait);
                let guard = sidecar::Manager::new("actor").acquire(&options);
                guard.map(Held::Sidecar).map_err(class)
            }
            Who::Server(server) => loop {
                // Whoever is told to skip comes back for the next cycle.
                match server.begin_cycle() {
                    Ok(cycle) => return Ok(Held::Cycle(cycle)),
                    Err(_) => std::thread::sleep(Duration::from_millis(1)),
                }
            },
            Who::Upload(locker) => {
                let id = UploadId::new("up").unwrap();
                let guard = locker.lock(&id, Wait::For(wait), Arc::new(move |_| on_request()));
                guard.map(Held::Upload).map_err(class)
            }
            Who::OriginalUpload(dir, times) => {
                let times = original_upload::Times {
                    acquire_timeout: wait,
                    ..*times
                };
                let locker = original_upload::Locker::new(dir, "up", times);
                locker
                    .acquire(on_request)
                    .map(Held::OriginalUpload)
                    .map_err(str::to_owned)
            }
            Who::OriginalExclusive(dir) => Ok(Held::OriginalExclusive(
                original_exclusive::Held::acquire(dir),
            )),
        }
    }
}

impl Held {
    pub(crate) fn check(&self) -> Outcome<()> {
        match self {
            Held::Exclusive(guard) => guard.check().map_err(class),
            Held::Upload(guard) => guard.check().map_err(class),
            Held::Sidecar(guard) => guard.verify_still_held().map_err(class),
            // Originals never look.
            Held::OriginalUpload(_) | Held::OriginalExclusive(_) | Held::Cycle(_) => Ok(()),
        }
    }

    pub(crate) fn release(self) -> Outcome<()> {
        match self {
            Held::Exclusive(guard) => guard.release().map_err(class),
            Held::Upload(guard) => guard.release().map_err(class),
            Held::Sidecar(guard) => guard.release().map_err(class),
            Held::Cycle(cycle) => {
                drop(cycle);
                Ok(())
            }
            Held::OriginalUpload(held) => {
                held.release();
                Ok(())
            }
            Held::OriginalExclusive(held) => {
                held.release();
                Ok(())
            }
        }
    }
}

fn class(error: Error) -> String {
    error.class().to_string()
}

/// Tenure's polls: longer than any test waits, so that whatever happens happened by an event (K42).
const NEVER: Duration = Duration::from_secs(3600);

/// The original's polls, a thousand times faster than its defaults: only tests wait for it.
fn fast() -> original_upload::Times {
    original_upload::Times {
        acquire_timeout: Duration::from_secs(20),
        holder_poll: Duration::from_millis(5),
        acquirer_poll: Duration::from_millis(2),
    }
}
