//! Linearizability checker: depth-first search for an order of the calls that a sequential object
//! allows (Wing and Gong), which remembers the pairs of executed calls and state that led nowhere
//! (Lowe).
//!
//! A call takes effect at one moment between its sending and its answer. A call without an answer takes
//! effect at any later moment, or never. The search is exact; its cost grows with the number of calls
//! that overlap, so histories are short.

use std::collections::HashSet;
use std::hash::Hash;
use std::time::Instant;

/// A sequential object.
pub(crate) trait Sequential {
    type State: Clone + Default + Eq + Hash;
    type Call: std::fmt::Debug;

    /// Returns the state after a call with its answer; `None` if the object cannot answer so.
    fn next(state: &Self::State, call: &Self::Call) -> Option<Self::State>;
}

/// One call with its answer, as its client saw it.
#[derive(Debug)]
pub(crate) struct Operation<C> {
    pub(crate) call: C,
    pub(crate) sent: Instant,
    /// `None`: it was never answered.
    pub(crate) answered: Option<Instant>,
}

/// Whether a set of calls was executed: one bit each.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Executed(Vec<u64>);

impl Executed {
    fn has(&self, at: usize) -> bool {
        self.0[at / 64] & (1 << (at % 64)) != 0
    }

    fn with(&self, at: usize) -> Executed {
        let mut more = self.clone();
        more.0[at / 64] |= 1 << (at % 64);
        more
    }
}

/// Searches for an order. Returns the longest part of a history that has one as an error.
pub(crate) fn check<S: Sequential>(history: &[Operation<S::Call>]) -> Result<(), String> {
    let none = Executed(vec![0; history.len().div_ceil(64)]);
    let mut seen = HashSet::new();
    let mut stack = vec![(none, S::State::default())];
    let mut longest = (0, Vec::new());
    while let Some((executed, state)) = stack.pop() {
        if !seen.insert((executed.clone(), state.clone())) {
            continue;
        }
        let open = || (0..history.len()).filter(|at| !executed.has(*at));
        // A call may come next if no other open call was answered before it was sent.
        let first_answer = open().filter_map(|at| history[at].answered).min();
        let Some(first_answer) = first_answer else {
            return Ok(());
        };
        let done = history.len() - open().count();
        if done >= longest.0 {
            let stuck = open().filter(|at| history[*at].sent <= first_answer);
            longest = (done, stuck.collect());
        }
        for at in open().filter(|at| history[*at].sent <= first_answer) {
            if let Some(after) = S::next(&state, &history[at].call) {
                stack.push((executed.with(at), after));
            }
        }
    }
    let stuck = longest.1.iter().map(|at| format!("{:?}", history[*at]));
    Err(format!(
        "{} of {} calls have an order; none of these can be next:\n{}\nthe whole history:\n{history:#?}",
        longest.0,
        history.len(),
        stuck.collect::<Vec<_>>().join("\n")
    ))
}

/// A lock with a fence. Leases are longer than the test.
pub(crate) struct Lock;

#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct LockState {
    holder: Option<String>,
    /// The highest fence that is known to be granted.
    fence: i64,
}

#[derive(Debug)]
pub(crate) enum LockCall {
    /// An acquire. The fence is unknown if it was never answered.
    Granted {
        owner: String,
        fence: Option<i64>,
    },
    /// An acquire that found another holder.
    Refused {
        owner: String,
    },
    Released {
        owner: String,
    },
    /// A read of the holder and the highest fence.
    Seen {
        holder: Option<String>,
        fence: i64,
    },
}

impl Sequential for Lock {
    type State = LockState;
    type Call = LockCall;

    fn next(state: &LockState, call: &LockCall) -> Option<LockState> {
        match call {
            LockCall::Granted { owner, fence } => {
                let is_free = state.holder.is_none();
                let rises = fence.is_none_or(|fence| fence > state.fence);
                (is_free && rises).then(|| LockState {
                    holder: Some(owner.clone()),
                    fence: fence.unwrap_or(state.fence),
                })
            }
            LockCall::Refused { owner } => {
                let holder = state.holder.as_ref();
                holder.filter(|holder| *holder != owner)?;
                Some(state.clone())
            }
            LockCall::Released { owner } => {
                (state.holder.as_ref() == Some(owner)).then_some(LockState {
                    holder: None,
                    fence: state.fence,
                })
            }
            LockCall::Seen { holder, fence } => (state.holder == *holder && *fence >= state.fence)
                .then(|| LockState {
                    holder: holder.clone(),
                    fence: *fence,
                }),
        }
    }
}

/// The policy of a namespace: a register.
pub(crate) struct PolicyRegister;

#[derive(Debug)]
pub(crate) enum PolicyCall {
    Set(i32),
    /// `None`: the namespace has no row.
    Got(Option<i32>),
}

impl Sequential for PolicyRegister {
    type State = Option<i32>;
    type Call = PolicyCall;

    fn next(state: &Option<i32>, call: &PolicyCall) -> Option<Option<i32>> {
        match call {
            PolicyCall::Set(policy) => Some(Some(*policy)),
            PolicyCall::Got(policy) => (policy == state).then_some(*state),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A history from calls with the milliseconds of sending and answer.
    fn history<C>(calls: impl IntoIterator<Item = (u64, Option<u64>, C)>) -> Vec<Operation<C>> {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let calls = calls.into_iter().map(|(sent, answered, call)| Operation {
            call,
            sent: at(sent),
            answered: answered.map(at),
        });
        calls.collect()
    }

    fn granted(owner: &str, fence: i64) -> LockCall {
        LockCall::Granted {
            owner: owner.into(),
            fence: Some(fence),
        }
    }

    fn released(owner: &str) -> LockCall {
        LockCall::Released {
            owner: owner.into(),
        }
    }

    fn seen(holder: Option<&str>, fence: i64) -> LockCall {
        LockCall::Seen {
            holder: holder.map(Into::into),
            fence,
        }
    }

    #[test]
    fn calls_that_overlap_may_take_effect_in_any_order() {
        let calls = history([
            (0, Some(10), granted("amy", 1)),
            (11, Some(40), granted("bob", 2)),
            (12, Some(30), released("amy")),
            (35, Some(50), seen(Some("bob"), 2)),
        ]);
        assert_eq!(check::<Lock>(&calls), Ok(()));
    }

    #[test]
    fn two_holders_a_repeated_fence_and_a_stale_read_have_no_order() {
        for wrong in [
            granted("bob", 2),
            seen(None, 1),
            seen(Some("bob"), 1),
            seen(Some("amy"), 0),
        ] {
            let calls = history([(0, Some(10), granted("amy", 1)), (11, Some(20), wrong)]);
            assert!(check::<Lock>(&calls).is_err());
        }
        let calls = history([
            (0, Some(10), granted("amy", 2)),
            (11, Some(20), released("amy")),
            (21, Some(30), granted("bob", 2)),
        ]);
        assert!(check::<Lock>(&calls).is_err());
    }

    /// A release that is carried out again after its answer leaves a read that nothing explains.
    #[test]
    fn a_release_takes_effect_once() {
        let calls = history([
            (0, Some(10), granted("amy", 1)),
            (11, Some(20), released("amy")),
            (21, Some(30), granted("amy", 2)),
            (40, Some(50), seen(None, 2)),
        ]);
        assert!(check::<Lock>(&calls).is_err());
    }

    #[test]
    fn a_call_without_an_answer_takes_effect_late_or_never() {
        let unanswered = || LockCall::Granted {
            owner: "amy".into(),
            fence: None,
        };
        for (holder, fence) in [(None, 0), (Some("amy"), 7)] {
            let calls = history([(0, None, unanswered()), (90, Some(99), seen(holder, fence))]);
            assert_eq!(check::<Lock>(&calls), Ok(()));
        }
        let calls = history([
            (0, None, unanswered()),
            (90, Some(99), seen(Some("bob"), 1)),
        ]);
        assert!(check::<Lock>(&calls).is_err());
    }

    /// A policy that its first node sets again, after a later one was acknowledged.
    #[test]
    fn a_policy_is_set_once() {
        let mut calls = vec![
            (0, Some(10), PolicyCall::Set(1)),
            (11, Some(20), PolicyCall::Set(3)),
            (21, Some(30), PolicyCall::Got(Some(3))),
        ];
        assert_eq!(check::<PolicyRegister>(&history(calls.drain(..))), Ok(()));
        let again = history([
            (0, Some(10), PolicyCall::Set(1)),
            (11, Some(20), PolicyCall::Set(3)),
            (21, Some(30), PolicyCall::Got(Some(1))),
        ]);
        assert!(check::<PolicyRegister>(&again).is_err());
    }
}
