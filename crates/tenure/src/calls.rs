//! The daemon's protocol, one typed call per RPC: [`Tenure::calls`](crate::Tenure::calls).
//!
//! ```no_run
//! use tenure::calls::messages::{DetectCycleRequest, SetWaitEdgeRequest};
//!
//! # async fn example() -> Result<(), tenure::Error> {
//! let calls = tenure::Tenure::from_env()?.calls()?;
//! let edge = SetWaitEdgeRequest {
//!     owner_id: "amy".into(),
//!     conflict_owner: "bob".into(),
//!     ttl_ms: 30_000,
//!     ..Default::default()
//! };
//! calls.set_wait_edge(edge).await?;
//! let start = DetectCycleRequest { start_owner_id: "amy".into(), max_depth: 0 };
//! println!("{:?}", calls.detect_cycle(start).await?.chain);
//! # Ok(()) }
//! ```

pub use crate::backend::daemon::rpc_table::{Calls, MessageStream, SessionSender};
/// The messages of `pathlockd.v1`, as the protocol file defines them.
pub use tenure_wire::v1 as messages;
