//! Load scenarios, independent of any protocol.
//!
//! A *worker* is one client that sends a request, waits for the answer and sends the next, so the
//! number of workers is the number of requests in flight. The drivers ask the [`LoadScript`] what a
//! worker sends next.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use crate::latency::Latencies;

/// The kind of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// Acquire a path that is free, release it.
    UniqueLock,
    /// The same with paths of sixteen levels.
    DeepTree,
    /// Renew a lease.
    Renew,
    /// Check that a fencing token is current.
    FenceCheck,
    /// Acquire a path, check its fence eight times, release it.
    ReadHeavy,
    /// All workers queue for the same path.
    HotHandoff,
    /// Acquire more and more paths and keep them.
    ManyHeld,
}

impl Scenario {
    /// All scenarios with their names.
    pub const ALL: [(&'static str, Scenario); 7] = [
        ("unique-lock", Scenario::UniqueLock),
        ("deep-tree", Scenario::DeepTree),
        ("renew", Scenario::Renew),
        ("fence-check", Scenario::FenceCheck),
        ("read-heavy", Scenario::ReadHeavy),
        ("hot-handoff", Scenario::HotHandoff),
        ("many-held", Scenario::ManyHeld),
    ];

    /// Returns the name.
    pub fn name(self) -> &'static str {
        let found = Scenario::ALL.iter().find(|(_, one)| *one == self);
        found.map_or("", |(name, _)| name)
    }

    /// Returns the unit that is counted.
    pub fn unit(self) -> &'static str {
        match self {
            Scenario::UniqueLock | Scenario::DeepTree => "pairs/s",
            Scenario::HotHandoff => "handoffs/s",
            Scenario::ManyHeld => "locks/s",
            Scenario::Renew | Scenario::FenceCheck | Scenario::ReadHeavy => "ops/s",
        }
    }
}

impl std::str::FromStr for Scenario {
    type Err = String;

    fn from_str(text: &str) -> Result<Scenario, String> {
        let found = Scenario::ALL.iter().find(|(name, _)| *name == text);
        found.map(|(_, one)| *one).ok_or_else(|| {
            let names: Vec<&str> = Scenario::ALL.iter().map(|(name, _)| *name).collect();
            format!(
                "there is no scenario {text}: choose from {}",
                names.join(", ")
            )
        })
    }
}

/// One request of a worker. Owner and path are in the [`LoadWorker`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkerRequest {
    /// Acquire the path without waiting.
    Take,
    /// Acquire the path; queue if it is held.
    Wait,
    /// Release the path.
    Release,
    /// Renew the lease.
    Renew,
    /// Check the fencing token.
    Check,
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WorkerReply {
    /// The path is held with this fence.
    Granted(i64),
    /// The request is queued; [`WorkerReply::Granted`] follows.
    Queued,
    /// Release, renewal or check succeeded.
    Done,
    /// The request failed; the run ends.
    Failed(String),
}

/// One client.
#[derive(Clone, Debug)]
pub(crate) struct LoadWorker {
    /// Number, from 0.
    pub(crate) number: u32,
    /// Owner id.
    pub(crate) owner: String,
    /// Namespace of its paths.
    pub(crate) namespace: String,
    /// The current path.
    pub(crate) path: String,
    /// The fence of its hold.
    pub(crate) fence: i64,
    asked: WorkerRequest,
    since: Instant,
    turns: u64,
    checks: u32,
}

/// Parameters of a run.
#[derive(Clone, Debug)]
pub struct LoadPlan {
    /// The scenario.
    pub scenario: Scenario,
    /// Requests in flight, over all connections.
    pub in_flight: u32,
    /// Number of connections.
    pub connections: u32,
    /// Number of namespaces that the workers are spread over.
    pub namespaces: u32,
    /// Measured time. A warm-up of a fifth of it comes first.
    pub time: Duration,
    /// Many-held: number of locks.
    pub locks: u64,
    /// Many-held: time limit; the run ends with fewer locks then.
    pub timeout: Duration,
    /// Number of the run, part of all names, so that runs do not share paths.
    pub run: u64,
}

impl LoadPlan {
    /// Returns the warm-up time, in which nothing is counted.
    pub fn warm_up(&self) -> Duration {
        self.time / 5
    }

    /// Returns the duration of the whole run, if the server answers.
    pub(crate) fn longest(&self) -> Duration {
        match self.scenario {
            Scenario::ManyHeld => self.timeout,
            _ => self.warm_up() + self.time,
        }
    }
}

/// Drives all workers of a run and collects the measurement.
pub(crate) struct LoadScript {
    plan: LoadPlan,
    start: Instant,
    measured: Measured,
    /// Hot-handoff: the queued workers in order, and the time of the last release.
    line: VecDeque<u32>,
    given_back: Option<Instant>,
    taken: u64,
    over: bool,
}

/// The measurement of a run.
#[derive(Clone, Default)]
pub struct Measured {
    /// Units as in [`Scenario::unit`].
    pub units: u64,
    /// Latencies of single requests; for hot-handoff, from a release to the next grant.
    pub latencies: Latencies,
    /// Grants out of queue order. Valid only if answers arrive in the order of the requests.
    pub overtakes: u64,
    /// Time from the end of the warm-up to the end of the run.
    pub elapsed: Duration,
}

impl Measured {
    /// Adds the measurement of another run of the same plan.
    pub fn merge(&mut self, other: &Measured) {
        self.units += other.units;
        self.latencies.merge(&other.latencies);
        self.overtakes += other.overtakes;
        self.elapsed += other.elapsed;
    }
}

impl LoadScript {
    /// Creates a script that starts now.
    pub(crate) fn new(plan: LoadPlan) -> LoadScript {
        LoadScript {
            plan,
            start: Instant::now(),
            measured: Measured::default(),
            line: VecDeque::new(),
            given_back: None,
            taken: 0,
            over: false,
        }
    }

    /// Creates a worker and its first request.
    pub(crate) fn worker(&mut self, number: u32) -> (LoadWorker, WorkerRequest) {
        let run = self.plan.run;
        let namespace = format!("bench:/{run:x}-{}", number % self.plan.namespaces.max(1));
        let mut worker = LoadWorker {
            number,
            owner: format!("{run:x}-{number}"),
            path: String::new(),
            namespace,
            fence: 0,
            asked: WorkerRequest::Take,
            since: Instant::now(),
            turns: 0,
            checks: 0,
        };
        let ask = match self.plan.scenario {
            Scenario::HotHandoff => {
                worker.namespace = format!("bench:/{run:x}-0");
                worker.path = format!("{}/hot", worker.namespace);
                WorkerRequest::Wait
            }
            _ => WorkerRequest::Take,
        };
        self.begin(&mut worker, ask);
        (worker, ask)
    }

    /// Returns whether the run has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.over
    }

    /// Handles an answer and returns the worker's next request. `None` while it is queued, or after
    /// the end of the run.
    pub(crate) fn next(
        &mut self,
        worker: &mut LoadWorker,
        reply: WorkerReply,
    ) -> Result<Option<WorkerRequest>, String> {
        let now = Instant::now();
        let asked = worker.asked;
        match &reply {
            WorkerReply::Failed(why) => return Err(format!("{asked:?} of {}: {why}", worker.path)),
            WorkerReply::Granted(fence) => worker.fence = *fence,
            WorkerReply::Queued => {
                self.line.push_back(worker.number);
                return Ok(None);
            }
            WorkerReply::Done => {}
        }
        self.count(worker, &reply, now);
        if self.over {
            return Ok(None);
        }
        let next = self.after(worker, asked);
        // The release is sent now, so the next grant's latency counts from here.
        if asked == WorkerRequest::Wait {
            self.given_back = Some(now);
        }
        self.begin_at(worker, next, now);
        Ok(Some(next))
    }

    fn after(&self, worker: &mut LoadWorker, asked: WorkerRequest) -> WorkerRequest {
        match (self.plan.scenario, asked) {
            (Scenario::UniqueLock | Scenario::DeepTree, WorkerRequest::Take)
            | (Scenario::HotHandoff, WorkerRequest::Wait) => WorkerRequest::Release,
            (Scenario::HotHandoff, _) => WorkerRequest::Wait,
            (Scenario::Renew, _) => WorkerRequest::Renew,
            (Scenario::FenceCheck, _) => WorkerRequest::Check,
            (Scenario::ReadHeavy, WorkerRequest::Take | WorkerRequest::Check) => {
                worker.checks += 1;
                if worker.checks > 8 {
                    worker.checks = 0;
                    WorkerRequest::Release
                } else {
                    WorkerRequest::Check
                }
            }
            (Scenario::UniqueLock | Scenario::DeepTree | Scenario::ReadHeavy, _)
            | (Scenario::ManyHeld, _) => WorkerRequest::Take,
        }
    }

    fn count(&mut self, worker: &LoadWorker, reply: &WorkerReply, now: Instant) {
        let granted = matches!(reply, WorkerReply::Granted(_));
        self.taken += u64::from(granted);
        let mut took = Some(now.saturating_duration_since(worker.since));
        if worker.asked == WorkerRequest::Wait {
            // A worker that got no `Queued` was granted at once, and is not in the line.
            if self.line.contains(&worker.number) {
                let first = self.line.pop_front();
                if first != Some(worker.number) {
                    // Another worker was first in the line.
                    self.measured.overtakes += 1;
                    self.line.retain(|one| *one != worker.number);
                    self.line.extend(first);
                }
            }
            took = self
                .given_back
                .map(|since| now.saturating_duration_since(since));
        }
        let (warm_up, time) = (self.plan.warm_up(), self.plan.time);
        let since_start = now.saturating_duration_since(self.start);
        // Many-held ends by the number of locks and has no warm-up; all others end by time.
        let by_number = self.plan.scenario == Scenario::ManyHeld;
        self.over = if by_number {
            self.taken >= self.plan.locks || since_start >= self.plan.timeout
        } else {
            since_start >= warm_up + time
        };
        if by_number {
            self.measured.elapsed = since_start;
        } else if since_start < warm_up {
            return;
        } else {
            self.measured.elapsed = since_start.saturating_sub(warm_up);
        }
        // A pair counts once, at its release; a handoff at its grant.
        let is_unit = match self.plan.scenario {
            Scenario::UniqueLock | Scenario::DeepTree => worker.asked == WorkerRequest::Release,
            Scenario::HotHandoff => worker.asked == WorkerRequest::Wait,
            Scenario::Renew => worker.asked == WorkerRequest::Renew,
            Scenario::FenceCheck => worker.asked == WorkerRequest::Check,
            Scenario::ReadHeavy | Scenario::ManyHeld => true,
        };
        self.measured.units += u64::from(is_unit);
        if let Some(took) = took
            && (is_unit || self.plan.scenario != Scenario::HotHandoff)
        {
            self.measured.latencies.add(took);
        }
    }

    fn begin(&self, worker: &mut LoadWorker, ask: WorkerRequest) {
        self.begin_at(worker, ask, Instant::now());
    }

    fn begin_at(&self, worker: &mut LoadWorker, ask: WorkerRequest, now: Instant) {
        worker.asked = ask;
        worker.since = now;
        if ask != WorkerRequest::Take {
            return;
        }
        worker.turns += 1;
        worker.path.clear();
        worker.path.push_str(&worker.namespace);
        // Writing to a string cannot fail.
        let _ = match self.plan.scenario {
            Scenario::DeepTree => write!(
                worker.path,
                "/region/site/hall/row/rack/shelf/slot/disk/volume/folder/part/object/{}/{}",
                worker.number, worker.turns
            ),
            Scenario::ManyHeld => {
                worker.owner.clear();
                let _ = write!(
                    worker.owner,
                    "{:x}-{}-{}",
                    self.plan.run, worker.number, worker.turns
                );
                write!(worker.path, "/item/{}-{}", worker.number, worker.turns)
            }
            _ => write!(worker.path, "/item/{}-{}", worker.number, worker.turns),
        };
    }

    /// Returns the measurement.
    pub(crate) fn finish(self) -> Measured {
        self.measured
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(scenario: Scenario) -> LoadPlan {
        LoadPlan {
            scenario,
            in_flight: 2,
            connections: 1,
            namespaces: 1,
            time: Duration::from_secs(60),
            locks: 3,
            timeout: Duration::MAX,
            run: 7,
        }
    }

    #[test]
    fn pairs_take_and_give_back_ever_new_paths() {
        let mut script = LoadScript::new(plan(Scenario::UniqueLock));
        let (mut worker, first) = script.worker(0);
        let taken = worker.path.clone();
        assert_eq!(first, WorkerRequest::Take);
        assert_eq!(
            script.next(&mut worker, WorkerReply::Granted(4)),
            Ok(Some(WorkerRequest::Release))
        );
        assert_eq!(worker.path, taken);
        assert_eq!(
            script.next(&mut worker, WorkerReply::Done),
            Ok(Some(WorkerRequest::Take))
        );
        assert_ne!(worker.path, taken);
        assert!(
            script
                .next(&mut worker, WorkerReply::Failed("no".into()))
                .is_err()
        );
    }

    #[test]
    fn a_grant_out_of_order_is_noticed() {
        let mut script = LoadScript::new(plan(Scenario::HotHandoff));
        let workers: Vec<LoadWorker> = (0..3).map(|n| script.worker(n).0).collect();
        let [mut a, mut b, mut c] = <[LoadWorker; 3]>::try_from(workers).unwrap();
        assert_eq!(
            script.next(&mut a, WorkerReply::Granted(1)),
            Ok(Some(WorkerRequest::Release))
        );
        assert_eq!(script.next(&mut b, WorkerReply::Queued), Ok(None));
        assert_eq!(script.next(&mut c, WorkerReply::Queued), Ok(None));
        assert_eq!(
            script.next(&mut c, WorkerReply::Granted(2)),
            Ok(Some(WorkerRequest::Release))
        );
        assert_eq!(
            script.next(&mut b, WorkerReply::Granted(3)),
            Ok(Some(WorkerRequest::Release))
        );
        assert_eq!(script.finish().overtakes, 1);
    }

    #[test]
    fn many_held_ends_by_number() {
        let mut script = LoadScript::new(plan(Scenario::ManyHeld));
        let (mut worker, _) = script.worker(0);
        assert_eq!(
            script.next(&mut worker, WorkerReply::Granted(1)),
            Ok(Some(WorkerRequest::Take))
        );
        assert_eq!(
            script.next(&mut worker, WorkerReply::Granted(2)),
            Ok(Some(WorkerRequest::Take))
        );
        assert_eq!(script.next(&mut worker, WorkerReply::Granted(3)), Ok(None));
        assert!(script.is_over());
        assert_eq!(script.finish().units, 3);
    }
}
