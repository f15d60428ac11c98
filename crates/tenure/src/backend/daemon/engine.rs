//! Engines that keep the log of the locks: the client speaks to itself, and this process applies the
//! log.

use tenure_hosted::postgres::{Postgres, PostgresAddress};
use tenure_hosted::{DriverError, Engine, service};
use tonic::transport::Channel;

use crate::endpoint::Endpoint;
use crate::error::{Error, InputError};
use crate::runtime;

/// Opens a channel to an engine, which speaks the daemon's protocol.
pub(super) async fn connect(engine: &str) -> Result<Channel, String> {
    let address: PostgresAddress = engine
        .parse()
        .map_err(|error: tenure_hosted::postgres::PostgresAddressError| error.to_string())?;
    let engine = Engine::new(Postgres::new(address));
    service::connect(engine)
        .await
        .map_err(|status| status.message().to_owned())
}

/// A database that keeps the log of locks: what an administrator does with it.
#[derive(Clone, Debug)]
pub struct EngineAdmin {
    address: PostgresAddress,
}

impl EngineAdmin {
    /// The SQL that creates the tables and functions.
    pub const SQL: &'static str = tenure_hosted::postgres::SCHEMA;

    /// Takes `postgres://host/database`, with or without a path behind it.
    ///
    /// # Errors
    ///
    /// [`Error::Input`] if it is no valid address.
    pub fn new(text: &str) -> Result<EngineAdmin, Error> {
        let engine = match text.parse() {
            Ok(crate::Address::Daemon { nodes, .. }) => nodes.into_iter().next(),
            _ => Endpoint::list(text)?.into_iter().next(),
        };
        let engine = engine.as_ref().and_then(Endpoint::engine_address);
        let address = engine.and_then(|engine| engine.parse().ok());
        match address {
            Some(address) => Ok(EngineAdmin { address }),
            None => Err(Error::Input(InputError::new(text, "names no database"))),
        }
    }

    /// Creates the tables and functions that are missing.
    ///
    /// # Errors
    ///
    /// [`Error`] if the database cannot be reached or refuses.
    pub async fn prepare(&self) -> Result<(), Error> {
        let driver = Postgres::new(self.address.clone());
        let done = runtime::run(async move { driver.prepare().await }).await;
        self.outcome(done)
    }

    /// Returns what the database does not promise, as sentences.
    ///
    /// # Errors
    ///
    /// [`Error`] if the database cannot be reached or refuses.
    pub async fn doubts(&self) -> Result<Vec<String>, Error> {
        let driver = Postgres::new(self.address.clone());
        let found = runtime::run(async move { driver.doubts().await }).await;
        self.outcome(found)
    }

    fn outcome<T>(&self, result: Option<Result<T, DriverError>>) -> Result<T, Error> {
        match result {
            Some(Ok(value)) => Ok(value),
            Some(Err(error)) => Err(Error::input(self.address.to_string(), error.to_string())),
            None => Err(Error::input(
                self.address.to_string(),
                "the runtime has ended",
            )),
        }
    }
}
