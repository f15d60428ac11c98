//! Namespace resolution: this node's cached copy of the namespace table.
//!
//! A stale copy costs time, not correctness. An acquire carries the table version that it was
//! resolved with, and a space refuses a version older than a change that affects the path (R32:
//! re-resolution after policy change). Then the node reads the table again from the system group,
//! once for all calls that wait for it.

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use tenure_core::command::Route;
use tenure_core::namespace_table::NamespaceTable;
use tenure_core::path::{Namespace, Path};

use super::forward::OpOrigin;
use super::{AwaitedPart, CallContext, CallEvent};
use crate::config::Config;
use crate::group_op::{GroupOp, GroupOpResult, GroupQuery, QueryResult};
use crate::node::Node;
use crate::placement;
use crate::{GroupId, NodeId, ReplicaId};

/// Placements that are remembered; computing one costs a hash per group.
const MAX_PLACES: usize = 16_384;
/// How long one reading of the table may take before it is asked again.
const TABLE_TIMEOUT_MS: u64 = 5_000;

/// See the module.
pub(crate) struct NamespaceCache {
    table: NamespaceTable,
    /// Whether the copy ever came from the system group.
    loaded: bool,
    group_count: u32,
    places: HashMap<Namespace, GroupId, FxBuildHasher>,
    waiting: Vec<(u64, AwaitedPart)>,
    asked: bool,
}

impl NamespaceCache {
    pub(crate) fn new(config: &Config, table: NamespaceTable) -> NamespaceCache {
        NamespaceCache {
            table,
            loaded: false,
            group_count: config.cluster.group_count,
            places: HashMap::default(),
            waiting: Vec::new(),
            asked: false,
        }
    }

    pub(crate) fn table(&self) -> &NamespaceTable {
        &self.table
    }

    pub(crate) fn is_loaded(&self) -> bool {
        self.loaded
    }

    /// The group of a namespace (R160: groups and placement).
    pub(crate) fn group_of(&mut self, namespace: &Namespace) -> GroupId {
        if let Some(group) = self.places.get(namespace) {
            return *group;
        }
        if self.places.len() >= MAX_PLACES {
            self.places.clear();
        }
        let group = placement::group_of(namespace, self.group_count);
        self.places.insert(namespace.clone(), group);
        group
    }

    /// Where a path is decided, and by which group.
    fn route(&mut self, path: &Path) -> (Route, GroupId) {
        let known = self.places.get_key_value(self.table.name_of(path));
        let (namespace, group) = match known {
            Some((namespace, group)) => (namespace.clone(), *group),
            None => {
                let namespace = self.table.namespace_of(path);
                let group = self.group_of(&namespace);
                (namespace, group)
            }
        };
        let route = Route {
            algorithm: self.table.algorithm(&namespace),
            version: self.table.version(),
            namespace,
        };
        (route, group)
    }

    fn take(&mut self, table: &NamespaceTable) -> bool {
        if self.loaded && table.version() <= self.table.version() {
            return false;
        }
        self.table = table.clone();
        self.loaded = true;
        true
    }
}

impl Node {
    pub(crate) fn table(&self) -> &NamespaceTable {
        self.coordinator.resolve.table()
    }

    pub(crate) fn group_of(&mut self, namespace: &Namespace) -> GroupId {
        self.coordinator.resolve.group_of(namespace)
    }

    /// Where a path is decided, and by which group.
    pub(super) fn route(&mut self, path: &Path) -> (Route, GroupId) {
        self.coordinator.resolve.route(path)
    }

    /// Waits until the copy has at least this version: [`CallEvent::Table`], at once or later.
    pub(super) fn await_table(&mut self, cx: &mut CallContext, version: u64) {
        let awaited = cx.new_part();
        let resolve = &mut self.coordinator.resolve;
        if resolve.loaded && resolve.table.version() >= version {
            self.coordinator.tell(awaited, CallEvent::Table);
            return;
        }
        resolve.waiting.push((version, awaited));
        self.ask_table();
    }

    fn ask_table(&mut self) {
        if self.coordinator.resolve.asked {
            return;
        }
        self.coordinator.resolve.asked = true;
        let resolve = &self.coordinator.resolve;
        let known = resolve.loaded.then(|| resolve.table.version());
        let (system, expires) = (self.system(), self.now_ms() + TABLE_TIMEOUT_MS);
        self.submit(
            OpOrigin::Table,
            system,
            GroupOp::Read(GroupQuery::Table { known }),
            expires,
        );
    }

    pub(crate) fn table_answer(&mut self, answer: GroupOpResult) {
        self.coordinator.resolve.asked = false;
        if let GroupOpResult::Found(found) = answer
            && let QueryResult::Table(table) = *found
        {
            match table {
                Some(table) => {
                    self.coordinator.resolve.take(&table);
                }
                None => self.coordinator.resolve.loaded = true,
            }
            // Linearizable: what is still newer than this does not exist.
            self.wake_table_waiters();
        }
        // Otherwise it is asked again with the next tick.
    }

    pub(crate) fn retry_table(&mut self) {
        if !self.coordinator.resolve.waiting.is_empty() {
            self.ask_table();
        }
    }

    fn wake_table_waiters(&mut self) {
        for (_, awaited) in std::mem::take(&mut self.coordinator.resolve.waiting) {
            self.coordinator.tell(awaited, CallEvent::Table);
        }
    }

    /// The system machine on this node has applied something.
    pub(crate) fn system_changed(&mut self) {
        let system = self.system();
        let Some(Some(group)) = self.groups.get(system.0 as usize) else {
            return;
        };
        // A replica that knows nothing yet has an empty table, which is not the table.
        if group.applied.index < crate::Base::BIRTH.index {
            return;
        }
        if let Some(machine) = group.machine.system() {
            self.coordinator.resolve.take(machine.table());
            let version = self.coordinator.resolve.table.version();
            let waiting = &mut self.coordinator.resolve.waiting;
            let mut ready = Vec::new();
            waiting.retain(|(wanted, awaited)| {
                let over = *wanted <= version;
                if over {
                    ready.push(*awaited);
                }
                !over
            });
            for awaited in ready {
                self.coordinator.tell(awaited, CallEvent::Table);
            }
        }
    }

    /// The leader of a group, for those who only want to name it.
    pub(crate) fn leader_of(&self, group: GroupId) -> Option<ReplicaId> {
        self.known_leader(group)
    }

    /// The latest leadership of a group that is known here. A node that led, lost and won again is
    /// another leader: it has forgotten who listened to it.
    pub(crate) fn leadership_of(&self, group: GroupId) -> Option<(u64, NodeId)> {
        let local = self
            .group_ref(group)
            .and_then(|group| Some((group.term(), group.leader()?)));
        let heard = self.peers.leadership(group);
        let (term, leader) = local.max(heard)?;
        Some((term, leader.node))
    }
}
