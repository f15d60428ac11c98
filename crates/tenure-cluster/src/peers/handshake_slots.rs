//! Slots for handshakes of incoming connections.
//!
//! A stranger can open connections and send nothing. So a connection never waits for a slot: when
//! all are taken, the oldest connection that has sent nothing is closed for the new one, and if all
//! have sent something, the oldest. A peer sends its hello as soon as it is connected, so it does
//! not stay silent.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use tokio::sync::oneshot;

/// The open handshakes, by age.
#[derive(Clone, Default)]
pub(super) struct HandshakeSlots {
    shared: Rc<RefCell<OpenHandshakes>>,
}

#[derive(Default)]
struct OpenHandshakes {
    next: u64,
    open: BTreeMap<u64, OpenHandshake>,
}

struct OpenHandshake {
    evict: oneshot::Sender<()>,
    has_spoken: Rc<Cell<bool>>,
}

/// The slot of one connection. Dropped when its handshake is over.
pub(super) struct HandshakeSlot {
    number: u64,
    slots: HandshakeSlots,
    has_spoken: Rc<Cell<bool>>,
}

/// Resolves when the connection must close for a newer one.
pub(super) struct Eviction(oneshot::Receiver<()>);

impl HandshakeSlots {
    /// Takes a slot, and closes another connection if more than `limit` are in use.
    pub(super) fn take(&self, limit: usize) -> (HandshakeSlot, Eviction) {
        let mut shared = self.shared.borrow_mut();
        if shared.open.len() >= limit {
            let silent = shared.open.iter().find(|(_, open)| !open.has_spoken.get());
            let oldest = silent.or_else(|| shared.open.iter().next());
            let oldest = oldest.map(|(number, _)| *number);
            if let Some(open) = oldest.and_then(|number| shared.open.remove(&number)) {
                // An error means that the connection has just ended.
                let _ = open.evict.send(());
            }
        }
        let number = shared.next;
        shared.next += 1;
        let (evict, evicted) = oneshot::channel();
        let has_spoken = Rc::new(Cell::new(false));
        let open = OpenHandshake {
            evict,
            has_spoken: Rc::clone(&has_spoken),
        };
        shared.open.insert(number, open);
        let slot = HandshakeSlot {
            number,
            slots: self.clone(),
            has_spoken,
        };
        (slot, Eviction(evicted))
    }
}

impl HandshakeSlot {
    /// Notes that the connection has sent something.
    pub(super) fn has_spoken(&self) {
        self.has_spoken.set(true);
    }
}

impl Drop for HandshakeSlot {
    fn drop(&mut self) {
        self.slots.shared.borrow_mut().open.remove(&self.number);
    }
}

impl Eviction {
    pub(super) async fn wait(self) {
        // After the handshake the slot is gone, and the connection stays.
        if self.0.await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use super::*;

    fn is_evicted(eviction: Eviction) -> bool {
        let mut waiting = Box::pin(eviction.wait());
        let mut cx = Context::from_waker(Waker::noop());
        waiting.as_mut().poll(&mut cx).is_ready()
    }

    #[test]
    fn the_oldest_silent_connection_makes_room() {
        let slots = HandshakeSlots::default();
        let (first, first_eviction) = slots.take(3);
        first.has_spoken();
        let (_second, second_eviction) = slots.take(3);
        let (_third, third_eviction) = slots.take(3);
        let (fourth, fourth_eviction) = slots.take(3);
        assert!(is_evicted(second_eviction), "the oldest of the silent ones");
        fourth.has_spoken();
        let (fifth, fifth_eviction) = slots.take(3);
        assert!(is_evicted(third_eviction));
        fifth.has_spoken();
        let (_sixth, sixth_eviction) = slots.take(3);
        assert!(is_evicted(first_eviction), "all have spoken: the oldest");
        // A finished handshake makes room without an eviction, and is not ended later.
        drop(fourth);
        let (_seventh, _) = slots.take(3);
        for stays in [fourth_eviction, fifth_eviction, sixth_eviction] {
            assert!(!is_evicted(stays));
        }
    }
}
