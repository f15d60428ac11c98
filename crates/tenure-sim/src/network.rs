//! The network between nodes: links that are slow, lossy, cut, or broken and made again.
//!
//! One link per direction. Frames of one connection and lane keep their order; when a connection
//! breaks, those still under way may arrive after frames of the next one.

use tenure_node::Channel;

use crate::random::SimRng;
use crate::time::{MILLISECOND, SimTime};

/// What faults change and sending obeys.
#[derive(Clone, Debug)]
pub(crate) struct SimLink {
    pub(crate) cut: bool,
    /// Per mille.
    pub(crate) loss: u64,
    /// The same for what is large: states that travel in pieces.
    pub(crate) bulk_loss: u64,
    /// Per mille.
    pub(crate) duplicates: u64,
    /// A frame takes from the first to the second of these.
    pub(crate) delay: (SimTime, SimTime),
    /// When the last frame of this connection arrives, per lane.
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
            last: [0; 2],
        }
    }
}

/// All links.
pub(crate) struct Network {
    nodes: usize,
    links: Vec<SimLink>,
    random: SimRng,
    /// Per mille of frames that arrive up to two minutes late, instead of in time or as well.
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

    /// When a frame that leaves now arrives: never, once, or more often.
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
        let flight = random.between(link.delay.0, link.delay.1) + bytes as u64 / 100;
        let arrives = (now + flight).max(link.last[lane_number] + 1);
        link.last[lane_number] = arrives;
        let mut arrivals = vec![arrives];
        if random.chance(link.duplicates) {
            arrivals.push(arrives + random.between(0, 3_000 * MILLISECOND));
        }
        arrivals
    }

    pub(crate) fn is_cut(&self, from: usize, to: usize) -> bool {
        self.links[from * self.nodes + to].cut
    }

    /// The connection breaks and another one begins: its frames may overtake those under way.
    pub(crate) fn reconnect(&mut self, one: usize, other: usize) {
        self.link(one, other).last = [0; 2];
        self.link(other, one).last = [0; 2];
    }

    /// The fault phase is over: what is late already still comes.
    pub(crate) fn convergence(&mut self) {
        self.late = 0;
        self.heal();
    }

    pub(crate) fn heal(&mut self) {
        for link in &mut self.links {
            *link = SimLink {
                last: link.last,
                ..SimLink::healthy()
            };
        }
    }
}
