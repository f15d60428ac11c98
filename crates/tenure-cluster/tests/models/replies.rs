//! The reply channel: a value is delivered or dropped exactly once, and its receiver is woken.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use shuttle::future::block_on;
use shuttle::rand::{Rng, thread_rng};
use shuttle::thread;

use crate::reply_channel::pair;
use crate::{check, must_find};

/// Counts how often it is dropped.
struct Value(Arc<AtomicUsize>);

impl Drop for Value {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Whether the sender wakes the receiver, as it must.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wakes {
    Yes,
    Planted,
}

fn a_value_arrives(wakes: Wakes) {
    let dropped = Arc::new(AtomicUsize::new(0));
    let (sender, receiver) = pair();
    let sends = thread_rng().gen_bool(0.7);
    let value = Value(Arc::clone(&dropped));
    let sending = thread::spawn(move || {
        if sends {
            let waker = sender.send(value);
            // The node wakes at the end of its turn.
            thread::yield_now();
            if let (Some(waker), Wakes::Yes) = (waker, wakes) {
                waker.wake();
            }
        } else {
            drop(value);
            drop(sender);
        }
    });
    let received = block_on(receiver);
    assert_eq!(received.is_some(), sends);
    drop(received);
    sending.join().unwrap();
    assert_eq!(dropped.load(Ordering::SeqCst), 1);
}

#[test]
fn a_value_or_the_end_of_the_sender_arrives() {
    check(|| a_value_arrives(Wakes::Yes));
}

#[test]
fn a_forgotten_waker_is_found() {
    must_find("deadlock", || a_value_arrives(Wakes::Planted));
}

/// The receiver gives up at any moment: the value is dropped once, and a sender that is not used
/// yet notices.
#[test]
fn a_receiver_that_gives_up_is_noticed() {
    check(|| {
        let dropped = Arc::new(AtomicUsize::new(0));
        let (sender, receiver) = pair();
        let value = Value(Arc::clone(&dropped));
        assert!(!sender.is_abandoned());
        let sending = thread::spawn(move || {
            if sender.is_abandoned() {
                drop(value);
            } else {
                let waker = sender.send(value);
                assert!(waker.is_none(), "the receiver was never polled");
            }
        });
        drop(receiver);
        sending.join().unwrap();
        assert_eq!(dropped.load(Ordering::SeqCst), 1);
        let (sender, receiver) = pair::<Value>();
        drop(receiver);
        assert!(sender.is_abandoned());
    });
}
