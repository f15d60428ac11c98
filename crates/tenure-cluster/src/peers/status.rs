//! Status fan-out: one node asks all others for their reports and waits one second for them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tenure_node::NodeId;
use tokio::sync::oneshot;

use crate::status_report::{ClusterReport, Edition, NodeReport};

/// Time limit for the reports of the other nodes.
pub(crate) const STATUS_TIMEOUT: Duration = Duration::from_secs(1);

/// Status requests in flight.
#[derive(Default)]
pub(crate) struct StatusRequests {
    last: u64,
    open: BTreeMap<u64, PendingStatus>,
}

struct PendingStatus {
    missing: BTreeSet<NodeId>,
    /// First parts of reports. They arrive before the report that they belong to.
    editions: BTreeMap<NodeId, Edition>,
    reports: Vec<NodeReport>,
    reply: oneshot::Sender<Vec<NodeReport>>,
}

impl StatusRequests {
    /// Registers a request to these nodes. Returns its id.
    pub(crate) fn begin(
        &mut self,
        missing: BTreeSet<NodeId>,
        reply: oneshot::Sender<Vec<NodeReport>>,
    ) -> u64 {
        self.last += 1;
        let open = PendingStatus {
            missing,
            editions: BTreeMap::new(),
            reports: Vec::new(),
            reply,
        };
        self.open.insert(self.last, open);
        self.last
    }

    /// Takes the first part of a report.
    pub(crate) fn heard_edition(&mut self, id: u64, edition: Edition) {
        if let Some(open) = self.open.get_mut(&id)
            && open.missing.contains(&edition.member.node)
        {
            open.editions.insert(edition.member.node, edition);
        }
    }

    /// Takes a report. Completes the request when it is the last one.
    pub(crate) fn heard(&mut self, id: u64, mut report: NodeReport) {
        let Some(open) = self.open.get_mut(&id) else {
            return;
        };
        if open.missing.remove(&report.member.node) {
            if let Some(edition) = open.editions.remove(&report.member.node) {
                report.complete(edition);
            }
            open.reports.push(report);
        }
        if open.missing.is_empty() {
            self.end(id);
        }
    }

    /// Completes a request with the reports that have arrived.
    pub(crate) fn end(&mut self, id: u64) {
        if let Some(open) = self.open.remove(&id) {
            let _ = open.reply.send(open.reports);
        }
    }
}

impl ClusterReport {
    /// Returns the report of a node, if it answered.
    pub fn report(&self, node: NodeId) -> Option<&NodeReport> {
        self.reports
            .iter()
            .find(|report| report.member.node == node)
    }
}
