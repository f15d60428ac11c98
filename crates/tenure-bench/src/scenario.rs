//! What is asked, by whom, in which order: the scenarios, free of any protocol.
//!
//! A *worker* is one client that asks, waits for the answer and asks again; so many workers are so many
//! requests in flight. Each driver asks the [`LoadScript`] what a worker does next.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use crate::latency::Latencies;

/// What kind of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// Take a path that nobody has, give it back.
    UniqueLock,
    /// The same, sixteen levels deep.
    DeepTree,
    /// Renew a lease.
    Renew,
    /// Ask whether a fence is still in force.
    FenceCheck,
    /// Take a path, check its fence eight times, give it back.
    ReadHeavy,
    /// All workers want one path, and wait for it in line.
    HotHandoff,
    /// Take ever more paths and keep them.
    ManyHeld,
}

impl Scenario {
    /// All of them, by name.
    pub const ALL: [(&'static str, Scenario); 7] = [
        ("unique-lock", Scenario::UniqueLock),
        ("deep-tree", Scenario::DeepTree),
        ("renew", Scenario::Renew),
        ("fence-check", Scenario::FenceCheck),
        ("read-heavy", Scenario::ReadHeavy),
        ("hot-handoff", Scenario::HotHandoff),
        ("many-held", Scenario::ManyHeld),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        let found = Scenario::ALL.iter().find(|(_, one)| *one == self);
        found.map_or("", |(name, _)| name)
    }

    /// What is counted.
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

/// One request of a worker. Whose and for what is in the [`LoadWorker`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkerRequest {
    /// Take the path; do not wait.
    Take,
    /// Take the path, waiting in line.
    Wait,
    /// Give it back.
    Release,
    /// Extend the lease.
    Renew,
    /// Is the fence in force?
    Check,
}

/// One answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WorkerReply {
    /// The path is held, at this fence.
    Granted(i64),
    /// It waits in line; [`WorkerReply::Granted`] follows.
    Queued,
    /// Done.
    Done,
    /// It went wrong; the benchmark ends.
    Failed(String),
}

/// One client.
#[derive(Clone, Debug)]
pub(crate) struct LoadWorker {
    /// Its number, from 0.
    pub(crate) number: u32,
    /// Its owner id.
    pub(crate) owner: String,
    /// The namespace of its paths.
    pub(crate) namespace: String,
    /// What it asks about now.
    pub(crate) path: String,
    /// The fence it holds.
    pub(crate) fence: i64,
    asked: WorkerRequest,
    since: Instant,
    turns: u64,
    checks: u32,
}

/// How a run is to be.
#[derive(Clone, Debug)]
pub struct LoadPlan {
    /// What is asked.
    pub scenario: Scenario,
    /// Requests in flight, over all connections.
    pub in_flight: u32,
    /// Over how many connections.
    pub connections: u32,
    /// How many namespaces the workers are spread over.
    pub namespaces: u32,
    /// How long it is measured; before that, a fifth of it is not.
    pub time: Duration,
    /// Many-held: how many locks.
    pub locks: u64,
    /// Many-held: it ends after this, however many there are by then.
    pub timeout: Duration,
    /// Makes names of this run differ from those of others.
    pub run: u64,
}

impl LoadPlan {
    /// How long nothing is counted.
    pub fn warm_up(&self) -> Duration {
        self.time / 5
    }

    /// How long it takes, if there are answers.
    pub(crate) fn longest(&self) -> Duration {
        match self.scenario {
            Scenario::ManyHeld => self.timeout,
            _ => self.warm_up() + self.time,
        }
    }
}

/// What all workers do, and what came of it.
pub(crate) struct LoadScript {
    plan: LoadPlan,
    start: Instant,
    measured: Measured,
    /// Hot-handoff: who waits, in order; when it was last given back.
    line: VecDeque<u32>,
    given_back: Option<Instant>,
    taken: u64,
    over: bool,
}

/// What was counted.
#[derive(Clone, Default)]
pub struct Measured {
    /// Units of [`Scenario::unit`].
    pub units: u64,
    /// Latencies of single requests; for hot-handoff from giving back to the next grant.
    pub latencies: Latencies,
    /// Grants out of order, where answers come in the order of the requests.
    pub overtakes: u64,
    /// From the end of the warm-up to the end.
    pub elapsed: Duration,
}

impl Measured {
    /// Counts what another run of the same plan has counted.
    pub fn merge(&mut self, other: &Measured) {
        self.units += other.units;
        self.latencies.merge(&other.latencies);
        self.overtakes += other.overtakes;
        self.elapsed += other.elapsed;
    }
}

impl LoadScript {
    /// A script that begins now.
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

    /// A worker and its first request.
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

    /// Whether it is time to stop.
    pub(crate) fn is_over(&self) -> bool {
        self.over
    }

    /// The worker was answered: what does it ask next? Nothing while it waits in line, or at the end.
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
            // Who was not told that it waits did not wait.
            if self.line.contains(&worker.number) {
                let first = self.line.pop_front();
                if first != Some(worker.number) {
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
        // Writing to a string does not fail.
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

    /// What was counted.
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
