//! Explain: whether an acquire would succeed now, and what blocks it otherwise (E7: Explain a lock
//! request).

use tenure_core::query::WaiterView;
use tenure_node::{Answer, ClientRequest};
use tenure_wire::v1;

use super::deadlock::names;
use super::mismatch;
use crate::convert;
use crate::rpc::Outcome;
use crate::status::Failure;

/// Parses an Explain of one path, mode and owner.
pub(crate) fn explain(request: v1::ExplainRequest) -> Result<ClientRequest, Failure> {
    Ok(ClientRequest::Explain {
        path: convert::path(&request.path)?,
        mode: convert::mode(request.mode)?,
        owner: convert::owner(&request.owner_id)?,
    })
}

pub(crate) fn explained(outcome: Outcome<'_>) -> Result<v1::ExplainResponse, Failure> {
    let answer = match outcome.answer? {
        Answer::Explain(answer) => *answer,
        other => return Err(mismatch(&other)),
    };
    let explanation = answer.explanation;
    let waits_for = |owner| {
        let found = answer.waits.iter().find(|(waiter, _)| waiter == owner);
        found.map_or_else(Vec::new, |(_, owners)| names(owners))
    };
    Ok(v1::ExplainResponse {
        free: explanation.conflict.is_none(),
        reason: explanation
            .conflict
            .as_ref()
            .map_or(0, |c| convert::reason_number(c.reason)),
        blockers: explanation
            .blockers
            .iter()
            .enumerate()
            .map(|(at, blocker)| v1::ExplainedBlocker {
                waits_for: waits_for(&blocker.owner),
                blocker: Some(convert::blocker_out(
                    blocker,
                    answer.left.get(at).copied().flatten(),
                )),
            })
            .collect(),
        waiters_ahead: explanation.ahead.iter().map(waiter).collect(),
        cycle: names(&answer.cycle),
        namespace: explanation.namespace.as_str().to_owned(),
        algorithm: convert::algorithm_number(explanation.algorithm),
        rule: "R45".to_owned(),
    })
}

fn waiter(waiter: &WaiterView) -> v1::Blocker {
    v1::Blocker {
        owner: waiter.owner.as_str().to_owned(),
        holder: waiter.holder.as_ref().map(convert::holder_out),
        held_ms: waiter.waited_ms,
        mode: convert::mode_number(waiter.mode),
        path: waiter.path.as_str().to_owned(),
        ..Default::default()
    }
}
