//! Simulated network between nodes: delay, loss, duplication, partitions, reconnects.
//!
//! One link per direction. Frames of one connection and channel arrive in order. After a reconnect,
//! frames of the old connection may arrive later than frames of the new one.

use tenure_node::Channel;

use crate::random::SimRng;
use crate::time::{MILLISECOND, SECOND, SimTime};

/// State of a link. Faults change it.
#[derive(Clone, Debug)]
pub(crate) struct SimLink {
    pub(crate) cut: bool,
    /// Lost frames, per mille.
    pub(crate) loss: u64,
    /// Lost frames of the bulk channel (snapshots), per mille. The larger of both values counts.
    pub(crate) bulk_loss: u64,
    /// Duplicated frames, per mille.
    pub(crate) duplicates: u64,
    /// Shortest and longest delay of a frame.
    pub(crate) delay: (SimTime, SimTime),
    /// Frames of a channel that are sent before this time do not arrive earlier: the channel hangs.
    pub(crate) hangs_until: [SimTime; 2],
    /// Arrival time of the last frame of this connection, per channel.
    last: [SimTime; 2],
}

impl SimLink {
    fn healthy() -> SimLink {
        SimLink {
            cut: false,
            loss: 0,
            bulk_loss: 0,
            duplicates: 0,
            delay: (100, 2 * MILLISECOND),
            hangs_until: [0; 2],
            last: [0; 2],
        }
    }
}

/// All links.
pub(crate) struct Network {
    nodes: usize,
    links: Vec<SimLink>,
    random: SimRng,
    /// Per mille of frames that arrive up to two minutes late. Half of them also arrive on time.
    pub(crate) late: u64,
}

impl Network {
    pub(crate) fn new(nodes: usize, random: SimRng) -> Network {
        Network {
            nodes,
            links: vec![SimLink::healthy(); nodes * nodes],
            random,
            late: 0,
        }
    }

    pub(crate) fn link(&mut self, from: usize, to: usize) -> &mut SimLink {
        &mut self.links[from * self.nodes + to]
    }

    /// Returns the arrival times of a frame that is sent now: none if it is lost, several if it is
    /// duplicated.
    pub(crate) fn send(
        &mut self,
        now: SimTime,
        from: usize,
        to: usize,
        channel: Channel,
        bytes: usize,
    ) -> Vec<SimTime> {
        let link = &mut self.links[from * self.nodes + to];
        let random = &mut self.random;
        let loss = match channel {
            Channel::Main => link.loss,
            Channel::Bulk => link.loss.max(link.bulk_loss),
        };
        if link.cut || random.chance(loss) {
            return Vec::new();
        }
        if self.late > 0 && random.chance(self.late) {
            let late = now + random.between(1_000, 120_000) * MILLISECOND;
            let mut arrivals = vec![late];
            if random.chance(500) {
                arrivals.push(now + link.delay.1);
            }
            return arrivals;
        }
        let lane_number = match channel {
            Channel::Main => 0,
            Channel::Bulk => 1,
        };
        // 100 bytes per microsecond, and never before the previous frame of the same connection and
        // channel.
        let flight = random.between(link.delay.0, link.delay.1) + bytes as u64 / 100;
        let arrives = (now + flight)
            .max(link.last[lane_number] + 1)
            .max(link.hangs_until[lane_number]);
        link.last[lane_number] = arrives;
        let mut arrivals = vec![arrives];
        if random.chance(link.duplicates) {
            arrivals.push(arrives + random.between(0, 3_000 * MILLISECOND));
        }
        arrivals
    }

    /// Whether no fault affects a link.
    pub(crate) fn is_healthy(&self, now: SimTime, from: usize, to: usize) -> bool {
        let link = &self.links[from * self.nodes + to];
        let healthy = SimLink::healthy();
        !link.cut
            && link.loss.max(link.bulk_loss) == 0
            && link.delay == healthy.delay
            && link.hangs_until.iter().all(|end| *end <= now)
            && link.last.iter().all(|last| *last <= now + SECOND)
    }

    pub(crate) fn is_cut(&self, from: usize, to: usize) -> bool {
        self.links[from * self.nodes + to].cut
    }

    /// Replaces the connection: frames of the new one may overtake frames that are under way.
    pub(crate) fn reconnect(&mut self, one: usize, other: usize) {
        self.link(one, other).last = [0; 2];
        self.link(other, one).last = [0; 2];
    }

    /// Ends the fault phase. Frames that are already under way still arrive late.
    pub(crate) fn convergence(&mut self) {
        self.late = 0;
        self.heal();
    }

    /// Resets all links. The order of frames on existing connections is kept.
    pub(crate) fn heal(&mut self) {
        for link in &mut self.links {
            // A channel that hung is a new connection: later frames overtake those that it held up.
            let last = if link.hangs_until == [0; 2] {
                link.last
            } else {
                [0; 2]
            };
            *link = SimLink {
                last,
                ..SimLink::healthy()
            };
        }
    }
}
