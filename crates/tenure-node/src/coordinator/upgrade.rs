//! Rolling upgrade: when a group moves to a newer rules number (version of the replicated formats).
//!
//! A state machine applies every entry by the rules number in its state. Each group starts with
//! [`FIRST_RULES`]; its leader proposes the newest number that every node of the cluster supports,
//! by the announcements of connected nodes. Only after that entry may entries and snapshots have
//! forms that an older release cannot read. Until then an upgrade can be undone by starting the
//! older release again.
//!
//! All nodes must agree, not only the members of the group: another node may coordinate a call for
//! the group, or become a member of it. A node that is known to the cluster but unreachable blocks
//! the upgrade, because it may come back with the older release.
//!
//! A node also announces the newest rules number that one of its groups applies, which proves that
//! all nodes supported it. A node without replicas needs that proof while another node is down.

use std::collections::BTreeSet;

use tenure_core::command::Command;
use tenure_core::space::{FIRST_RULES, RULES};
use tenure_core::system::SystemCommand;

use super::forward::OpOrigin;
use crate::codec::{DecodeResult, Reader};
use crate::group_op::GroupOp;
use crate::node::frames_item as item;
use crate::node::{Announced, Node};
use crate::{GroupId, NodeId};

/// A proposal that was not applied after so long is made again.
const PROPOSAL_MS: u64 = 10_000;
/// Operations, fan-outs and answers have newer forms since this rules number.
const NEWER_FORMS: u32 = 2;

/// Groups whose leader, on this node, has proposed newer rules that are not applied yet.
pub(crate) type Upgrades = BTreeSet<GroupId>;

impl Node {
    /// Tells a peer which rules this release knows, and the newest that a group of this node applies by. Release
    /// 0.1.0 ignores it.
    pub(crate) fn announce_rules(&mut self, to: NodeId) {
        let in_force = self.rules_in_force();
        self.frames().say(to, item::RULES, |out| {
            out.number(u64::from(RULES));
            out.number(u64::from(in_force));
        });
    }

    /// The newest rules that a group of this node applies by.
    fn rules_in_force(&self) -> u32 {
        let rules = self.groups.iter().flatten().map(|one| one.machine.rules());
        rules.max().unwrap_or(FIRST_RULES)
    }

    pub(crate) fn receive_rules(
        &mut self,
        from: NodeId,
        content: &mut Reader<'_>,
    ) -> DecodeResult<()> {
        let number = content.small()?;
        let in_force = content.small()?;
        content.finish()?;
        self.coordinator.newer_forms |= in_force >= NEWER_FORMS;
        if self.peers.note_rules(from, number) == Announced::First {
            // It has just started, and what was said to it before is lost.
            self.announce_rules(from);
            self.has_newer_forms();
            self.activate_rules();
        }
        Ok(())
    }

    /// The newest rules that every node of the cluster has, as far as this node knows now.
    pub(crate) fn common_rules(&self) -> u32 {
        let others = self
            .peers
            .nodes
            .iter()
            .filter(|node| **node != self.me.node);
        let known = others.map(|node| {
            if self.peers.is_down(*node) {
                FIRST_RULES
            } else {
                self.peers.rules(*node)
            }
        });
        known.min().map_or(RULES, |least| least.min(RULES))
    }

    /// Whether operations, fan-outs and answers may have the forms that came with rules 2: every
    /// node knows them. A group that applies by rules 2, here or on another node, proves it,
    /// whatever is known of the nodes now. Leaders write the older forms into the logs of groups
    /// that are not there yet.
    pub(crate) fn has_newer_forms(&mut self) -> bool {
        if !self.coordinator.newer_forms {
            self.coordinator.newer_forms =
                self.rules_in_force() >= NEWER_FORMS || self.common_rules() >= NEWER_FORMS;
        }
        self.coordinator.newer_forms
    }

    /// Whether [`Node::has_newer_forms`] can be relied on. A node without replicas that has just started knows of no
    /// proof yet. The leader of the system group says by which rules its groups apply before it says that it
    /// leads, so both are known when the namespace table has come from it.
    pub(crate) fn knows_forms(&mut self) -> bool {
        self.has_newer_forms() || self.coordinator.resolve.is_loaded()
    }

    /// Proposes newer rules for every group that is led here, where all nodes have them.
    pub(crate) fn activate_rules(&mut self) {
        let common = self.common_rules();
        let groups = self.groups.iter().flatten();
        let behind: Vec<GroupId> = groups
            .filter(|group| group.is_led() && group.machine.rules() < common)
            .map(|group| group.id)
            .collect();
        for id in behind {
            self.propose_rules(id, common);
        }
    }

    /// The same for one group, which is led here from now on.
    pub(crate) fn activate_rules_of(&mut self, id: GroupId) {
        let behind = |number| {
            self.group_ref(id)
                .is_some_and(|group| group.is_led() && group.machine.rules() < number)
        };
        // Most groups have the newest rules already: the nodes need not be counted for them.
        if !behind(RULES) {
            return;
        }
        let common = self.common_rules();
        if behind(common) {
            self.propose_rules(id, common);
        }
    }

    fn propose_rules(&mut self, id: GroupId, number: u32) {
        if !self.coordinator.upgrades.insert(id) {
            return;
        }
        let op = if id == self.system() {
            GroupOp::System(Box::new(SystemCommand::Rules { number }))
        } else {
            GroupOp::Command(Command::Rules { number })
        };
        let expires = self.now_ms() + PROPOSAL_MS;
        self.submit_here(OpOrigin::Upgrade { group: id }, id, op, expires);
    }

    /// The proposal was applied, or certainly never will be: a later tick looks again.
    pub(crate) fn upgrade_ended(&mut self, group: GroupId) {
        self.coordinator.upgrades.remove(&group);
    }
}
