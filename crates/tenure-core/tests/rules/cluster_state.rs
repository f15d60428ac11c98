//! Translates steps into commands, depending on the namespace table and on what is held at the
//! time.

use std::num::NonZeroU32;

use tenure_core::command::*;
use tenure_core::limits::Quota;
use tenure_core::outcome::{FreezeReport, Outcome};
use tenure_core::path::{Namespace, Path};
use tenure_core::policy::{Algorithm, Mode};
use tenure_core::value::{Fence, Holder, Key, OwnerId, QueueTtl, Ttl};
use tenure_reference::Model;

use crate::step::{AcquireStep, Step, StepTarget, Supplied};
use crate::table::Table;

/// The namespace table, the lease time, and the pending policy change.
#[derive(Clone, Debug)]
pub(crate) struct ClusterState {
    pub(crate) table: Table,
    pub(crate) time: u64,
    change: Option<PendingCall>,
    begun: u64,
    /// The order number of leases and waiters when a release-all last read it.
    looked: u64,
    last: Option<Command>,
    last_keyed: Option<Command>,
}

#[derive(Clone, Debug)]
struct PendingCall {
    number: u64,
    root: Namespace,
    region: Region,
    report: Option<FreezeReport>,
}

impl ClusterState {
    pub(crate) fn new() -> ClusterState {
        ClusterState {
            table: Table::new(),
            time: 1_000,
            change: None,
            begun: 0,
            looked: 0,
            last: None,
            last_keyed: None,
        }
    }

    /// Returns the command for a step; `None` if the step is not possible now or only moves time.
    pub(crate) fn command(&mut self, step: &Step, twin: &Model) -> Option<Command> {
        let command = self.translate(step, twin)?;
        if !matches!(command, Command::Tick) {
            self.last = Some(command.clone());
        }
        let key = match &command {
            Command::Acquire(acquire) => acquire.key.as_ref(),
            Command::AcquireWithin(within) => within.acquire.key.as_ref(),
            Command::Release(release) => release.key.as_ref(),
            _ => None,
        };
        if key.is_some() {
            self.last_keyed = Some(command.clone());
        }
        Some(command)
    }

    /// Returns up to which order number a release-all applies: mostly the present one, else an
    /// earlier one.
    fn until(&mut self, twin: &Model) -> Option<u64> {
        let named = if self.time.is_multiple_of(2) {
            twin.order()
        } else {
            self.looked
        };
        self.looked = twin.order();
        (twin.rules() >= 2).then_some(named)
    }

    fn translate(&mut self, step: &Step, twin: &Model) -> Option<Command> {
        Some(match step {
            Step::Later(ms) => {
                self.time += ms;
                return None;
            }
            Step::Tick(ms) => {
                self.time += ms;
                Command::Tick
            }
            Step::Acquire(step) => {
                let acquire = self.acquire(step, twin)?;
                match step.quota == Quota::default() {
                    true => Command::Acquire(acquire),
                    false => Command::AcquireWithin(Box::new(AcquireWithin {
                        acquire,
                        quota: step.quota,
                    })),
                }
            }
            Step::Release {
                owner,
                holds,
                key,
                stale,
            } => {
                let route = self.route(&holds.first()?.1, *stale);
                let all = holds;
                // Holds in other namespaces would need a command of their own.
                let holds = holds
                    .iter()
                    .filter(|(_, path)| self.route(path, false).namespace == route.namespace);
                Command::Release(Release {
                    owner: owner_id(owner),
                    holds: holds.map(|(mode, path)| hold(*mode, path)).collect(),
                    key: key.as_deref().and_then(|key| Key::new(key).unwrap()),
                    whole: (twin.rules() >= 2).then(|| Whole {
                        // Any hash of the owner and all holds will do, including those in other
                        // namespaces.
                        fingerprint: content_hash(&format!("{owner} {all:?}")),
                        asked: match self.time % 3 {
                            0 => None,
                            1 => Some(self.table.version / 2),
                            _ => Some(self.table.version),
                        },
                    }),
                    route,
                })
            }
            Step::Leave { owner, domains } => Command::ReleaseAll(ReleaseAll {
                owner: owner_id(owner),
                selection: self.selection(domains),
                cause: ReleaseCause::Owner,
                until: self.until(twin),
            }),
            Step::Kill { owner } => Command::ReleaseAll(ReleaseAll {
                owner: owner_id(owner),
                selection: Selection::All,
                cause: ReleaseCause::Killed,
                until: self.until(twin),
            }),
            Step::Renew {
                owner,
                namespace,
                ttl,
            } => Command::Renew(RenewLease {
                namespace: Namespace::parse(namespace).unwrap(),
                owner: owner_id(owner),
                ttl: Ttl::from_millis(*ttl).unwrap(),
            }),
            Step::Expire {
                owner,
                namespace,
                aim,
            } => {
                let (namespace, owner) = (Namespace::parse(namespace).unwrap(), owner_id(owner));
                let epoch = twin.epoch(&namespace, &owner).unwrap_or(0);
                let epoch = if *aim == StepTarget::Right {
                    epoch
                } else {
                    epoch.saturating_sub(1)
                };
                Command::Expire(Expire {
                    namespace,
                    owner,
                    epoch,
                })
            }
            Step::Revoke { owner } => Command::Ask(AskRelease {
                owner: owner_id(owner),
            }),
            Step::Break {
                owner,
                mode,
                path,
                aim,
            } => {
                let route = self.route(path, false);
                let path = Path::parse(path).unwrap();
                let stored = twin
                    .stored(&route.namespace, &path)
                    .filter(|_| *mode == Mode::Write && route.algorithm != Algorithm::Semaphore);
                let fence = match (aim, stored) {
                    (StepTarget::Right, stored) => stored,
                    (StepTarget::Wrong, Some(fence)) => Fence::from_number(fence.number() + 1),
                    (StepTarget::Wrong, None) => Fence::from_number(1),
                };
                Command::Break(BreakLock {
                    route,
                    path,
                    owner: owner_id(owner),
                    fence,
                })
            }
            Step::Withdraw {
                owner,
                namespace,
                aim,
            } => {
                let (namespace, owner) = (Namespace::parse(namespace).unwrap(), owner_id(owner));
                let waiter = twin.latest_waiter(&namespace, &owner).unwrap_or(0);
                let waiter = if *aim == StepTarget::Right {
                    waiter
                } else {
                    waiter + 1
                };
                Command::Withdraw(Withdraw {
                    namespace,
                    owner,
                    waiter,
                })
            }
            Step::Freeze { root } => {
                if self.change.is_none() {
                    let root = Namespace::parse(root).unwrap();
                    self.begun += 1;
                    self.change = Some(PendingCall {
                        number: self.begun,
                        region: self.table.region(&root),
                        root,
                        report: None,
                    });
                }
                // A second freeze of a pending change is a repeat.
                let change = self.change.as_ref()?;
                Command::Freeze(Freeze {
                    change: change.number,
                    settled: change.number - 1,
                    region: change.region.clone(),
                })
            }
            Step::Decide { row } => {
                let change = self.change.take()?;
                let report = change.report?;
                // A live hold that would move refuses the change.
                match self.table.clear(&change.root, *row) {
                    Some(ClearPolicy::All) => {}
                    Some(ClearPolicy::Waiters) if report.live.is_none() => {}
                    _ => {
                        return Some(Command::Thaw(Thaw {
                            change: change.number,
                        }));
                    }
                }
                let clear = self.table.clear(&change.root, *row)?;
                let moves = self.table.moves_paths(&change.root, *row);
                self.table.set(&change.root, *row);
                Command::Change(ChangePolicy {
                    change: change.number,
                    settled: change.number - 1,
                    version: self.table.version,
                    algorithm: self.table.algorithm_of(&change.root),
                    region: change.region,
                    clear,
                    floor: report.highest.filter(|_| moves),
                })
            }
            Step::Thaw => Command::Thaw(Thaw {
                change: self.change.take()?.number,
            }),
            Step::Change {
                root,
                row,
                clear,
                floor,
            } => {
                let root = Namespace::parse(root).unwrap();
                let region = self.table.region(&root);
                if self.change.is_some() {
                    return None;
                }
                self.begun += 1;
                self.table.set(&root, Some(*row));
                Command::Change(ChangePolicy {
                    change: self.begun,
                    settled: self.begun - 1,
                    version: self.table.version,
                    region,
                    algorithm: *row,
                    clear: *clear,
                    floor: Fence::from_number(*floor),
                })
            }
            Step::Lift(by) => {
                // The system state machine is lifted together with the spaces, which ends undecided
                // changes.
                self.change = None;
                Command::Lift { by: *by }
            }
            Step::Rules(number) => Command::Rules { number: *number },
            Step::Forget => {
                self.change.take()?;
                return None;
            }
            Step::Again => self.last.clone()?,
            Step::Retry => self.retry()?,
        })
    }

    /// The last keyed command. A release sometimes names more than before: another part of the same whole
    /// request, which lies in the same namespace by now.
    fn retry(&self) -> Option<Command> {
        let mut command = self.last_keyed.clone()?;
        if let Command::Release(release) = &mut command
            && release.whole.is_some()
            && self.time.is_multiple_of(2)
        {
            let more = release.holds.iter().map(|hold| Hold {
                path: hold.path.clone(),
                mode: match hold.mode {
                    Mode::Write => Mode::Read,
                    Mode::Read | Mode::ReadTree => Mode::Write,
                },
            });
            release.holds = release.holds.iter().cloned().chain(more).collect();
        }
        Some(command)
    }

    /// What a freeze reported is what its decision rests on.
    pub(crate) fn hear(&mut self, outcome: &Outcome) {
        if let (Some(change), Outcome::Frozen(report)) = (&mut self.change, outcome) {
            change.report = Some(report.clone());
        }
    }

    fn route(&self, path: &str, stale: bool) -> Route {
        let mut route = self.table.resolve(&Path::parse(path).unwrap());
        if stale {
            route.version = route.version.saturating_sub(1);
        }
        route
    }

    fn acquire(&self, step: &AcquireStep, twin: &Model) -> Option<Acquire> {
        let paths = step.wants.iter().map(|want| &want.path);
        let first = paths.chain(step.drops.iter().map(|(_, path)| path)).next();
        let mut route = match first {
            Some(path) => self.route(path, step.stale),
            None => self.route("t:/a", step.stale),
        };
        route.algorithm = step.algorithm.unwrap_or(route.algorithm);
        // R31 (one namespace per acquire): otherwise the node refuses the call before the space
        // sees it.
        let in_one = |path: &String| self.route(path, false).namespace == route.namespace;
        let paths = step.wants.iter().map(|want| &want.path);
        if !paths
            .chain(step.drops.iter().map(|(_, path)| path))
            .all(in_one)
        {
            return None;
        }
        let stored = first
            .and_then(|path| twin.stored(&route.namespace, &Path::parse(path).unwrap()))
            .map_or(0, |fence| fence.number() as i64);
        let fence = match step.fence {
            Supplied::Mint => 0,
            Supplied::Number(number) => number,
            Supplied::Stored(plus) => (stored + plus).max(1),
        };
        Some(Acquire {
            route,
            owner: owner_id(&step.owner),
            ttl: Ttl::from_millis(step.ttl).unwrap(),
            queue_ttl: QueueTtl::from_millis(step.queue_ttl).unwrap(),
            requests: step
                .wants
                .iter()
                .map(|want| Request {
                    path: Path::parse(&want.path).unwrap(),
                    mode: want.mode,
                    state: if want.held {
                        RequestKind::Held
                    } else {
                        RequestKind::New
                    },
                    permits: NonZeroU32::new(want.permits),
                })
                .collect(),
            releases: step
                .drops
                .iter()
                .map(|(mode, path)| hold(*mode, path))
                .collect(),
            fence: Fence::supplied(fence).unwrap_or(None),
            key: step.key.as_deref().and_then(|key| Key::new(key).unwrap()),
            wait: step.wait,
            holder: step.holder.as_ref().map(|name| {
                Box::new(Holder {
                    name: name.clone(),
                    ..Holder::default()
                })
            }),
        })
    }

    pub(crate) fn selection(&self, domains: &[String]) -> Selection {
        if domains.is_empty() {
            return Selection::All;
        }
        Selection::Only(
            domains
                .iter()
                .map(|domain| {
                    let name = Namespace::parse(domain).unwrap();
                    // R128 (bare handlers in domains): a bare handler is itself a namespace only if
                    // it has a row.
                    if name.is_bare() && self.table.row(&name).is_none() {
                        Domain::Handler(name)
                    } else {
                        Domain::Namespace(name)
                    }
                })
                .collect(),
        )
    }
}

pub(crate) fn owner_id(name: &str) -> OwnerId {
    OwnerId::new(name).unwrap()
}

fn hold(mode: Mode, path: &str) -> Hold {
    Hold {
        path: Path::parse(path).unwrap(),
        mode,
    }
}

fn content_hash(text: &str) -> u128 {
    let bytes = text.bytes().map(u128::from);
    bytes.fold(7, |hash, byte| {
        hash.wrapping_mul(0x0100_0000_01b3).wrapping_add(byte)
    })
}
