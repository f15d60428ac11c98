//! Wrong clocks, other ttls, failing refreshes (P20–P23, P32 lease limit at 80 percent, P34 revive
//! a lapsed lease): no takeover before the holder's lease is used up, and none later than the rules
//! allow.

use std::time::Duration;

use jiff::SignedDuration;
use tenure_store::AcquireRefusal;
use tenure_store::LockSettings;
use tenure_store::internal::HoldStatus;
use tenure_store::{HeldReason, Staleness};

use crate::support::LockMode;
use crate::support::s3_server::{Fault, FaultKind, FaultPlan};
use crate::support::virtual_time::{Process, Time};

const SKEWS: [i64; 5] = [-86_400, -3_600, 0, 3_600, 86_400];

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn ahead(seconds: i64) -> SignedDuration {
    SignedDuration::from_secs(seconds)
}

fn ttl(seconds: u64) -> LockSettings {
    LockSettings {
        ttl: secs(seconds),
        refresh: secs(seconds / 2),
        ..LockSettings::default()
    }
}

/// P20–P23: a lock that is refreshed is never taken over, whatever the three clocks show. After its
/// holder ends, it is taken over between one and two ttl, unless the reader's clock is behind.
#[tokio::test]
async fn no_clock_frees_a_live_lock_and_none_keeps_a_dead_one_for_ever() {
    let time = Time::begin(ahead(0));
    for holder_ahead in SKEWS {
        for reader_ahead in SKEWS {
            for store_ahead in SKEWS {
                time.begin_again(ahead(store_ahead));
                one_takeover(&time, holder_ahead, reader_ahead, store_ahead).await;
            }
        }
    }
}

async fn one_takeover(time: &Time, holder_ahead: i64, reader_ahead: i64, store_ahead: i64) {
    let case = format!("holder {holder_ahead}, reader {reader_ahead}, store {store_ahead}");
    let settings = LockSettings::default();
    let mut holder = Process::new(time, 1, ahead(holder_ahead), &settings);
    let mut reader = Process::new(time, 2, ahead(reader_ahead), &settings);
    let mut hold = holder.hold(LockMode::Exclusive).await;
    for moment in [20, 47, 61, 75, 119] {
        holder.keep(&mut hold, secs(moment)).await;
        assert_eq!(*hold.status(), HoldStatus::Held, "{case}");
        assert!(
            !reader.gets(LockMode::Exclusive).await,
            "{case}: robbed at {moment} s"
        );
        assert!(
            !reader.gets(LockMode::Shared).await,
            "{case}: joined at {moment} s"
        );
    }
    // The holder has ended. Its lease counts from its last refresh, on its own boot clock.
    let last = hold.valid_until().0 - secs(48 + 1001);
    for (moment, free) in [
        (47, false),
        (59, false),
        (121, reader_ahead >= holder_ahead),
    ] {
        time.pass_until(last + secs(moment));
        let got = reader.gets(LockMode::Exclusive).await;
        assert_eq!(got, free, "{case}: {moment} s after the last refresh");
    }
    if reader_ahead >= holder_ahead {
        return;
    }
    let Err(AcquireRefusal::Held(blocker)) = reader.acquire(LockMode::Exclusive).await else {
        panic!("{case}: held until its date");
    };
    // P20: the lock is held until its expiry, and the verdict says so.
    let far = holder_ahead - reader_ahead > 600;
    let expected = if far {
        HeldReason::FarAhead
    } else {
        HeldReason::InForce
    };
    assert_eq!(blocker.verdict, Staleness::Held(expected), "{case}");
}

/// P22: the ttl of the record counts.
#[tokio::test]
async fn a_holder_with_another_ttl_is_judged_by_its_own() {
    for (own, others) in [(30, 60), (60, 30), (600, 30), (30, 600)] {
        let time = Time::begin(ahead(0));
        let mut holder = Process::new(&time, 1, ahead(-300), &ttl(own));
        let mut reader = Process::new(&time, 2, ahead(300), &ttl(others));
        let mut hold = holder.hold(LockMode::Shared).await;
        holder.keep(&mut hold, secs(2)).await;
        let sent = secs(2);
        while !reader.gets(LockMode::Exclusive).await {
            time.pass(secs(1));
            assert!(time.passed() < sent + secs(2 * own), "ttl {own}: stuck");
        }
        assert!(
            time.passed() + secs(3) >= secs(own),
            "ttl {own}: robbed at {:?}",
            time.passed()
        );
    }
}

/// K35 (lease time), P32, P34: refreshes fail for 50 s. The work stops at 48 s, no other client
/// takes over before 60 s, and the lock can be revived.
#[tokio::test]
async fn refreshes_that_fail_stop_the_work_before_another_client_may_acquire() {
    for mode in [LockMode::Exclusive, LockMode::Shared] {
        let time = Time::begin(ahead(0));
        let mut holder = Process::new(&time, 1, ahead(0), &LockSettings::default());
        let mut reader = Process::new(&time, 2, ahead(0), &LockSettings::default());
        let mut hold = holder.hold(mode).await;
        holder.keep(&mut hold, secs(29)).await;
        let valid = hold.valid_until();
        time.server.plan(
            FaultPlan::on(FaultKind::Put, Fault::Refuse(500))
                .key("lock.")
                .always(),
        );
        holder.keep(&mut hold, secs(47)).await;
        assert_eq!(
            (hold.status(), hold.valid_until()),
            (&HoldStatus::Held, valid)
        );
        holder.keep(&mut hold, secs(59)).await;
        assert!(
            matches!(hold.status(), HoldStatus::Lapsed { .. }),
            "{:?}",
            hold.status()
        );
        assert!(
            !reader.gets(LockMode::Exclusive).await,
            "taken before the ttl was over"
        );
        time.pass_until(secs(79));
        time.server.heal();
        assert_eq!(holder.revive(&mut hold).await, HoldStatus::Held);
        assert!(
            !reader.gets(LockMode::Exclusive).await,
            "revived, and taken all the same"
        );
    }
}

/// P31: a refreshed lock is held for many times its ttl.
#[tokio::test]
async fn a_refreshed_lock_outlives_its_ttl() {
    let time = Time::begin(ahead(0));
    let mut holder = Process::new(&time, 1, ahead(0), &ttl(30));
    let mut reader = Process::new(&time, 2, ahead(0), &ttl(30));
    let mut hold = holder.hold(LockMode::Exclusive).await;
    for moment in (5..=120).step_by(5) {
        holder.keep(&mut hold, secs(moment)).await;
        assert_eq!(*hold.status(), HoldStatus::Held);
        assert!(!reader.gets(LockMode::Shared).await, "robbed at {moment} s");
    }
    holder.release(hold).await;
    assert!(reader.gets(LockMode::Shared).await);
}
