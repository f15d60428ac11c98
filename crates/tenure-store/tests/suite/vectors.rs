//! Interoperability vectors: for each record, the required decision of a reader (P7–P15, P20–P25).

use std::path::Path;
use std::time::Duration;

use jiff::SignedDuration;
use tenure_store::Class;
use tenure_store::LockSettings;
use tenure_store::internal::Codec;
use tenure_store::{DataKey, Seal};

use crate::support::LockMode;
use crate::support::virtual_time::{Process, Time};

/// The required decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decision {
    Refuse(Class),
    Reclaim,
}

use Decision::{Reclaim, Refuse};

const HELD: Decision = Refuse(Class::Held);
const UNREADABLE: Decision = Refuse(Class::Unreadable);

fn bytes(file: &str) -> Vec<u8> {
    let at = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/vectors/repository")
        .join(file);
    std::fs::read(&at).unwrap_or_else(|error| panic!("{}: {error}", at.display()))
}

fn data_key() -> Codec {
    let key = DataKey::from_bytes(&bytes("key.hex")).expect("a data key");
    Codec::with_key(key, Seal::No)
}

/// Checks the file as exclusive and as shared lock of this age, against requests of both modes.
async fn decide(time: &Time, file: &str, age: u64, expected: Decision) {
    for (key, mode) in [
        ("index/lock.exclusive", LockMode::Exclusive),
        ("index/lock.exclusive", LockMode::Shared),
        (
            "index/lock.shared/2026-03-07T09:00:00.482913+05:30",
            LockMode::Exclusive,
        ),
        (
            "index/lock.shared/2026-03-07T09:00:00.482913Z",
            LockMode::Shared,
        ),
    ] {
        let case = format!("{file}, {age} s old, at {key}, {mode:?} wanted");
        time.begin_again(SignedDuration::ZERO);
        time.server
            .plant(key, bytes(file), Duration::from_secs(age));
        let mut process = Process::new(time, 5, SignedDuration::ZERO, &LockSettings::default());
        let got = match process.acquire(mode).await {
            Ok(_) => Reclaim,
            Err(refusal) => Refuse(refusal.class()),
        };
        let shared_both = key.starts_with("index/lock.shared/") && mode == LockMode::Shared;
        assert_eq!(got, if shared_both { Reclaim } else { expected }, "{case}");
        if got != Reclaim {
            let left = time.server.object(key).expect("a held lock is left alone");
            assert_eq!(left.bytes, bytes(file), "{case}: touched");
        }
    }
}

#[tokio::test]
async fn every_vector_is_decided_as_the_table_says() {
    let time = Time::begin(SignedDuration::ZERO);
    for file in [
        "valid-exclusive.json",
        "valid-shared.json",
        "valid-shared.zst",
        "valid-exclusive.gz",
        "valid-tenure.json",
        "valid-offset.json",
        "valid-nine-digits.json",
        "valid-comma-fraction.json",
        "foreign-host.json",
        "holder-free-text.json",
        "unknown-fields.json",
        "duplicate-fields.json",
        "other-letter-case.json",
        "control-characters.json",
    ] {
        decide(&time, file, 30, HELD).await;
    }
    decide(&time, "future-2999.json", 90 * 86_400, HELD).await;
    for file in [
        "stale-exclusive.json",
        "stale-exclusive.zst",
        "stale-shared.json",
    ] {
        decide(&time, file, 1200, Reclaim).await;
    }
    decide(&time, "expired-but-young.json", 10, HELD).await;
    decide(&time, "expired-but-young.json", 600, Reclaim).await;
    decide(&time, "expired-within-skew.json", 65, HELD).await;
    for file in [
        "empty.json",
        "truncated.json",
        "array.json",
        "bom.json",
        "trailing-text.json",
        "expires-number.json",
        "operation-number.json",
        "shared-flag-text.json",
        "corrupt.zst",
        "huge.json",
        "bomb.zst",
        // Without a key, sealed records are opaque.
        "sealed-valid.bin",
    ] {
        decide(&time, file, 10, UNREADABLE).await;
        decide(&time, file, 300, Reclaim).await;
    }
    for file in [
        "null.json",
        "empty-object.json",
        "expires-missing.json",
        "expires-null.json",
        "expires-text.json",
        "expires-no-zone.json",
        "expires-lower-case.json",
    ] {
        decide(&time, file, 10, HELD).await;
        decide(&time, file, 1_000_000, HELD).await;
    }
    decide(&time, "sealed-stale.bin", 1200, Reclaim).await;
}

#[tokio::test]
async fn sealed_vectors_are_read_with_the_key() {
    let time = Time::begin_with(SignedDuration::ZERO, data_key());
    decide(&time, "sealed-valid.bin", 30, HELD).await;
    decide(&time, "sealed-valid-uncompressed.bin", 30, HELD).await;
    decide(&time, "sealed-stale.bin", 1200, Reclaim).await;
    for file in ["sealed-other-key.bin", "sealed-cut.bin"] {
        decide(&time, file, 10, UNREADABLE).await;
        decide(&time, file, 300, Reclaim).await;
    }
}

/// P24: half-written files of an original count if they parse; otherwise they are not locks.
#[tokio::test]
async fn scratch_files_count_only_if_they_parse() {
    let time = Time::begin(SignedDuration::ZERO);
    for (file, expected) in [("valid-shared.json", HELD), ("truncated.json", Reclaim)] {
        time.begin_again(SignedDuration::ZERO);
        let key = "index/lock.shared/2026-03-07T09:00:00.482913Z.tmp";
        time.server.plant(key, bytes(file), Duration::from_secs(10));
        let mut process = Process::new(&time, 5, SignedDuration::ZERO, &LockSettings::default());
        let got = match process.acquire(LockMode::Exclusive).await {
            Ok(_) => Reclaim,
            Err(refusal) => Refuse(refusal.class()),
        };
        assert_eq!(got, expected, "{file}");
    }
}
