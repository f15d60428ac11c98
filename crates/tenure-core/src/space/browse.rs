//! Lists for people: the children of a prefix, the waiters, the history (E20–E22).
//!
//! A space contains only some namespaces, and a prefix may be above, at or below them. So the
//! children come from two kinds of sources, which are merged by name: namespaces below the prefix,
//! by their names, and the path trees of namespaces that contain the prefix. Each source gives its
//! children in order, so a page costs what is in it, not what is in the space.

use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::Space;
use super::conflict::new_requests;
use super::namespaces::{NamespaceState, order_key};
use super::queue::Waiter;
use crate::path::{Namespace, Path};
use crate::policy::Mode;
use crate::query::{
    Child, ChildPage, HistoryPage, PresentHold, WaitPage, WaiterView, WaitingOwner,
};
use crate::slab::Id;
use crate::tree::{PathNode, PathQueue};

/// Namespaces that one page visits. Beyond it, counts are minimums.
const VISITED_NAMESPACES: usize = 1024;
/// Holds that are described for each child.
const LISTED_HOLDS: usize = 4;
/// Blockers that are listed for each waiter.
const LISTED_BLOCKERS: usize = 16;

/// The children of one page, by name.
type Children = BTreeMap<String, Child>;

impl Space {
    /// Returns the children of a prefix after a name, in byte order, at most `page` of them (E20:
    /// list children). Without a prefix the children are the handlers. The caller needs none after
    /// `last`.
    pub fn children(
        &mut self,
        prefix: Option<&Namespace>,
        after: Option<&str>,
        last: Option<&str>,
        page: usize,
        now: u64,
    ) -> ChildPage {
        let mut children = Children::new();
        let is_wanted = |name: &str| last.is_none_or(|last| name <= last);
        let mut until = self.children_by_name(prefix, after, last, page, &mut children);
        if let Some(prefix) = prefix {
            let path = root_path(prefix);
            for namespace in self.namespaces_around(prefix) {
                let node = path
                    .as_ref()
                    .and_then(|path| self.path_position(namespace, path).at);
                let Some(node) = node else {
                    continue;
                };
                // The root of a handler is a path, and it has no parent that would show it.
                let is_root = path.as_ref().is_some_and(|path| path.depth() == 0);
                if is_root && after.is_none() {
                    self.add_node(&mut children, "", node, NodeCount::Here);
                }
                let found = self.tree.children_after(node, after, page + 1);
                for child in found {
                    let name = self.tree.segment(child).to_string();
                    if !is_wanted(&name) {
                        until = match until {
                            Some(until) if until.as_str() < last.unwrap_or_default() => Some(until),
                            _ => last.map(ToString::to_string),
                        };
                        break;
                    }
                    self.add_node(&mut children, &name, child, NodeCount::Subtree);
                }
            }
        }
        if let Some(until) = &until {
            children.retain(|name, _| name <= until);
        }
        let mut children: Vec<Child> = children.into_values().collect();
        if children.len() > page {
            children.truncate(page);
            until = children.last().map(|child| child.name.clone());
        }
        // Holds are described as of the last entry; add the time since then.
        let since_entry = now.saturating_sub(self.time);
        for holder in children.iter_mut().flat_map(|child| &mut child.holders) {
            holder.hold.held_ms += since_entry;
        }
        ChildPage { children, until }
    }

    /// Adds the children of a prefix that are namespaces or contain some. Returns the name up to
    /// which they are complete.
    fn children_by_name(
        &mut self,
        prefix: Option<&Namespace>,
        after: Option<&str>,
        last: Option<&str>,
        page: usize,
        children: &mut Children,
    ) -> Option<String> {
        self.namespaces.order();
        // All keys of namespaces below the prefix start with this.
        let start = match prefix {
            None => String::new(),
            Some(prefix) => {
                let handler_root = [prefix.handler(), ":"].concat();
                let key = order_key(prefix.as_str());
                match key.strip_prefix(&handler_root) {
                    Some("" | "\0") => handler_root + "\0",
                    _ => key + "\0",
                }
            }
        };
        // The smallest key that is not of this child or below it.
        let behind = |name: &str| [&start, name, "\u{1}"].concat();
        let mut key = match (prefix, after) {
            (_, None) => start.clone(),
            (None, Some(after)) => [after, ":\u{1}"].concat(),
            (Some(_), Some(after)) => behind(after),
        };
        let mut visited = 0;
        let mut found = 0;
        loop {
            let mut current: Option<String> = None;
            let mut parts: Vec<(Id<NamespaceState>, bool)> = Vec::new();
            let mut is_cut = false;
            for (at, namespace) in self.namespaces.starting_at(&key) {
                let Some(rest) = at.strip_prefix(&*start) else {
                    break;
                };
                let end = match prefix {
                    // A handler cannot contain `:`.
                    None => rest.find(':').unwrap_or(rest.len()),
                    Some(_) => rest.find('\0').unwrap_or(rest.len()),
                };
                let name = &rest[..end];
                if current.as_deref().is_some_and(|current| current != name) {
                    break;
                }
                if current.is_none() {
                    current = Some(name.to_string());
                }
                visited += 1;
                if visited > VISITED_NAMESPACES && !parts.is_empty() {
                    is_cut = true;
                    break;
                }
                let is_itself = prefix.is_some() && rest.len() == end;
                parts.push((namespace, is_itself));
            }
            let name = current?;
            if last.is_some_and(|last| *name > *last) {
                return last.map(ToString::to_string);
            }
            // The handler's own root is not below the prefix: see `namespaces_around`.
            if !name.is_empty() {
                self.add_namespaces(children, &name, &parts, is_cut);
                found += usize::from(children.contains_key(&name));
            }
            // One more than a page, to know whether there is one.
            if found > page || visited > 2 * VISITED_NAMESPACES {
                return Some(name);
            }
            key = match prefix {
                None => [&name, ":\u{1}"].concat(),
                Some(_) => behind(&name),
            };
        }
    }

    fn add_namespaces(
        &self,
        children: &mut Children,
        name: &str,
        parts: &[(Id<NamespaceState>, bool)],
        is_cut: bool,
    ) {
        for (namespace, is_itself) in parts {
            let Some(root) = self.namespaces[*namespace].root else {
                continue;
            };
            if self.tree.is_bare(root) {
                continue;
            }
            let count = match is_itself {
                true => NodeCount::Subtree,
                false => NodeCount::Inside,
            };
            self.add_node(children, name, root, count);
            if let Some(child) = children.get_mut(name) {
                child.is_branch |= !is_itself;
                child.is_minimum |= is_cut;
            }
        }
    }

    /// Adds what is at a node to the child of this name.
    fn add_node(&self, children: &mut Children, name: &str, node: Id<PathNode>, count: NodeCount) {
        let extra = self.tree.extra(node);
        let mut holds = 0;
        let mut holders = Vec::new();
        for claim in Mode::ALL
            .iter()
            .flat_map(|mode| self.claims_at(node, *mode))
        {
            holds += 1;
            if holders.len() < LISTED_HOLDS && count != NodeCount::Inside {
                let session = &self.sessions[self.claims[claim].session];
                holders.push(PresentHold {
                    namespace: self.namespaces[session.namespace].name.clone(),
                    hold: self.blocker(claim),
                    lease_left_ms: None,
                });
            }
        }
        let lines = |mode: &Mode| extra.map_or(0, |extra| extra.line(*mode).len());
        let mut waiters: usize = Mode::ALL.iter().map(lines).sum();
        if count != NodeCount::Here {
            let below = self.tree.nodes[node].below;
            holds += below.iter().map(|count| u64::from(*count)).sum::<u64>();
            let queues = extra.map_or(0, |extra| extra.below.iter().map(PathQueue::len).sum());
            waiters += queues;
        }
        if holds == 0 && waiters == 0 {
            return;
        }
        let child = children.entry(name.to_string()).or_insert_with(|| Child {
            name: name.to_string(),
            holds: 0,
            waiters: 0,
            is_branch: false,
            is_minimum: false,
            holders: Vec::new(),
        });
        child.holds += holds;
        child.waiters += waiters as u64;
        child.is_branch |= count != NodeCount::Here && self.tree.has_children(node);
        child.holders.extend(holders);
        child.holders.truncate(LISTED_HOLDS);
    }

    /// Returns the namespaces that contain a prefix: at most one per level.
    fn namespaces_around(&self, prefix: &Namespace) -> Vec<Id<NamespaceState>> {
        let text = prefix.as_str();
        let handler = prefix.handler();
        let root = [handler, ":/"].concat();
        let mut names: Vec<&str> = [handler, &root].to_vec();
        let slashes = text.char_indices().filter(|(_, letter)| *letter == '/');
        let ends = slashes.map(|(at, _)| at).skip(1);
        names.extend(ends.chain([text.len()]).map(|end| &text[..end]));
        names.dedup();
        let found = names.into_iter().filter_map(|name| {
            let name = Namespace::parse(name).ok()?;
            self.namespaces.find(&name)
        });
        let mut found: Vec<_> = found.collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Returns the waiters that have waited longest, at most `page` of them (E21: list waits).
    pub fn waits(&self, page: usize, now: u64) -> WaitPage {
        let waiters = self.waiters.iter().map(|(_, waiter)| waiter);
        let mut waiters: Vec<&Waiter> = waiters.filter(|waiter| waiter.end > now).collect();
        let count = waiters.len() as u64;
        if waiters.len() > page {
            waiters.select_nth_unstable_by_key(page, |waiter| waiter.number);
            waiters.truncate(page);
        }
        waiters.sort_unstable_by_key(|waiter| waiter.number);
        let waits = waiters.into_iter().filter_map(|waiter| {
            let mut wanted = new_requests(&waiter.request);
            let first = wanted.next()?;
            let mut blockers = self.blocking_owners(waiter, now, &mut Default::default());
            blockers.truncate(LISTED_BLOCKERS);
            Some(WaitingOwner {
                waiter: WaiterView {
                    waiter: waiter.number,
                    owner: self.sessions[waiter.session].owner.clone(),
                    path: first.path.clone(),
                    mode: first.mode,
                    waited_ms: now.saturating_sub(waiter.since),
                    holder: waiter.request.holder.as_deref().cloned(),
                },
                paths: u32::try_from(1 + wanted.count()).unwrap_or(u32::MAX),
                blockers,
            })
        });
        WaitPage {
            waits: waits.collect(),
            count,
        }
    }

    /// Returns the newest changes at or below a prefix since a wall time (E22: History).
    pub fn history(&self, prefix: Option<&Namespace>, since: u64, most: usize) -> HistoryPage {
        self.history.page(prefix, since, most)
    }
}

/// What is counted of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NodeCount {
    /// What is at the node.
    Here,
    /// What is at the node and below.
    Subtree,
    /// The same; the node is below the child.
    Inside,
}

/// Returns the path of a prefix; of a bare handler its root.
fn root_path(prefix: &Namespace) -> Option<Path> {
    let text = match prefix.is_bare() {
        true => [prefix.as_str(), ":/"].concat(),
        false => prefix.as_str().to_string(),
    };
    Path::parse(&text).ok()
}
