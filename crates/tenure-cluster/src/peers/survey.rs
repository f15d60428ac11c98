//! Surveys: one node asks all others for their reports, and waits a second for them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tenure_node::NodeId;
use tokio::sync::oneshot;

use crate::report::{Report, Survey};

/// So long the others have time to answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);

/// Surveys that are under way.
#[derive(Default)]
pub(crate) struct Surveys {
    last: u64,
    open: BTreeMap<u64, Open>,
}

struct Open {
    missing: BTreeSet<NodeId>,
    reports: Vec<Report>,
    reply: oneshot::Sender<Vec<Report>>,
}

impl Surveys {
    /// Begins one; these are expected to answer.
    pub(crate) fn begin(
        &mut self,
        missing: BTreeSet<NodeId>,
        reply: oneshot::Sender<Vec<Report>>,
    ) -> u64 {
        self.last += 1;
        let open = Open {
            missing,
            reports: Vec::new(),
            reply,
        };
        self.open.insert(self.last, open);
        self.last
    }

    /// A report has come.
    pub(crate) fn heard(&mut self, id: u64, report: Report) {
        let Some(open) = self.open.get_mut(&id) else {
            return;
        };
        if open.missing.remove(&report.member.node) {
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

impl Survey {
    /// The report of a node, if it answered.
    pub fn report(&self, node: NodeId) -> Option<&Report> {
        self.reports
            .iter()
            .find(|report| report.member.node == node)
    }
}
