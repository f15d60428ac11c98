//! Interoperability vectors: recorded bytes and the decision that each requires.

use std::path::Path;
use std::time::Duration;

use tenure_files::Class;

use super::AcquireRefusal;
use super::fake_store::{FakeStore, StoreFault};
use crate::envelope::{Codec, DataKey, Seal};
use crate::key::ObjectKey;
use crate::lock_terms::{ConditionLevel, LockMode};
use crate::staleness::{HeldReason, Object, ObjectContent, ProcessLiveness, Staleness, Version};

/// The required decision, the same for exclusive and shared requests.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Decision {
    Held,
    Unreadable,
    Reclaim,
}

use Decision::{Held as H, Reclaim as R, Unreadable as U};

const MINUTES: u64 = 300;
const DAYS: u64 = 90 * 86_400;

/// File, age in seconds by the store's clock, decision.
const TABLE: &[(&str, u64, Decision)] = &[
    ("valid-exclusive.json", 30, H),
    ("valid-shared.json", 30, H),
    ("valid-shared.zst", 30, H),
    ("valid-exclusive.gz", 30, H),
    ("valid-tenure.json", 30, H),
    ("valid-offset.json", 30, H),
    ("valid-nine-digits.json", 30, H),
    ("valid-comma-fraction.json", 30, H),
    ("foreign-host.json", 30, H),
    ("holder-free-text.json", 30, H),
    ("unknown-fields.json", 30, H),
    ("duplicate-fields.json", 30, H),
    ("other-letter-case.json", 30, H),
    ("control-characters.json", 30, H),
    ("future-2999.json", DAYS, H),
    ("stale-exclusive.json", 1200, R),
    ("stale-exclusive.zst", 1200, R),
    ("stale-shared.json", 1200, R),
    ("expired-but-young.json", 10, H),
    ("expired-but-young.json", 600, R),
    ("expired-within-skew.json", 65, H),
    ("empty.json", 10, U),
    ("empty.json", MINUTES, R),
    ("truncated.json", 10, U),
    ("truncated.json", MINUTES, R),
    ("array.json", 10, U),
    ("array.json", MINUTES, R),
    ("bom.json", 10, U),
    ("bom.json", MINUTES, R),
    ("trailing-text.json", 10, U),
    ("trailing-text.json", MINUTES, R),
    ("expires-number.json", 10, U),
    ("expires-number.json", MINUTES, R),
    ("operation-number.json", 10, U),
    ("operation-number.json", MINUTES, R),
    ("shared-flag-text.json", 10, U),
    ("shared-flag-text.json", MINUTES, R),
    ("corrupt.zst", 10, U),
    ("corrupt.zst", MINUTES, R),
    ("null.json", 10, H),
    ("null.json", DAYS, H),
    ("empty-object.json", DAYS, H),
    ("expires-missing.json", DAYS, H),
    ("expires-null.json", DAYS, H),
    ("expires-text.json", DAYS, H),
    ("expires-no-zone.json", DAYS, H),
    ("expires-lower-case.json", DAYS, H),
    ("huge.json", 10, U),
    ("huge.json", MINUTES, R),
    ("bomb.zst", 10, U),
    ("bomb.zst", MINUTES, R),
];

/// The same with and without `key.hex`.
const SEALED: &[(&str, u64, Option<Decision>, Option<Decision>)] = &[
    ("sealed-valid.bin", 30, Some(H), Some(U)),
    ("sealed-valid-uncompressed.bin", 30, Some(H), None),
    ("sealed-stale.bin", 1200, Some(R), Some(R)),
    ("sealed-other-key.bin", 10, Some(U), None),
    ("sealed-other-key.bin", MINUTES, Some(R), None),
    ("sealed-cut.bin", 10, Some(U), None),
    ("sealed-cut.bin", MINUTES, Some(R), None),
];

fn bytes(name: &str) -> Vec<u8> {
    let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/repository");
    std::fs::read(vectors.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn codec() -> Codec {
    Codec::with_key(DataKey::from_bytes(&bytes("key.hex")).unwrap(), Seal::No)
}

/// A store with the file `name` at `key`, `age` seconds old. Both clocks show 2026-03-07T09:00:30Z.
fn fake(name: &str, key: ObjectKey, age: u64, codec: &Codec) -> FakeStore {
    let mut fake = FakeStore::new(ConditionLevel::Deletes);
    let object = Object {
        content: codec.decode_record(&ObjectKey::Exclusive, &bytes(name)),
        version: Version::tag("vector"),
        modified: Some(fake.now.wall - Duration::from_secs(age)),
        store_now: None,
        liveness: ProcessLiveness::Unknown,
    };
    fake.objects.insert(key, object);
    fake
}

fn decide(mut fake: FakeStore, mode: LockMode) -> Decision {
    match fake.acquire(mode, "amy") {
        Ok(_) => Decision::Reclaim,
        Err(refusal) => match refusal.class() {
            Class::Held => Decision::Held,
            Class::Unreadable => Decision::Unreadable,
            other => panic!("{other}: {refusal:?}"),
        },
    }
}

/// P7–P13, P15 (expired records), P20–P24: as the exclusive lock, for both modes of request.
#[test]
fn each_vector_is_decided_as_the_table_says() {
    let codec = Codec::plain();
    for &(name, age, want) in TABLE {
        for mode in [LockMode::Exclusive, LockMode::Shared] {
            let got = decide(fake(name, ObjectKey::Exclusive, age, &codec), mode);
            assert_eq!(got, want, "{name}, {age} s old, {mode:?}");
        }
    }
}

/// P11 (compression and encryption layers), P24: sealed records with and without the key.
#[test]
fn each_sealed_vector_is_decided_as_the_table_says() {
    for &(name, age, with_key, without) in SEALED {
        for (codec, want) in [(codec(), with_key), (Codec::plain(), without)] {
            let Some(want) = want else { continue };
            for mode in [LockMode::Exclusive, LockMode::Shared] {
                let got = decide(fake(name, ObjectKey::Exclusive, age, &codec), mode);
                assert_eq!(got, want, "{name}, {age} s old, {mode:?}");
            }
        }
    }
}

/// P2 (shared lock keys), P24: under `index/lock.shared/`, a held lock of any name blocks an
/// exclusive request and never a shared one.
#[test]
fn each_vector_blocks_as_a_shared_lock_too() {
    let codec = Codec::plain();
    let names = [
        "2026-03-07T09:00:00.482913Z",
        "2026-03-07T14:30:00.482913+05:30",
        "2026-03-07T09:00:00.482913000Z-0123456789abcdef",
    ];
    for &(name, age, want) in TABLE {
        for shared in names {
            let key = ObjectKey::Shared(shared.into());
            let got = decide(fake(name, key.clone(), age, &codec), LockMode::Exclusive);
            assert_eq!(got, want, "{name}, {age} s old, as {shared}");
            let got = decide(fake(name, key, age, &codec), LockMode::Shared);
            assert_eq!(
                got,
                Decision::Reclaim,
                "{name} as {shared} stops a shared request"
            );
        }
    }
}

/// P4 (directory stores), P24: a parsable `.tmp` counts, one that does not parse is ignored.
#[test]
fn a_half_written_file_is_no_lock_but_a_whole_one_is() {
    let codec = Codec::plain();
    let key = ObjectKey::Shared("2026-03-07T09:00:00.482913Z.tmp".into());
    let decided = |name| decide(fake(name, key.clone(), 10, &codec), LockMode::Exclusive);
    assert_eq!(decided("valid-shared.json"), Decision::Held);
    assert_eq!(decided("truncated.json"), Decision::Reclaim);
    assert_eq!(decided("empty.json"), Decision::Reclaim);
}

/// P20: an expiry far in the future is held and reported as suspicious.
#[test]
fn a_date_in_2999_is_flagged() {
    let mut fake = fake(
        "future-2999.json",
        ObjectKey::Exclusive,
        DAYS,
        &Codec::plain(),
    );
    match fake.acquire(LockMode::Shared, "amy") {
        Err(AcquireRefusal::Held(blocker)) => {
            assert_eq!(blocker.verdict, Staleness::Held(HeldReason::FarAhead))
        }
        other => panic!("{other:?}"),
    }
}

/// P13: at most the limit and one block of the bomb are decompressed.
#[test]
fn the_bomb_does_not_go_off() {
    let content = Codec::plain().decode_record(&ObjectKey::Exclusive, &bytes("bomb.zst"));
    let is_too_large = matches!(
        content,
        ObjectContent::Unreadable {
            why: crate::staleness::Unreadable::TooLarge,
            bytes: 2174
        }
    );
    assert!(is_too_large, "{content:?}");
}

/// P25: a lock that cannot be read or listed is never free.
#[test]
fn a_store_that_cannot_be_asked_refuses() {
    for what in ["read index/lock.exclusive", "list"] {
        let mut fake = FakeStore::new(ConditionLevel::Deletes);
        fake.faults.push((what, StoreFault::Denied));
        let refusal = fake.acquire(LockMode::Exclusive, "amy").unwrap_err();
        assert_eq!(refusal.class(), Class::Io, "{what}");
        let tries = usize::from(fake.terms().retries) + 1;
        let mut fake = FakeStore::new(ConditionLevel::Deletes);
        for _ in 0..tries {
            fake.faults.push((what, StoreFault::Lost));
        }
        let refusal = fake.acquire(LockMode::Exclusive, "amy").unwrap_err();
        assert_eq!(refusal.class(), Class::Io, "{what}");
        assert!(fake.locks().is_empty());
    }
    // A failure that passes is retried.
    let mut fake = FakeStore::new(ConditionLevel::Deletes);
    fake.faults
        .push(("read index/lock.exclusive", StoreFault::Lost));
    assert!(fake.acquire(LockMode::Exclusive, "amy").is_ok());
}

/// P22: the evidence of a stale lock is also what a listing shows.
#[test]
fn a_survey_shows_what_an_acquire_would_conclude() {
    let mut fake = fake(
        "stale-shared.json",
        ObjectKey::Shared("x".into()),
        1200,
        &Codec::plain(),
    );
    let listing = super::ListLocks::all(fake.terms(), Default::default());
    let (view, _) = fake.drive(listing).unwrap();
    assert_eq!(view.locks.len(), 1);
    assert_eq!(view.blocking().count(), 0);
    assert!(matches!(view.locks[0].verdict, Staleness::Stale(_)));
    assert!(
        fake.log
            .iter()
            .all(|op| op.starts_with("read") || op.starts_with("list"))
    );
}
