//! Status requests: one node asks all others for their reports, and waits a second for them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tenure_node::NodeId;
use tokio::sync::oneshot;

use crate::status_report::{ClusterReport, Edition, NodeReport};

/// So long the others have time to answer.
pub(crate) const STATUS_TIMEOUT: Duration = Duration::from_secs(1);

/// Status requests that are under way.
#[derive(Default)]
pub(crate) struct StatusRequests {
    last: u64,
    open: BTreeMap<u64, PendingStatus>,
}

struct PendingStatus {
    missing: BTreeSet<NodeId>,
    /// What was said before the report that it belongs to.
    editions: BTreeMap<NodeId, Edition>,
    reports: Vec<NodeReport>,
    reply: oneshot::Sender<Vec<NodeReport>>,
}

impl StatusRequests {
    /// Begins one; these are expected to answer.
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

    /// The first part of a report has come.
    pub(crate) fn heard_edition(&mut self, id: u64, edition: Edition) {
        if let Some(open) = self.open.get_mut(&id)
            && open.missing.contains(&edition.member.node)
        {
            open.editions.insert(edition.member.node, edition);
        }
    }

    /// A report has come.
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

    /// Whoever has not answered is not waited for any more.
    pub(crate) fn end(&mut self, id: u64) {
        if let Some(open) = self.open.remove(&id) {
            let _ = open.reply.send(open.reports);
        }
    }
}

impl ClusterReport {
    /// The report of a node, if it answered.
    pub fn report(&self, node: NodeId) -> Option<&NodeReport> {
        self.reports
            .iter()
            .find(|report| report.member.node == node)
    }
}
