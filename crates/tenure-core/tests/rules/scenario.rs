//! `Scenario`: translates script lines into calls of the space's API, and its answers into words.
//!
//! Every scenario also runs the naive model, so each line is checked against both.

use tenure_core::command::Selection;
use tenure_core::event::EventKind;
use tenure_core::limits::QuotaScope;
use tenure_core::outcome::{
    AcquireOutcome, Applied, BreakOutcome, Conflict, Outcome, Refusal, Withdrawn,
};
use tenure_core::path::{Namespace, Path};
use tenure_core::policy::{BlockReason, Missing, Reason};
use tenure_core::query::FenceCheck;
use tenure_core::space::SpaceLimits;
use tenure_core::value::{Fence, OwnerId};

use crate::cluster_state::owner_id;
use crate::model_comparison::ModelPair;
use crate::step::{self, Step, algorithm_name, mode_name, mode_of};

/// A space, its model, a namespace table and a clock.
pub(crate) struct Scenario {
    pub(crate) pair: ModelPair,
}

impl Scenario {
    pub(crate) fn new() -> Scenario {
        Scenario {
            pair: ModelPair::new(),
        }
    }

    /// A space with small limits, without the model, which has none.
    pub(crate) fn with(limits: SpaceLimits) -> Scenario {
        Scenario {
            pair: ModelPair::alone(limits),
        }
    }

    /// Runs one line of a script: a step (`acquire amy write t:/a -> granted`) or a query
    /// (`? alive amy -> yes`).
    #[track_caller]
    pub(crate) fn line(&mut self, line: &str) {
        if let Err(why) = self.try_line(line) {
            panic!("{line}\n{why}");
        }
    }

    /// Runs several lines.
    #[track_caller]
    pub(crate) fn lines(&mut self, lines: &str) {
        for line in lines.lines() {
            self.line(line);
        }
    }

    pub(crate) fn try_line(&mut self, line: &str) -> Result<(), String> {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            return Ok(());
        }
        let (what, expected) = match line.split_once("->") {
            Some((what, expected)) => (what.trim(), Some(expected.trim())),
            None => (line, None),
        };
        let found = self.say(what)?;
        match expected {
            None => Ok(()),
            Some(expected) if meets(&found, expected) => Ok(()),
            Some(_) => Err(format!("  found: {found}")),
        }
    }

    /// Executes a step or a query and describes the result.
    pub(crate) fn say(&mut self, what: &str) -> Result<String, String> {
        if let Some(question) = what.strip_prefix('?') {
            return self.answer(question.trim());
        }
        if what == "snapshot" {
            self.pair.through_a_snapshot()?;
            return Ok("done".into());
        }
        if let Some(rest) = what.strip_prefix("policy ") {
            let (root, row) = rest.split_once(' ').ok_or("policy of what?")?;
            self.take(&Step::Freeze { root: root.into() })?;
            return self.take(&step::parse(&format!("decide {}", row.trim()))?);
        }
        self.take(&step::parse(what)?)
    }

    fn take(&mut self, step: &Step) -> Result<String, String> {
        match self.pair.take(step)? {
            Some(applied) => Ok(describe(&applied)),
            None if matches!(step, Step::Later(_) | Step::Forget) => Ok("done".into()),
            None => Err(format!("not possible now: {step}")),
        }
    }

    fn answer(&self, question: &str) -> Result<String, String> {
        let words: Vec<&str> = question.split_whitespace().collect();
        let (space, model) = (&self.pair.space, &self.pair.model);
        let now = self.pair.world.time;
        let place = |path: &str| -> (Namespace, Path) {
            let path = Path::parse(path).unwrap();
            (self.pair.world.table.namespace_of(&path), path)
        };
        Ok(match words.as_slice() {
            ["holders", path] => {
                let (namespace, path) = place(path);
                let seen = space.inspect(&namespace, &path, now);
                self.pair
                    .agree(&seen, &model.at(now).inspect(&namespace, &path))?;
                let mut said = format!(
                    "writer={} readers={} permits={} waiters={}",
                    names(&seen.writer.into_iter().collect::<Vec<_>>()),
                    names(&seen.readers),
                    names(&seen.permit_holders),
                    seen.waiters,
                );
                said += &seen
                    .fence
                    .map_or(" nofence".into(), |fence| format!(" fence={fence}"));
                said
            }
            ["assert", owner, path, fence] => {
                let (namespace, path) = place(path);
                let fence = Fence::from_number(fence.parse().unwrap()).unwrap();
                let owner = owner_id(owner);
                let found = space.assert_fencing(&namespace, &owner, &path, fence);
                self.pair
                    .agree(&found, &model.check_fence(&namespace, &owner, &path, fence))?;
                match found {
                    FenceCheck::Valid => "valid".into(),
                    FenceCheck::StaleOwner => "stale_owner".into(),
                    FenceCheck::StaleFence { current } => format!("stale_fence current={current}"),
                }
            }
            ["alive", owner, domains @ ..] => {
                let selection = self.selection(domains);
                let alive = space.owner_alive(&owner_id(owner), &selection, now);
                self.pair.agree(
                    &alive,
                    &model.at(now).is_alive(&owner_id(owner), &selection),
                )?;
                yes(alive)
            }
            ["locks", owner, domains @ ..] => {
                let selection = self.selection(domains);
                let found = space.owner_locks(&owner_id(owner), &selection);
                let mut locks: Vec<String> = found
                    .locks
                    .iter()
                    .map(|lock| format!("{}:{}", mode_name(lock.mode), lock.path))
                    .collect();
                locks.sort();
                let life = if found.alive { "alive" } else { "dead" };
                format!("{life} {}", locks.join(" "))
            }
            ["blocking", owner, path, reason] => {
                let (namespace, path) = place(path);
                let reason = block_reason(reason).ok_or("no such reason")?;
                let owner = owner_id(owner);
                let found = space.is_blocking(&namespace, &owner, &path, reason, now);
                self.pair.agree(
                    &found,
                    &model.at(now).is_blocking(&namespace, &owner, &path, reason),
                )?;
                yes(found)
            }
            ["waits", owner] => {
                let waits = space.waits_for(&owner_id(owner), now);
                let mut owners: Vec<OwnerId> =
                    waits.into_iter().flat_map(|waits| waits.owners).collect();
                owners.sort();
                format!("for={}", names(&owners))
            }
            ["explain", owner, mode, path] => {
                let mode = mode_of(mode).ok_or("no such mode")?;
                let (_, path) = place(path);
                let route = self.pair.world.table.resolve(&path);
                let owner = owner_id(owner);
                let found = space.explain(&route, &owner, &path, mode, now);
                self.pair
                    .agree(&found, &model.at(now).explain(&route, &owner, &path, mode))?;
                let blockers: Vec<OwnerId> = found
                    .blockers
                    .iter()
                    .map(|blocker| blocker.owner.clone())
                    .collect();
                let ahead: Vec<OwnerId> = found
                    .ahead
                    .iter()
                    .map(|waiter| waiter.owner.clone())
                    .collect();
                let verdict = match &found.conflict {
                    None => "free".into(),
                    Some(conflict) => describe_conflict(conflict),
                };
                format!(
                    "{verdict} namespace={} algorithm={} blockers={} ahead={} place={}",
                    found.namespace,
                    algorithm_name(found.algorithm),
                    names(&blockers),
                    names(&ahead),
                    found.position,
                )
            }
            ["lease", owner, namespace] => {
                let namespace = Namespace::parse(namespace).unwrap();
                match space.lease(&namespace, &owner_id(owner)) {
                    None => "none".into(),
                    Some(lease) => {
                        let asked = if lease.asked_until > now {
                            "asked"
                        } else {
                            "unasked"
                        };
                        format!("ttl={} cover={} {asked}", lease.ttl.millis(), lease.cover)
                    }
                }
            }
            ["standing", owner] => {
                let events = space.standing_grants(&owner_id(owner), now);
                let fences: Vec<String> = events
                    .iter()
                    .filter_map(|event| match event.kind {
                        EventKind::Grant { fence } => {
                            Some(fence.map_or("none".into(), |fence| fence.to_string()))
                        }
                        EventKind::Killed | EventKind::Revoke => None,
                    })
                    .collect();
                format!("grants={}", fences.join(","))
            }
            ["count"] => {
                let counts = space.counts();
                format!(
                    "claims={} leases={} waiters={} answers={} marks={}",
                    counts.claims, counts.leases, counts.waiters, counts.answers, counts.marks
                )
            }
            _ => return Err(format!("no such question: {question}")),
        })
    }

    fn selection(&self, domains: &[&str]) -> Selection {
        let domains: Vec<String> = domains.iter().map(|domain| domain.to_string()).collect();
        self.pair.world.selection(&domains)
    }
}

/// Whether a result meets the expectation. Words of the answer may be omitted, events may not.
fn meets(found: &str, expected: &str) -> bool {
    let parts = |text: &str| -> (Vec<String>, Vec<String>) {
        let mut parts = text.split(',').map(|part| part.trim().to_string());
        let words = parts.next().unwrap_or_default();
        let mut events: Vec<String> = parts.collect();
        events.sort();
        (words.split_whitespace().map(String::from).collect(), events)
    };
    // Lists of names contain commas too, but without a space after them.
    let glue = |text: &str| {
        text.replace(", ", "\n")
            .replace(',', ";")
            .replace('\n', ", ")
    };
    let (found_words, found_events) = parts(&glue(found));
    let (words, events) = parts(&glue(expected));
    let events_match = events.len() == found_events.len()
        && events.iter().zip(&found_events).all(|(wanted, found)| {
            // `grants amy` also matches `grants amy fence=3`.
            found == wanted
                || found
                    .strip_prefix(wanted.as_str())
                    .is_some_and(|rest| rest.starts_with(' '))
        });
    words.iter().all(|word| found_words.contains(word)) && events_match
}

fn yes(answer: bool) -> String {
    if answer { "yes" } else { "no" }.into()
}

fn names(owners: &[OwnerId]) -> String {
    let names: Vec<&str> = owners.iter().map(OwnerId::as_str).collect();
    if names.is_empty() {
        "-".into()
    } else {
        names.join(",")
    }
}

/// Describes the result of a command: the answer, then each event after a comma.
pub(crate) fn describe(applied: &Applied) -> String {
    let mut said = describe_outcome(&applied.outcome);
    for event in &applied.events {
        said += &match event.kind {
            EventKind::Grant { fence: Some(fence) } => {
                format!(", grants {} fence={fence}", event.owner)
            }
            EventKind::Grant { fence: None } => format!(", grants {}", event.owner),
            EventKind::Killed => format!(", kills {}", event.owner),
            EventKind::Revoke => format!(", asks {}", event.owner),
        };
    }
    said
}

fn describe_outcome(outcome: &Outcome) -> String {
    let fence_word = |fence: &Option<Fence>| match fence {
        Some(fence) => format!(" fence={fence}"),
        None => " nofence".into(),
    };
    match outcome {
        Outcome::Acquire(AcquireOutcome::Granted { fence }) => {
            format!("granted{}", fence_word(fence))
        }
        Outcome::Acquire(AcquireOutcome::Queued(queued)) => format!(
            "queued place={} {}{}",
            queued.position,
            describe_conflict(&queued.conflict),
            fence_word(&queued.fence)
        ),
        Outcome::Acquire(AcquireOutcome::Conflict(conflict)) => {
            format!("conflict {}", describe_conflict(conflict))
        }
        Outcome::Acquire(AcquireOutcome::Lost { path, missing }) => {
            let path = path.as_ref().map_or("-".into(), Path::to_string);
            format!("lost missing={} at={path}", missing_name(*missing))
        }
        Outcome::Acquire(AcquireOutcome::Refused(refusal)) | Outcome::Release(Err(refusal)) => {
            format!("refused why={}", refusal_name(*refusal))
        }
        Outcome::Break(outcome) => match &**outcome {
            BreakOutcome::Broken => "broken".into(),
            BreakOutcome::NotThatHold(holder) => {
                let holder = holder.as_ref();
                let holder = holder.map_or("-".into(), |holder| holder.owner.to_string());
                format!("not_that_hold now={holder}")
            }
            BreakOutcome::Refused(refusal) => format!("refused why={}", refusal_name(*refusal)),
        },
        Outcome::Release(Ok(())) => "ok".into(),
        Outcome::Touched(count) => format!("ok touched={count}"),
        Outcome::Renew(Ok(renewed)) => {
            format!(
                "renewed {}",
                if renewed.asked { "asked" } else { "unasked" }
            )
        }
        Outcome::Renew(Err(missing)) => format!("lost missing={}", missing_name(*missing)),
        Outcome::Expired(true) => "expired".into(),
        Outcome::Expired(false) => "kept".into(),
        Outcome::Withdraw(Withdrawn::Withdrawn) => "withdrawn".into(),
        Outcome::Withdraw(Withdrawn::Granted { fence }) => format!("granted{}", fence_word(fence)),
        Outcome::Withdraw(Withdrawn::Gone) => "gone".into(),
        Outcome::Frozen(report) => {
            let live = match &report.live {
                Some((path, owner)) => format!("live={path} by={owner}"),
                None => "live=-".into(),
            };
            format!(
                "frozen {live} highest={}",
                report.highest.map_or(0, Fence::number)
            )
        }
        Outcome::Done => "done".into(),
    }
}

fn describe_conflict(conflict: &Conflict) -> String {
    let mut said = format!("why={} at={}", reason_name(conflict.reason), conflict.path);
    match conflict.reason {
        Reason::StaleFence { current } => said += &format!(" current={current}"),
        Reason::InvalidPermits { capacity } => {
            said += &format!(" capacity={}", capacity.map_or(0, |number| number.get()));
        }
        _ => {}
    }
    match &conflict.blocker {
        None => said += " behind=-",
        Some(blocker) => {
            said += &format!(
                " behind={} mode={} for={}ms",
                blocker.owner,
                mode_name(blocker.mode),
                blocker.held_ms
            );
            if let Some(fence) = blocker.fence {
                said += &format!(" its_fence={fence}");
            }
            if let Some(holder) = &blocker.holder {
                said += &format!(" holder={}", holder.name);
            }
        }
    }
    said
}

pub(crate) fn reason_name(reason: Reason) -> &'static str {
    match reason {
        Reason::AncestorLocked => "ancestor_locked",
        Reason::WriteLocked => "write_locked",
        Reason::ReadLocked => "read_locked",
        Reason::DescendantWriteLocked => "descendant_write_locked",
        Reason::DescendantReadLocked => "descendant_read_locked",
        Reason::SemaphoreFull => "semaphore_full",
        Reason::Queued => "queued",
        Reason::ReadLocksDisabled => "read_locks_disabled",
        Reason::StaleFence { .. } => "stale_fence",
        Reason::InvalidPermits { .. } => "invalid_permits",
    }
}

fn block_reason(word: &str) -> Option<BlockReason> {
    Some(match word {
        "ancestor_locked" => BlockReason::AncestorLocked,
        "write_locked" => BlockReason::WriteLocked,
        "read_locked" => BlockReason::ReadLocked,
        "descendant_write_locked" => BlockReason::DescendantWriteLocked,
        "descendant_read_locked" => BlockReason::DescendantReadLocked,
        "semaphore_full" => BlockReason::SemaphoreFull,
        "queued" => BlockReason::Queued,
        _ => return None,
    })
}

fn missing_name(missing: Missing) -> &'static str {
    match missing {
        Missing::Alive => "alive",
        Missing::Write => "write",
        Missing::Read => "read",
        Missing::Semaphore => "semaphore",
        Missing::Fence => "fence",
        Missing::OwnerSet => "owner_set",
    }
}

fn refusal_name(refusal: Refusal) -> String {
    match refusal {
        Refusal::Outdated { version } => format!("outdated version={version}"),
        Refusal::Frozen { change } => format!("frozen change={change}"),
        Refusal::KeyReused => "key_reused".into(),
        Refusal::AnswersFull => "answers_full".into(),
        Refusal::QueueFull => "queue_full".into(),
        Refusal::Quota {
            scope,
            limit,
            value,
        } => {
            let scope = match scope {
                QuotaScope::Own => "own",
                QuotaScope::Total => "total",
            };
            format!("quota {scope} {}={value}", limit.name())
        }
        Refusal::FencesUsedUp => "fences_used_up".into(),
        Refusal::Moved { version } => format!("moved version={version}"),
    }
}
