//! A store: whatever can do one [`Op`] and say what came of it.

use std::future::Future;
use std::pin::Pin;

use crate::judge::Life;
use crate::record::{Block, Record};
use crate::steps::{Answer, Op};
use tenure_files::identity::{Here, Identity, Token};
use tenure_files::liveness::{Proof, Verdict, verdict_without_lock};

/// A future that owns what it needs.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A place where repository locks can lie.
///
/// An implementation does what the operation says, once, without retries and without a cache, and
/// answers honestly: what it does not know is [`Answer::Failed`], never [`Answer::Absent`]. It is
/// never asked to wait.
pub trait Store: Send + Sync {
    /// Does one operation.
    fn perform(&self, op: Op) -> BoxFuture<'_, Answer>;

    /// What is said about this process in a record that lies here (K6).
    fn block(&self) -> Block;
}

/// This process, as records describe it.
pub(crate) fn own_block() -> Block {
    let own = Identity::own(Token::random(), false);
    Block {
        pid: own.pid,
        start: own.start,
        boot: own.boot,
        pidns: own.pidns,
        host: own.host,
        ..Block::default()
    }
}

/// What this machine can say about the holder of an object that has no descriptor (K11–K14).
pub(crate) fn life_of(record: &Record) -> Life {
    match &record.tenure {
        None => Life::Unknown,
        Some(block) => life(verdict_without_lock(&block.identity(), false, &Here::now())),
    }
}

/// A verdict in the words of the judge.
pub(crate) fn life(verdict: Verdict) -> Life {
    match verdict {
        Verdict::Alive(Proof::KernelLock) => Life::Locked,
        Verdict::Alive(_) => Life::Alive,
        Verdict::Dead(_) => Life::Dead,
        Verdict::Unknown(_) => Life::Unknown,
    }
}
