//! The [`Store`] trait: performs one [`StoreOp`] at a time and reports the result.

use std::future::Future;
use std::pin::Pin;

use crate::protocol::{OpResult, StoreOp};
use crate::record::HolderBlock;
use crate::staleness::ProcessLiveness;
use tenure_files::{Identity, Token};
use tenure_files::{Proof, Verdict};

/// A boxed future.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A backend that stores repository locks.
///
/// An implementation performs each operation once, without retries and without a cache. An unknown
/// outcome is [`OpResult::Failed`], never [`OpResult::Absent`]. The driver performs
/// [`StoreOp::WaitUntil`] itself, and calls `perform` for every part of a [`StoreOp::Batch`], all
/// at the same time.
pub trait Store: Send + Sync {
    /// Performs one operation.
    fn perform(&self, op: StoreOp) -> BoxFuture<'_, OpResult>;

    /// Returns the description of this process for records in this store (K6 (the `tenure` block)).
    fn block(&self) -> HolderBlock;
}

/// Describes this process.
pub(crate) fn own_block() -> HolderBlock {
    let own = Identity::own(Token::random(), false);
    HolderBlock {
        pid: own.pid,
        start: own.start,
        boot: own.boot,
        pidns: own.pidns,
        host: own.host,
        ..HolderBlock::default()
    }
}

/// Translates a verdict about a lock file's holder into a [`ProcessLiveness`].
pub(crate) fn liveness(verdict: Verdict) -> ProcessLiveness {
    match verdict {
        Verdict::Alive(Proof::KernelLock) => ProcessLiveness::Locked,
        Verdict::Alive(_) => ProcessLiveness::Alive,
        Verdict::Dead(_) => ProcessLiveness::Dead,
        Verdict::Unknown(_) => ProcessLiveness::Unknown,
    }
}
