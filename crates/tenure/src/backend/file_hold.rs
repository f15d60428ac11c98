//! A hold of a lock file, of any of the three protocols.

use tenure_files::exclusive::ExclusiveGuard;
use tenure_files::sidecar::SidecarGuard;
use tenure_files::upload::UploadGuard;
use tenure_files::{FileHolding, Result as FilesResult};

use super::files;
use crate::address::Address;
use crate::error::Error;
use crate::guard::Guard;
use crate::hold::Hold;
use crate::request::Request;
use crate::tuning::Tuning;
use crate::values::Fence;

/// A hold of a lock file.
pub(crate) enum FileHold {
    Sidecar(SidecarGuard),
    Exclusive(ExclusiveGuard),
    Upload(UploadGuard),
}

impl FileHold {
    pub(super) fn fence(&self) -> Option<Fence> {
        match self {
            FileHold::Sidecar(guard) => guard.fence().map(Fence::from),
            FileHold::Exclusive(guard) => guard.fence().map(Fence::from),
            FileHold::Upload(guard) => guard.file()?.fence().map(Fence::from),
        }
    }

    pub(super) fn owner(&self) -> String {
        self.file()
            .map_or_else(String::new, |hold| hold.token().to_string())
    }

    pub(super) fn file(&self) -> Option<&FileHolding> {
        match self {
            FileHold::Sidecar(guard) => Some(guard.hold()),
            FileHold::Exclusive(guard) => Some(guard.hold()),
            FileHold::Upload(guard) => guard.file().map(|hold| hold.hold().as_ref()),
        }
    }

    pub(super) fn check(&self, place: &Address) -> Result<(), Error> {
        let checked = match self {
            FileHold::Sidecar(guard) => guard.verify_still_held(),
            FileHold::Exclusive(guard) => guard.check(),
            FileHold::Upload(guard) => guard.check(),
        };
        or_error(place, checked)
    }

    pub(super) fn release(self, place: &Address) -> Result<(), Error> {
        let released = match self {
            FileHold::Sidecar(guard) => guard.release(),
            FileHold::Exclusive(guard) => guard.release(),
            FileHold::Upload(guard) => guard.release(),
        };
        or_error(place, released)
    }

    /// Detaches the hold; returns the token in its record.
    pub(super) fn leave(self, place: &Address) -> Result<String, Error> {
        match self {
            FileHold::Sidecar(guard) => Ok(guard.leave().to_string()),
            FileHold::Exclusive(guard) => Ok(guard.leave().to_string()),
            FileHold::Upload(guard) => match guard.leave() {
                Some(token) => Ok(token.to_string()),
                None => Err(Error::unsupported(place, "it has no record to leave")),
            },
        }
    }
}

fn or_error(place: &Address, result: FilesResult<()>) -> Result<(), Error> {
    result.map_err(|error| Error::from_files(place, &error))
}

/// Acquires a lock file on a thread of its own. Dropping the future cancels the wait.
pub(super) async fn acquire_async(request: Request) -> Result<Guard, Error> {
    tenure_files::internal::run(move |cancel| files::acquire(&request, Some(&cancel))).await
}

pub(super) fn acquire_blocking(request: &Request) -> Result<Guard, Error> {
    files::acquire(request, request.cancel.as_ref())
}

/// Renews a detached hold: C13 (holds for scripts).
pub(super) fn renew_hold(hold: &Hold, tuning: &Tuning) -> Result<(), Error> {
    or_error(&hold.place, files::adopt(hold, tuning)?.beat())
}

/// Releases a detached hold (C13).
pub(super) fn release_hold(hold: &Hold, tuning: &Tuning) -> Result<(), Error> {
    or_error(&hold.place, files::adopt(hold, tuning)?.release())
}
