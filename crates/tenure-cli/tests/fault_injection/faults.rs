//! Faults of the test, one variant each, and their duration.

use std::fmt;
use std::time::Duration;

use tenure_random::SplitMix64;

use crate::nodes::Cluster;

/// One kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// `kill -9`, and started again.
    Kill,
    /// SIGSTOP for longer than any lease of the load.
    Freeze,
    /// Disconnected from the other nodes; clients still reach it.
    CutOff,
    /// Receives from the others, but they do not receive from it.
    Mute,
    /// Sends to the others, but does not receive from them.
    Deaf,
    /// One pair of nodes is disconnected; both reach the rest.
    PairCut,
    /// Every eighth packet is lost.
    Loss,
    /// Limited bandwidth.
    Slow,
    /// The disk is full; the daemon ends or waits, and continues when there is space.
    FullDisk,
    /// The wall clock jumps an hour ahead, then two back.
    Clock,
    /// Rolling restart.
    Rolling,
    /// A node loses its disk and returns under its old name.
    Wipe,
    /// Two nodes are killed at once, and started again.
    Majority,
    /// Traffic between a node and the others is delayed.
    Delay,
    /// A node joins while another leaves; one of the two may be killed meanwhile.
    Exchange,
}

const ALL: [Fault; 15] = [
    Fault::Kill,
    Fault::Freeze,
    Fault::CutOff,
    Fault::Mute,
    Fault::Deaf,
    Fault::PairCut,
    Fault::Loss,
    Fault::Slow,
    Fault::FullDisk,
    Fault::Clock,
    Fault::Rolling,
    Fault::Wipe,
    Fault::Majority,
    Fault::Delay,
    Fault::Exchange,
];

impl Fault {
    /// Chooses a fault that this machine permits.
    pub(crate) fn choose(random: &mut SplitMix64, cluster: &Cluster) -> Fault {
        loop {
            let fault = ALL[random.index(ALL.len())];
            let possible = match fault {
                Fault::CutOff | Fault::Mute | Fault::Deaf | Fault::PairCut => cluster.net.is_real(),
                Fault::Loss => cluster.net.can_lose(),
                Fault::Slow => cluster.net.can_slow(),
                Fault::Delay => cluster.net.can_delay(),
                Fault::FullDisk => cluster.nodes[0].own_disk,
                Fault::Clock => cluster.nodes[0].own_clock,
                _ => true,
            };
            if possible {
                return fault;
            }
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Fault::Kill => "kill -9",
            Fault::Freeze => "SIGSTOP",
            Fault::CutOff => "partition",
            Fault::Mute => "one way, mute",
            Fault::Deaf => "one way, deaf",
            Fault::PairCut => "one pair cut",
            Fault::Loss => "packet loss",
            Fault::Slow => "slow line",
            Fault::FullDisk => "full disk",
            Fault::Clock => "clock steps",
            Fault::Rolling => "rolling restart",
            Fault::Wipe => "disk lost",
            Fault::Majority => "two killed",
            Fault::Delay => "delay",
            Fault::Exchange => "join and drain at once",
        }
    }

    /// Begins the fault.
    pub(crate) fn strike(self, cluster: &mut Cluster, victim: u32) {
        let others = cluster.others(victim);
        let node = &mut cluster.nodes[victim as usize];
        match self {
            Fault::Kill | Fault::Rolling | Fault::Exchange => node.kill(),
            Fault::Freeze => node.freeze(),
            Fault::FullDisk => node.fill_disk(),
            Fault::Wipe => node.wipe(),
            Fault::Clock => node.set_clock(3600),
            Fault::Loss => cluster.net.lose(victim, 12),
            Fault::Slow => cluster.net.slow(victim),
            Fault::PairCut => {
                cluster.net.cut(victim, others[0]);
                cluster.net.cut(others[0], victim);
            }
            Fault::Mute => others
                .iter()
                .for_each(|other| cluster.net.cut(victim, *other)),
            Fault::Deaf => others
                .iter()
                .for_each(|other| cluster.net.cut(*other, victim)),
            Fault::CutOff => others.iter().for_each(|other| {
                cluster.net.cut(victim, *other);
                cluster.net.cut(*other, victim);
            }),
            Fault::Majority => {
                node.kill();
                cluster.nodes[others[0] as usize].kill();
            }
            Fault::Delay => others.iter().for_each(|other| {
                cluster.net.delay(victim, *other);
                cluster.net.delay(*other, victim);
            }),
        }
    }

    /// Begins the fault on a node, waits, and heals it.
    pub(crate) async fn inflict(self, cluster: &mut Cluster, random: &mut SplitMix64) {
        let members = cluster.members();
        let victim = members[random.index(members.len())];
        let lasting = |low, spread, random: &mut SplitMix64| {
            Duration::from_millis(low + random.below(spread))
        };
        match self {
            Fault::Rolling => {
                for number in members {
                    cluster.nodes[number as usize].terminate().await;
                    cluster.launch(number).await;
                }
            }
            Fault::Clock => {
                self.strike(cluster, victim);
                tokio::time::sleep(lasting(1500, 1000, random)).await;
                cluster.nodes[victim as usize].set_clock(-7200);
                tokio::time::sleep(lasting(1500, 1000, random)).await;
            }
            Fault::Exchange => {
                // A node that leaves needs others that take its replicas.
                cluster.heal().await;
                let (who, when) = (random.below(3), lasting(50, 1500, random));
                let trouble = async |cluster: &mut Cluster, joining: u32| {
                    let struck = match who {
                        0 => joining,
                        1 => victim,
                        _ => return,
                    };
                    tokio::time::sleep(when).await;
                    cluster.nodes[struck as usize].kill();
                    cluster.launch(struck).await;
                };
                let took = cluster.exchange(victim, trouble).await;
                println!("          a node had left for another after {took:.1?}");
            }
            Fault::Wipe => {
                // One disk at a time: data on two of three nodes would be lost with the second.
                cluster.heal().await;
                self.strike(cluster, victim);
                tokio::time::sleep(lasting(500, 1000, random)).await;
            }
            Fault::FullDisk => {
                self.strike(cluster, victim);
                tokio::time::sleep(lasting(2500, 3000, random)).await;
                // R145: a node whose log has failed serves no client until it is restarted.
                cluster.nodes[victim as usize].kill();
            }
            Fault::Kill | Fault::Majority => {
                self.strike(cluster, victim);
                tokio::time::sleep(lasting(50, 3000, random)).await;
            }
            _ => {
                self.strike(cluster, victim);
                tokio::time::sleep(lasting(2500, 3000, random)).await;
            }
        }
        // Every other time the next fault begins before the last one has healed everywhere.
        let disk_changed = matches!(self, Fault::Wipe | Fault::Exchange);
        if disk_changed || random.below(2) == 0 {
            cluster.heal().await;
        } else {
            cluster.restart().await;
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
