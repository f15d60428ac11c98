//! Random commands against `Space::check`: a first net, close to the engine.

use super::*;
use crate::command::*;
use crate::path::*;
use crate::policy::*;
use crate::value::*;
use alloc::format;
use alloc::vec;
struct Rng(u64);
impl Rng {
    fn next(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}
fn path(r: &mut Rng) -> Path {
    let mut s = format!("h:/n{}", r.next(2));
    for _ in 0..r.next(4) {
        s += ["/a", "/b", "/a-"][r.next(3) as usize];
    }
    Path::parse(&s).unwrap()
}
#[test]
fn random_commands_keep_every_promise() {
    for seed in 1..400u64 {
        let mut r = Rng(seed.wrapping_mul(0x9E3779B97F4A7C15) | 1);
        let alg = Algorithm::ALL[(seed % 5) as usize];
        let mut limits = SpaceLimits::default();
        if seed % 3 == 0 {
            limits.marks = 2;
            limits.idle_namespaces = 1;
            limits.capacities = 2;
            limits.answers = 5;
        }
        let mut space = Space::new(limits, HashSeed(seed));
        let mut twin = space.clone();
        let mut time = 0;
        let mut table_version = 1;
        let mut change = 0;
        let mut frozen: Option<(u64, Region)> = None;
        for _ in 0..300 {
            time += r.next(5);
            let owner = OwnerId::new(&format!("o{}", r.next(5))).unwrap();
            let ns = Namespace::parse(&format!("h:/n{}", r.next(2))).unwrap();
            let route = Route {
                namespace: ns.clone(),
                algorithm: alg,
                version: table_version,
            };
            let mut paths: Vec<Path> = vec![];
            for _ in 0..1 + r.next(3) {
                let p = path(&mut r);
                if ns.contains(&p) {
                    paths.push(p);
                }
            }
            let mode = |r: &mut Rng| {
                [Mode::Write, Mode::Write, Mode::Read, Mode::ReadTree][r.next(4) as usize]
            };
            let key = if r.next(4) == 0 {
                Key::new(&format!("k{}", r.next(6))).unwrap()
            } else {
                None
            };
            let command = match r.next(20) {
                0..10 => Command::Acquire(Acquire {
                    route,
                    owner,
                    ttl: Ttl::from_millis(1000 * (1 + r.next(100))).unwrap(),
                    queue_ttl: QueueTtl::from_millis(1 + r.next(100)).unwrap(),
                    requests: paths
                        .iter()
                        .map(|p| Request {
                            path: p.clone(),
                            mode: mode(&mut r),
                            state: if r.next(5) == 0 {
                                State::Held
                            } else {
                                State::New
                            },
                            permits: core::num::NonZeroU32::new(
                                1 + r.next(40).saturating_sub(38) as u32,
                            ),
                        })
                        .collect(),
                    releases: if r.next(4) == 0 {
                        vec![Hold {
                            path: {
                                let mut p = path(&mut r);
                                while !ns.contains(&p) {
                                    p = path(&mut r);
                                }
                                p
                            },
                            mode: mode(&mut r),
                        }]
                    } else {
                        vec![]
                    },
                    fence: if r.next(5) == 0 {
                        Fence::supplied(r.next(60) as i64).unwrap()
                    } else {
                        None
                    },
                    key,
                    wait: [Wait::Queue, Wait::QueueAndAsk, Wait::Queue, Wait::No]
                        [r.next(4) as usize],
                    holder: None,
                }),
                10..14 => Command::Release(Release {
                    route,
                    owner,
                    holds: paths
                        .iter()
                        .map(|p| Hold {
                            path: p.clone(),
                            mode: mode(&mut r),
                        })
                        .collect(),
                    key,
                }),
                14 => Command::ReleaseAll(ReleaseAll {
                    owner,
                    selection: Selection::All,
                    cause: ReleaseCause::Owner,
                }),
                15 | 16 => match space.lease(&ns, &owner) {
                    Some(l) => Command::Expire(Expire {
                        namespace: ns,
                        epoch: l.epoch,
                        owner: owner.clone(),
                    }),
                    None => Command::Tick,
                },
                17 => match paths.first() {
                    Some(p) => Command::Break(Break {
                        route,
                        path: p.clone(),
                        owner,
                        fence: None,
                    }),
                    None => Command::Ask(Ask { owner }),
                },
                18 => match frozen.take() {
                    None => {
                        change += 1;
                        let region = Region {
                            root: if r.next(2) == 0 {
                                ns
                            } else {
                                Namespace::parse("h:/n0/a").unwrap()
                            },
                            except: vec![],
                        };
                        frozen = Some((change, region.clone()));
                        Command::Freeze(Freeze {
                            change,
                            settled: 0,
                            region,
                        })
                    }
                    Some((change, region)) => {
                        if r.next(2) == 0 {
                            Command::Thaw(Thaw { change })
                        } else {
                            table_version += 1;
                            Command::Change(Change {
                                change,
                                settled: change - 1,
                                version: table_version,
                                region,
                                algorithm: alg,
                                clear: if r.next(2) == 0 {
                                    Clear::All
                                } else {
                                    Clear::Waiters
                                },
                                floor: Fence::from_number(r.next(100)),
                            })
                        }
                    }
                },
                _ => Command::Renew(Renew {
                    namespace: ns,
                    owner,
                    ttl: Ttl::from_millis(50_000 + r.next(20_000)).unwrap(),
                }),
            };
            if r.next(50) == 0 {
                space.watch();
            }
            let applied = space.apply(Stamp { time, wall: time }, command.clone());
            if r.next(20) == 0 {
                let bytes = twin.encode_snapshot(Vec::new());
                twin = Space::decode_snapshot(&bytes, HashSeed(time)).unwrap();
                assert_eq!(twin.encode_snapshot(Vec::new()), bytes);
            }
            let mut theirs = twin.apply(Stamp { time, wall: time }, command);
            theirs.changes = applied.changes.clone();
            assert_eq!(applied, theirs);
            space.check();
            twin.check();
            let o = OwnerId::new("o1").unwrap();
            let _ = space.waits_for(&o, time);
            let p = path(&mut r);
            let m = mode(&mut r);
            let ns = Namespace::fallback(&p, 1);
            let _ = space.explain(
                &Route {
                    namespace: ns.clone(),
                    algorithm: alg,
                    version: 1,
                },
                &o,
                &p,
                m,
                time,
            );
            let _ = space.inspect(&ns, &p, time);
        }
    }
}
