//! Snapshot decoding: rebuilds a space from the bytes of `snapshot.rs`.
//!
//! Every length, reference and value is validated, so any input gives a space or an error.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::claims::{Claim, ClaimChange};
use super::idempotency::{ScopedKey, StoredAnswer};
use super::namespaces::NamespaceState;
use super::packed_claim::PackedClaim;
use super::policy_change::{AllMoved, FrozenRegion, MovedRegion, RegionFloor};
use super::queue::Waiter;
use super::retained::Capacity;
use super::sessions::Session;
use super::sessions::{Lease, StandingGrant};
use super::usage::Tally;
use super::{Space, SpaceLimits};
use crate::codec::{DecodeError, Reader, take_rules, take_snapshot_version};
use crate::command::Acquire;
use crate::hash::HashSeed;
use crate::idempotency::Remembered;
use crate::lease::SHORT_LEASE_MS;
use crate::path::{Namespace, Path};
use crate::policy::Mode;
use crate::slab::{Id, Slab};
use crate::value::{Fence, OwnerId};

impl Space {
    /// Decodes a snapshot. The seed is local to this process.
    pub fn decode_snapshot(bytes: &[u8], seed: HashSeed) -> Result<Space, DecodeError> {
        let mut input = Reader::new(bytes);
        let version = take_snapshot_version(&mut input)?;
        let mut space = Space::new(take_limits(&mut input)?, seed);
        space.rules = take_rules(version, &mut input)?;
        if space.rules >= 2 {
            space.share_answers();
        }
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
        if space.rules >= 2 {
            space.take_taken(&mut input, &sessions)?;
            space.take_order(&mut input, &waiters)?;
        }
        input.finish()?;
        space.park_on_all(&waiters);
        Ok(space)
    }

    fn take_order(
        &mut self,
        input: &mut Reader<'_>,
        waiters: &BTreeMap<u64, Id<Waiter>>,
    ) -> Result<(), DecodeError> {
        self.order_from = input.number()?;
        self.limits.batch = input.take()?;
        for _ in 0..input.length()? {
            let number = input.number()?;
            let id = waiters.get(&number).ok_or(DecodeError::Inconsistent(
                "a pending waiter that is not there",
            ))?;
            self.pending.insert((number, *id));
        }
        self.routes.all_moved = AllMoved {
            end: input.number()?,
            version: input.number()?,
        };
        for _ in 0..input.length()? {
            self.routes.moved.push_back(MovedRegion {
                end: input.number()?,
                version: input.number()?,
                region: input.take()?,
            });
        }
        let mut released = Vec::new();
        for _ in 0..self.answers.iter().count() {
            let hashes: Vec<u64> = input.list()?;
            if !hashes.is_sorted() {
                return Err(DecodeError::Inconsistent("released holds out of order"));
            }
            released.push(hashes.into());
        }
        self.answers.set_released(released);
        Ok(())
    }

    fn take_namespaces(
        &mut self,
        input: &mut Reader<'_>,
    ) -> Result<Vec<Id<NamespaceState>>, DecodeError> {
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
        names: &[Id<NamespaceState>],
    ) -> Result<Vec<Id<Session>>, DecodeError> {
        let count = input.length()?;
        let mut sessions = Vec::new();
        // Claims with their numbers; they are placed after all are decoded.
        let mut claims: Vec<(Id<Claim>, Claim)> = Vec::new();
        for _ in 0..count {
            let namespace = reference(names, place(input)?)?;
            let owner: OwnerId = input.take()?;
            if self.sessions.find(namespace, &owner).is_some() {
                return Err(DecodeError::Inconsistent("a session twice"));
            }
            let session = self.open_session(namespace, &owner);
            self.sessions[session].set_holder(input.option()?);
            self.sessions[session].set_grant(take_option(input, take_grant)?);
            let lease = take_option(input, take_lease)?;
            self.sessions[session].lease = lease;
            if lease.is_some() {
                self.sessions[session].set_asked_until(input.number()?);
            }
            self.leases += u32::from(lease.is_some());
            self.long_leases +=
                u32::from(lease.is_some_and(|lease| lease.ttl.millis() > SHORT_LEASE_MS));
            self.take_claims(input, session, &mut claims)?;
            sessions.push(session);
        }
        let free: Vec<Id<Claim>> = input.take()?;
        self.place_claims(claims, &free)?;
        Ok(sessions)
    }

    fn take_claims(
        &mut self,
        input: &mut Reader<'_>,
        session: Id<Session>,
        claims: &mut Vec<(Id<Claim>, Claim)>,
    ) -> Result<(), DecodeError> {
        let namespace = self.sessions[session].namespace;
        let count = input.length()?;
        if (count > 0) != self.sessions[session].lease.is_some() {
            return Err(DecodeError::Inconsistent(
                "a lease and no claims, or claims and no lease",
            ));
        }
        let mut last = None;
        for _ in 0..count {
            let number = input.take()?;
            let path = input.take()?;
            if !self.namespaces[namespace].name.contains(&path) {
                return Err(DecodeError::Inconsistent("a claim outside its namespace"));
            }
            let claim = Claim {
                node: self.reach(namespace, &path),
                session,
                terms: PackedClaim::new(input.take()?, input.take()?, input.option()?),
                since: input.number()?,
                next: None,
                previous: last,
            };
            match claims.last_mut() {
                Some((_, previous)) if last.is_some() => previous.next = Some(number),
                _ => self.sessions[session].first_claim = Some(number),
            }
            claims.push((number, claim));
            last = Some(number);
        }
        // The length was checked against the remaining bytes, so it is below 2^32 for any real
        // input.
        let count = u32::try_from(count).map_err(|_| DecodeError::Number)?;
        self.sessions[session].claims = count;
        self.use_more(session, Tally::holds(count));
        Ok(())
    }

    fn place_claims(
        &mut self,
        mut claims: Vec<(Id<Claim>, Claim)>,
        free: &[Id<Claim>],
    ) -> Result<(), DecodeError> {
        claims.sort_by_key(|(number, _)| *number);
        let slots = claims.len() + free.len();
        let mut values = Vec::with_capacity(slots);
        for (number, claim) in claims {
            let number = number.number() as usize;
            if number < values.len() || number >= slots {
                return Err(DecodeError::Inconsistent("the number of a claim"));
            }
            values.resize_with(number, || None);
            values.push(Some(claim));
        }
        values.resize_with(slots, || None);
        self.claims = Slab::restore(values, free)
            .ok_or(DecodeError::Inconsistent("the numbers of the claims"))?;
        let numbers: Vec<_> = self.claims.iter().map(|(number, _)| number).collect();
        for number in numbers {
            let Claim { node, session, .. } = self.claims[number];
            let mode = self.claims[number].mode();
            if self.own_claim(session, node, mode).is_some() {
                return Err(DecodeError::Inconsistent("a claim twice"));
            }
            self.place(number);
            self.count_above(number, ClaimChange::Up);
        }
        let many: Vec<_> = self
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
        sessions: &[Id<Session>],
    ) -> Result<BTreeMap<u64, Id<Waiter>>, DecodeError> {
        let count = input.length()?;
        let mut waiters: BTreeMap<u64, Id<Waiter>> = BTreeMap::new();
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
            if !ordered || number > self.next_waiter || self.sessions[session].waiter.is_some() {
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
                levels: 0,
                link: self.links.create(),
                asked,
                answers: Vec::new(),
            };
            waiters.insert(number, self.join(session, waiter));
        }
        for session in sessions {
            let there = &self.sessions[*session];
            if there.claims == 0 && there.waiter.is_none() {
                return Err(DecodeError::Inconsistent("a session with nothing in it"));
            }
        }
        Ok(waiters)
    }

    fn take_routes(
        &mut self,
        input: &mut Reader<'_>,
        waiters: &BTreeMap<u64, Id<Waiter>>,
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
            let frozen = FrozenRegion {
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

    fn take_memory(
        &mut self,
        input: &mut Reader<'_>,
        names: &[Id<NamespaceState>],
    ) -> Result<(), DecodeError> {
        for _ in 0..input.length()? {
            let namespace = reference(names, place(input)?)?;
            let path = input.take()?;
            let fence: Fence = input.take()?;
            let state = &mut self.namespaces[namespace];
            let rest = state.rest_of(&path)?;
            if self.marks.get(namespace, rest).is_some() {
                return Err(DecodeError::Inconsistent("a mark twice"));
            }
            self.marks.insert_idle(namespace, rest, fence);
            state.marks += 1;
        }
        for _ in 0..input.length()? {
            let namespace = reference(names, place(input)?)?;
            let path = input.take()?;
            let capacity = Capacity {
                permits: input.take()?,
                idle_since: input.number()?,
            };
            let state = &mut self.namespaces[namespace];
            let rest = state.rest_of(&path)?;
            if self.capacities.get(namespace, rest).is_some() {
                return Err(DecodeError::Inconsistent("a capacity twice"));
            }
            if input.take()? {
                self.capacities.insert_idle(namespace, rest, capacity);
            } else {
                self.capacities.insert(namespace, rest, capacity);
            }
            state.capacities += 1;
        }
        Ok(())
    }

    fn take_answers(
        &mut self,
        input: &mut Reader<'_>,
        waiters: &BTreeMap<u64, Id<Waiter>>,
    ) -> Result<(), DecodeError> {
        for _ in 0..input.length()? {
            let key = ScopedKey::take(input, self.rules)?;
            let fingerprint = input.take()?;
            let end = input.number()?;
            let answer: StoredAnswer = input.take()?;
            if let StoredAnswer::Waiting(number) = answer {
                let id = waiters.get(&number);
                let id = id.ok_or(DecodeError::Inconsistent("an answer about no waiter"))?;
                self.waiters[*id].answers.push(key.clone());
            }
            if self.answers.get(&key).is_some() {
                return Err(DecodeError::Inconsistent("an answer twice"));
            }
            let remembered = Remembered {
                fingerprint,
                answer: answer.into(),
                end,
            };
            self.answers.restore(key, remembered);
        }
        Ok(())
    }

    fn take_events(&mut self, input: &mut Reader<'_>) -> Result<(), DecodeError> {
        self.events.sequence = input.number()?;
        self.events.id = input.number()?;
        for _ in 0..input.length()? {
            let made = input.number()?;
            self.events.kept.push(made, &input.take()?);
        }
        Ok(())
    }

    fn take_taken(
        &mut self,
        input: &mut Reader<'_>,
        sessions: &[Id<Session>],
    ) -> Result<(), DecodeError> {
        let mut last = None;
        for _ in 0..input.length()? {
            let at = place(input)?;
            let session = reference(sessions, at)?;
            let count = input.length()?;
            // A state has exactly one encoding, so any other order is refused.
            if last.replace(at).is_some_and(|last| last >= at) || count == 0 {
                return Err(DecodeError::Inconsistent("the order of what was taken"));
            }
            let namespace = self.sessions[session].namespace;
            let mut before: Option<(Path, Mode)> = None;
            for _ in 0..count {
                let (path, mode): (Path, Mode) = (input.take()?, input.take()?);
                let missing = input.take()?;
                let hold = (path.clone(), mode);
                if before
                    .replace(hold.clone())
                    .is_some_and(|before| before >= hold)
                {
                    return Err(DecodeError::Inconsistent("the order of what was taken"));
                }
                if !self.namespaces[namespace].name.contains(&path) {
                    return Err(DecodeError::Inconsistent(
                        "a taken hold outside its namespace",
                    ));
                }
                let node = self.path_position(namespace, &path).at;
                if node.is_some_and(|node| self.own_claim(session, node, mode).is_some()) {
                    return Err(DecodeError::Inconsistent("a hold both taken and there"));
                }
                self.sessions[session].note_taken(path, mode, missing);
            }
        }
        Ok(())
    }

    /// Parks every waiter on its blocker, unless it is pending. Another waiter without a blocker is
    /// marked pending, too; a snapshot written by a space contains none.
    fn park_on_all(&mut self, waiters: &BTreeMap<u64, Id<Waiter>>) {
        let parked: BTreeSet<_> = self
            .routes
            .frozen
            .values()
            .flat_map(|frozen| frozen.waiters.iter().map(|(_, id)| *id))
            .chain(self.pending.iter().map(|(_, id)| *id))
            .collect();
        for id in waiters.values().filter(|id| !parked.contains(id)) {
            self.park_on(*id);
        }
    }
}

impl NamespaceState {
    /// Returns the part of a path after the namespace's name. Fails if the path is outside.
    fn rest_of<'a>(&self, path: &'a Path) -> Result<&'a str, DecodeError> {
        if self.name.contains(path) {
            Ok(self.name.rest(path))
        } else {
            Err(DecodeError::Inconsistent("a path outside its namespace"))
        }
    }
}

fn reference<T>(all: &[Id<T>], place: usize) -> Result<Id<T>, DecodeError> {
    all.get(place)
        .copied()
        .ok_or(DecodeError::Inconsistent("a reference to nothing"))
}

/// Decodes an index into a list decoded before.
fn place(input: &mut Reader<'_>) -> Result<usize, DecodeError> {
    usize::try_from(input.number()?).map_err(|_| DecodeError::Number)
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
        batch: SpaceLimits::default().batch,
    })
}

fn take_lease(input: &mut Reader<'_>) -> Result<Lease, DecodeError> {
    Ok(Lease {
        ttl: input.take()?,
        cover: input.number()?,
        epoch: input.number()?,
        born: input.number()?,
    })
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
