//! What is asked, by whom, in which order: the scenarios, free of any protocol.
//!
//! A *lane* is one client that asks, waits for the answer and asks again; so many lanes are so many
//! requests in flight. Each driver asks the [`Script`] what a lane does next.

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
    /// All lanes want one path, and wait for it in line.
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

/// One request of a lane. Whose and for what is in the [`Lane`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
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
pub(crate) enum Reply {
    /// The path is held, at this fence.
    Granted(i64),
    /// It waits in line; [`Reply::Granted`] follows.
    Queued,
    /// Done.
    Done,
    /// It went wrong; the benchmark ends.
    Failed(String),
}

/// One client.
#[derive(Clone, Debug)]
pub(crate) struct Lane {
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
    asked: Ask,
    since: Instant,
    turns: u64,
    checks: u32,
}

/// How a run is to be.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What is asked.
    pub scenario: Scenario,
    /// Requests in flight, over all connections.
    pub in_flight: u32,
    /// Over how many connections.
    pub connections: u32,
    /// How many namespaces the lanes are spread over.
    pub namespaces: u32,
    /// How long it is measured; before that, a fifth of it is not.
    pub time: Duration,
    /// Many-held: how many locks.
    pub locks: u64,
    /// Many-held: it ends after this, however many there are by then.
    pub patience: Duration,
    /// Makes names of this run differ from those of others.
    pub run: u64,
}

impl Plan {
    /// How long nothing is counted.
    pub fn warm_up(&self) -> Duration {
        self.time / 5
    }

    /// How long it takes, if there are answers.
    pub(crate) fn longest(&self) -> Duration {
        match self.scenario {
            Scenario::ManyHeld => self.patience,
            _ => self.warm_up() + self.time,
        }
    }
}

/// What all lanes do, and what came of it.
pub(crate) struct Script {
    plan: Plan,
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

impl Script {
    /// A script that begins now.
    pub(crate) fn new(plan: Plan) -> Script {
        Script {
            plan,
            start: Instant::now(),
            measured: Measured::default(),
            line: VecDeque::new(),
            given_back: None,
            taken: 0,
            over: false,
        }
    }

    /// A lane and its first request.
    pub(crate) fn lane(&mut self, number: u32) -> (Lane, Ask) {
        let run = self.plan.run;
        let namespace = format!("bench:/{run:x}-{}", number % self.plan.namespaces.max(1));
        let mut lane = Lane {
            number,
            owner: format!("{run:x}-{number}"),
            path: String::new(),
            namespace,
            fence: 0,
            asked: Ask::Take,
            since: Instant::now(),
            turns: 0,
            checks: 0,
        };
        let ask = match self.plan.scenario {
            Scenario::HotHandoff => {
                lane.namespace = format!("bench:/{run:x}-0");
                lane.path = format!("{}/hot", lane.namespace);
                Ask::Wait
            }
            _ => Ask::Take,
        };
        self.begin(&mut lane, ask);
        (lane, ask)
    }

    /// Whether it is time to stop.
    pub(crate) fn is_over(&self) -> bool {
        self.over
    }

    /// The lane was answered: what does it ask next? Nothing while it waits in line, or at the end.
    pub(crate) fn next(&mut self, lane: &mut Lane, reply: Reply) -> Result<Option<Ask>, String> {
        let now = Instant::now();
        let asked = lane.asked;
        match &reply {
            Reply::Failed(why) => return Err(format!("{asked:?} of {}: {why}", lane.path)),
            Reply::Granted(fence) => lane.fence = *fence,
            Reply::Queued => {
                self.line.push_back(lane.number);
                return Ok(None);
            }
            Reply::Done => {}
        }
        self.count(lane, &reply, now);
        if self.over {
            return Ok(None);
        }
        let next = self.after(lane, asked);
        if asked == Ask::Wait {
            self.given_back = Some(now);
        }
        self.begin_at(lane, next, now);
        Ok(Some(next))
    }

    fn after(&self, lane: &mut Lane, asked: Ask) -> Ask {
        match (self.plan.scenario, asked) {
            (Scenario::UniqueLock | Scenario::DeepTree, Ask::Take)
            | (Scenario::HotHandoff, Ask::Wait) => Ask::Release,
            (Scenario::HotHandoff, _) => Ask::Wait,
            (Scenario::Renew, _) => Ask::Renew,
            (Scenario::FenceCheck, _) => Ask::Check,
            (Scenario::ReadHeavy, Ask::Take | Ask::Check) => {
                lane.checks += 1;
                if lane.checks > 8 {
                    lane.checks = 0;
                    Ask::Release
                } else {
                    Ask::Check
                }
            }
            (Scenario::UniqueLock | Scenario::DeepTree | Scenario::ReadHeavy, _)
            | (Scenario::ManyHeld, _) => Ask::Take,
        }
    }

    fn count(&mut self, lane: &Lane, reply: &Reply, now: Instant) {
        let granted = matches!(reply, Reply::Granted(_));
        self.taken += u64::from(granted);
        let mut took = Some(now.saturating_duration_since(lane.since));
        if lane.asked == Ask::Wait {
            // Who was not told that it waits did not wait.
            if self.line.contains(&lane.number) {
                let first = self.line.pop_front();
                if first != Some(lane.number) {
                    self.measured.overtakes += 1;
                    self.line.retain(|one| *one != lane.number);
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
            self.taken >= self.plan.locks || since_start >= self.plan.patience
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
            Scenario::UniqueLock | Scenario::DeepTree => lane.asked == Ask::Release,
            Scenario::HotHandoff => lane.asked == Ask::Wait,
            Scenario::Renew => lane.asked == Ask::Renew,
            Scenario::FenceCheck => lane.asked == Ask::Check,
            Scenario::ReadHeavy | Scenario::ManyHeld => true,
        };
        self.measured.units += u64::from(is_unit);
        if let Some(took) = took
            && (is_unit || self.plan.scenario != Scenario::HotHandoff)
        {
            self.measured.latencies.add(took);
        }
    }

    fn begin(&self, lane: &mut Lane, ask: Ask) {
        self.begin_at(lane, ask, Instant::now());
    }

    fn begin_at(&self, lane: &mut Lane, ask: Ask, now: Instant) {
        lane.asked = ask;
        lane.since = now;
        if ask != Ask::Take {
            return;
        }
        lane.turns += 1;
        lane.path.clear();
        lane.path.push_str(&lane.namespace);
        // Writing to a string does not fail.
        let _ = match self.plan.scenario {
            Scenario::DeepTree => write!(
                lane.path,
                "/region/site/hall/row/rack/shelf/slot/disk/volume/folder/part/object/{}/{}",
                lane.number, lane.turns
            ),
            Scenario::ManyHeld => {
                lane.owner.clear();
                let _ = write!(
                    lane.owner,
                    "{:x}-{}-{}",
                    self.plan.run, lane.number, lane.turns
                );
                write!(lane.path, "/item/{}-{}", lane.number, lane.turns)
            }
            _ => write!(lane.path, "/item/{}-{}", lane.number, lane.turns),
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

    fn plan(scenario: Scenario) -> Plan {
        Plan {
            scenario,
            in_flight: 2,
            connections: 1,
            namespaces: 1,
            time: Duration::from_secs(60),
            locks: 3,
            patience: Duration::MAX,
            run: 7,
        }
    }

    #[test]
    fn pairs_take_and_give_back_ever_new_paths() {
        let mut script = Script::new(plan(Scenario::UniqueLock));
        let (mut lane, first) = script.lane(0);
        let taken = lane.path.clone();
        assert_eq!(first, Ask::Take);
        assert_eq!(
            script.next(&mut lane, Reply::Granted(4)),
            Ok(Some(Ask::Release))
        );
        assert_eq!(lane.path, taken);
        assert_eq!(script.next(&mut lane, Reply::Done), Ok(Some(Ask::Take)));
        assert_ne!(lane.path, taken);
        assert!(script.next(&mut lane, Reply::Failed("no".into())).is_err());
    }

    #[test]
    fn a_grant_out_of_order_is_noticed() {
        let mut script = Script::new(plan(Scenario::HotHandoff));
        let lanes: Vec<Lane> = (0..3).map(|n| script.lane(n).0).collect();
        let [mut a, mut b, mut c] = <[Lane; 3]>::try_from(lanes).unwrap();
        assert_eq!(
            script.next(&mut a, Reply::Granted(1)),
            Ok(Some(Ask::Release))
        );
        assert_eq!(script.next(&mut b, Reply::Queued), Ok(None));
        assert_eq!(script.next(&mut c, Reply::Queued), Ok(None));
        assert_eq!(
            script.next(&mut c, Reply::Granted(2)),
            Ok(Some(Ask::Release))
        );
        assert_eq!(
            script.next(&mut b, Reply::Granted(3)),
            Ok(Some(Ask::Release))
        );
        assert_eq!(script.finish().overtakes, 1);
    }

    #[test]
    fn many_held_ends_by_number() {
        let mut script = Script::new(plan(Scenario::ManyHeld));
        let (mut lane, _) = script.lane(0);
        assert_eq!(
            script.next(&mut lane, Reply::Granted(1)),
            Ok(Some(Ask::Take))
        );
        assert_eq!(
            script.next(&mut lane, Reply::Granted(2)),
            Ok(Some(Ask::Take))
        );
        assert_eq!(script.next(&mut lane, Reply::Granted(3)), Ok(None));
        assert!(script.is_over());
        assert_eq!(script.finish().units, 3);
    }
}
