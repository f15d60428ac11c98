//! Scenario of a simulated run: cluster, node limits (log length, table sizes), client load and
//! faults. The seed and the options of the run determine all of it before the run starts.

use tenure_core::policy::Algorithm;
use tenure_core::space::SpaceLimits;
use tenure_node::{ClusterConfig, Limits};

use crate::contract_violation::ContractViolation;
use crate::fault_profile::FaultProfile;
use crate::faults::{FaultKind, StorageFault};
use crate::load::{ClientHabits, PATHS};
use crate::random::SimRng;
use crate::time::{MILLISECOND, SECOND, SimTime};

/// Times that clients choose for their waiters to stay in the queue, in milliseconds.
pub(crate) const QUEUE_TTLS: [u64; 3] = [1_500, 6_000, 20_000];

/// The plan of one run.
#[derive(Clone, Debug)]
pub(crate) struct RunPlan {
    pub(crate) fault_profile: FaultProfile,
    pub(crate) nodes: usize,
    /// How many nodes replicate a group at bootstrap.
    pub(crate) replicas: usize,
    pub(crate) cluster: ClusterConfig,
    pub(crate) limits: Limits,
    pub(crate) clients: usize,
    pub(crate) observers: usize,
    pub(crate) habits: ClientHabits,
    /// Lease times that clients choose from, in milliseconds.
    pub(crate) ttls: Vec<u64>,
    /// Length of the fault phase.
    pub(crate) fault_phase: SimTime,
    /// The kinds of faults in this run, each with the mean time between two strikes.
    pub(crate) faults: Vec<(FaultKind, SimTime)>,
    /// Per mille of messages to and from clients that are lost.
    pub(crate) client_loss: u64,
    /// Per mille of frames between nodes that arrive up to two minutes late.
    pub(crate) late: u64,
    pub(crate) contract_violation: Option<ContractViolation>,
    /// Whether this is the cluster that was restored after another run: without clients and faults.
    pub(crate) restored: bool,
}

impl RunPlan {
    /// Returns the plan of a cluster that is restored after this one is lost. One node has the states;
    /// the others join.
    pub(crate) fn restored(&self) -> RunPlan {
        RunPlan {
            fault_profile: FaultProfile::Founder,
            faults: Vec::new(),
            restored: true,
            ..self.clone()
        }
    }

    /// Derives the plan: a random mix, then the changes that the fault profile makes to it.
    pub(crate) fn of(
        random: &mut SimRng,
        fault_profile: FaultProfile,
        fault_phase: SimTime,
        contract_violation: Option<ContractViolation>,
    ) -> RunPlan {
        let mut plan = RunPlan::mixed(random, fault_phase, contract_violation);
        plan.fault_profile = fault_profile;
        match fault_profile {
            FaultProfile::Mixed | FaultProfile::Founder => {}
            FaultProfile::Deposed => plan.depose(random),
            FaultProfile::Brink => plan.brink(random),
            FaultProfile::Nest => plan.nest(random),
            FaultProfile::Returning => plan.come_back(random),
            FaultProfile::Stalled => plan.stall(random),
            FaultProfile::Combo => plan.combo(random),
            FaultProfile::Tiny => plan.tiny(random),
            FaultProfile::Late => {
                plan.combo(random);
                plan.late = random.pick(&[5, 30, 100]);
            }
            FaultProfile::Crowd => plan.crowd(random),
            FaultProfile::Moves => plan.moves(random),
            FaultProfile::Repeats => plan.repeats(random),
            FaultProfile::Lone => plan.lone(random),
            FaultProfile::Edge => plan.edge(random),
            FaultProfile::Rot => plan.rot(random),
            FaultProfile::Starved => plan.starve(random),
        }
        plan
    }

    /// [`FaultProfile::Deposed`]: leaders are cut off one after the other. Observers keep reading
    /// from the old leader while lock clients use other nodes.
    fn depose(&mut self, random: &mut SimRng) {
        self.cluster.group_count = 1;
        self.clients = 4 + random.index(3);
        self.observers = 3;
        self.ttls = vec![2_000, 5_000];
        self.client_loss = 0;
        self.faults = vec![
            (FaultKind::Deposed, 6 * SECOND),
            (FaultKind::ClientPause, 20 * SECOND),
            (FaultKind::ClockRate, 30 * SECOND),
        ];
        self.habits = ClientHabits {
            paths: &["u:/0/a", "t:/0", "u:/1/b"],
            quick: 1_000,
            rest_ms: 150,
            ..self.habits
        };
    }

    /// [`FaultProfile::Brink`]: everything is slow and leases are short, so that operations often
    /// coincide with the end of a lease.
    fn brink(&mut self, random: &mut SimRng) {
        self.cluster.group_count = 1;
        self.clients = 4 + random.index(4);
        self.ttls = random
            .pick(&[&[400, 1_000][..], &[1_000, 2_500], &[2_000]])
            .to_vec();
        self.client_loss = random.pick(&[0, 5]);
        self.faults = vec![
            (FaultKind::SlowDisk, 3 * SECOND),
            (FaultKind::SlowLink, 15 * SECOND),
            (FaultKind::Loss, 15 * SECOND),
            (FaultKind::Transfer, 20 * SECOND),
            (FaultKind::ClockRate, 15 * SECOND),
            (FaultKind::ClientPause, 10 * SECOND),
        ];
        self.habits = ClientHabits {
            paths: &["u:/0/a", "t:/0", "t:/0/x", "u:/1/b"],
            brink: 800,
            late_events: 250,
            ..self.habits
        };
    }

    /// [`FaultProfile::Stalled`]: disks hang for seconds to minutes. Every node replicates every
    /// group, so the availability checker knows which groups have a majority that can write.
    fn stall(&mut self, random: &mut SimRng) {
        self.replicas = self.nodes;
        self.client_loss = 0;
        self.limits.group_inflight = Limits::default().group_inflight;
        self.faults = vec![
            (FaultKind::HungDisk, random.pick(&[10, 25, 60]) * SECOND),
            (FaultKind::ClientPause, 20 * SECOND),
            (FaultKind::ClockRate, 30 * SECOND),
        ];
    }

    /// [`FaultProfile::Nest`]: clients hold one lock while they wait for another, which creates
    /// cycles of waits, and query them.
    fn nest(&mut self, random: &mut SimRng) {
        self.clients = 2 + random.index(2);
        self.observers = 1;
        self.ttls = vec![5_000, 10_000];
        self.faults.retain(|_| random.chance(400));
        self.habits = ClientHabits {
            paths: &["t:/0", "t:/0/x", "t:/1", "u:/0/a", "u:/1/b"],
            nested_lock_clients: 7,
            ..self.habits
        };
    }

    /// [`FaultProfile::Returning`]: five nodes for three replicas, because a replica is moved to a
    /// spare node and back.
    fn come_back(&mut self, random: &mut SimRng) {
        self.nodes = 5;
        self.replicas = 3;
        self.faults.retain(|_| random.chance(300));
        for kind in [FaultKind::Returning, FaultKind::LostChange] {
            self.faults.push((kind, kind.mean_pause()));
        }
    }

    /// [`FaultProfile::Combo`]: several faults at the same time, all the time.
    fn combo(&mut self, random: &mut SimRng) {
        self.faults.retain(|_| random.chance(250));
        let often = random.pick(&[1, 2, 4]) * SECOND;
        self.faults.push((FaultKind::Combo, often));
        if random.chance(500) {
            let often = random.pick(&[2, 6]) * SECOND;
            self.faults.push((FaultKind::Middle, often));
        }
        if random.chance(500) {
            let often = random.pick(&[1, 5]) * SECOND;
            self.faults.push((FaultKind::CutLogs, often));
        }
        if random.chance(500) {
            self.ttls = vec![1_000, 2_500];
        }
    }

    /// [`FaultProfile::Tiny`]: limits so small that nearly every entry causes a snapshot and every
    /// table overflows.
    fn tiny(&mut self, random: &mut SimRng) {
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
            batch: batch(self.limits.group_inflight),
        };
        // Nearly every step needs several batches.
        self.limits.batch_bytes = random.pick(&[1, 200, 1_000]);
        // A renewal that concerns all groups meets groups that are busy.
        self.habits.wide = 300;
        self.faults.push((FaultKind::CutLogs, SECOND));
    }

    /// [`FaultProfile::Crowd`]: many groups, so that owner-wide calls involve many leaders.
    fn crowd(&mut self, random: &mut SimRng) {
        self.combo(random);
        self.cluster.group_count = random.pick(&[4, 6, 9]);
        self.clients = 8;
        self.observers = 3;
        self.habits.wide = 500;
    }

    /// [`FaultProfile::Moves`]: policy changes move paths between groups all the time.
    fn moves(&mut self, random: &mut SimRng) {
        self.combo(random);
        self.cluster.group_count = random.pick(&[2, 3, 5]);
        self.faults.retain(|(kind, _)| *kind != FaultKind::Combo);
        let often = random.pick(&[3, 8, 20]) * SECOND;
        self.faults.push((FaultKind::Combo, often));
        self.ttls = vec![500, 1_500];
        self.client_loss = 0;
        self.habits = ClientHabits {
            paths: &["q:/a/b", "q:/a/b/c", "p:/0/x", "q:/a/x"],
            quick: 900,
            rest_ms: 200,
            policy_pause: SECOND / 2,
            ..self.habits
        };
    }

    /// [`FaultProfile::Repeats`]: clients send every call several times; it must have one effect.
    fn repeats(&mut self, random: &mut SimRng) {
        self.faults.retain(|_| random.chance(400));
        if random.chance(500) {
            let often = random.pick(&[4, 10]) * SECOND;
            self.faults.push((FaultKind::Combo, often));
        }
        // Delays that differ between links make the copies of one call arrive in any order.
        self.faults.push((FaultKind::SlowLink, 8 * SECOND));
        self.faults.push((FaultKind::Reconnect, 8 * SECOND));
        self.faults.push((FaultKind::Pause, 8 * SECOND));
        // One attempt waits in a connection while another one is answered.
        let often = random.pick(&[1, 3]) * SECOND;
        self.faults.push((FaultKind::HungLane, often));
        self.cluster.group_count = random.pick(&[1, 3, 5]);
        if random.chance(500) {
            // Nodes without a replica of the system group learn of policy changes late.
            self.nodes = 5;
            self.replicas = 3;
        }
        self.clients = 2;
        self.habits = ClientHabits {
            repeaters: 5,
            changers: 2,
            asserters: 2,
            ..self.habits
        };
    }

    /// [`FaultProfile::Lone`]: one node in half of the runs; otherwise groups that shrink to one voter
    /// and grow again. Network faults would need a second node.
    fn lone(&mut self, random: &mut SimRng) {
        self.client_loss = 0;
        self.limits.group_inflight = Limits::default().group_inflight;
        self.faults = vec![
            (FaultKind::Kill, 25 * SECOND),
            (FaultKind::PowerLoss, 25 * SECOND),
            (FaultKind::PowerDuringWrite, 25 * SECOND),
            (FaultKind::SyncError, 45 * SECOND),
            (FaultKind::WriteError, 45 * SECOND),
            (FaultKind::FullDisk, 45 * SECOND),
            (FaultKind::SlowDisk, 20 * SECOND),
            (FaultKind::Pause, 20 * SECOND),
            (FaultKind::ClockRate, 15 * SECOND),
            (FaultKind::ClockStep, 15 * SECOND),
            (FaultKind::ClientPause, 6 * SECOND),
            (FaultKind::ClientDeath, 6 * SECOND),
            (FaultKind::Middle, 10 * SECOND),
            (FaultKind::CutLogs, 5 * SECOND),
        ];
        self.faults.retain(|_| random.chance(600));
        if random.chance(500) {
            self.nodes = 1;
            self.replicas = 1;
        } else {
            self.faults.push((FaultKind::Shrink, 15 * SECOND));
            self.faults.push((FaultKind::Transfer, 15 * SECOND));
        }
    }

    /// [`FaultProfile::Edge`]: as [`FaultProfile::Brink`], and the leaders change all the time.
    fn edge(&mut self, random: &mut SimRng) {
        self.brink(random);
        let often = random.pick(&[1, 2, 4]) * SECOND;
        self.faults.extend([
            (FaultKind::Transfer, often),
            (FaultKind::Pause, 5 * SECOND),
            (FaultKind::ClockExtremes, 5 * SECOND),
        ]);
    }

    /// [`FaultProfile::Rot`]: storage faults only, so that every verdict is due to them.
    fn rot(&mut self, random: &mut SimRng) {
        self.client_loss = 0;
        self.limits.group_inflight = Limits::default().group_inflight;
        // Snapshots must exist, or none can rot.
        self.limits.log_entries = random.pick(&[5, 20, 60]);
        self.faults = StorageFault::ALL
            .iter()
            .map(|fault| (fault.kind(), fault.kind().mean_pause()))
            .collect();
        self.faults.push((FaultKind::ClientPause, 20 * SECOND));
    }

    /// [`FaultProfile::Starved`]: threads and connections hang or are slow; nothing crashes.
    fn starve(&mut self, random: &mut SimRng) {
        self.client_loss = 0;
        self.limits.group_inflight = Limits::default().group_inflight;
        self.faults = vec![
            (FaultKind::Starved, random.pick(&[10, 25]) * SECOND),
            (FaultKind::HungThread, random.pick(&[40, 90]) * SECOND),
            (FaultKind::HungLane, random.pick(&[15, 40]) * SECOND),
            (FaultKind::HungDisk, 60 * SECOND),
            (FaultKind::ClockRate, 30 * SECOND),
        ];
    }

    /// The base of all profiles: any mix of faults. Draws from `random` here must keep their order,
    /// or all stored seeds become different runs.
    fn mixed(
        random: &mut SimRng,
        fault_phase: SimTime,
        contract_violation: Option<ContractViolation>,
    ) -> RunPlan {
        let nodes = random.pick(&[3, 3, 5]);
        let replicas = if nodes == 5 { random.pick(&[3, 5]) } else { 3 };
        let group_count = random.pick(&[1, 2, 3]);
        // 75 s: above the 60 s up to which leases are renewed without a log entry.
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
        // 1 is the most intense: it multiplies the pauses between two strikes.
        let intensity = random.pick(&[1, 2, 4]);
        for kind in FaultKind::ANYWHERE {
            if random.chance(600) {
                faults.push((kind, kind.mean_pause() * intensity));
            }
        }
        if nodes > replicas && random.chance(600) {
            let mean = FaultKind::Forsaken.mean_pause() * intensity;
            faults.push((FaultKind::Forsaken, mean));
        }
        RunPlan {
            fault_profile: FaultProfile::Mixed,
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
            habits: ClientHabits {
                paths: &PATHS,
                quick: 250,
                rest_ms: 2_000,
                brink: 0,
                late_events: 0,
                nested_lock_clients: 0,
                repeaters: 0,
                changers: 0,
                asserters: 0,
                policy_pause: 10 * SECOND,
                wide: 0,
            },
            ttls,
            fault_phase,
            faults,
            client_loss: random.pick(&[0, 5, 30, 100]),
            late: 0,
            contract_violation,
            restored: false,
        }
    }

    /// Upper bound for the time that a waiter outlives its owner in the convergence phase: its
    /// queue time plus 5 s for the pending call that renews it, on the slowest clock, plus slack.
    /// Until then a dead waiter is granted free paths like any other waiter (R87 events that
    /// trigger a sweep).
    pub(crate) fn place_after(&self) -> SimTime {
        let longest = QUEUE_TTLS.into_iter().max().unwrap_or(0) + 5_000;
        longest * MILLISECOND * 12 / 10 + 3 * SECOND
    }

    /// Upper bound for the time that a dead owner holds a path in the convergence phase: its lease,
    /// plus the same again for a late change of leader (two minutes if the lease is longer than a
    /// minute), on the slowest clock, plus slack.
    pub(crate) fn dead_after(&self) -> SimTime {
        let longest = self.ttls.iter().copied().max().unwrap_or(0) * 1_000;
        let extra = if longest > 60 * SECOND {
            120 * SECOND
        } else {
            longest
        };
        (longest + extra) * 12 / 10 + 10 * SECOND
    }
}

/// Draws limits. Small limits cause within minutes what takes days in a real cluster: log
/// truncation, snapshots, full tables.
fn limits(random: &mut SimRng) -> Limits {
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
    limits.space.batch = batch(limits.group_inflight);
    limits
}

/// How many waiters a command grants: few in clusters that take few operations at a time.
fn batch(group_inflight: usize) -> u32 {
    match group_inflight {
        2 => 1,
        8 => 3,
        _ => SpaceLimits::default().batch,
    }
}
