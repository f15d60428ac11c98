//! Redis through the `redis` crate, as a Rust program would use it: one multiplexed connection for
//! many callers.
//!
//! The module `redis` shows the upper bound of the server, with hundreds of commands per system
//! call. Real programs do not reach that; this module shows what they get.

use std::net::SocketAddr;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, RedisError, Script};
use tonic::Status;

use super::redis::{RELEASE, RENEW};
use crate::BenchError;
use crate::message::TTL_MS;
use crate::scenario::{LoadPlan, LoadWorker, Measured, WorkerReply, WorkerRequest};
use crate::unary::{self, Caller};

/// A server to connect to.
pub(crate) struct Library(Client);

/// Prepares a client. It connects when a plan runs.
pub(crate) fn connect(server: SocketAddr) -> Result<Library, BenchError> {
    let client = Client::open(format!("redis://{server}/"));
    client
        .map(Library)
        .map_err(|error| BenchError::Protocol(error.to_string()))
}

impl Library {
    /// Runs a plan.
    pub(crate) fn run(self, plan: LoadPlan) -> Result<Measured, BenchError> {
        let connect = async || {
            // No timeout, as with the other clients: a slow answer is measured, not dropped.
            let patient = AsyncConnectionConfig::new().set_response_timeout(None);
            let connection = self
                .0
                .get_multiplexed_async_connection_with_config(&patient)
                .await;
            connection.map_err(|error| BenchError::Protocol(error.to_string()))
        };
        unary::run_over(plan, connect, async |connection, _| {
            Ok(LibraryClient::new(connection))
        })
    }
}

/// The client of one worker.
struct LibraryClient {
    connection: MultiplexedConnection,
    release: Script,
    renew: Script,
}

fn failed(error: RedisError) -> Status {
    Status::unavailable(error.to_string())
}

fn held(count: i64) -> WorkerReply {
    if count == 1 {
        WorkerReply::Done
    } else {
        WorkerReply::Failed("not held".to_owned())
    }
}

impl LibraryClient {
    fn new(connection: MultiplexedConnection) -> LibraryClient {
        LibraryClient {
            connection,
            release: Script::new(RELEASE),
            renew: Script::new(RENEW),
        }
    }
}

impl Caller for LibraryClient {
    async fn call(
        &mut self,
        worker: &LoadWorker,
        ask: WorkerRequest,
    ) -> Result<WorkerReply, Status> {
        let connection = &mut self.connection;
        Ok(match ask {
            WorkerRequest::Take => {
                let mut set = redis::cmd("SET");
                set.arg(&worker.path).arg(&worker.owner);
                set.arg("NX").arg("PX").arg(TTL_MS);
                let set: Option<String> = set.query_async(connection).await.map_err(failed)?;
                match set {
                    Some(_) => WorkerReply::Granted(1),
                    None => WorkerReply::Failed("held by another".to_owned()),
                }
            }
            WorkerRequest::Wait => {
                return Err(Status::unimplemented("a waiter would block its connection"));
            }
            WorkerRequest::Release => {
                let mut script = self.release.prepare_invoke();
                script.key(&worker.path).arg(&worker.owner);
                held(script.invoke_async(connection).await.map_err(failed)?)
            }
            WorkerRequest::Renew => {
                let mut script = self.renew.prepare_invoke();
                script.key(&worker.path).arg(&worker.owner).arg(TTL_MS);
                held(script.invoke_async(connection).await.map_err(failed)?)
            }
            WorkerRequest::Check => {
                let mut get = redis::cmd("GET");
                get.arg(&worker.path);
                let owner: Option<String> = get.query_async(connection).await.map_err(failed)?;
                held(i64::from(owner.as_deref() == Some(&worker.owner)))
            }
        })
    }

    async fn grant(&mut self) -> Result<WorkerReply, Status> {
        Err(Status::unimplemented("a waiter would block its connection"))
    }
}
