//! Fixed message texts of the originals, which scripts match (P39 (fixed texts of the original),
//! P40 (break output of the original)). Every value is escaped, so that a record cannot send
//! control characters to a terminal.

use std::fmt::Write;

use tenure_files::internal::printable;

use crate::key::ObjectKey;
use crate::lock_terms::LockMode;
use crate::protocol::BlockingObject;
use crate::record::LockRecord;
use crate::staleness::ObjectContent;
use tenure_files::internal::HumanDuration;

/// Returns the message of a refused request, in the words of the originals (P39).
pub fn refused(wanted: LockMode, blocker: &BlockingObject) -> String {
    let Some(record) = blocker.object.record() else {
        return unreadable(blocker);
    };
    let Shown {
        holder,
        operation,
        acquired,
        expires,
    } = Shown::of(record);
    match (wanted, &blocker.key) {
        (LockMode::Exclusive, ObjectKey::Shared(_)) => format!(
            "cannot acquire exclusive lock: repository is locked (shared) by {holder} \
             (operation: {operation})"
        ),
        (LockMode::Exclusive, _) => format!(
            "repository is locked by {holder} (operation: {operation}, acquired: {acquired}, \
             expires: {expires})"
        ),
        (LockMode::Shared, _) => {
            format!("repository is exclusively locked by {holder} (operation: {operation})")
        }
    }
}

/// Returns the message of a lost race, in the words of the originals (P39).
pub fn lost_race(wanted: LockMode, blocker: &BlockingObject) -> String {
    let Some(record) = blocker.object.record() else {
        return unreadable(blocker);
    };
    let Shown {
        holder, operation, ..
    } = Shown::of(record);
    match wanted {
        LockMode::Exclusive => {
            format!("repository is locked by {holder} (operation: {operation}) — lost lock race")
        }
        LockMode::Shared => {
            format!("repository was exclusively locked by {holder} while acquiring shared lock")
        }
    }
}

/// Returns the message of a status check that finds an exclusive lock (P39).
pub fn status(blocker: &BlockingObject) -> String {
    let Some(record) = blocker.object.record() else {
        return unreadable(blocker);
    };
    let Shown {
        holder, operation, ..
    } = Shown::of(record);
    format!(
        "repository is exclusively locked by {holder} (operation: {operation}) — try again later"
    )
}

/// Returns the message for an unreadable lock object, with size and age (P37 (break repository
/// locks)).
pub fn unreadable(blocker: &BlockingObject) -> String {
    let bytes = match &blocker.object.content {
        ObjectContent::Unreadable { bytes, .. } => *bytes,
        ObjectContent::Record(_) | ObjectContent::Fence(_) => 0,
    };
    let age = match (blocker.object.modified, blocker.object.store_now) {
        (Some(modified), Some(now)) => HumanDuration(crate::time::span(modified, now)).to_string(),
        (_, None) | (None, _) => "unknown".into(),
    };
    format!("repository is locked by an unreadable record: unreadable, {bytes} bytes, age {age}")
}

/// Returns the output of `break-lock` for the removed locks (P40).
pub fn removed(locks: &[BlockingObject]) -> String {
    if locks.is_empty() {
        return "No locks found: the repository is not locked.\n".into();
    }
    let mut text = String::from("Locks removed:\n");
    for lock in locks {
        match lock.object.record() {
            Some(record) => {
                let Shown {
                    holder,
                    operation,
                    acquired,
                    expires,
                } = Shown::of(record);
                let shared = record.is_shared;
                let _ = write!(
                    text,
                    "  Operation: {operation}\n  Holder: {holder}\n  Acquired: {acquired}\n  \
                     Expired at: {expires}\n  Shared: {shared}\n"
                );
            }
            None => {
                let _ = writeln!(text, "  {}", unreadable(lock));
            }
        }
    }
    text
}

/// Returns the output of `break-lock` as one JSON object (P40). Unreadable locks are not in it.
pub fn removed_json(locks: &[BlockingObject]) -> String {
    let records: Vec<_> = locks
        .iter()
        .filter_map(|lock| lock.object.record())
        .collect();
    if records.is_empty() {
        return r#"{"locks":null}"#.into();
    }
    let records: Vec<_> = records.into_iter().map(LockRecord::to_json).collect();
    format!(r#"{{"locks":[{}]}}"#, records.join(","))
}

/// The values of a record, escaped for printing.
struct Shown {
    holder: String,
    operation: String,
    acquired: String,
    expires: String,
}

impl Shown {
    fn of(record: &LockRecord) -> Shown {
        Shown {
            holder: printable(&record.holder),
            operation: printable(&record.operation),
            acquired: printable(&record.acquired_at),
            expires: printable(&record.expires_at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::staleness::{HeldReason, Object, ProcessLiveness, Staleness, Unreadable, Version};

    fn blocker(key: ObjectKey, content: ObjectContent) -> BlockingObject {
        let object = Object {
            content,
            version: Version::default(),
            modified: "2026-03-07T09:00:00Z".parse().ok(),
            store_now: "2026-03-07T09:00:30Z".parse().ok(),
            liveness: ProcessLiveness::Unknown,
        };
        BlockingObject {
            key,
            object,
            verdict: Staleness::Held(HeldReason::InForce),
        }
    }

    fn record() -> LockRecord {
        LockRecord {
            operation: "prune".into(),
            holder: "atlas-3 (pid 40217)".into(),
            acquired_at: "2026-03-07T09:00:00Z".into(),
            expires_at: "2026-03-07T09:01:00Z".into(),
            is_shared: false,
            tenure: None,
        }
    }

    /// P39: the fixed texts.
    #[test]
    fn the_fixed_texts_are_fixed() {
        let exclusive = blocker(ObjectKey::Exclusive, ObjectContent::Record(record()));
        let shared = blocker(
            ObjectKey::Shared("x".into()),
            ObjectContent::Record(record()),
        );
        assert_eq!(
            refused(LockMode::Exclusive, &exclusive),
            "repository is locked by atlas-3 (pid 40217) (operation: prune, \
             acquired: 2026-03-07T09:00:00Z, expires: 2026-03-07T09:01:00Z)"
        );
        assert_eq!(
            refused(LockMode::Exclusive, &shared),
            "cannot acquire exclusive lock: repository is locked (shared) by \
             atlas-3 (pid 40217) (operation: prune)"
        );
        assert_eq!(
            refused(LockMode::Shared, &exclusive),
            "repository is exclusively locked by atlas-3 (pid 40217) (operation: prune)"
        );
        assert_eq!(
            lost_race(LockMode::Exclusive, &exclusive),
            "repository is locked by atlas-3 (pid 40217) (operation: prune) — lost lock race"
        );
        assert_eq!(
            lost_race(LockMode::Shared, &exclusive),
            "repository was exclusively locked by atlas-3 (pid 40217) while acquiring shared lock"
        );
        assert_eq!(
            status(&exclusive),
            "repository is exclusively locked by atlas-3 (pid 40217) (operation: prune) — \
             try again later"
        );
    }

    /// P40: five indented lines per lock, and one JSON object.
    #[test]
    fn a_break_is_reported_as_the_originals_do() {
        assert!(removed(&[]).contains("not locked"));
        assert_eq!(removed_json(&[]), r#"{"locks":null}"#);
        let locks = [blocker(
            ObjectKey::Exclusive,
            ObjectContent::Record(record()),
        )];
        assert_eq!(
            removed(&locks),
            "Locks removed:\n  Operation: prune\n  Holder: atlas-3 (pid 40217)\n  \
             Acquired: 2026-03-07T09:00:00Z\n  Expired at: 2026-03-07T09:01:00Z\n  Shared: false\n"
        );
        assert_eq!(
            removed_json(&locks),
            format!(r#"{{"locks":[{}]}}"#, record().to_json())
        );
    }

    /// P37: an unreadable lock is counted and shown.
    #[test]
    fn an_unreadable_lock_is_shown_with_size_and_age() {
        let why = Unreadable::Opaque;
        let lock = blocker(
            ObjectKey::Exclusive,
            ObjectContent::Unreadable { why, bytes: 140 },
        );
        assert!(unreadable(&lock).ends_with("unreadable, 140 bytes, age 30 s"));
        assert!(removed(&[lock]).contains("140 bytes"));
    }

    /// P39, section 8: control characters are not printed.
    #[test]
    fn control_characters_are_escaped() {
        let nasty = LockRecord {
            operation: "pru\u{1b}[31mne\n".into(),
            ..record()
        };
        let text = refused(
            LockMode::Shared,
            &blocker(ObjectKey::Exclusive, ObjectContent::Record(nasty)),
        );
        assert!(text.chars().all(|c| !c.is_control()), "{text:?}");
    }
}
