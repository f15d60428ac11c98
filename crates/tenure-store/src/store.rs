//! A store: whatever can do one [`StoreOp`] and say what came of it.

use std::future::Future;
use std::pin::Pin;

use crate::protocol::{OpResult, StoreOp};
use crate::record::{HolderBlock, LockRecord};
use crate::staleness::ProcessLiveness;
use tenure_files::identity::{Here, Identity, Token};
use tenure_files::liveness::{Proof, Verdict, verdict_without_lock};

/// A future that owns what it needs.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A place where repository locks can lie.
///
/// An implementation does what the operation says, once, without retries and without a cache, and
/// answers honestly: what it does not know is [`OpResult::Failed`], never [`OpResult::Absent`]. It is
/// never asked to wait.
pub trait Store: Send + Sync {
    /// Does one operation.
    fn perform(&self, op: StoreOp) -> BoxFuture<'_, OpResult>;

    /// What is said about this process in a record that lies here (K6).
    fn block(&self) -> HolderBlock;
}

/// This process, as records describe it.
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

/// What this machine can say about the holder of an object that has no descriptor (K11–K14).
pub(crate) fn followed(record: &LockRecord) -> ProcessLiveness {
    match &record.tenure {
        None => ProcessLiveness::Unknown,
        Some(block) => liveness(verdict_without_lock(&block.identity(), false, &Here::now())),
    }
}

/// A verdict in the words of the judge.
pub(crate) fn liveness(verdict: Verdict) -> ProcessLiveness {
    match verdict {
        Verdict::Alive(Proof::KernelLock) => ProcessLiveness::Locked,
        Verdict::Alive(_) => ProcessLiveness::Alive,
        Verdict::Dead(_) => ProcessLiveness::Dead,
        Verdict::Unknown(_) => ProcessLiveness::Unknown,
    }
}
