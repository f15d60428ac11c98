//! Explain: whether an acquire would succeed now, and what blocks it otherwise (E7: Explain a lock
//! request).

use tenure_core::query::WaiterView;
use tenure_node::{Answer, ClientRequest};
use tenure_wire::v1;

use super::deadlock::names;
use super::mismatch;
use crate::auth::Caller;
use crate::convert;
use crate::rpc::Outcome;
use crate::status::Failure;

/// Parses an Explain of one path, mode and owner.
pub(crate) fn explain(
    caller: &Caller,
    request: v1::ExplainRequest,
) -> Result<ClientRequest, Failure> {
    Ok(ClientRequest::Explain {
        path: convert::path(&request.path)?,
        mode: convert::mode(request.mode)?,
        owner: caller.other_owner(&request.owner_id)?,
    })
}

pub(crate) fn explained(outcome: Outcome<'_>) -> Result<v1::ExplainResponse, Failure> {
    let (answer, caller) = match outcome.open()? {
        (Answer::Explain(answer), caller) => (*answer, caller),
        (other, _) => return Err(mismatch(&other)),
    };
    let explanation = answer.explanation;
    let waits_for = |owner| {
        let found = answer.waits.iter().find(|(waiter, _)| waiter == owner);
        found.map_or_else(Vec::new, |(_, owners)| names(caller, owners))
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
                waits_for: match caller.sees(&blocker.path) {
                    true => waits_for(&blocker.owner),
                    false => Vec::new(),
                },
                blocker: Some(convert::blocker_out(
                    caller,
                    blocker,
                    answer.left.get(at).copied().flatten(),
                )),
            })
            .collect(),
        waiters_ahead: explanation
            .ahead
            .iter()
            .map(|ahead| waiter(caller, ahead))
            .collect(),
        cycle: names(caller, &answer.cycle),
        namespace: explanation.namespace.as_str().to_owned(),
        algorithm: convert::algorithm_number(explanation.algorithm),
        rule: "R45".to_owned(),
    })
}

fn waiter(caller: &Caller, waiter: &WaiterView) -> v1::Blocker {
    if !caller.sees(&waiter.path) {
        return convert::hidden();
    }
    v1::Blocker {
        owner: caller.shown(&waiter.owner).into_owned(),
        holder: waiter.holder.as_ref().map(convert::holder_out),
        held_ms: waiter.waited_ms,
        mode: convert::mode_number(waiter.mode),
        path: waiter.path.as_str().to_owned(),
        ..Default::default()
    }
}
