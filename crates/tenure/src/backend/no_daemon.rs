//! Stand-in for the daemon client in builds without the feature `daemon`. No value of these types
//! can exist.

use std::convert::Infallible;

use tenure_core::path::Path;

use super::BreakRequest;
use crate::address::Address;
use crate::endpoint::Endpoint;
use crate::error::{Blocker, Error};
use crate::guard::Guard;
use crate::hold::Hold;
use crate::inspect::{Broken, LockState, WatchStream};
use crate::request::Request;
use crate::tenure::DaemonAccess;
use crate::values::Fence;

/// Cannot exist in this build.
#[derive(Clone)]
pub(crate) struct DaemonClient(Infallible);

/// Cannot exist in this build.
pub(crate) struct DaemonHold(Infallible);

impl DaemonClient {
    pub(crate) fn new(
        _nodes: Vec<Endpoint>,
        _access: &DaemonAccess,
    ) -> Result<DaemonClient, Error> {
        Err(Error::input(
            "the daemon's client",
            "is left out of this build: turn the feature `daemon` on",
        ))
    }
}

impl DaemonHold {
    pub(super) fn fence(&self) -> Option<Fence> {
        match self.0 {}
    }

    pub(super) fn owner(&self) -> String {
        match self.0 {}
    }

    pub(super) async fn check(&self, _place: &Address) -> Result<(), Error> {
        match self.0 {}
    }

    pub(super) async fn release(self, _place: &Address) -> Result<(), Error> {
        match self.0 {}
    }

    pub(super) fn leave(self) -> String {
        match self.0 {}
    }
}

pub(super) async fn acquire(
    client: DaemonClient,
    _request: Request,
    _paths: Vec<(Address, Path)>,
) -> Result<Vec<Guard>, Error> {
    match client.0 {}
}

pub(super) async fn inspect(
    client: &DaemonClient,
    _: &Address,
    _: &Path,
) -> Result<LockState, Error> {
    match client.0 {}
}

pub(crate) async fn list(
    client: &DaemonClient,
    _: &[Endpoint],
    _: Option<&Path>,
) -> Result<Vec<LockState>, Error> {
    match client.0 {}
}

pub(super) async fn ask(
    client: &DaemonClient,
    _: &Address,
    _: &Path,
) -> Result<Vec<Blocker>, Error> {
    match client.0 {}
}

pub(super) async fn break_hold(
    client: &DaemonClient,
    _: &Address,
    _: &Path,
    _: BreakRequest<'_>,
) -> Result<Broken, Error> {
    match client.0 {}
}

pub(super) async fn watch(
    client: &DaemonClient,
    _: &[Endpoint],
    _: &Path,
) -> Result<WatchStream, Error> {
    match client.0 {}
}

pub(super) async fn renew_hold(client: &DaemonClient, _: &Hold, _: &Path) -> Result<(), Error> {
    match client.0 {}
}

pub(super) async fn release_hold(client: &DaemonClient, _: &Hold, _: &Path) -> Result<(), Error> {
    match client.0 {}
}
