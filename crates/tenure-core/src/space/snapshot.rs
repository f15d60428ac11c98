//! All of a space as bytes, and back.
//!
//! Equal states give equal bytes: namespaces by name, sessions by namespace and owner, waiters by
//! number. What is an order of history (a session's claims, free numbers of claims, who is idle for
//! how long, which answer ends first) is written in that order. What can be counted or looked up
//! again (counts, lines, rings) is not written.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::answers::{Answer, AnswerKey, Call, Remembered};
use super::change::{Frozen, RegionFloor};
use super::claims::{Claim, Step};
use super::memory::Capacity;
use super::queue::Waiter;
use super::sessions::{Lease, StandingGrant};
use super::{Space, SpaceLimits};
use crate::codec::{DecodeError, Reader, VERSION, Writer};
use crate::command::Acquire;
use crate::hash::HashSeed;
use crate::lease::SHORT_LEASE_MS;
use crate::path::Namespace;
use crate::slab::{NONE, Slab};
use crate::value::{Fence, OwnerId};

impl Space {
    /// Writes the whole state behind what is in `bytes`. Equal states give equal bytes.
    pub fn encode_snapshot(&self, bytes: Vec<u8>) -> Vec<u8> {
        let mut out = Writer::append_to(bytes);
        out.byte(VERSION);
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
        out.into_bytes()
    }

    /// Namespaces by name; their places in the order are their references.
    fn put_namespaces(&self, out: &mut Writer) -> BTreeMap<u32, usize> {
        let mut all: Vec<u32> = self.namespaces.iter().map(|(number, _)| number).collect();
        all.sort_by(|one, two| self.namespaces[*one].name.cmp(&self.namespaces[*two].name));
        let places: BTreeMap<u32, usize> = all.iter().copied().zip(0..).collect();
        out.length(all.len());
        for number in &all {
            let state = &self.namespaces[*number];
            out.put(&state.name);
            out.number(state.high);
            out.number(state.floor);
        }
        let idle: Vec<u32> = self.namespaces.idle().collect();
        out.length(idle.len());
        for number in idle {
            out.length(places[&number]);
        }
        places
    }

    fn put_sessions(&self, out: &mut Writer, names: &BTreeMap<u32, usize>) -> BTreeMap<u32, usize> {
        let mut all: Vec<(usize, &OwnerId, u32)> = self
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
            out.option(session.holder.as_ref());
            put_option(out, session.grant.as_deref(), put_grant);
            put_option(out, session.lease.as_ref(), put_lease);
            out.number(u64::from(session.claims));
            for number in self.session_claims(*number) {
                let claim = &self.claims[number];
                out.number(u64::from(number));
                out.put(&self.tree.path(namespace, claim.node));
                out.put(&claim.mode);
                out.put(&claim.algorithm);
                out.option(claim.fence.as_ref());
                out.number(claim.since);
            }
        }
        let free: Vec<u32> = self.claims.free_numbers().collect();
        out.length(free.len());
        for number in free {
            out.number(u64::from(number));
        }
        all.into_iter()
            .zip(0..)
            .map(|((_, _, number), place)| (number, place))
            .collect()
    }

    fn put_waiters(&self, out: &mut Writer, sessions: &BTreeMap<u32, usize>) {
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

    fn put_memory(&self, out: &mut Writer, names: &BTreeMap<u32, usize>) {
        out.length(self.marks.len() as usize);
        for (namespace, path, fence, _) in self.marks.iter() {
            out.length(names[&namespace]);
            out.put(path);
            out.put(fence);
        }
        let mut used: Vec<_> = self.capacities.iter().filter(|entry| !entry.3).collect();
        used.sort_by_key(|(namespace, path, ..)| (names[namespace], *path));
        let idle = self.capacities.iter().filter(|entry| entry.3);
        out.length(self.capacities.len() as usize);
        for (namespace, path, capacity, idle) in used.into_iter().chain(idle) {
            out.length(names[&namespace]);
            out.put(path);
            out.put(&capacity.permits);
            // Says something only about an idle one, and would differ between equal states otherwise.
            out.number(if idle { capacity.idle_since } else { 0 });
            out.put(&idle);
        }
    }

    fn put_answers(&self, out: &mut Writer) {
        out.length(self.answers.table.len());
        for (key, remembered) in self.answers.iter() {
            out.byte(match key.call {
                Call::Acquire => 0,
                Call::Release => 1,
            });
            out.put(&key.namespace);
            out.put(&key.key);
            out.put(&remembered.fingerprint);
            out.number(remembered.end);
            match remembered.answer {
                Answer::Granted(fence) => {
                    out.byte(0);
                    out.option(fence.as_ref());
                }
                Answer::Released => out.byte(1),
                Answer::Waiting(waiter) => {
                    out.byte(2);
                    out.number(waiter);
                }
                Answer::Gone => out.byte(3),
            }
        }
    }

    fn put_events(&self, out: &mut Writer) {
        out.number(self.events.sequence);
        out.number(self.events.id);
        out.length(self.events.kept.len());
        for (made, event) in &self.events.kept {
            out.number(*made);
            out.put(event);
        }
    }

    /// Reads a state back. The seed is this process's own.
    pub fn decode_snapshot(bytes: &[u8], seed: HashSeed) -> Result<Space, DecodeError> {
        let mut input = Reader::new(bytes);
        input.version(VERSION)?;
        let mut space = Space::new(take_limits(&mut input)?, seed);
        space.rules = input.small()?;
        space.time = input.number()?;
        space.epoch = input.number()?;
        space.minted = input.number()?;
        space.next_waiter = input.number()?;
        space.namespaces.floor = input.number()?;
        let names = space.take_namespaces(&mut input)?;
        let sessions = space.take_sessions(&mut input, &names)?;
        let waiters = space.take_waiters(&mut input, &sessions)?;
        space.take_routes(&mut input, &waiters)?;
        space.take_memory(&mut input, &names)?;
        space.take_answers(&mut input, &waiters)?;
        space.take_events(&mut input)?;
        input.finish()?;
        space.hang_all(&waiters);
        Ok(space)
    }

    fn take_namespaces(&mut self, input: &mut Reader<'_>) -> Result<Vec<u32>, DecodeError> {
        let count = input.length()?;
        let mut names = Vec::new();
        for _ in 0..count {
            let name: Namespace = input.take()?;
            let (high, floor) = (input.number()?, input.number()?);
            if self.namespaces.find(&name).is_some() {
                return Err(DecodeError::Inconsistent("a namespace twice"));
            }
            if high >= Fence::MINTED_END || floor > high {
                return Err(DecodeError::Inconsistent("a namespace's numbers"));
            }
            names.push(self.namespaces.insert(name, high, floor));
        }
        for _ in 0..input.length()? {
            let number = reference(&names, place(input)?)?;
            if !self.namespaces.restore_idle(number) {
                return Err(DecodeError::Inconsistent("a namespace idle twice"));
            }
        }
        Ok(names)
    }

    fn take_sessions(
        &mut self,
        input: &mut Reader<'_>,
        names: &[u32],
    ) -> Result<Vec<u32>, DecodeError> {
        let count = input.length()?;
        let mut sessions = Vec::new();
        // Claims by number, with their paths' nodes; they are put in place when all are known.
        let mut claims: BTreeMap<u32, Claim> = BTreeMap::new();
        for _ in 0..count {
            let namespace = reference(names, place(input)?)?;
            let owner: OwnerId = input.take()?;
            if self.sessions.find(namespace, &owner).is_some() {
                return Err(DecodeError::Inconsistent("a session twice"));
            }
            let session = self.open_session(namespace, &owner);
            self.sessions[session].holder = input.option()?;
            self.sessions[session].grant = take_option(input, take_grant)?.map(Box::new);
            let lease = take_option(input, take_lease)?;
            self.sessions[session].lease = lease;
            self.long_leases +=
                u32::from(lease.is_some_and(|lease| lease.ttl.millis() > SHORT_LEASE_MS));
            self.take_claims(input, session, &mut claims)?;
            sessions.push(session);
        }
        let mut free = Vec::new();
        for _ in 0..input.length()? {
            free.push(input.small()?);
        }
        self.place_claims(claims, &free)?;
        Ok(sessions)
    }

    fn take_claims(
        &mut self,
        input: &mut Reader<'_>,
        session: u32,
        claims: &mut BTreeMap<u32, Claim>,
    ) -> Result<(), DecodeError> {
        let namespace = self.sessions[session].namespace;
        let count = input.length()?;
        if (count > 0) != self.sessions[session].lease.is_some() {
            return Err(DecodeError::Inconsistent(
                "a lease and no claims, or claims and no lease",
            ));
        }
        let mut last = NONE;
        for _ in 0..count {
            let number = input.small()?;
            let path = input.take()?;
            if !self.namespaces[namespace].name.contains(&path) {
                return Err(DecodeError::Inconsistent("a claim outside its namespace"));
            }
            let claim = Claim {
                node: self.reach(namespace, &path),
                session,
                mode: input.take()?,
                algorithm: input.take()?,
                fence: input.option()?,
                since: input.number()?,
                next: NONE,
                previous: last,
            };
            if claims.insert(number, claim).is_some() {
                return Err(DecodeError::Inconsistent("a claim's number twice"));
            }
            match claims.get_mut(&last) {
                Some(previous) => previous.next = number,
                None => self.sessions[session].first_claim = number,
            }
            last = number;
        }
        // The length was checked against the bytes that are left, which are fewer than 2^32 claims.
        self.sessions[session].claims = u32::try_from(count).map_err(|_| DecodeError::Number)?;
        Ok(())
    }

    fn place_claims(
        &mut self,
        mut claims: BTreeMap<u32, Claim>,
        free: &[u32],
    ) -> Result<(), DecodeError> {
        let slots = claims.len() + free.len();
        let mut values = Vec::new();
        for number in 0..slots {
            let number = u32::try_from(number).map_err(|_| DecodeError::Number)?;
            values.push(claims.remove(&number));
        }
        self.claims = Slab::restore(values, free)
            .ok_or(DecodeError::Inconsistent("the numbers of the claims"))?;
        let numbers: Vec<u32> = self.claims.iter().map(|(number, _)| number).collect();
        for number in numbers {
            let Claim { node, session, .. } = self.claims[number];
            let kind = self.claims[number].kind();
            if self.own_claim(session, node, kind).is_some() {
                return Err(DecodeError::Inconsistent("a claim twice"));
            }
            self.place(number);
            self.count_above(number, Step::Up);
        }
        let many: Vec<u32> = self
            .sessions
            .iter()
            .filter(|(_, session)| Space::wants_index(session.claims))
            .map(|(number, _)| number)
            .collect();
        for session in many {
            self.index_own(session);
        }
        Ok(())
    }

    fn take_waiters(
        &mut self,
        input: &mut Reader<'_>,
        sessions: &[u32],
    ) -> Result<BTreeMap<u64, u32>, DecodeError> {
        let count = input.length()?;
        let mut waiters: BTreeMap<u64, u32> = BTreeMap::new();
        for _ in 0..count {
            let number = input.number()?;
            let session = reference(sessions, place(input)?)?;
            let request: Box<Acquire> = input.take()?;
            let fence = input.option()?;
            let (since, end) = (input.number()?, input.number()?);
            let mut asked = BTreeSet::new();
            for _ in 0..input.length()? {
                asked.insert(input.take()?);
            }
            let ordered = waiters
                .last_key_value()
                .is_none_or(|(last, _)| *last < number);
            if !ordered || number > self.next_waiter || self.sessions[session].waiter != NONE {
                return Err(DecodeError::Inconsistent("the order of waiters"));
            }
            let namespace = &self.namespaces[self.sessions[session].namespace].name;
            let at_home = super::acquire::all_paths(&request).all(|path| namespace.contains(path));
            if request.route.namespace != *namespace || !at_home {
                return Err(DecodeError::Inconsistent("a waiter outside its namespace"));
            }
            let waiter = Waiter {
                number,
                session,
                request,
                fence,
                since,
                end,
                parts: Vec::new(),
                link: NONE,
                asked,
                answers: Vec::new(),
            };
            waiters.insert(number, self.join(session, waiter));
        }
        for session in sessions {
            let there = &self.sessions[*session];
            if there.claims == 0 && there.waiter == NONE {
                return Err(DecodeError::Inconsistent("a session with nothing in it"));
            }
        }
        Ok(waiters)
    }

    fn take_routes(
        &mut self,
        input: &mut Reader<'_>,
        waiters: &BTreeMap<u64, u32>,
    ) -> Result<(), DecodeError> {
        self.routes.floor = input.number()?;
        self.routes.newest = input.number()?;
        self.routes.settled = input.number()?;
        for _ in 0..input.length()? {
            let version = input.number()?;
            self.routes.recent.push_back((version, input.take()?));
        }
        for _ in 0..input.length()? {
            self.routes.done.insert(input.number()?);
        }
        for _ in 0..input.length()? {
            let change = input.number()?;
            let region = input.take()?;
            let mut parked = BTreeSet::new();
            for _ in 0..input.length()? {
                let number = input.number()?;
                let id = waiters.get(&number).ok_or(DecodeError::Inconsistent(
                    "a frozen waiter that is not there",
                ))?;
                parked.insert((number, *id));
            }
            let frozen = Frozen {
                region,
                waiters: parked,
            };
            self.routes.frozen.insert(change, frozen);
        }
        for _ in 0..input.length()? {
            let moved = RegionFloor {
                region: input.take()?,
                floor: input.number()?,
                change: input.number()?,
            };
            if moved.floor >= Fence::MINTED_END {
                return Err(DecodeError::Number);
            }
            let floors = self.region_floors.entry(moved.region.root.clone());
            floors.or_default().push(moved);
        }
        Ok(())
    }

    fn take_memory(&mut self, input: &mut Reader<'_>, names: &[u32]) -> Result<(), DecodeError> {
        for _ in 0..input.length()? {
            let namespace = reference(names, place(input)?)?;
            let path = input.take()?;
            let fence: Fence = input.take()?;
            if self.marks.get(namespace, &path).is_some() {
                return Err(DecodeError::Inconsistent("a mark twice"));
            }
            self.marks.insert_idle(namespace, path, fence);
            self.namespaces[namespace].marks += 1;
        }
        for _ in 0..input.length()? {
            let namespace = reference(names, place(input)?)?;
            let path = input.take()?;
            let capacity = Capacity {
                permits: input.take()?,
                idle_since: input.number()?,
            };
            if self.capacities.get(namespace, &path).is_some() {
                return Err(DecodeError::Inconsistent("a capacity twice"));
            }
            if input.take()? {
                self.capacities.insert_idle(namespace, path, capacity);
            } else {
                self.capacities.insert(namespace, path, capacity);
            }
            self.namespaces[namespace].capacities += 1;
        }
        Ok(())
    }

    fn take_answers(
        &mut self,
        input: &mut Reader<'_>,
        waiters: &BTreeMap<u64, u32>,
    ) -> Result<(), DecodeError> {
        for _ in 0..input.length()? {
            let call = match input.byte()? {
                0 => Call::Acquire,
                1 => Call::Release,
                found => return Err(DecodeError::Tag { of: "call", found }),
            };
            let key = AnswerKey {
                call,
                namespace: input.take()?,
                key: input.take()?,
            };
            let fingerprint = input.take()?;
            let end = input.number()?;
            let answer = match input.byte()? {
                0 => Answer::Granted(input.option()?),
                1 => Answer::Released,
                2 => {
                    let number = input.number()?;
                    let id = waiters.get(&number);
                    let id = id.ok_or(DecodeError::Inconsistent("an answer about nobody"))?;
                    self.waiters[*id].answers.push(key.clone());
                    Answer::Waiting(number)
                }
                3 => Answer::Gone,
                found => {
                    return Err(DecodeError::Tag {
                        of: "answer",
                        found,
                    });
                }
            };
            let remembered = Remembered {
                fingerprint,
                answer,
                end,
            };
            if self.answers.table.contains_key(&key) {
                return Err(DecodeError::Inconsistent("an answer twice"));
            }
            self.answers.restore(key, remembered);
        }
        Ok(())
    }

    fn take_events(&mut self, input: &mut Reader<'_>) -> Result<(), DecodeError> {
        self.events.sequence = input.number()?;
        self.events.id = input.number()?;
        for _ in 0..input.length()? {
            let made = input.number()?;
            self.events.kept.push_back((made, input.take()?));
        }
        Ok(())
    }

    /// Hangs every waiter on what blocks it. Whoever is blocked by nothing is looked at by the next
    /// command: in a state that was written by a space, nobody is.
    fn hang_all(&mut self, waiters: &BTreeMap<u64, u32>) {
        let parked: BTreeSet<u32> = self
            .routes
            .frozen
            .values()
            .flat_map(|frozen| frozen.waiters.iter().map(|(_, id)| *id))
            .collect();
        for id in waiters.values().filter(|id| !parked.contains(id)) {
            self.hang(*id);
        }
    }
}

fn reference(all: &[u32], place: usize) -> Result<u32, DecodeError> {
    all.get(place)
        .copied()
        .ok_or(DecodeError::Inconsistent("a reference to nothing"))
}

/// A place in a list that came before.
fn place(input: &mut Reader<'_>) -> Result<usize, DecodeError> {
    usize::try_from(input.number()?).map_err(|_| DecodeError::Number)
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

fn take_limits(input: &mut Reader<'_>) -> Result<SpaceLimits, DecodeError> {
    Ok(SpaceLimits {
        marks: input.take()?,
        idle_namespaces: input.take()?,
        region_floors: input.take()?,
        answers: input.take()?,
        capacities: input.take()?,
        waiting_paths: input.take()?,
        events: input.take()?,
    })
}

fn put_lease(out: &mut Writer, lease: &Lease) {
    out.put(&lease.ttl);
    for number in [lease.cover, lease.epoch, lease.born, lease.asked_until] {
        out.number(number);
    }
}

fn take_lease(input: &mut Reader<'_>) -> Result<Lease, DecodeError> {
    Ok(Lease {
        ttl: input.take()?,
        cover: input.number()?,
        epoch: input.number()?,
        born: input.number()?,
        asked_until: input.number()?,
    })
}

fn put_grant(out: &mut Writer, grant: &StandingGrant) {
    for number in [grant.waiter, grant.sequence, grant.id, grant.until] {
        out.number(number);
    }
    out.option(grant.fence.as_ref());
}

fn take_grant(input: &mut Reader<'_>) -> Result<StandingGrant, DecodeError> {
    Ok(StandingGrant {
        waiter: input.number()?,
        sequence: input.number()?,
        id: input.number()?,
        until: input.number()?,
        fence: input.option()?,
    })
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

fn take_option<T>(
    input: &mut Reader<'_>,
    take: fn(&mut Reader<'_>) -> Result<T, DecodeError>,
) -> Result<Option<T>, DecodeError> {
    match input.byte()? {
        0 => Ok(None),
        1 => take(input).map(Some),
        found => Err(DecodeError::Tag {
            of: "option",
            found,
        }),
    }
}
