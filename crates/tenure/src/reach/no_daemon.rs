//! In place of the daemon's client where it is left out: there is no client, so nothing can be asked of one.

use std::convert::Infallible;

use tenure_core::path::Path;

use super::Breaking;
use crate::endpoint::Endpoint;
use crate::error::{Blocker, Error};
use crate::guard::Guard;
use crate::hold::Hold;
use crate::inspect::{Broken, State, Watch};
use crate::place::Where;
use crate::request::Request;
use crate::tenure::Access;
use crate::values::Fence;

/// No client of the daemon's exists in this build.
#[derive(Clone)]
pub(crate) struct Client(Infallible);

/// Nor does a hold.
pub(crate) struct Held(Infallible);

impl Client {
    pub(crate) fn new(_nodes: Vec<Endpoint>, _access: &Access) -> Result<Client, Error> {
        Err(Error::input(
            "the daemon's client",
            "is left out of this build: turn the feature `daemon` on",
        ))
    }
}

impl Held {
    pub(super) fn fence(&self) -> Option<Fence> {
        match self.0 {}
    }

    pub(super) fn owner(&self) -> String {
        match self.0 {}
    }

    pub(super) async fn check(&self, _place: &Where) -> Result<(), Error> {
        match self.0 {}
    }

    pub(super) async fn release(self, _place: &Where) -> Result<(), Error> {
        match self.0 {}
    }

    pub(super) fn leave(self) -> String {
        match self.0 {}
    }
}

pub(super) async fn acquire(
    client: Client,
    _request: Request,
    _paths: Vec<(Where, Path)>,
) -> Result<Vec<Guard>, Error> {
    match client.0 {}
}

pub(super) async fn inspect(client: &Client, _: &Where, _: &Path) -> Result<State, Error> {
    match client.0 {}
}

pub(crate) async fn list(
    client: &Client,
    _: &[Endpoint],
    _: Option<&Path>,
) -> Result<Vec<State>, Error> {
    match client.0 {}
}

pub(super) async fn ask(client: &Client, _: &Where, _: &Path) -> Result<Vec<Blocker>, Error> {
    match client.0 {}
}

pub(super) async fn break_hold(
    client: &Client,
    _: &Where,
    _: &Path,
    _: Breaking<'_>,
) -> Result<Broken, Error> {
    match client.0 {}
}

pub(super) async fn watch(client: &Client, _: &[Endpoint], _: &Path) -> Result<Watch, Error> {
    match client.0 {}
}

pub(super) async fn renew_hold(client: &Client, _: &Hold, _: &Path) -> Result<(), Error> {
    match client.0 {}
}

pub(super) async fn release_hold(client: &Client, _: &Hold, _: &Path) -> Result<(), Error> {
    match client.0 {}
}
