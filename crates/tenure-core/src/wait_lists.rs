//! Intrusive circular lists of waiters: the waiters to re-check when a blocker goes.
//!
//! Each waiter is in at most one list, that of its blocker. The list's head is a link itself, so a
//! waiter leaves in constant time without knowing its list, and two lists are joined in constant
//! time whatever their size.

use alloc::vec::Vec;

use crate::slab::{NONE, Slab};

#[derive(Clone, Debug)]
struct WaitLink {
    previous: u32,
    next: u32,
    // The waiter, or `NONE` for a head.
    waiter: u32,
}

/// All wait lists of a space.
#[derive(Clone, Debug)]
pub(crate) struct WaitLists {
    links: Slab<WaitLink>,
}

impl WaitLists {
    pub(crate) fn new() -> WaitLists {
        WaitLists { links: Slab::new() }
    }

    /// Creates a link of a waiter that is in no list, or a head (`NONE`) of an empty list.
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

    /// Removes a link from its list, if it is in one.
    pub(crate) fn leave(&mut self, link: u32) {
        let WaitLink { previous, next, .. } = self.links[link];
        self.links[previous].next = next;
        self.links[next].previous = previous;
        self.close(link);
    }

    /// Moves a link to the end of the list of a head.
    pub(crate) fn join(&mut self, link: u32, head: u32) {
        self.leave(link);
        let last = self.links[head].previous;
        self.links[last].next = link;
        self.links[link].previous = last;
        self.links[link].next = head;
        self.links[head].previous = link;
    }

    /// Moves all links of one list to another, in constant time.
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

    /// Returns the waiters of a list, which stay in it.
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
