//! Intrusive circular lists of waiters: the waiters to re-check when a blocker goes.
//!
//! Each waiter is in at most one list, that of its blocker. The list's head is a link itself, so a
//! waiter leaves in constant time without knowing its list, and two lists are joined in constant
//! time whatever their size.

use alloc::vec::Vec;

use crate::slab::{Id, Slab};
use crate::space::Waiter;

/// A waiter's link in a list, or the head of a list. Alone it is linked to itself.
#[derive(Clone, Debug)]
pub(crate) struct WaitLink {
    previous: Id<WaitLink>,
    next: Id<WaitLink>,
    // `None` for a head.
    waiter: Option<Id<Waiter>>,
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

    /// Creates a link that is in no list: the head of an empty list, until it is assigned to a
    /// waiter.
    pub(crate) fn create(&mut self) -> Id<WaitLink> {
        self.links.insert_with(|link| WaitLink {
            previous: link,
            next: link,
            waiter: None,
        })
    }

    pub(crate) fn assign(&mut self, link: Id<WaitLink>, waiter: Id<Waiter>) {
        self.links[link].waiter = Some(waiter);
    }

    pub(crate) fn destroy(&mut self, link: Id<WaitLink>) {
        self.leave(link);
        self.links.remove(link);
    }

    /// Removes a link from its list, if it is in one.
    pub(crate) fn leave(&mut self, link: Id<WaitLink>) {
        let WaitLink { previous, next, .. } = self.links[link];
        self.links[previous].next = next;
        self.links[next].previous = previous;
        self.close(link);
    }

    /// Moves a link to the end of the list of a head.
    pub(crate) fn join(&mut self, link: Id<WaitLink>, head: Id<WaitLink>) {
        self.leave(link);
        let last = self.links[head].previous;
        self.links[last].next = link;
        self.links[link].previous = last;
        self.links[link].next = head;
        self.links[head].previous = link;
    }

    /// Moves all links of one list to another, in constant time.
    pub(crate) fn splice(&mut self, from: Id<WaitLink>, to: Id<WaitLink>) {
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
    pub(crate) fn waiters(&self, head: Id<WaitLink>) -> Vec<Id<Waiter>> {
        let mut waiters = Vec::new();
        let mut at = self.links[head].next;
        while at != head {
            waiters.extend(self.links[at].waiter);
            at = self.links[at].next;
        }
        waiters
    }

    fn close(&mut self, link: Id<WaitLink>) {
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
        let waiters = |links: &WaitLists, head| {
            let waiters = links.waiters(head).into_iter();
            waiters.map(Id::number).collect::<Vec<_>>()
        };
        let mut links = WaitLists::new();
        let (one, two) = (links.create(), links.create());
        let members: Vec<_> = (10..15)
            .map(|waiter| {
                let link = links.create();
                links.assign(link, Id::new(waiter).unwrap());
                link
            })
            .collect();
        for member in &members[..3] {
            links.join(*member, one);
        }
        for member in &members[3..] {
            links.join(*member, two);
        }
        links.leave(members[1]);
        links.splice(one, two);
        assert!(waiters(&links, one).is_empty());
        assert_eq!(waiters(&links, two), vec![13, 14, 10, 12]);
        links.splice(one, two);
        links.join(members[3], one);
        links.destroy(members[4]);
        assert_eq!(waiters(&links, one), vec![13]);
        assert_eq!(waiters(&links, two), vec![10, 12]);
    }
}
