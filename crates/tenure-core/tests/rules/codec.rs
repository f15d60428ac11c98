//! Codec: encoding and decoding are inverse, and no input bytes cause a panic or a large
//! allocation.

use std::alloc::{GlobalAlloc, Layout, System as Heap};
use std::cell::Cell;
use std::num::NonZeroU32;

use tenure_core::codec::{DecodeError, Encode, Reader, Writer, from_bytes, to_bytes};
use tenure_core::command::*;
use tenure_core::event::*;
use tenure_core::limits::{LimitKind, QuotaScope};
use tenure_core::outcome::*;
use tenure_core::path::{Namespace, Path};
use tenure_core::policy::*;
use tenure_core::space::{HashSeed, Space};
use tenure_core::system::System;
use tenure_core::value::*;

use crate::model_comparison::ModelPair;
use crate::random::story;
use crate::rng::Rng;

/// Allocator that counts the allocated bytes of each thread, now and at the peak.
pub(crate) struct Counting;

thread_local! {
    static NOW: Cell<usize> = const { Cell::new(0) };
    static MOST: Cell<usize> = const { Cell::new(0) };
}

#[allow(
    unsafe_code,
    reason = "an allocator that counts is the only way to see what is allocated"
)]
// SAFETY: every call goes unchanged to the system allocator; the counters do not touch its memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = NOW.try_with(|now| {
            now.set(now.get().wrapping_add(layout.size()));
            let _ = MOST.try_with(|most| most.set(most.get().max(now.get())));
        });
        // SAFETY: the caller's promise is passed on.
        unsafe { Heap.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        let _ = NOW.try_with(|now| now.set(now.get().wrapping_sub(layout.size())));
        // SAFETY: the caller's promise is passed on.
        unsafe { Heap.dealloc(pointer, layout) }
    }
}

/// Returns the peak of memory that `work` allocated, beyond what was allocated before.
pub(crate) fn most_memory<T>(work: impl FnOnce() -> T) -> usize {
    NOW.with(|now| now.set(0));
    MOST.with(|most| most.set(0));
    drop(work());
    MOST.with(Cell::get)
}

pub(crate) fn path(rng: &mut Rng) -> Path {
    let handler = rng
        .pick(&["t", "tenant", "ä:x", "h"])
        .split(':')
        .next()
        .unwrap();
    let segments = rng.list(4, |rng| rng.pick(&["a", "b:c", "ü", "a b", "..."]));
    Path::parse(&format!("{handler}:/{}", segments.join("/"))).unwrap()
}

pub(crate) fn namespace(rng: &mut Rng) -> Namespace {
    if rng.one_in(4) {
        Namespace::parse("t").unwrap()
    } else {
        Namespace::parse(path(rng).as_str()).unwrap()
    }
}

pub(crate) fn owner(rng: &mut Rng) -> OwnerId {
    OwnerId::new(rng.pick(&["amy", "v1:bob", "cid\u{1f}", "ü"])).unwrap()
}

pub(crate) fn fence(rng: &mut Rng) -> Fence {
    let number = rng.number() >> (11 + rng.below(50));
    Fence::from_number(number.max(1)).unwrap()
}

pub(crate) fn holder(rng: &mut Rng) -> Holder {
    Holder {
        name: rng.pick(&["", "desk", "ü"]).to_string(),
        host: rng.pick(&["", "box"]).to_string(),
        pid: rng.number() as u32,
        purpose: rng.pick(&["", "backup"]).to_string(),
        labels: rng.list(2, |rng| (format!("k{}", rng.below(9)), "v".to_string())),
    }
}

fn ttl(rng: &mut Rng) -> Ttl {
    Ttl::from_millis(1 + rng.below(Ttl::MAX_MILLIS)).unwrap()
}

fn key(rng: &mut Rng) -> Key {
    Key::new(rng.pick(&["k", "key 2"])).unwrap().unwrap()
}

fn permits(rng: &mut Rng) -> NonZeroU32 {
    NonZeroU32::new(rng.number() as u32 | 1).unwrap()
}

fn mode(rng: &mut Rng) -> Mode {
    rng.pick(&[Mode::Write, Mode::Read, Mode::ReadTree])
}

fn hold(rng: &mut Rng) -> Hold {
    Hold {
        path: path(rng),
        mode: mode(rng),
    }
}

fn route(rng: &mut Rng) -> Route {
    Route {
        namespace: namespace(rng),
        algorithm: rng.pick(&Algorithm::ALL),
        version: rng.number() >> rng.below(64),
    }
}

fn region(rng: &mut Rng) -> Region {
    Region {
        root: namespace(rng),
        except: rng.list(2, namespace),
    }
}

/// Returns a random command.
pub(crate) fn command(rng: &mut Rng) -> Command {
    match rng.below(14) {
        0 | 1 => Command::Acquire(Acquire {
            route: route(rng),
            owner: owner(rng),
            ttl: ttl(rng),
            queue_ttl: QueueTtl::from_millis(rng.below(1000)).unwrap(),
            requests: rng.list(3, |rng| Request {
                path: path(rng),
                mode: mode(rng),
                state: rng.pick(&[RequestKind::New, RequestKind::Held]),
                permits: rng.maybe(permits),
            }),
            releases: rng.list(2, hold),
            fence: rng.maybe(fence),
            key: rng.maybe(key),
            wait: rng.pick(&[WaitMode::Queue, WaitMode::QueueAndAsk, WaitMode::No]),
            holder: rng.maybe(holder).map(Box::new),
        }),
        2 => Command::Release(Release {
            route: route(rng),
            owner: owner(rng),
            holds: rng.list(3, hold),
            key: rng.maybe(key),
            whole: rng.maybe(|rng| Whole {
                fingerprint: u128::from(rng.below(1 << 60)) << 40,
                asked: rng.maybe(|rng| rng.below(1 << 40)),
            }),
        }),
        3 => Command::ReleaseAll(ReleaseAll {
            owner: owner(rng),
            selection: if rng.one_in(2) {
                Selection::All
            } else {
                Selection::Only(rng.list(3, |rng| {
                    if rng.one_in(2) {
                        Domain::Namespace(namespace(rng))
                    } else {
                        Domain::Handler(Namespace::parse("t").unwrap())
                    }
                }))
            },
            cause: rng.pick(&[ReleaseCause::Owner, ReleaseCause::Killed]),
            until: rng.maybe(|rng| rng.below(1 << 40)),
        }),
        4 => Command::Renew(RenewLease {
            namespace: namespace(rng),
            owner: owner(rng),
            ttl: ttl(rng),
        }),
        5 => Command::Expire(Expire {
            namespace: namespace(rng),
            owner: owner(rng),
            epoch: rng.number(),
        }),
        6 => Command::Tick,
        7 => Command::Ask(AskRelease { owner: owner(rng) }),
        8 => Command::Break(BreakLock {
            route: route(rng),
            path: path(rng),
            owner: owner(rng),
            fence: rng.maybe(fence),
        }),
        9 => Command::Withdraw(Withdraw {
            namespace: namespace(rng),
            owner: owner(rng),
            waiter: rng.number(),
        }),
        10 => Command::Freeze(Freeze {
            change: rng.number(),
            settled: rng.number(),
            region: region(rng),
        }),
        11 => Command::Change(ChangePolicy {
            change: rng.number(),
            settled: rng.number(),
            version: rng.number(),
            region: region(rng),
            algorithm: rng.pick(&Algorithm::ALL),
            clear: rng.pick(&[ClearPolicy::Waiters, ClearPolicy::All]),
            floor: rng.maybe(fence),
        }),
        12 => Command::Thaw(Thaw {
            change: rng.number(),
        }),
        _ if rng.one_in(2) => Command::Lift { by: rng.number() },
        _ => Command::Rules {
            number: rng.number() as u32,
        },
    }
}

fn missing(rng: &mut Rng) -> Missing {
    rng.pick(&[
        Missing::Alive,
        Missing::Write,
        Missing::Read,
        Missing::Semaphore,
        Missing::Fence,
        Missing::OwnerSet,
    ])
}

fn refusal(rng: &mut Rng) -> Refusal {
    let version = rng.number();
    rng.pick(&[
        Refusal::Outdated { version },
        Refusal::Frozen { change: version },
        Refusal::KeyReused,
        Refusal::AnswersFull,
        Refusal::QueueFull,
        Refusal::FencesUsedUp,
        Refusal::Quota {
            scope: QuotaScope::Total,
            limit: LimitKind::Waiting,
            value: version,
        },
    ])
}

fn blocker(rng: &mut Rng) -> Blocker {
    Blocker {
        owner: owner(rng),
        path: path(rng),
        mode: mode(rng),
        fence: rng.maybe(fence),
        held_ms: rng.number(),
        holder: rng.maybe(holder),
    }
}

fn conflict(rng: &mut Rng) -> Conflict {
    let reasons = [
        Reason::AncestorLocked,
        Reason::WriteLocked,
        Reason::ReadLocked,
        Reason::DescendantWriteLocked,
        Reason::DescendantReadLocked,
        Reason::SemaphoreFull,
        Reason::Queued,
        Reason::ReadLocksDisabled,
        Reason::StaleFence {
            current: fence(rng),
        },
        Reason::InvalidPermits {
            capacity: rng.maybe(permits),
        },
    ];
    Conflict {
        reason: rng.pick(&reasons),
        path: path(rng),
        blocker: rng.maybe(blocker),
    }
}

/// Returns a random outcome.
pub(crate) fn outcome(rng: &mut Rng) -> Outcome {
    match rng.below(10) {
        0 | 1 => Outcome::Acquire(match rng.below(5) {
            0 => AcquireOutcome::Granted {
                fence: rng.maybe(fence),
            },
            1 => AcquireOutcome::Queued(Box::new(Queued {
                conflict: conflict(rng),
                fence: rng.maybe(fence),
                waiter: rng.number(),
                position: rng.number() as u32,
            })),
            2 => AcquireOutcome::Conflict(Box::new(conflict(rng))),
            3 => AcquireOutcome::Lost {
                path: rng.maybe(path),
                missing: missing(rng),
            },
            _ => AcquireOutcome::Refused(refusal(rng)),
        }),
        2 => Outcome::Release(if rng.one_in(2) {
            Ok(())
        } else {
            Err(refusal(rng))
        }),
        3 => Outcome::Touched(rng.number()),
        4 => Outcome::Renew(if rng.one_in(2) {
            Ok(Renewed {
                asked: rng.one_in(2),
                born: rng.number(),
            })
        } else {
            Err(missing(rng))
        }),
        5 => Outcome::Expired(rng.one_in(2)),
        6 => Outcome::Break(Box::new(match rng.below(3) {
            0 => BreakOutcome::Broken,
            1 => BreakOutcome::NotThatHold(rng.maybe(blocker)),
            _ => BreakOutcome::Refused(refusal(rng)),
        })),
        7 => Outcome::Withdraw(match rng.below(3) {
            0 => Withdrawn::Withdrawn,
            1 => Withdrawn::Granted {
                fence: rng.maybe(fence),
            },
            _ => Withdrawn::Gone,
        }),
        8 => Outcome::Frozen(FreezeReport {
            live: rng.maybe(|rng| (path(rng), owner(rng))),
            highest: rng.maybe(fence),
        }),
        _ => Outcome::Done,
    }
}

pub(crate) fn event(rng: &mut Rng) -> Event {
    Event {
        sequence: rng.number(),
        id: rng.number(),
        owner: owner(rng),
        namespace: rng.maybe(namespace),
        kind: match rng.below(3) {
            0 => EventKind::Grant {
                fence: rng.maybe(fence),
            },
            1 => EventKind::Killed,
            _ => EventKind::Revoke,
        },
    }
}

/// Encodes and decodes a value; then decodes every truncation, flipped bits and noise, within
/// memory bounds.
pub(crate) fn survives<T: Encode + PartialEq + std::fmt::Debug>(rng: &mut Rng, value: &T) {
    let bytes = to_bytes(value);
    assert_eq!(&from_bytes::<T>(&bytes).unwrap(), value);
    for end in 0..bytes.len() {
        assert!(
            from_bytes::<T>(&bytes[..end]).is_err(),
            "{value:?} ends at {end}"
        );
    }
    let mut longer = bytes.clone();
    longer.push(0);
    assert!(from_bytes::<T>(&longer).is_err(), "{value:?} and more");
    for _ in 0..8 {
        let mut bent = bytes.clone();
        let at = rng.below(bent.len() as u64) as usize;
        bent[at] ^= 1 << rng.below(8);
        harmless::<T>(&bent);
    }
}

/// Decodes bytes: valid ones must be the only encoding of their value, others are refused. Neither
/// allocates much.
fn harmless<T: Encode>(bytes: &[u8]) {
    let most = most_memory(|| {
        if let Ok(value) = from_bytes::<T>(bytes) {
            assert_eq!(to_bytes(&value), bytes, "two encodings of one value");
        }
    });
    assert!(
        most <= 4096 + 128 * bytes.len(),
        "{most} bytes for {}",
        bytes.len()
    );
}

#[test]
fn commands_survive_their_encoding() {
    let mut rng = Rng::new(1);
    for _ in 0..4_000 {
        let command = command(&mut rng);
        survives(&mut rng, &command);
    }
}

/// The expected namespace is only a hint: any other namespace is decoded as well, and invalid bytes
/// are refused.
#[test]
fn an_expected_namespace_is_only_a_guess() {
    let name = |text| Namespace::parse(text).unwrap();
    let names = ["t:/b", "t:/a", "t:/a", "t:/ab", "t", "t:/a"];
    let mut out = Writer::new();
    for text in names {
        out.put(&name(text));
    }
    out.text("t:/a/");
    let bytes = out.into_bytes();
    let mut input = Reader::new(&bytes);
    input.expect(Some(name("t:/b")));
    for text in names {
        assert_eq!(input.take::<Namespace>().unwrap(), name(text));
    }
    let bad = input.take::<Namespace>();
    assert!(matches!(bad, Err(DecodeError::Invalid(_))), "{bad:?}");
    assert_eq!(input.into_expected(), Some(name("t:/a")));
}

#[test]
fn outcomes_and_events_survive_their_encoding() {
    let mut rng = Rng::new(2);
    for _ in 0..4_000 {
        let outcome = outcome(&mut rng);
        survives(&mut rng, &outcome);
        let event = event(&mut rng);
        survives(&mut rng, &event);
    }
}

#[test]
fn noise_is_refused_or_read_within_bounds() {
    let mut rng = Rng::new(3);
    for _ in 0..50_000 {
        let mut bytes = rng.list(120, |rng| rng.number() as u8);
        // Mostly the right version, so that the decoder gets past the first byte.
        if let Some(first) = bytes.first_mut() {
            *first = 1;
        }
        if let Some(second) = bytes.get_mut(1) {
            *second %= 16;
        }
        harmless::<Command>(&bytes);
        harmless::<Outcome>(&bytes);
        harmless::<Event>(&bytes);
    }
}

/// A length that is larger than the input causes no allocation.
#[test]
fn a_lying_length_does_not_allocate() {
    // An acquire whose list of labels claims 2^60 entries.
    let mut rng = Rng::new(4);
    for _ in 0..2_000 {
        let mut bytes = to_bytes(&command(&mut rng));
        let at = 1 + rng.below(bytes.len() as u64 - 1) as usize;
        bytes.splice(
            at..at + 1,
            [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x0f],
        );
        harmless::<Command>(&bytes);
    }
}

/// Truncated, corrupted and random snapshots are refused or decoded; memory is bounded and nothing
/// panics. (A corrupted number may be decoded: detecting it is up to the checksums of the log.)
#[test]
fn a_broken_snapshot_does_no_harm() {
    let mut rng = Rng::new(6);
    for seed in 0..40 {
        let mut pair = ModelPair::new();
        for step in story(seed, 80) {
            pair.take(&step).unwrap();
        }
        let bytes = pair.space.encode_snapshot(Vec::new());
        for _ in 0..60 {
            let mut broken = bytes.clone();
            match rng.below(3) {
                0 => broken.truncate(rng.below(bytes.len() as u64) as usize),
                1 => {
                    let at = rng.below(bytes.len() as u64) as usize;
                    broken[at] ^= 1 << rng.below(8);
                }
                _ => {
                    let at = rng.below(bytes.len() as u64) as usize;
                    let lie = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x0f];
                    broken.splice(at..at + 1, lie);
                }
            }
            let most = most_memory(|| Space::decode_snapshot(&broken, HashSeed(9)));
            assert!(
                most <= 65_536 + 512 * broken.len(),
                "{most} for {}",
                broken.len()
            );
        }
    }
    for _ in 0..20_000 {
        let mut noise = rng.list(200, |rng| rng.number() as u8);
        if let Some(first) = noise.first_mut() {
            *first = 1;
        }
        let most =
            most_memory(|| Space::decode_snapshot(&noise, HashSeed(9)).map(|space| space.check()));
        assert!(
            most <= 65_536 + 512 * noise.len(),
            "{most} for {}",
            noise.len()
        );
        let _ = System::decode_snapshot(&noise);
    }
}
