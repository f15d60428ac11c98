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
/// Time after which an unanswered read of the table is repeated.
const TABLE_TIMEOUT_MS: u64 = 5_000;

/// The cached namespace table.
pub(crate) struct NamespaceCache {
    table: NamespaceTable,
    /// Whether the table was ever read from the system group.
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

    /// Returns the namespace of a path and its group.
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

    /// Returns the namespace of a path and its group.
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
            // The read was linearizable, so no newer version existed when it was made: wake all
            // waiters.
            self.wake_table_waiters();
        }
        // After a failure the next tick reads again.
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

    /// Updates the cache from the system group's replica on this node.
    pub(crate) fn system_changed(&mut self) {
        let system = self.system();
        let Some(Some(group)) = self.groups.get(system.0 as usize) else {
            return;
        };
        // An empty replica has an empty table, which is not the real one.
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

    /// Returns the known leader of a group.
    pub(crate) fn leader_of(&self, group: GroupId) -> Option<ReplicaId> {
        self.known_leader(group)
    }

    /// Returns the latest known leader of a group with its term. The term matters: a node that lost
    /// and regained leadership has lost its list of followers.
    pub(crate) fn leadership_of(&self, group: GroupId) -> Option<(u64, NodeId)> {
        let local = self
            .group_ref(group)
            .and_then(|group| Some((group.term(), group.leader()?)));
        let heard = self.peers.leadership(group);
        let (term, leader) = local.max(heard)?;
        Some((term, leader.node))
    }
}
