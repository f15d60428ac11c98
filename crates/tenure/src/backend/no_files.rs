//! Stand-in for lock files in builds without the feature `files`. No hold of this kind can exist.

use std::convert::Infallible;
use std::path::Path;

use tenure_base::UploadId;

use super::BreakRequest;
use crate::address::Address;
use crate::error::{Blocker, Error};
use crate::guard::Guard;
use crate::hold::Hold;
use crate::inspect::{Broken, LockState, WatchStream};
use crate::request::Request;
use crate::tenure::Tenure;
use crate::tuning::Tuning;
use crate::values::Fence;

/// Cannot exist in this build.
pub(crate) struct FileHold(Infallible);

impl FileHold {
    pub(super) fn fence(&self) -> Option<Fence> {
        match self.0 {}
    }

    pub(super) fn owner(&self) -> String {
        match self.0 {}
    }

    pub(super) fn check(&self, _: &Address) -> Result<(), Error> {
        match self.0 {}
    }

    pub(super) fn release(self, _: &Address) -> Result<(), Error> {
        match self.0 {}
    }

    pub(super) fn leave(self, _: &Address) -> Result<String, Error> {
        match self.0 {}
    }
}

fn left_out<T>(place: &Address) -> Result<T, Error> {
    let what = "lock files are left out of this build: turn the feature `files` on";
    Err(Error::unsupported(place, what))
}

pub(super) async fn acquire_async(request: Request) -> Result<Guard, Error> {
    left_out(&request.place)
}

pub(super) fn acquire_blocking(request: &Request) -> Result<Guard, Error> {
    left_out(&request.place)
}

pub(super) fn is_same_lock_file(_: &Address, _: &Address) -> bool {
    false
}

pub(super) fn inspect(place: &Address, _: &Tuning) -> Result<LockState, Error> {
    left_out(place)
}

pub(super) fn list(place: &Address, _: &Tuning) -> Result<Vec<LockState>, Error> {
    left_out(place)
}

pub(super) fn ask(
    place: &Address,
    _: &Path,
    _: &UploadId,
    _: Option<&str>,
    _: &Tuning,
) -> Result<Vec<Blocker>, Error> {
    left_out(place)
}

pub(super) fn break_hold(
    place: &Address,
    _: BreakRequest<'_>,
    _: &Tuning,
) -> Result<Broken, Error> {
    left_out(place)
}

pub(super) fn watch(place: &Address, _: &Tenure) -> Result<WatchStream, Error> {
    left_out(place)
}

pub(super) fn renew_hold(hold: &Hold, _: &Tuning) -> Result<(), Error> {
    left_out(&hold.place)
}

pub(super) fn release_hold(hold: &Hold, _: &Tuning) -> Result<(), Error> {
    left_out(&hold.place)
}
