//! Load for the Tenure daemon, and for what a user would pick instead.
//!
//! ```text
//!   Plan ──▶ Script (who asks what, in which order) ──▶ driver ──▶ server
//!                 └── Measured ◀── answers ───────────────┘
//! ```
//!
//! Two kinds of drivers: `pipeline` keeps many requests on the way over plain sockets (Session,
//! Redis, ZooKeeper), `unary` makes one call after the other per worker over a gRPC library (unary
//! calls, the bare echo, etcd, Redis a second time). Client and server share the machine, so a driver is as cheap as its
//! protocol allows.

mod echo;
mod latency;
mod message;
mod peers;
mod pipeline;
mod report;
mod scenario;
mod session;
mod unary;

use std::net::SocketAddr;

pub use echo::serve as serve_echo;
pub use latency::Latencies;
pub use report::BenchReport;
pub use scenario::{LoadPlan, Measured, Scenario};

/// Whom to load, and over what.
#[derive(Clone, Debug)]
pub enum Target {
    /// The daemon, by unary calls.
    Unary {
        /// The token it asks for.
        token: Option<String>,
    },
    /// The daemon, by one Session per connection (E10).
    Session {
        /// The token it asks for.
        token: Option<String>,
    },
    /// The bare echo.
    Echo,
    /// Redis, over plain sockets with as many requests on the way as there are: its upper bound.
    Redis,
    /// Redis, over the client library that a program in Rust would use.
    #[cfg(feature = "compare")]
    RedisLibrary,
    /// etcd. It renews over streams: each worker has one open for as long as it runs, as a Session is.
    Etcd,
    /// etcd, which opens a stream for each renewal, as a call is.
    EtcdOnce,
    /// ZooKeeper.
    ZooKeeper,
}

/// Why there is no figure.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The machine refuses.
    #[error("cannot go on")]
    Io(#[from] std::io::Error),
    /// The server cannot be reached.
    #[error("cannot connect")]
    Connect(#[from] tonic::transport::Error),
    /// A call failed where none may.
    #[error("a call failed: {0}")]
    Call(#[from] Box<tonic::Status>),
    /// The server said no where it must say yes.
    #[error("refused: {0}")]
    Refused(String),
    /// The server's bytes make no sense.
    #[error("not understood: {0}")]
    Protocol(String),
    /// The server closed the connection.
    #[error("the server closed the connection")]
    Closed,
    /// Nothing came for too long.
    #[error("nothing came for {0:?}")]
    Silence(std::time::Duration),
}

impl From<tonic::Status> for BenchError {
    fn from(status: tonic::Status) -> BenchError {
        BenchError::Call(Box::new(status))
    }
}

/// Runs a plan against a server.
pub fn run(plan: LoadPlan, target: &Target, server: SocketAddr) -> Result<Measured, BenchError> {
    let scenario = plan.scenario;
    match target {
        Target::Session { token } => pipeline::run(plan, server, || {
            session::SessionClient::new(server.to_string(), token.clone())
        }),
        Target::Redis => pipeline::run(plan, server, peers::redis::Redis::default),
        #[cfg(feature = "compare")]
        Target::RedisLibrary => {
            peers::redis_library::connect(server).and_then(|client| client.run(plan))
        }
        Target::ZooKeeper => pipeline::run(plan, server, peers::zookeeper::ZooKeeper::default),
        Target::Unary { token } => unary::run(plan, server, async |channel, worker| {
            unary::Unary::new(channel, worker, scenario, token.as_deref()).await
        }),
        Target::Echo => unary::run(plan, server, async |channel, worker| {
            unary::Unary::new(channel, worker, scenario, None).await
        }),
        Target::Etcd => unary::run(plan, server, async |channel, _| {
            peers::etcd::Etcd::new(channel, scenario).await
        }),
        Target::EtcdOnce => unary::run(plan, server, async |channel, _| {
            peers::etcd::Etcd::once(channel).await
        }),
    }
}
