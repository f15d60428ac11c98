//! Snapshot encoding of a space; `restore.rs` decodes it.
//!
//! Equal states give equal bytes: namespaces are sorted by name, sessions by namespace and owner,
//! waiters by number. Orders that come from history (a session's claims, free claim numbers,
//! eviction queues, the expiry order of idempotency keys) are written as they are. Derived state
//! (counts, path queues, wait lists) is not written; restore rebuilds it.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::namespaces::NamespaceState;
use super::policy_change::RegionFloor;
use super::queue::Waiter;
use super::sessions::Session;
use super::sessions::{Lease, StandingGrant, TakenHolds};
use super::{Effects, Space, SpaceLimits};
use crate::codec::{Writer, snapshot_version};
use crate::history::History;
use crate::slab::Id;
use crate::value::OwnerId;
use crate::wait_lists::WaitLists;

/// A space as it was when [`Space::image`] was called. It is encoded while the space goes on, by
/// any thread.
#[derive(Clone, Debug)]
pub struct SpaceImage(Space);

impl SpaceImage {
    /// Appends the encoded state to `bytes`, as [`Space::encode_snapshot`] would have done at
    /// that moment.
    pub fn encode_snapshot(&self, bytes: Vec<u8>) -> Vec<u8> {
        self.0.encode_snapshot(bytes)
    }
}

impl Space {
    /// Returns a copy of what a snapshot contains. It shares the memory of the space until one of
    /// the two changes, so that it costs little, however many locks there are.
    pub fn image(&mut self) -> SpaceImage {
        SpaceImage(Space {
            limits: self.limits.clone(),
            rules: self.rules,
            time: self.time,
            wall: self.wall,
            namespaces: self.namespaces.image(),
            region_floors: self.region_floors.clone(),
            tree: self.tree.image(),
            claims: self.claims.image(),
            sessions: self.sessions.image(),
            waiters: self.waiters.image(),
            next_waiter: self.next_waiter,
            waiting_levels: self.waiting_levels,
            ends: BTreeSet::new(),
            links: WaitLists::new(),
            marks: self.marks.image(),
            capacities: self.capacities.image(),
            answers: self.answers.image(),
            events: self.events.clone(),
            routes: self.routes.clone(),
            epoch: self.epoch,
            order_from: self.order_from,
            minted: self.minted,
            long_leases: self.long_leases,
            leases: self.leases,
            // Derived, and not encoded.
            usage: super::usage::Usage::new(self.tree.hasher()),
            watching: false,
            history: History::default(),
            pending: self.pending.clone(),
            woken: 0,
            out: Effects::default(),
        })
    }

    /// Appends the encoded state to `bytes`. Equal states give equal bytes.
    pub fn encode_snapshot(&self, bytes: Vec<u8>) -> Vec<u8> {
        let mut out = Writer::append_to(bytes);
        out.byte(snapshot_version(self.rules));
        put_limits(&mut out, &self.limits);
        for number in [
            u64::from(self.rules),
            self.time,
            self.epoch,
            self.minted,
            self.next_waiter,
            self.namespaces.floor,
        ] {
            out.number(number);
        }
        let names = self.put_namespaces(&mut out);
        let sessions = self.put_sessions(&mut out, &names);
        self.put_waiters(&mut out, &sessions);
        self.put_routes(&mut out);
        self.put_memory(&mut out, &names);
        self.put_answers(&mut out);
        self.put_events(&mut out);
        if self.rules >= 2 {
            self.put_taken(&mut out, &sessions);
            self.put_order(&mut out);
        }
        out.into_bytes()
    }

    /// Encodes namespaces by name. References to a namespace are its index in that order.
    fn put_namespaces(&self, out: &mut Writer) -> BTreeMap<Id<NamespaceState>, usize> {
        let mut all: Vec<_> = self.namespaces.iter().map(|(number, _)| number).collect();
        all.sort_by(|one, two| self.namespaces[*one].name.cmp(&self.namespaces[*two].name));
        let places: BTreeMap<_, usize> = all.iter().copied().zip(0..).collect();
        out.length(all.len());
        for number in &all {
            let state = &self.namespaces[*number];
            out.put(&state.name);
            out.number(state.high);
            out.number(state.floor);
        }
        let idle: Vec<_> = self.namespaces.idle().collect();
        out.length(idle.len());
        for number in idle {
            out.length(places[&number]);
        }
        places
    }

    fn put_sessions(
        &self,
        out: &mut Writer,
        names: &BTreeMap<Id<NamespaceState>, usize>,
    ) -> BTreeMap<Id<Session>, usize> {
        let mut all: Vec<(usize, &OwnerId, Id<Session>)> = self
            .sessions
            .iter()
            .map(|(number, session)| (names[&session.namespace], &session.owner, number))
            .collect();
        all.sort_unstable();
        out.length(all.len());
        for (name, owner, number) in &all {
            let session = &self.sessions[*number];
            let namespace = &self.namespaces[session.namespace].name;
            out.length(*name);
            out.put(*owner);
            out.option(session.holder());
            put_option(out, session.grant(), put_grant);
            put_option(out, session.lease.as_ref(), put_lease);
            if session.lease.is_some() {
                out.number(session.asked_until());
            }
            out.number(u64::from(session.claims));
            for number in self.session_claims(*number) {
                let claim = &self.claims[number];
                out.put(&number);
                out.put(&self.tree.path(namespace, claim.node));
                out.put(&claim.mode());
                out.put(&claim.algorithm());
                out.option(claim.fence().as_ref());
                out.number(claim.since);
            }
        }
        let free: Vec<_> = self.claims.free_ids().collect();
        out.put(&free);
        all.into_iter()
            .zip(0..)
            .map(|((_, _, number), place)| (number, place))
            .collect()
    }

    fn put_waiters(&self, out: &mut Writer, sessions: &BTreeMap<Id<Session>, usize>) {
        let mut all: Vec<&Waiter> = self.waiters.iter().map(|(_, waiter)| waiter).collect();
        all.sort_by_key(|waiter| waiter.number);
        out.length(all.len());
        for waiter in all {
            out.number(waiter.number);
            out.length(sessions[&waiter.session]);
            out.put(&*waiter.request);
            out.option(waiter.fence.as_ref());
            out.number(waiter.since);
            out.number(waiter.end);
            out.length(waiter.asked.len());
            for owner in &waiter.asked {
                out.put(owner);
            }
        }
    }

    fn put_routes(&self, out: &mut Writer) {
        let routes = &self.routes;
        out.number(routes.floor);
        out.number(routes.newest);
        out.number(routes.settled);
        out.length(routes.recent.len());
        for (version, region) in &routes.recent {
            out.number(*version);
            out.put(region);
        }
        out.length(routes.done.len());
        for change in &routes.done {
            out.number(*change);
        }
        out.length(routes.frozen.len());
        for (change, frozen) in &routes.frozen {
            out.number(*change);
            out.put(&frozen.region);
            out.length(frozen.waiters.len());
            for (number, _) in &frozen.waiters {
                out.number(*number);
            }
        }
        let floors: Vec<&RegionFloor> = self.region_floors.values().flatten().collect();
        out.length(floors.len());
        for moved in floors {
            out.put(&moved.region);
            out.number(moved.floor);
            out.number(moved.change);
        }
    }

    fn put_memory(&self, out: &mut Writer, names: &BTreeMap<Id<NamespaceState>, usize>) {
        out.length(self.marks.len() as usize);
        let path = |number: Id<NamespaceState>, rest: &str| self.namespaces[number].name.path(rest);
        for (namespace, rest, fence, _) in self.marks.iter() {
            out.length(names[&namespace]);
            out.put(&path(namespace, rest));
            out.put(fence);
        }
        let mut used: Vec<_> = self.capacities.iter().filter(|entry| !entry.3).collect();
        used.sort_by_key(|(namespace, rest, ..)| (names[namespace], *rest));
        let idle = self.capacities.iter().filter(|entry| entry.3);
        out.length(self.capacities.len() as usize);
        for (namespace, rest, capacity, idle) in used.into_iter().chain(idle) {
            out.length(names[&namespace]);
            out.put(&path(namespace, rest));
            out.put(&capacity.permits);
            // Meaningful only for an idle one; zero otherwise, so that equal states give equal
            // bytes.
            out.number(if idle { capacity.idle_since } else { 0 });
            out.put(&idle);
        }
    }

    fn put_answers(&self, out: &mut Writer) {
        out.length(self.answers.iter().count());
        for (key, remembered) in self.answers.iter() {
            key.put(out);
            out.put(&remembered.fingerprint);
            out.number(remembered.end);
            out.put(&remembered.answer.answer);
        }
    }

    fn put_taken(&self, out: &mut Writer, sessions: &BTreeMap<Id<Session>, usize>) {
        let mut all: Vec<(usize, &TakenHolds)> = self
            .sessions
            .iter()
            .filter_map(|(number, session)| Some((sessions[&number], session.taken()?)))
            .collect();
        all.sort_unstable_by_key(|(place, _)| *place);
        out.length(all.len());
        for (place, taken) in all {
            out.length(place);
            out.length(taken.len());
            for ((path, mode), missing) in taken {
                out.put(path);
                out.put(mode);
                out.put(missing);
            }
        }
    }

    /// Encodes the rules 2 part: the start of the common number sequence, the size of a batch and the
    /// waiters that are left for the next commands, recently moved regions, and the holds released
    /// under each key.
    fn put_order(&self, out: &mut Writer) {
        out.number(self.order_from);
        out.put(&self.limits.batch);
        out.length(self.pending.len());
        for (number, _) in &self.pending {
            out.number(*number);
        }
        out.number(self.routes.all_moved.end);
        out.number(self.routes.all_moved.version);
        out.length(self.routes.moved.len());
        for moved in &self.routes.moved {
            out.number(moved.end);
            out.number(moved.version);
            out.put(&moved.region);
        }
        for (_, remembered) in self.answers.iter() {
            out.list(&remembered.answer.released);
        }
    }

    fn put_events(&self, out: &mut Writer) {
        out.number(self.events.sequence);
        out.number(self.events.id);
        out.length(self.events.kept.len());
        for (made, event) in self.events.kept.iter() {
            out.number(made);
            out.put(&event);
        }
    }
}

fn put_limits(out: &mut Writer, limits: &SpaceLimits) {
    let SpaceLimits {
        marks,
        idle_namespaces,
        region_floors,
        answers,
        capacities,
        waiting_paths,
        events,
        // Rules 1 have no such limit: see `put_order`.
        batch: _,
    } = limits;
    for limit in [
        marks,
        idle_namespaces,
        region_floors,
        answers,
        capacities,
        waiting_paths,
        events,
    ] {
        out.put(limit);
    }
}

fn put_lease(out: &mut Writer, lease: &Lease) {
    out.put(&lease.ttl);
    for number in [lease.cover, lease.epoch, lease.born] {
        out.number(number);
    }
}

fn put_grant(out: &mut Writer, grant: &StandingGrant) {
    for number in [grant.waiter, grant.sequence, grant.id, grant.until] {
        out.number(number);
    }
    out.option(grant.fence.as_ref());
}

fn put_option<T>(out: &mut Writer, value: Option<&T>, put: fn(&mut Writer, &T)) {
    match value {
        None => out.byte(0),
        Some(value) => {
            out.byte(1);
            put(out, value);
        }
    }
}
