//! Event subscriptions: live streams for gRPC and resumable ones for SSE (R119–R124).
//!
//! While an SSE client is attached to an owner, and for 30 s after the last one disconnects, the
//! daemon buffers the owner's most recent events. A client that reconnects with `Last-Event-ID`
//! gets the events it missed. GRANT events are not replayed, because the buffer does not show
//! whether the owner still holds the lock. The node does, and repeats a GRANT in force to every new
//! subscription (R122 (events are always delivered)).

use std::collections::{HashMap, HashSet, VecDeque};
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::Stream;
use tenure_cluster::{Handle, StreamEnd};
use tenure_core::auth::{Target, Verb};
use tenure_core::event::{Event, EventKind, LockChange};
use tenure_core::limits::LimitKind;
use tenure_core::path::Namespace;
use tenure_core::value::OwnerId;
use tenure_node::{WatchEvent, WatchStart};
use tenure_wire::v1;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;

use crate::auth::{Caller, LiveCaller, OpenPlace, Place, SNAPSHOT_COST};
use crate::convert;
use crate::handlers;
use crate::status::{Code, Failure};

/// How long an owner's events are kept after its last client disconnects.
const MEMORY: Duration = Duration::from_secs(30);

/// Maximum number of open subscriptions of a daemon.
const SUBSCRIPTIONS: usize = 65_536;
/// Maximum number of open watches of a daemon.
const WATCHES: usize = 1024;
/// Changes that a watcher may lag behind before its stream is closed.
const WATCH_BUFFER: usize = 16_384;

/// Creates the event subscriptions of all transports.
#[derive(Clone)]
pub struct EventHub {
    node: Handle,
    /// Events that a subscriber may lag behind before its stream is closed (R123 slow subscribers
    /// are closed).
    buffer: usize,
    /// Events kept per owner.
    capacity: usize,
    remembered: Arc<Mutex<HashMap<OwnerId, OwnerEvents>>>,
    /// One permit per subscription that may be open.
    subscriptions: Arc<Semaphore>,
    /// One permit per watch that may be open.
    watches: Arc<Semaphore>,
}

/// The replay buffer of one owner.
struct OwnerEvents {
    recent: RecentEvents,
    /// The subscription that fills `recent`. The recording task drains it; `resume` also drains it
    /// to get events that the task has not seen yet.
    news: tenure_cluster::EventStream<Event>,
    recording: AbortHandle,
    attached: usize,
    /// Number of disconnects so far. A pending removal is void if this has changed, because a
    /// client attached and left in between.
    departures: u64,
}

/// Events in the order of arrival. Ids of different groups follow their leaders' clocks (R121 event
/// ids), so a smaller id does not mean an older event.
#[derive(Default)]
struct RecentEvents(VecDeque<Event>);

impl RecentEvents {
    fn add(&mut self, event: Event, capacity: usize) {
        self.0.push_back(event);
        if self.0.len() > capacity {
            self.0.pop_front();
        }
    }

    /// Returns the events to replay to a client whose last id is `position`.
    fn behind(&self, position: u64) -> Vec<Event> {
        let events = self.0.iter();
        let events = events.filter(|event| event.id > position && !is_grant(event));
        events.cloned().collect()
    }

    /// Returns the ids that this client then has; the live stream skips them.
    fn known(&self, position: u64) -> HashSet<u64> {
        let events = self.0.iter();
        let events = events.filter(|event| event.id <= position || !is_grant(event));
        events.map(|event| event.id).chain([position]).collect()
    }
}

fn is_grant(event: &Event) -> bool {
    matches!(event.kind, EventKind::Grant { .. })
}

impl EventHub {
    /// Creates the hub of a node's subscriptions. `buffer` is the lag limit per subscriber,
    /// `capacity` the number of events kept per owner.
    pub fn new(node: Handle, buffer: usize, capacity: usize) -> EventHub {
        EventHub {
            node,
            buffer,
            capacity,
            remembered: Arc::default(),
            subscriptions: Arc::new(Semaphore::new(SUBSCRIPTIONS)),
            watches: Arc::new(Semaphore::new(WATCHES)),
        }
    }

    /// Returns the number of events that a subscriber may lag behind.
    pub(crate) fn buffer(&self) -> usize {
        self.buffer
    }

    /// Subscribes to an owner's events from now on. A GRANT that still stands comes first.
    pub(crate) fn subscribe(
        &self,
        caller: &Caller,
        owner: OwnerId,
    ) -> Result<impl Stream<Item = Result<Event, Failure>> + Send + use<>, Failure> {
        let place = self.subscription(caller)?;
        let stream = self.node.subscribe(owner, self.buffer);
        let state = Some((stream, place));
        Ok(futures_util::stream::unfold(state, |state| async move {
            let (mut stream, place) = state?;
            match stream.next().await {
                Ok(event) => Some((Ok(event), Some((stream, place)))),
                Err(end) => Some((Err(ended(end)), None)),
            }
        }))
    }

    /// Returns the buffered events after `after`, and a live stream that continues from there. The
    /// owner's buffer is kept while the stream exists.
    pub(crate) async fn resume(
        &self,
        caller: &Caller,
        owner: OwnerId,
        after: Option<u64>,
    ) -> Result<
        (
            Vec<Event>,
            impl Stream<Item = Result<Event, Failure>> + Send + use<>,
        ),
        Failure,
    > {
        let place = self.subscription(caller)?;
        let attached = self.attach(owner.clone());
        // The node confirms the subscription before the buffer is read: an event is then in the
        // buffer or in the stream, or in both (`known` removes duplicates), never in neither.
        let stream = self.node.subscribe(owner.clone(), self.buffer);
        self.node.reached().await;
        let (old, known) = match (after, self.lock().get_mut(&owner)) {
            (Some(after), Some(memory)) => {
                while let Some(event) = memory.news.try_next() {
                    memory.recent.add(event, self.capacity);
                }
                (memory.recent.behind(after), memory.recent.known(after))
            }
            _ => (Vec::new(), HashSet::new()),
        };
        let state = Some((stream, (attached, place), known));
        let live = futures_util::stream::unfold(state, |state| async move {
            let (mut stream, held, known) = state?;
            loop {
                match stream.next().await {
                    Ok(event) if known.contains(&event.id) => {}
                    Ok(event) => return Some((Ok(event), Some((stream, held, known)))),
                    Err(end) => return Some((Err(ended(end)), None)),
                }
            }
        });
        Ok((old, live))
    }

    /// Streams the changes under a prefix, numbered from 1 (E8: Watch lock changes).
    pub(crate) fn watch(
        &self,
        caller: LiveCaller,
        prefix: Namespace,
        snapshot: bool,
    ) -> Result<impl Stream<Item = Result<v1::LockChange, Failure>> + Send + use<>, Failure> {
        let limits = caller.as_opened().limits();
        let cost = if snapshot { SNAPSHOT_COST } else { 1 };
        limits.take_cost(cost, Some(Place::Namespace(&prefix)))?;
        let own = limits.open(LimitKind::Watches)?;
        let place = (place(&self.watches, "watches", WATCHES)?, own);
        let start = if snapshot {
            WatchStart::PacedSnapshot
        } else {
            WatchStart::Changes
        };
        let watched = WatchStream {
            caller,
            stream: self.node.watch(prefix, start, WATCH_BUFFER),
            present: Vec::new().into_iter(),
            is_paged: false,
            last: 0,
        };
        let state = Some((watched, place));
        Ok(futures_util::stream::unfold(state, |state| async move {
            let (mut watched, place) = state?;
            match watched.next().await {
                Ok(change) => Some((Ok(change), Some((watched, place)))),
                Err(end) => Some((Err(ended(end)), None)),
            }
        }))
    }
}

impl EventHub {
    /// Counts a subscription, of all callers and of this one.
    fn subscription(&self, caller: &Caller) -> Result<(OwnedSemaphorePermit, OpenPlace), Failure> {
        caller.limits().take_cost(1, None)?;
        let own = caller.limits().open(LimitKind::Subscriptions)?;
        let place = place(&self.subscriptions, "subscriptions", SUBSCRIPTIONS)?;
        Ok((place, own))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<OwnerId, OwnerEvents>> {
        self.remembered
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Attaches a client. The first client of an owner starts its buffer.
    fn attach(&self, owner: OwnerId) -> AttachedClient {
        let mut remembered = self.lock();
        let memory = remembered.entry(owner.clone()).or_insert_with(|| {
            let news = self.node.subscribe(owner.clone(), self.buffer);
            let (events, owner) = (self.clone(), owner.clone());
            let recording =
                tokio::spawn(poll_fn(move |cx| events.record(&owner, cx))).abort_handle();
            OwnerEvents {
                recent: RecentEvents::default(),
                news,
                recording,
                attached: 0,
                departures: 0,
            }
        });
        memory.attached += 1;
        drop(remembered);
        let events = self.clone();
        AttachedClient { events, owner }
    }

    /// Moves events to the buffer until the subscription ends. Polled by the recording task.
    fn record(&self, owner: &OwnerId, cx: &mut Context<'_>) -> Poll<()> {
        let mut remembered = self.lock();
        let Some(memory) = remembered.get_mut(owner) else {
            return Poll::Ready(());
        };
        while let Ok(event) = ready!(memory.news.poll_next(cx)) {
            memory.recent.add(event, self.capacity);
        }
        Poll::Ready(())
    }

    /// Detaches a client. Returns the number of this disconnect if it was the owner's last client.
    fn leave(&self, owner: &OwnerId) -> Option<u64> {
        let mut remembered = self.lock();
        let memory = remembered.get_mut(owner)?;
        memory.attached -= 1;
        memory.departures += 1;
        (memory.attached == 0).then_some(memory.departures)
    }

    /// Removes an owner's buffer, unless a client attached after that disconnect.
    fn forget(&self, owner: &OwnerId, departure: u64) {
        let mut remembered = self.lock();
        let unused = remembered
            .get(owner)
            .is_some_and(|memory| memory.attached == 0 && memory.departures == departure);
        if unused && let Some(memory) = remembered.remove(owner) {
            memory.recording.abort();
        }
    }
}

/// One attached SSE client. Dropping it starts the 30 s.
struct AttachedClient {
    events: EventHub,
    owner: OwnerId,
}

impl Drop for AttachedClient {
    fn drop(&mut self) {
        let Some(departure) = self.events.leave(&self.owner) else {
            return;
        };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        let (events, owner) = (self.events.clone(), self.owner.clone());
        runtime.spawn(async move {
            tokio::time::sleep(MEMORY).await;
            events.forget(&owner, departure);
        });
    }
}

/// Converts the end of a stream to a status.
pub(crate) fn ended(end: StreamEnd) -> Failure {
    match end {
        StreamEnd::Overflow => Failure::new(
            Code::ResourceExhausted,
            "the client reads too slowly, and events were dropped: open the stream again",
        ),
        StreamEnd::Failed(why) => handlers::failure(why),
        StreamEnd::Stopped => Failure::new(
            Code::Unavailable,
            "the node is shutting down: connect to another node",
        ),
    }
}

/// Takes a permit, or fails with RESOURCE_EXHAUSTED.
fn place(
    places: &Arc<Semaphore>,
    what: &str,
    limit: usize,
) -> Result<OwnedSemaphorePermit, Failure> {
    Arc::clone(places).try_acquire_owned().map_err(|_| {
        let text = format!("this node has {limit} open {what}: connect to another node");
        Failure::new(Code::ResourceExhausted, text)
    })
}

/// A watch stream that yields one change at a time.
struct WatchStream {
    /// Who watches, and sees only what it may observe.
    caller: LiveCaller,
    stream: tenure_cluster::EventStream<WatchEvent>,
    /// Entries of a group's snapshot that are not sent yet.
    present: std::vec::IntoIter<LockChange>,
    /// Whether the last part of the snapshot is not acknowledged yet.
    is_paged: bool,
    last: u64,
}

impl WatchStream {
    async fn next(&mut self) -> Result<v1::LockChange, StreamEnd> {
        self.last += 1;
        let id = self.last;
        loop {
            if let Some(change) = self.present.next() {
                let Some(caller) = viewer(&mut self.caller, &change) else {
                    continue;
                };
                // A snapshot entry of a hold is a SNAPSHOT, not a grant that happens now. Waiters
                // stay QUEUED.
                let kind = match change_kind(&change) {
                    v1::ChangeKind::Granted => v1::ChangeKind::Snapshot,
                    other => other,
                };
                return Ok(lock_change(caller, id, kind, &change));
            }
            // The transport asks for the next change when the client has room for it, so a client
            // that does not read gets no more pages.
            if std::mem::take(&mut self.is_paged) {
                self.stream.present_taken();
            }
            match self.stream.next().await? {
                WatchEvent::Present(all) => {
                    self.present = all.into_iter();
                    self.is_paged = true;
                }
                WatchEvent::SnapshotEnd => {
                    return Ok(v1::LockChange {
                        id,
                        kind: v1::ChangeKind::SnapshotEnd.into(),
                        ..Default::default()
                    });
                }
                WatchEvent::Changed(change) => {
                    let Some(caller) = viewer(&mut self.caller, &change) else {
                        continue;
                    };
                    return Ok(lock_change(caller, id, change_kind(&change), &change));
                }
            }
        }
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

/// Returns the caller if it may see a change.
fn viewer<'a>(caller: &'a mut LiveCaller, change: &LockChange) -> Option<&'a Caller> {
    // A caller that is none any more sees nothing; its stream ends soon.
    let caller = caller.current().ok()?;
    let sees = match &change.path {
        Some(path) => caller.observes(path),
        None => caller.may(Verb::Observe, Target::Below(&change.namespace)),
    };
    sees.then_some(caller)
}

fn lock_change(
    caller: &Caller,
    id: u64,
    kind: v1::ChangeKind,
    change: &LockChange,
) -> v1::LockChange {
    let path = change.path.as_ref().map(|path| path.as_str());
    v1::LockChange {
        id,
        kind: kind.into(),
        owner: change
            .owner
            .as_ref()
            .map_or_else(String::new, |owner| caller.shown(owner).into_owned()),
        // A policy change has no path: it concerns the whole namespace.
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

    /// R121, R122: one group's clock runs ahead; another group sends a later event with a smaller
    /// id.
    #[test]
    fn an_event_is_not_old_because_its_id_is_small() {
        let mut recent = RecentEvents::default();
        let grant = || EventKind::Grant { fence: None };
        for (id, kind) in [
            (1, EventKind::Revoke),
            (9, EventKind::Revoke),
            (5, EventKind::Killed),
            (7, grant()),
        ] {
            recent.add(event(id, kind), 4);
        }
        let ids: Vec<_> = recent.0.iter().map(|event| event.id).collect();
        assert_eq!(ids, [1, 9, 5, 7], "as they came");
        recent.add(event(8, grant()), 4);
        // At position 6: event 9 comes from the buffer. A grant that stands comes from the node.
        let behind: Vec<_> = recent.behind(6).iter().map(|event| event.id).collect();
        assert_eq!(behind, [9]);
        assert_eq!(recent.known(6), HashSet::from([5, 6, 9]));
        // At position 7: the client has grant 7, so a repeat by the node is dropped. Grant 8 is not
        // known.
        assert_eq!(recent.known(7), HashSet::from([5, 7, 9]));
    }
}
