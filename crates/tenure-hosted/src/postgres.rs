//! The driver for PostgreSQL.
//!
//! Every operation is one statement and one transaction, without prepared statements, so that it works
//! behind PgBouncer in transaction mode. NOTIFY is a hint; where it does not arrive, polling does.

mod access;
mod tls;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, Notify};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Row};

pub use access::{PostgresAddress, PostgresAddressError};

use crate::driver::{Append, Appended, DriverError, LogDriver, Tail, Version};
use crate::entry::LeaseKey;

/// The tables and functions, as SQL to run once.
pub const SCHEMA: &str = include_str!("postgres/schema.sql");

/// Time limit for a connection, and for one statement.
const CONNECT: Duration = Duration::from_secs(5);
const STATEMENT: Duration = Duration::from_secs(4);

/// A log in a PostgreSQL database.
#[derive(Debug)]
pub struct Postgres {
    address: PostgresAddress,
    link: Mutex<Option<Link>>,
    /// Something may have been appended.
    hint: Arc<Notify>,
}

#[derive(Clone, Debug)]
struct Link {
    client: Arc<Client>,
}

impl Postgres {
    /// Creates a driver. It connects at its first operation.
    pub fn new(address: PostgresAddress) -> Postgres {
        Postgres {
            address,
            link: Mutex::new(None),
            hint: Arc::new(Notify::new()),
        }
    }

    /// Creates the tables and functions.
    ///
    /// # Errors
    ///
    /// [`DriverError`] if the database cannot be reached or refuses.
    pub async fn prepare(&self) -> Result<(), DriverError> {
        let client = self.client().await?;
        client
            .batch_execute(SCHEMA)
            .await
            .map_err(|error| self.failed(&error))
    }

    /// Returns what the database does not promise, as sentences. Empty: nothing is known.
    ///
    /// # Errors
    ///
    /// [`DriverError`] if the database cannot be reached or refuses.
    pub async fn doubts(&self) -> Result<Vec<String>, DriverError> {
        let rows = self
            .query(
                "SELECT current_setting('fsync'), current_setting('full_page_writes'), \
                 current_setting('synchronous_standby_names'), \
                 (SELECT count(*) FROM pg_stat_replication), pg_is_in_recovery()",
                &[],
            )
            .await?;
        let mut doubts = Vec::new();
        let Some(row) = rows.first() else {
            return Ok(doubts);
        };
        let text = |at: usize| row.try_get::<_, String>(at).unwrap_or_default();
        if text(0) == "off" {
            doubts.push("fsync is off: a crash of its machine can lose granted locks".to_owned());
        }
        if text(1) == "off" {
            doubts.push("full_page_writes is off: a crash can damage the log".to_owned());
        }
        let standbys: i64 = row.try_get(3).unwrap_or(0);
        if text(2).is_empty() && standbys > 0 {
            doubts.push(format!(
                "{standbys} replicas, none of them synchronous: promoting one can lose granted \
                 locks; set synchronous_standby_names"
            ));
        }
        if row.try_get(4).unwrap_or(false) {
            doubts.push("it is a replica: nothing can be locked here".to_owned());
        }
        Ok(doubts)
    }

    /// Returns the open connection, or opens one.
    async fn client(&self) -> Result<Arc<Client>, DriverError> {
        let mut link = self.link.lock().await;
        if let Some(open) = link.as_ref().filter(|link| !link.client.is_closed()) {
            return Ok(Arc::clone(&open.client));
        }
        let opened = tokio::time::timeout(CONNECT, self.connect()).await;
        let client = match opened {
            Ok(opened) => Arc::new(opened?),
            Err(_) => {
                let what = format!("{}: no connection in time", self.address);
                return Err(DriverError::Unanswered(what));
            }
        };
        *link = Some(Link {
            client: Arc::clone(&client),
        });
        Ok(client)
    }

    async fn connect(&self) -> Result<Client, DriverError> {
        let (config, sslmode) = self
            .address
            .config()
            .map_err(|error| DriverError::Refused(error.to_string()))?;
        let tls = tls::connector(&sslmode).map_err(DriverError::Refused)?;
        let connected = config.connect(tls).await;
        let (client, mut connection) = connected.map_err(|error| self.failed(&error))?;
        let hint = Arc::clone(&self.hint);
        tokio::spawn(async move {
            loop {
                let message = std::future::poll_fn(|cx| connection.poll_message(cx)).await;
                match message {
                    // Kept for a follower that is reading just now.
                    Some(Ok(AsyncMessage::Notification(_))) => hint.notify_one(),
                    Some(Ok(_)) => {}
                    Some(Err(_)) | None => return,
                }
            }
        });
        // Without an effect behind a pooler; polling does it then.
        let _ = client.batch_execute("LISTEN tenure").await;
        Ok(client)
    }

    async fn query(
        &self,
        statement: &str,
        values: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<Row>, DriverError> {
        let client = self.client().await?;
        let answered = tokio::time::timeout(STATEMENT, client.query_typed(statement, values)).await;
        match answered {
            Ok(Ok(rows)) => Ok(rows),
            Ok(Err(error)) => Err(self.failed(&error)),
            Err(_) => {
                // A connection that does not answer is not used again.
                let mut link = self.link.lock().await;
                if link
                    .as_ref()
                    .is_some_and(|link| Arc::ptr_eq(&link.client, &client))
                {
                    *link = None;
                }
                let what = format!("{}: no answer in time", self.address);
                Err(DriverError::Unanswered(what))
            }
        }
    }

    /// Converts an error. An error that names the reason never contains the password.
    fn failed(&self, error: &tokio_postgres::Error) -> DriverError {
        use tokio_postgres::error::SqlState;
        let at = &self.address;
        let Some(found) = error.as_db_error() else {
            let mut text = error.to_string();
            let mut cause = std::error::Error::source(error);
            while let Some(error) = cause {
                text = format!("{text}: {error}");
                cause = error.source();
            }
            return DriverError::Unanswered(format!("{at}: {text}"));
        };
        let what = found.message();
        match *found.code() {
            SqlState::UNDEFINED_TABLE
            | SqlState::UNDEFINED_FUNCTION
            | SqlState::INVALID_SCHEMA_NAME => DriverError::Unprepared(format!(
                "{at} has no tables for Tenure ({what}): `tenure doctor --prepare {at}` creates \
                 them; `tenure doctor --sql {at}` prints the SQL for an administrator"
            )),
            SqlState::INSUFFICIENT_PRIVILEGE
            | SqlState::INVALID_PASSWORD
            | SqlState::INVALID_AUTHORIZATION_SPECIFICATION
            | SqlState::INVALID_CATALOG_NAME => DriverError::Refused(format!("{at}: {what}")),
            _ => DriverError::Unanswered(format!("{at}: {what}")),
        }
    }
}

/// The columns of rows: owners and namespaces.
fn columns<'a>(rows: impl Iterator<Item = &'a LeaseKey>) -> (Vec<&'a [u8]>, Vec<&'a [u8]>) {
    rows.map(|row| {
        let (owner, namespace) = (row.owner.as_str(), row.namespace.as_str());
        (owner.as_bytes(), namespace.as_bytes())
    })
    .unzip()
}

fn number(index: u64) -> i64 {
    i64::try_from(index).unwrap_or(i64::MAX)
}

impl LogDriver for Postgres {
    async fn append(&self, append: &Append) -> Result<Appended, DriverError> {
        let (unchanged_owners, unchanged_namespaces) =
            columns(append.unchanged.iter().map(|(row, _)| row));
        let versions: Vec<Option<i64>> = append
            .unchanged
            .iter()
            .map(|(_, version)| version.map(number))
            .collect();
        let (raised_owners, raised_namespaces) = columns(append.raise.iter());
        let (removed_owners, removed_namespaces) = columns(append.remove.iter());
        let rows = self
            .query(
                "SELECT tenure.append($1, $2, $3, $4, $5, $6, $7, $8, $9)",
                &[
                    (&number(append.index), Type::INT8),
                    (&append.entry, Type::BYTEA),
                    (&unchanged_owners, Type::BYTEA_ARRAY),
                    (&unchanged_namespaces, Type::BYTEA_ARRAY),
                    (&versions, Type::INT8_ARRAY),
                    (&raised_owners, Type::BYTEA_ARRAY),
                    (&raised_namespaces, Type::BYTEA_ARRAY),
                    (&removed_owners, Type::BYTEA_ARRAY),
                    (&removed_namespaces, Type::BYTEA_ARRAY),
                ],
            )
            .await?;
        let result: Option<i32> = rows.first().and_then(|row| row.try_get(0).ok());
        match result {
            Some(0) => Ok(Appended::Done),
            Some(1) => Ok(Appended::Taken),
            Some(2) => Ok(Appended::Changed),
            _ => Err(DriverError::Unanswered(format!(
                "{}: tenure.append gave a strange answer",
                self.address
            ))),
        }
    }

    async fn read(&self, from: u64, rows: &[LeaseKey]) -> Result<Tail, DriverError> {
        let (owners, namespaces) = columns(rows.iter());
        // One statement sees one moment: the snapshot, the entries and the versions fit together.
        let found = self
            .query(
                "SELECT 0, index, entry FROM tenure.entry WHERE index >= $1 \
                 UNION ALL \
                 SELECT 1, index, state FROM tenure.snapshot WHERE index >= $1 \
                 AND NOT EXISTS (SELECT FROM tenure.entry WHERE index = $1) \
                 UNION ALL \
                 SELECT 2, asked.at, int8send(beat.version) \
                 FROM unnest($2::bytea[], $3::bytea[]) WITH ORDINALITY AS asked (owner, namespace, at) \
                 LEFT JOIN tenure.beat USING (owner, namespace) \
                 ORDER BY 1, 2",
                &[
                    (&number(from), Type::INT8),
                    (&owners, Type::BYTEA_ARRAY),
                    (&namespaces, Type::BYTEA_ARRAY),
                ],
            )
            .await?;
        let strange = |error: tokio_postgres::Error| self.failed(&error);
        let mut tail = Tail::default();
        for row in found {
            let kind: i32 = row.try_get(0).map_err(strange)?;
            let at: i64 = row.try_get(1).map_err(strange)?;
            let bytes: Option<Vec<u8>> = row.try_get(2).map_err(strange)?;
            match (kind, bytes) {
                (0, Some(entry)) => tail.entries.push((u64::try_from(at).unwrap_or(0), entry)),
                (1, Some(state)) => tail.snapshot = Some(state),
                (_, version) => tail.versions.push(version_of(version.as_deref())),
            }
        }
        Ok(tail)
    }

    async fn beat(&self, rows: &[LeaseKey]) -> Result<Vec<bool>, DriverError> {
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let (owners, namespaces) = columns(rows.iter());
        let found = self
            .query(
                "SELECT tenure.raise_beats($1, $2)",
                &[
                    (&owners, Type::BYTEA_ARRAY),
                    (&namespaces, Type::BYTEA_ARRAY),
                ],
            )
            .await?;
        let there: Option<Vec<bool>> = found.first().and_then(|row| row.try_get(0).ok());
        match there {
            Some(there) if there.len() == rows.len() => Ok(there),
            _ => Err(DriverError::Unanswered(format!(
                "{}: tenure.raise_beats gave a strange answer",
                self.address
            ))),
        }
    }

    async fn watch(&self, at_most: Duration) {
        let _ = tokio::time::timeout(at_most, self.hint.notified()).await;
    }

    async fn trim(&self, index: u64, snapshot: &[u8]) -> Result<(), DriverError> {
        self.query(
            "SELECT tenure.trim_log($1, $2)",
            &[(&number(index), Type::INT8), (&snapshot, Type::BYTEA)],
        )
        .await
        .map(drop)
    }

    fn describe(&self) -> String {
        self.address.to_string()
    }
}

fn version_of(bytes: Option<&[u8]>) -> Version {
    let bytes: [u8; 8] = bytes?.try_into().ok()?;
    u64::try_from(i64::from_be_bytes(bytes)).ok()
}
