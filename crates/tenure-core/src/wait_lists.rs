//! Intrusive circular lists of waiters: the waiters to re-check when a blocker goes.
//!
//! Each waiter is in at most one list, that of its blocker. The list's head is a link itself, so a
//! waiter leaves in constant time without knowing its list, and two lists are joined in constant time
//! whatever their size.

use alloc::vec::Vec;

use crate::slab::{NONE, Slab};

#[derive(Clone, Debug)]
struct WaitLink {
    previous: u32,
    next: u32,
    // The waiter, or `NONE` for a head.
    waiter: u32,
}

/// All rings of a space.
#[derive(Clone, Debug)]
pub(crate) struct WaitLists {
    links: Slab<WaitLink>,
}

impl WaitLists {
    pub(crate) fn new() -> WaitLists {
        WaitLists { links: Slab::new() }
    }

    /// A link of a waiter that is in no ring, or a head (`NONE`) with an empty ring.
    pub(crate) fn create(&mut self, waiter: u32) -> u32 {
        let link = self.links.insert(WaitLink {
            previous: NONE,
            next: NONE,
            waiter,
        });
        self.close(link);
        link
    }

    pub(crate) fn destroy(&mut self, link: u32) {
        self.leave(link);
        self.links.remove(link);
    }

    /// Leaves the ring it is in, if any.
    pub(crate) fn leave(&mut self, link: u32) {
        let WaitLink { previous, next, .. } = self.links[link];
        self.links[previous].next = next;
        self.links[next].previous = previous;
        self.close(link);
    }

    /// Joins the ring of a head, after leaving the one it was in.
    pub(crate) fn join(&mut self, link: u32, head: u32) {
        self.leave(link);
        let last = self.links[head].previous;
        self.links[last].next = link;
        self.links[link].previous = last;
        self.links[link].next = head;
        self.links[head].previous = link;
    }

    /// Moves everything of one ring to another.
    pub(crate) fn splice(&mut self, from: u32, to: u32) {
        let WaitLink {
            previous: last,
            next: first,
            ..
        } = self.links[from];
        if first == from {
            return;
        }
        self.close(from);
        let before = self.links[to].previous;
        self.links[before].next = first;
        self.links[first].previous = before;
        self.links[last].next = to;
        self.links[to].previous = last;
    }

    /// The waiters of a ring. They stay in it.
    pub(crate) fn waiters(&self, head: u32) -> Vec<u32> {
        let mut waiters = Vec::new();
        let mut at = self.links[head].next;
        while at != head {
            waiters.push(self.links[at].waiter);
            at = self.links[at].next;
        }
        waiters
    }

    fn close(&mut self, link: u32) {
        self.links[link].previous = link;
        self.links[link].next = link;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn links_leave_and_rings_join() {
        let mut links = WaitLists::new();
        let (one, two) = (links.create(NONE), links.create(NONE));
        let members: Vec<u32> = (10..15).map(|waiter| links.create(waiter)).collect();
        for member in &members[..3] {
            links.join(*member, one);
        }
        for member in &members[3..] {
            links.join(*member, two);
        }
        links.leave(members[1]);
        links.splice(one, two);
        assert!(links.waiters(one).is_empty());
        assert_eq!(links.waiters(two), vec![13, 14, 10, 12]);
        links.splice(one, two);
        links.join(members[3], one);
        links.destroy(members[4]);
        assert_eq!(links.waiters(one), vec![13]);
        assert_eq!(links.waiters(two), vec![10, 12]);
    }
}
