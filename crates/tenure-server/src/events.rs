//! Events for owners: subscriptions for gRPC, and for SSE a memory that a returning client can ask (R119–R124).
//!
//! While a client is attached to an owner by SSE, and for 30 s after the last one left, this node
//! remembers the owner's most recent events, so that `Last-Event-ID` finds what came meanwhile.
//! An old GRANT is never replayed from that memory: whether one still stands only the node knows,
//! and it tells every new subscription by itself (R122).

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::Stream;
use tenure_cluster::{Handle, StreamEnd};
use tenure_core::event::{Event, EventKind, LockChange};
use tenure_core::path::Namespace;
use tenure_core::value::OwnerId;
use tenure_node::{WatchEvent, WatchStart};
use tenure_wire::v1;

use crate::convert;
use crate::handlers;
use crate::status::{Code, Failure};

/// How long an owner's events are remembered after its last client left.
const MEMORY: Duration = Duration::from_secs(30);

/// Subscriptions of all faces.
#[derive(Clone)]
pub struct Events {
    node: Handle,
    /// How far a subscriber may be behind.
    buffer: usize,
    /// Events remembered per owner.
    capacity: usize,
    remembered: Arc<Mutex<HashMap<OwnerId, Memory>>>,
}

/// What is remembered of one owner.
struct Memory {
    events: VecDeque<Event>,
    attached: usize,
    /// Counts departures: the last one forgets, unless somebody came meanwhile.
    departures: u64,
}

/// Ids of different groups are as good as their leaders' clocks (R121): nothing is old because its id
/// is small.
impl Memory {
    /// Every attached client sees every event; the first to see it writes it down.
    fn add(&mut self, event: &Event, capacity: usize) {
        if self.events.iter().rev().any(|known| known.id == event.id) {
            return;
        }
        self.events.push_back(event.clone());
        if self.events.len() > capacity {
            self.events.pop_front();
        }
    }

    /// What a client at this position gets before anything new.
    fn behind(&self, position: u64) -> Vec<Event> {
        let events = self.events.iter();
        let events = events.filter(|event| event.id > position && !is_grant(event));
        events.cloned().collect()
    }

    /// What such a client then has, and need not get as news.
    fn known(&self, position: u64) -> HashSet<u64> {
        let events = self.events.iter();
        let events = events.filter(|event| event.id <= position || !is_grant(event));
        events.map(|event| event.id).chain([position]).collect()
    }
}

fn is_grant(event: &Event) -> bool {
    matches!(event.kind, EventKind::Grant { .. })
}

impl Events {
    /// Subscriptions to a node.
    pub fn new(node: Handle, buffer: usize, capacity: usize) -> Events {
        Events {
            node,
            buffer,
            capacity,
            remembered: Arc::default(),
        }
    }

    /// How far a subscriber may be behind.
    pub(crate) fn buffer(&self) -> usize {
        self.buffer
    }

    /// An owner's events from now on, after the GRANT that still stands, if there is one.
    pub fn subscribe(
        &self,
        owner: OwnerId,
    ) -> impl Stream<Item = Result<Event, Failure>> + Send + use<> {
        let stream = self.node.subscribe(owner, self.buffer);
        futures_util::stream::unfold(Some(stream), |stream| async move {
            let mut stream = stream?;
            match stream.next().await {
                Ok(event) => Some((Ok(event), Some(stream))),
                Err(end) => Some((Err(ended(end)), None)),
            }
        })
    }

    /// An owner's events behind a position, and from now on; the memory is kept meanwhile.
    pub fn resume(
        &self,
        owner: OwnerId,
        after: Option<u64>,
    ) -> (
        Vec<Event>,
        impl Stream<Item = Result<Event, Failure>> + Send + use<>,
    ) {
        // Subscribed before the memory is read, so nothing falls between the two.
        let stream = self.node.subscribe(owner.clone(), self.buffer);
        let mut remembered = self
            .remembered
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let memory = remembered.entry(owner.clone()).or_insert_with(|| Memory {
            events: VecDeque::new(),
            attached: 0,
            departures: 0,
        });
        memory.attached += 1;
        let (old, known) = match after {
            Some(after) => (memory.behind(after), memory.known(after)),
            None => (Vec::new(), HashSet::new()),
        };
        drop(remembered);
        let attached = Attached {
            events: self.clone(),
            owner,
        };
        let state = Some((stream, attached, known));
        let live = futures_util::stream::unfold(state, |state| async move {
            let (mut stream, attached, known) = state?;
            loop {
                match stream.next().await {
                    Ok(event) => {
                        attached.events.remember(&attached.owner, &event);
                        if !known.contains(&event.id) {
                            return Some((Ok(event), Some((stream, attached, known))));
                        }
                    }
                    Err(end) => return Some((Err(ended(end)), None)),
                }
            }
        });
        (old, live)
    }
}

impl Events {
    fn remember(&self, owner: &OwnerId, event: &Event) {
        let mut remembered = self
            .remembered
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let Some(memory) = remembered.get_mut(owner) else {
            return;
        };
        memory.add(event, self.capacity);
    }

    /// A client leaves. The number of the departure, if nobody else is attached.
    fn leave(&self, owner: &OwnerId) -> Option<u64> {
        let mut remembered = self
            .remembered
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let memory = remembered.get_mut(owner)?;
        memory.attached -= 1;
        memory.departures += 1;
        (memory.attached == 0).then_some(memory.departures)
    }

    /// Forgets an owner, unless somebody came since that departure.
    fn forget(&self, owner: &OwnerId, departure: u64) {
        let mut remembered = self
            .remembered
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let unused = remembered
            .get(owner)
            .is_some_and(|memory| memory.attached == 0 && memory.departures == departure);
        if unused {
            remembered.remove(owner);
        }
    }
}

/// One client attached by SSE; its departure starts the 30 s.
struct Attached {
    events: Events,
    owner: OwnerId,
}

impl Drop for Attached {
    fn drop(&mut self) {
        let Some(departure) = self.events.leave(&self.owner) else {
            return;
        };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        // Go on listening, so that what comes before the client returns is remembered.
        let (events, owner) = (self.events.clone(), self.owner.clone());
        runtime.spawn(async move {
            let mut stream = events.node.subscribe(owner.clone(), events.buffer);
            let _ = tokio::time::timeout(MEMORY, async {
                while let Ok(event) = stream.next().await {
                    events.remember(&owner, &event);
                }
            })
            .await;
            events.forget(&owner, departure);
        });
    }
}

/// Why a stream ended, as a status.
pub(crate) fn ended(end: StreamEnd) -> Failure {
    match end {
        StreamEnd::Overflow => Failure::new(
            Code::ResourceExhausted,
            "this reader was too slow and missed something: begin again",
        ),
        StreamEnd::Failed(why) => handlers::failure(why),
        StreamEnd::Stopped => Failure::new(Code::Unavailable, "the node stops: try another one"),
    }
}

/// The changes under a prefix, numbered (E8).
pub fn watch(
    node: &Handle,
    prefix: Namespace,
    snapshot: bool,
) -> impl Stream<Item = Result<v1::LockChange, Failure>> + Send + use<> {
    /// Changes that a watcher may be behind.
    const BUFFER: usize = 65_536;
    let start = if snapshot {
        WatchStart::Snapshot
    } else {
        WatchStart::Changes
    };
    let stream = node.watch(prefix, start, BUFFER);
    futures_util::stream::unfold(Some((stream, 1u64)), |state| async move {
        let (mut stream, id) = state?;
        match stream.next().await {
            Ok(change) => Some((Ok(change_out(id, &change)), Some((stream, id + 1)))),
            Err(end) => Some((Err(ended(end)), None)),
        }
    })
}

fn change_out(id: u64, event: &WatchEvent) -> v1::LockChange {
    match event {
        WatchEvent::SnapshotEnd => v1::LockChange {
            id,
            kind: v1::ChangeKind::SnapshotEnd.into(),
            ..Default::default()
        },
        WatchEvent::Present(change) => {
            let kind = match change_kind(change) {
                v1::ChangeKind::Granted => v1::ChangeKind::Snapshot,
                other => other,
            };
            lock_change(id, kind, change)
        }
        WatchEvent::Changed(change) => lock_change(id, change_kind(change), change),
    }
}

fn change_kind(change: &LockChange) -> v1::ChangeKind {
    use tenure_core::event::ChangeKind;
    match change.kind {
        ChangeKind::Granted => v1::ChangeKind::Granted,
        ChangeKind::Queued => v1::ChangeKind::Queued,
        ChangeKind::Released => v1::ChangeKind::Released,
        ChangeKind::Expired => v1::ChangeKind::Expired,
        ChangeKind::Killed => v1::ChangeKind::Killed,
        ChangeKind::Dequeued => v1::ChangeKind::Dequeued,
        ChangeKind::Asked => v1::ChangeKind::Asked,
        ChangeKind::Policy { .. } => v1::ChangeKind::Policy,
    }
}

fn lock_change(id: u64, kind: v1::ChangeKind, change: &LockChange) -> v1::LockChange {
    let path = change.path.as_ref().map(|path| path.as_str());
    v1::LockChange {
        id,
        kind: kind.into(),
        owner: change
            .owner
            .as_ref()
            .map_or_else(String::new, |o| o.as_str().to_owned()),
        // A policy change concerns the namespace as a whole.
        path: path.unwrap_or(change.namespace.as_str()).to_owned(),
        mode: change.mode.map_or(0, convert::mode_number),
        fence: convert::fence_number(change.fence),
        holder: change.holder.as_ref().map(convert::holder_out),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(id: u64, kind: EventKind) -> Event {
        Event {
            sequence: id,
            id,
            owner: OwnerId::new("amy").unwrap(),
            namespace: None,
            kind,
        }
    }

    /// R121, R122: one group runs ahead of the clock, another tells something later with a smaller id.
    #[test]
    fn an_event_is_not_old_because_its_id_is_small() {
        let mut memory = Memory {
            events: VecDeque::new(),
            attached: 1,
            departures: 0,
        };
        let grant = || EventKind::Grant { fence: None };
        for (id, kind) in [
            (1, EventKind::Revoke),
            (9, EventKind::Revoke),
            (5, EventKind::Killed),
            (7, grant()),
            // By another client of the same owner.
            (9, EventKind::Revoke),
        ] {
            memory.add(&event(id, kind), 4);
        }
        let ids: Vec<_> = memory.events.iter().map(|event| event.id).collect();
        assert_eq!(ids, [1, 9, 5, 7], "each once, as they came");
        memory.add(&event(8, grant()), 4);
        // At 6: 9 comes from the memory; the grants, if one stands, from the node.
        let behind: Vec<_> = memory.behind(6).iter().map(|event| event.id).collect();
        assert_eq!(behind, [9]);
        assert_eq!(memory.known(6), HashSet::from([5, 6, 9]));
        // At 7, which is the client's, a grant that the node repeats is no news, and 4 is.
        assert_eq!(memory.known(7), HashSet::from([5, 7, 9]));
    }
}
