//! The bytes of everything: what goes in comes out, and no bytes do harm.

use std::alloc::{GlobalAlloc, Layout, System as Heap};
use std::cell::Cell;
use std::num::NonZeroU32;

use tenure_core::codec::{DecodeError, Reader, Record, Writer, from_bytes, to_bytes};
use tenure_core::command::*;
use tenure_core::event::*;
use tenure_core::outcome::*;
use tenure_core::path::{Namespace, Path};
use tenure_core::policy::*;
use tenure_core::space::{HashSeed, Space};
use tenure_core::system::System;
use tenure_core::value::*;

use crate::dice::Dice;
use crate::random::story;
use crate::twins::Twins;

/// Counts what each thread has allocated and not given back, and the most it ever had.
pub(crate) struct Counting;

thread_local! {
    static NOW: Cell<usize> = const { Cell::new(0) };
    static MOST: Cell<usize> = const { Cell::new(0) };
}

#[allow(
    unsafe_code,
    reason = "an allocator that counts is the only way to see what is allocated"
)]
// SAFETY: every call goes to the system's allocator unchanged; the counting touches no memory of it.
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

/// The most memory that `work` had at a time, beyond what was there before.
pub(crate) fn most_memory<T>(work: impl FnOnce() -> T) -> usize {
    NOW.with(|now| now.set(0));
    MOST.with(|most| most.set(0));
    drop(work());
    MOST.with(Cell::get)
}

pub(crate) fn path(dice: &mut Dice) -> Path {
    let handler = dice
        .pick(&["t", "tenant", "ä:x", "h"])
        .split(':')
        .next()
        .unwrap();
    let segments = dice.list(4, |dice| dice.pick(&["a", "b:c", "ü", "a b", "..."]));
    Path::parse(&format!("{handler}:/{}", segments.join("/"))).unwrap()
}

pub(crate) fn namespace(dice: &mut Dice) -> Namespace {
    if dice.one_in(4) {
        Namespace::parse("t").unwrap()
    } else {
        Namespace::parse(path(dice).as_str()).unwrap()
    }
}

pub(crate) fn owner(dice: &mut Dice) -> OwnerId {
    OwnerId::new(dice.pick(&["amy", "v1:bob", "cid\u{1f}", "ü"])).unwrap()
}

pub(crate) fn fence(dice: &mut Dice) -> Fence {
    let number = dice.number() >> (11 + dice.below(50));
    Fence::from_number(number.max(1)).unwrap()
}

pub(crate) fn holder(dice: &mut Dice) -> Holder {
    Holder {
        name: dice.pick(&["", "desk", "ü"]).to_string(),
        host: dice.pick(&["", "box"]).to_string(),
        pid: dice.number() as u32,
        purpose: dice.pick(&["", "backup"]).to_string(),
        labels: dice.list(2, |dice| (format!("k{}", dice.below(9)), "v".to_string())),
    }
}

fn ttl(dice: &mut Dice) -> Ttl {
    Ttl::from_millis(1 + dice.below(Ttl::MAX_MILLIS)).unwrap()
}

fn key(dice: &mut Dice) -> Key {
    Key::new(dice.pick(&["k", "key 2"])).unwrap().unwrap()
}

fn permits(dice: &mut Dice) -> NonZeroU32 {
    NonZeroU32::new(dice.number() as u32 | 1).unwrap()
}

fn mode(dice: &mut Dice) -> Mode {
    dice.pick(&[Mode::Write, Mode::Read, Mode::ReadTree])
}

fn hold(dice: &mut Dice) -> Hold {
    Hold {
        path: path(dice),
        mode: mode(dice),
    }
}

fn route(dice: &mut Dice) -> Route {
    Route {
        namespace: namespace(dice),
        algorithm: dice.pick(&Algorithm::ALL),
        version: dice.number() >> dice.below(64),
    }
}

fn region(dice: &mut Dice) -> Region {
    Region {
        root: namespace(dice),
        except: dice.list(2, namespace),
    }
}

/// Any command at all.
pub(crate) fn command(dice: &mut Dice) -> Command {
    match dice.below(14) {
        0 | 1 => Command::Acquire(Acquire {
            route: route(dice),
            owner: owner(dice),
            ttl: ttl(dice),
            queue_ttl: QueueTtl::from_millis(dice.below(1000)).unwrap(),
            requests: dice.list(3, |dice| Request {
                path: path(dice),
                mode: mode(dice),
                state: dice.pick(&[State::New, State::Held]),
                permits: dice.maybe(permits),
            }),
            releases: dice.list(2, hold),
            fence: dice.maybe(fence),
            key: dice.maybe(key),
            wait: dice.pick(&[Wait::Queue, Wait::QueueAndAsk, Wait::No]),
            holder: dice.maybe(holder).map(Box::new),
        }),
        2 => Command::Release(Release {
            route: route(dice),
            owner: owner(dice),
            holds: dice.list(3, hold),
            key: dice.maybe(key),
            whole: dice.maybe(|dice| Whole {
                fingerprint: u128::from(dice.below(1 << 60)) << 40,
                asked: dice.one_in(2),
            }),
        }),
        3 => Command::ReleaseAll(ReleaseAll {
            owner: owner(dice),
            selection: if dice.one_in(2) {
                Selection::All
            } else {
                Selection::Only(dice.list(3, |dice| {
                    if dice.one_in(2) {
                        Domain::Namespace(namespace(dice))
                    } else {
                        Domain::Handler(Namespace::parse("t").unwrap())
                    }
                }))
            },
            cause: dice.pick(&[ReleaseCause::Owner, ReleaseCause::Killed]),
            until: dice.maybe(|dice| dice.below(1 << 40)),
        }),
        4 => Command::Renew(Renew {
            namespace: namespace(dice),
            owner: owner(dice),
            ttl: ttl(dice),
        }),
        5 => Command::Expire(Expire {
            namespace: namespace(dice),
            owner: owner(dice),
            epoch: dice.number(),
        }),
        6 => Command::Tick,
        7 => Command::Ask(Ask { owner: owner(dice) }),
        8 => Command::Break(Break {
            route: route(dice),
            path: path(dice),
            owner: owner(dice),
            fence: dice.maybe(fence),
        }),
        9 => Command::Withdraw(Withdraw {
            namespace: namespace(dice),
            owner: owner(dice),
            waiter: dice.number(),
        }),
        10 => Command::Freeze(Freeze {
            change: dice.number(),
            settled: dice.number(),
            region: region(dice),
        }),
        11 => Command::Change(Change {
            change: dice.number(),
            settled: dice.number(),
            version: dice.number(),
            region: region(dice),
            algorithm: dice.pick(&Algorithm::ALL),
            clear: dice.pick(&[Clear::Waiters, Clear::All]),
            floor: dice.maybe(fence),
        }),
        12 => Command::Thaw(Thaw {
            change: dice.number(),
        }),
        _ if dice.one_in(2) => Command::Lift { by: dice.number() },
        _ => Command::Rules {
            number: dice.number() as u32,
        },
    }
}

fn missing(dice: &mut Dice) -> Missing {
    dice.pick(&[
        Missing::Alive,
        Missing::Write,
        Missing::Read,
        Missing::Semaphore,
        Missing::Fence,
        Missing::OwnerSet,
    ])
}

fn refusal(dice: &mut Dice) -> Refusal {
    let version = dice.number();
    dice.pick(&[
        Refusal::Outdated { version },
        Refusal::Frozen { change: version },
        Refusal::KeyReused,
        Refusal::AnswersFull,
        Refusal::QueueFull,
        Refusal::FencesUsedUp,
    ])
}

fn blocker(dice: &mut Dice) -> Blocker {
    Blocker {
        owner: owner(dice),
        path: path(dice),
        mode: mode(dice),
        fence: dice.maybe(fence),
        held_ms: dice.number(),
        holder: dice.maybe(holder),
    }
}

fn conflict(dice: &mut Dice) -> Conflict {
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
            current: fence(dice),
        },
        Reason::InvalidPermits {
            capacity: dice.maybe(permits),
        },
    ];
    Conflict {
        reason: dice.pick(&reasons),
        path: path(dice),
        blocker: dice.maybe(blocker),
    }
}

/// Any outcome at all.
pub(crate) fn outcome(dice: &mut Dice) -> Outcome {
    match dice.below(10) {
        0 | 1 => Outcome::Acquire(match dice.below(5) {
            0 => AcquireOutcome::Granted {
                fence: dice.maybe(fence),
            },
            1 => AcquireOutcome::Queued(Box::new(Queued {
                conflict: conflict(dice),
                fence: dice.maybe(fence),
                waiter: dice.number(),
                position: dice.number() as u32,
            })),
            2 => AcquireOutcome::Conflict(Box::new(conflict(dice))),
            3 => AcquireOutcome::Lost {
                path: dice.maybe(path),
                missing: missing(dice),
            },
            _ => AcquireOutcome::Refused(refusal(dice)),
        }),
        2 => Outcome::Release(if dice.one_in(2) {
            Ok(())
        } else {
            Err(refusal(dice))
        }),
        3 => Outcome::Touched(dice.number()),
        4 => Outcome::Renew(if dice.one_in(2) {
            Ok(Renewed {
                asked: dice.one_in(2),
                born: dice.number(),
            })
        } else {
            Err(missing(dice))
        }),
        5 => Outcome::Expired(dice.one_in(2)),
        6 => Outcome::Break(Box::new(match dice.below(3) {
            0 => BreakOutcome::Broken,
            1 => BreakOutcome::NotThatHold(dice.maybe(blocker)),
            _ => BreakOutcome::Refused(refusal(dice)),
        })),
        7 => Outcome::Withdraw(match dice.below(3) {
            0 => Withdrawn::Withdrawn,
            1 => Withdrawn::Granted {
                fence: dice.maybe(fence),
            },
            _ => Withdrawn::Gone,
        }),
        8 => Outcome::Frozen(FreezeReport {
            live: dice.maybe(|dice| (path(dice), owner(dice))),
            highest: dice.maybe(fence),
        }),
        _ => Outcome::Done,
    }
}

pub(crate) fn event(dice: &mut Dice) -> Event {
    Event {
        sequence: dice.number(),
        id: dice.number(),
        owner: owner(dice),
        namespace: dice.maybe(namespace),
        kind: match dice.below(3) {
            0 => EventKind::Grant {
                fence: dice.maybe(fence),
            },
            1 => EventKind::Killed,
            _ => EventKind::Revoke,
        },
    }
}

/// There and back; then every truncation, some flipped bits and some noise, all within bounds.
pub(crate) fn survives<T: Record + PartialEq + std::fmt::Debug>(dice: &mut Dice, value: &T) {
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
        let at = dice.below(bent.len() as u64) as usize;
        bent[at] ^= 1 << dice.below(8);
        harmless::<T>(&bent);
    }
}

/// Bytes that are a value are that value's bytes; others are refused; neither costs much memory.
fn harmless<T: Record>(bytes: &[u8]) {
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
    let mut dice = Dice::new(1);
    for _ in 0..4_000 {
        let command = command(&mut dice);
        survives(&mut dice, &command);
    }
}

/// A reader that expects a namespace reads any other as well, and takes no bad one for it.
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
    let mut dice = Dice::new(2);
    for _ in 0..4_000 {
        let outcome = outcome(&mut dice);
        survives(&mut dice, &outcome);
        let event = event(&mut dice);
        survives(&mut dice, &event);
    }
}

#[test]
fn noise_is_refused_or_read_within_bounds() {
    let mut dice = Dice::new(3);
    for _ in 0..50_000 {
        let mut bytes = dice.list(120, |dice| dice.number() as u8);
        // Mostly the right version, so that the noise gets past the first byte.
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

/// A length that promises more than there is costs nothing.
#[test]
fn a_lying_length_does_not_allocate() {
    // An acquire whose list of labels claims 2^60 entries.
    let mut dice = Dice::new(4);
    for _ in 0..2_000 {
        let mut bytes = to_bytes(&command(&mut dice));
        let at = 1 + dice.below(bytes.len() as u64 - 1) as usize;
        bytes.splice(
            at..at + 1,
            [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x0f],
        );
        harmless::<Command>(&bytes);
    }
}

/// Truncated, bent and random snapshots are refused or read; memory stays in bounds, nothing panics.
/// (A bent number that is read is the log's business: its records have checksums.)
#[test]
fn a_broken_snapshot_does_no_harm() {
    let mut dice = Dice::new(6);
    for seed in 0..40 {
        let mut twins = Twins::new();
        for step in story(seed, 80) {
            twins.take(&step).unwrap();
        }
        let bytes = twins.space.encode_snapshot(Vec::new());
        for _ in 0..60 {
            let mut broken = bytes.clone();
            match dice.below(3) {
                0 => broken.truncate(dice.below(bytes.len() as u64) as usize),
                1 => {
                    let at = dice.below(bytes.len() as u64) as usize;
                    broken[at] ^= 1 << dice.below(8);
                }
                _ => {
                    let at = dice.below(bytes.len() as u64) as usize;
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
        let mut noise = dice.list(200, |dice| dice.number() as u8);
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
