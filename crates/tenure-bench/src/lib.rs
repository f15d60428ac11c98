//! Load generator for the Tenure daemon and for comparable servers.
//!
//! ```text
//!   LoadPlan ──▶ LoadScript (what each worker asks next) ──▶ driver ──▶ server
//!                    └── Measured ◀── answers ──────────────────┘
//! ```
//!
//! There are two kinds of drivers. `pipeline` keeps many requests in flight over plain sockets
//! (Session, Redis, ZooKeeper). `unary` makes one call at a time per worker through a client
//! library (unary calls, echo, etcd, Redis through its library). Client and server share the
//! machine, so a driver is as cheap as its protocol allows.

#[cfg(feature = "compare")]
mod echo;
mod latency;
mod message;
#[cfg(feature = "compare")]
mod peers;
mod pipeline;
mod report;
mod scenario;
mod session;
mod unary;

use std::net::SocketAddr;

#[cfg(feature = "compare")]
pub use echo::serve as serve_echo;
pub use latency::Latencies;
pub use report::BenchReport;
pub use scenario::{LoadPlan, Measured, Scenario};

/// The server to load, and the protocol.
#[derive(Clone, Debug)]
pub enum Target {
    /// The daemon, with unary calls.
    Unary {
        /// The client token, if the daemon requires one.
        token: Option<String>,
    },
    /// The daemon, with one Session stream per connection (E10: Session stream).
    Session {
        /// The client token, if the daemon requires one.
        token: Option<String>,
    },
    /// The echo server.
    #[cfg(feature = "compare")]
    Echo,
    /// Redis over plain sockets with full pipelining: its upper bound.
    #[cfg(feature = "compare")]
    Redis,
    /// Redis through the client library that a Rust program would use.
    #[cfg(feature = "compare")]
    RedisLibrary,
    /// etcd. Each worker renews on one stream that stays open, comparable with a Session.
    #[cfg(feature = "compare")]
    Etcd,
    /// etcd with a new stream for each renewal, comparable with a unary call.
    #[cfg(feature = "compare")]
    EtcdOnce,
    /// ZooKeeper.
    #[cfg(feature = "compare")]
    ZooKeeper,
}

/// The reason why a run has no result.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// An I/O error of the client.
    #[error("cannot go on")]
    Io(#[from] std::io::Error),
    /// The server cannot be reached.
    #[error("cannot connect")]
    Connect(#[from] tonic::transport::Error),
    /// A call failed.
    #[error("a call failed: {0}")]
    Call(#[from] Box<tonic::Status>),
    /// The server refused a request that must succeed.
    #[error("refused: {0}")]
    Refused(String),
    /// The response of the server cannot be decoded.
    #[error("not understood: {0}")]
    Protocol(String),
    /// The server closed the connection.
    #[error("the server closed the connection")]
    Closed,
    /// No answer for this time.
    #[error("nothing came for {0:?}")]
    Silence(std::time::Duration),
}

impl From<tonic::Status> for BenchError {
    fn from(status: tonic::Status) -> BenchError {
        BenchError::Call(Box::new(status))
    }
}

/// Runs a plan against a server and returns the measurement.
pub fn run(plan: LoadPlan, target: &Target, server: SocketAddr) -> Result<Measured, BenchError> {
    let scenario = plan.scenario;
    match target {
        Target::Session { token } => pipeline::run(plan, server, || {
            session::SessionClient::new(server.to_string(), token.clone())
        }),
        #[cfg(feature = "compare")]
        Target::Redis => pipeline::run(plan, server, peers::redis::Redis::default),
        #[cfg(feature = "compare")]
        Target::RedisLibrary => {
            peers::redis_library::connect(server).and_then(|client| client.run(plan))
        }
        #[cfg(feature = "compare")]
        Target::ZooKeeper => pipeline::run(plan, server, peers::zookeeper::ZooKeeper::default),
        Target::Unary { token } => unary::run(plan, server, async |channel, worker| {
            unary::Unary::new(channel, worker, scenario, token.as_deref()).await
        }),
        #[cfg(feature = "compare")]
        Target::Echo => unary::run(plan, server, async |channel, worker| {
            unary::Unary::new(channel, worker, scenario, None).await
        }),
        #[cfg(feature = "compare")]
        Target::Etcd => unary::run(plan, server, async |channel, _| {
            peers::etcd::Etcd::new(channel, scenario).await
        }),
        #[cfg(feature = "compare")]
        Target::EtcdOnce => unary::run(plan, server, async |channel, _| {
            peers::etcd::Etcd::once(channel).await
        }),
    }
}
