//! What a seed decides before the run begins: the cluster, its limits, its load, its faults.

use tenure_core::policy::Algorithm;
use tenure_core::space::SpaceLimits;
use tenure_node::{ClusterConfig, Limits};

use crate::breach::Breach;
use crate::faults::Kind;
use crate::load::{Habits, PATHS};
use crate::random::Random;
use crate::time::{MILLISECOND, SECOND, Time};
use crate::weather::Weather;

/// How long clients want their places in line to last, in milliseconds: one of these.
pub(crate) const QUEUE_TTLS: [u64; 3] = [1_500, 6_000, 20_000];

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) weather: Weather,
    pub(crate) nodes: usize,
    /// How many of them replicate a group at birth.
    pub(crate) replicas: usize,
    pub(crate) cluster: ClusterConfig,
    pub(crate) limits: Limits,
    pub(crate) clients: usize,
    pub(crate) observers: usize,
    pub(crate) habits: Habits,
    /// Lengths of leases that clients choose from, in milliseconds.
    pub(crate) ttls: Vec<u64>,
    /// How long faults strike.
    pub(crate) storm: Time,
    /// The kinds that strike in this run, each with the mean time between two strikes.
    pub(crate) faults: Vec<(Kind, Time)>,
    /// Per mille of what clients send and are sent that is lost.
    pub(crate) client_loss: u64,
    /// Per mille of frames between nodes that arrive up to two minutes late.
    pub(crate) late: u64,
    pub(crate) breach: Option<Breach>,
}

impl Plan {
    /// The plan of a seed. `storm` is how long faults strike.
    pub(crate) fn of(
        random: &mut Random,
        weather: Weather,
        storm: Time,
        breach: Option<Breach>,
    ) -> Plan {
        let mut plan = Plan::mixed(random, storm, breach);
        plan.weather = weather;
        match weather {
            Weather::Mixed | Weather::Founder => {}
            Weather::Deposed => plan.depose(random),
            Weather::Brink => plan.brink(random),
            Weather::Tangle => plan.tangle(random),
            Weather::Returning => plan.come_back(random),
            Weather::Stalled => plan.stall(random),
            Weather::Combo => plan.combo(random),
            Weather::Tiny => plan.tiny(random),
            Weather::Late => {
                plan.combo(random);
                plan.late = random.pick(&[5, 30, 100]);
            }
            Weather::Crowd => plan.crowd(random),
            Weather::Moves => plan.moves(random),
            Weather::Repeats => plan.repeats(random),
        }
        plan
    }

    /// One leader after the other is cut off while readers stay with it and lockers go elsewhere.
    fn depose(&mut self, random: &mut Random) {
        self.cluster.group_count = 1;
        self.clients = 4 + random.index(3);
        self.observers = 3;
        self.ttls = vec![2_000, 5_000];
        self.client_loss = 0;
        self.faults = vec![
            (Kind::Deposed, 6 * SECOND),
            (Kind::ClientPause, 20 * SECOND),
            (Kind::ClockRate, 30 * SECOND),
        ];
        self.habits = Habits {
            paths: &["u:/0/a", "t:/0", "u:/1/b"],
            quick: 1_000,
            rest_ms: 150,
            ..self.habits
        };
    }

    /// Everything takes long, and leases are short: whatever can meet the end of a lease does.
    fn brink(&mut self, random: &mut Random) {
        self.cluster.group_count = 1;
        self.clients = 4 + random.index(4);
        self.ttls = random
            .pick(&[&[400, 1_000][..], &[1_000, 2_500], &[2_000]])
            .to_vec();
        self.client_loss = random.pick(&[0, 5]);
        self.faults = vec![
            (Kind::SlowDisk, 3 * SECOND),
            (Kind::SlowLink, 15 * SECOND),
            (Kind::Loss, 15 * SECOND),
            (Kind::Transfer, 20 * SECOND),
            (Kind::ClockRate, 15 * SECOND),
            (Kind::ClientPause, 10 * SECOND),
        ];
        self.habits = Habits {
            paths: &["u:/0/a", "t:/0", "t:/0/x", "u:/1/b"],
            brink: 800,
            late_events: 250,
            ..self.habits
        };
    }

    /// Disks hang for seconds to minutes. Every node replicates every group, so it is known which groups have a
    /// majority that can write.
    fn stall(&mut self, random: &mut Random) {
        self.replicas = self.nodes;
        self.client_loss = 0;
        self.limits.group_inflight = Limits::default().group_inflight;
        self.faults = vec![
            (Kind::HungDisk, random.pick(&[10, 25, 60]) * SECOND),
            (Kind::ClientPause, 20 * SECOND),
            (Kind::ClockRate, 30 * SECOND),
        ];
    }

    /// Hold and wait: cycles come by themselves, and are asked about.
    fn tangle(&mut self, random: &mut Random) {
        self.clients = 2 + random.index(2);
        self.observers = 1;
        self.ttls = vec![5_000, 10_000];
        self.faults.retain(|_| random.chance(400));
        self.habits = Habits {
            paths: &["t:/0", "t:/0/x", "t:/1", "u:/0/a", "u:/1/b"],
            tanglers: 7,
            ..self.habits
        };
    }

    /// Replicas that come back need a node to be replaced by.
    fn come_back(&mut self, random: &mut Random) {
        self.nodes = 5;
        self.replicas = 3;
        self.faults.retain(|_| random.chance(300));
        let kind = Kind::Returning;
        self.faults.push((kind, kind.mean_pause()));
    }

    /// Several troubles at once, all the time.
    fn combo(&mut self, random: &mut Random) {
        self.faults.retain(|_| random.chance(250));
        let often = random.pick(&[1, 2, 4]) * SECOND;
        self.faults.push((Kind::Combo, often));
        if random.chance(500) {
            let often = random.pick(&[2, 6]) * SECOND;
            self.faults.push((Kind::Middle, often));
        }
        if random.chance(500) {
            let often = random.pick(&[1, 5]) * SECOND;
            self.faults.push((Kind::CutLogs, often));
        }
        if random.chance(500) {
            self.ttls = vec![1_000, 2_500];
        }
    }

    /// Snapshots at every entry, and memories that overflow at once.
    fn tiny(&mut self, random: &mut Random) {
        self.combo(random);
        self.limits.log_entries = random.pick(&[1, 2, 5]);
        self.limits.log_kept = random.pick(&[0, 1]);
        self.limits.group_inflight = random.pick(&[2, 8, 64]);
        self.limits.space = SpaceLimits {
            marks: random.pick(&[0, 1, 2]),
            idle_namespaces: random.pick(&[0, 1, 2]),
            region_floors: random.pick(&[0, 1, 2]),
            answers: random.pick(&[2, 8, 64]),
            capacities: random.pick(&[0, 1, 8]),
            waiting_paths: random.pick(&[2, 4, 64]),
            events: random.pick(&[2, 64]),
        };
        self.faults.push((Kind::CutLogs, SECOND));
    }

    /// Many groups, so that what concerns an owner everywhere concerns many leaders.
    fn crowd(&mut self, random: &mut Random) {
        self.combo(random);
        self.cluster.group_count = random.pick(&[4, 6, 9]);
        self.clients = 8;
        self.observers = 3;
        self.habits.wide = 500;
    }

    /// Paths change their groups all the time.
    fn moves(&mut self, random: &mut Random) {
        self.combo(random);
        self.cluster.group_count = random.pick(&[2, 3, 5]);
        self.faults.retain(|(kind, _)| *kind != Kind::Combo);
        let often = random.pick(&[3, 8, 20]) * SECOND;
        self.faults.push((Kind::Combo, often));
        self.ttls = vec![500, 1_500];
        self.client_loss = 0;
        self.habits = Habits {
            paths: &["q:/a/b", "q:/a/b/c", "p:/0/x", "q:/a/x"],
            quick: 900,
            rest_ms: 200,
            policy_pause: SECOND / 2,
            ..self.habits
        };
    }

    /// What is repeated has one effect.
    fn repeats(&mut self, random: &mut Random) {
        self.faults.retain(|_| random.chance(400));
        if random.chance(500) {
            let often = random.pick(&[4, 10]) * SECOND;
            self.faults.push((Kind::Combo, often));
        }
        // Copies of one call that take ways of different lengths.
        self.faults.push((Kind::SlowLink, 8 * SECOND));
        self.faults.push((Kind::Reconnect, 8 * SECOND));
        self.faults.push((Kind::Pause, 8 * SECOND));
        self.cluster.group_count = random.pick(&[1, 2, 3]);
        self.clients = 2;
        self.habits = Habits {
            repeaters: 5,
            changers: 2,
            ..self.habits
        };
    }

    fn mixed(random: &mut Random, storm: Time, breach: Option<Breach>) -> Plan {
        let nodes = random.pick(&[3, 3, 5]);
        let replicas = if nodes == 5 { random.pick(&[3, 5]) } else { 3 };
        let group_count = random.pick(&[1, 2, 3]);
        let ttls = if random.chance(200) {
            vec![3_000, 10_000, 75_000]
        } else {
            random
                .pick(&[
                    &[2_000, 5_000][..],
                    &[3_000, 8_000, 20_000],
                    &[5_000, 10_000],
                ])
                .to_vec()
        };
        let mut faults = Vec::new();
        let intensity = random.pick(&[1, 2, 4]);
        for kind in Kind::ANYWHERE {
            if random.chance(600) {
                faults.push((kind, kind.mean_pause() * intensity));
            }
        }
        if nodes > replicas && random.chance(600) {
            let mean = Kind::Forsaken.mean_pause() * intensity;
            faults.push((Kind::Forsaken, mean));
        }
        Plan {
            weather: Weather::Mixed,
            nodes,
            replicas,
            cluster: ClusterConfig {
                group_count,
                prefix_segments: 1,
                default_algorithm: Algorithm::RecursiveRw,
            },
            limits: limits(random),
            clients: 3 + random.index(5),
            observers: 1 + random.index(2),
            habits: Habits {
                paths: &PATHS,
                quick: 250,
                rest_ms: 2_000,
                brink: 0,
                late_events: 0,
                tanglers: 0,
                repeaters: 0,
                changers: 0,
                policy_pause: 10 * SECOND,
                wide: 0,
            },
            ttls,
            storm,
            faults,
            client_loss: random.pick(&[0, 5, 30, 100]),
            late: 0,
            breach,
        }
    }

    /// The longest a place in line may outlive its owner once everything is well: what it lasts, and
    /// the call under way that takes it, by the slowest clock, and some slack. Until then dead waiters are
    /// granted what is free, like all others (R87).
    pub(crate) fn place_after(&self) -> Time {
        let longest = QUEUE_TTLS.into_iter().max().unwrap_or(0) + 5_000;
        longest * MILLISECOND * 12 / 10 + 3 * SECOND
    }

    /// The longest a dead owner may hold what it held when it died, or was granted since, once
    /// everything is well: its lease by the slowest clock, once more for a late change of leaders,
    /// two minutes for a long one, and some slack.
    pub(crate) fn dead_after(&self) -> Time {
        let longest = self.ttls.iter().copied().max().unwrap_or(0) * 1_000;
        let extra = if longest > 60 * SECOND {
            120 * SECOND
        } else {
            longest
        };
        (longest + extra) * 12 / 10 + 10 * SECOND
    }
}

/// Tiny limits bring about what takes a real cluster days: cut logs, snapshots, full tables.
fn limits(random: &mut Random) -> Limits {
    let mut limits = Limits {
        log_entries: 400,
        log_kept: 50,
        ..Limits::default()
    };
    if random.chance(500) {
        limits.log_entries = random.pick(&[5, 20, 60]);
        limits.log_kept = random.pick(&[0, 3, 20]);
    }
    if random.chance(300) {
        limits.group_inflight = random.pick(&[2, 8]);
    }
    if random.chance(300) {
        limits.space = SpaceLimits {
            marks: random.pick(&[2, 8]) as u32,
            idle_namespaces: 2,
            answers: random.pick(&[4, 64]) as u32,
            waiting_paths: random.pick(&[4, 64]) as u32,
            events: random.pick(&[2, 64]) as u32,
            ..SpaceLimits::default()
        };
    }
    limits
}
