//! Parallel requests: procedures that do not depend on each other advance together, and the current
//! requests of all of them are one [`StoreOp::Batch`].
//!
//! A procedure with parts asks each of them in `next` and passes the results on in `answer`, in the
//! same order. A part that has ended asks for nothing.

use super::{OpResult, Procedure, ProcedureStep, StoreOp};
use crate::time::Now;

/// A procedure that runs beside others.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Part<P, End> {
    /// The procedure, and how many operations of the current request are its own.
    Going(P, usize),
    Done(End),
}

/// The results of a request that are not passed on yet.
pub(super) type Answers = std::vec::IntoIter<OpResult>;

impl<P: Procedure<End = End>, End> Part<P, End> {
    pub(super) fn new(procedure: P) -> Part<P, End> {
        Part::Going(procedure, 0)
    }

    /// Adds the operations of this part to the request.
    pub(super) fn ask(&mut self, request: &mut Vec<StoreOp>, now: Now) {
        if let Part::Going(procedure, asked) = self {
            let ops = procedure.next(now).into_parts();
            *asked = ops.len();
            request.extend(ops);
        }
    }

    /// Takes the results of this part.
    pub(super) fn answer(&mut self, answers: &mut Answers, now: Now) {
        let Part::Going(procedure, asked) = self else {
            return;
        };
        let own = answers.take(std::mem::take(asked)).collect();
        if let ProcedureStep::Done(end) = procedure.answer(OpResult::batch(own), now) {
            *self = Part::Done(end);
        }
    }

    /// Returns the result, if the part has ended.
    pub(super) fn end(self) -> Option<End> {
        match self {
            Part::Going(..) => None,
            Part::Done(end) => Some(end),
        }
    }

    pub(super) fn is_done(&self) -> bool {
        matches!(self, Part::Done(_))
    }
}
