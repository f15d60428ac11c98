//! Snapshot encoding and decoding of the system machine. Equal states give equal bytes.

use alloc::vec::Vec;

use super::System;
use super::idempotency::ClaimedKey;
use super::table_changes::{ChangePhase, PendingChange};
use crate::codec::{
    DecodeError, Reader, Writer, snapshot_version, take_rules, take_snapshot_version,
};
use crate::idempotency::Remembered;
use crate::namespace_table::{AffectedGroups, NamespaceTable, TableChangeSteps};
use crate::path::Namespace;
use crate::policy::Algorithm;

impl System {
    /// Appends the encoded state to `bytes`. Equal states give equal bytes.
    pub fn encode_snapshot(&self, bytes: Vec<u8>) -> Vec<u8> {
        let mut out = Writer::append_to(bytes);
        out.byte(snapshot_version(self.rules));
        for number in [u64::from(self.rules), self.time, self.counter] {
            out.number(number);
        }
        put_table(&mut out, &self.table);
        out.number(self.changes.last);
        out.length(self.changes.underway.len());
        for (change, underway) in &self.changes.underway {
            out.number(*change);
            put_underway(&mut out, underway);
        }
        out.length(self.edges.len());
        for (owner, (edge, end)) in &self.edges {
            out.put(owner);
            out.put(edge);
            out.number(*end);
        }
        out.length(self.answers.iter().count());
        for ((call, key), claimed) in self.answers.iter() {
            out.put(call);
            out.put(key);
            out.put(&claimed.fingerprint);
            out.put(&claimed.answer.answer);
            out.number(claimed.end);
        }
        out.number(self.events.sequence);
        out.number(self.events.id);
        out.length(self.events.kept.len());
        for (made, event) in self.events.kept.iter() {
            out.number(made);
            out.put(&event);
        }
        if self.rules >= 2 {
            self.put_work(&mut out);
        }
        // Only a machine by rules 2 has changed its table.
        if self.auth.version() > 0 {
            out.put(&self.auth);
        }
        out.into_bytes()
    }

    /// Encodes the rules 2 part: the work of calls in progress, the keys of pending changes, and
    /// the results of the latest ones.
    fn put_work(&self, out: &mut Writer) {
        let answers = self.answers.iter();
        let at_work: Vec<_> = answers
            .filter_map(|(key, claimed)| Some((key, claimed.answer.work.as_ref()?)))
            .collect();
        out.length(at_work.len());
        for ((call, key), work) in at_work {
            out.put(call);
            out.put(key);
            out.put(work);
        }
        let changes = self.changes.underway.iter();
        let claimed: Vec<_> = changes
            .filter_map(|(change, underway)| Some((change, underway.claim.as_ref()?)))
            .collect();
        out.length(claimed.len());
        for (change, claim) in claimed {
            out.number(*change);
            out.put(claim);
        }
        out.length(self.changes.ended.len());
        for (change, end) in &self.changes.ended {
            out.number(*change);
            out.put(end);
        }
    }

    fn take_work(&mut self, input: &mut Reader<'_>) -> Result<(), DecodeError> {
        for _ in 0..input.length()? {
            let key = (input.take()?, input.take()?);
            let work = input.take()?;
            if !self.answers.set_work(&key, work) {
                return Err(DecodeError::Inconsistent("the work of no call"));
            }
        }
        for _ in 0..input.length()? {
            let change = input.number()?;
            let claim = input.take()?;
            match self.changes.underway.get_mut(&change) {
                Some(underway) => underway.claim = Some(claim),
                None => return Err(DecodeError::Inconsistent("the key of no change")),
            }
        }
        for _ in 0..input.length()? {
            let change = input.number()?;
            self.changes.remember(change, input.take()?);
        }
        Ok(())
    }

    /// Decodes a snapshot.
    pub fn decode_snapshot(bytes: &[u8]) -> Result<System, DecodeError> {
        let mut input = Reader::new(bytes);
        let version = take_snapshot_version(&mut input)?;
        let rules = take_rules(version, &mut input)?;
        let (time, counter) = (input.number()?, input.number()?);
        let mut system = System::new(take_table(&mut input)?);
        system.rules = rules;
        system.time = time;
        system.counter = counter;
        system.changes.last = input.number()?;
        for _ in 0..input.length()? {
            let change = input.number()?;
            if change == 0 || change > system.changes.last {
                return Err(DecodeError::Inconsistent("the number of a change"));
            }
            let underway = take_underway(&mut input)?;
            system.changes.underway.insert(change, underway);
        }
        for _ in 0..input.length()? {
            let owner: crate::value::OwnerId = input.take()?;
            let edge = input.take()?;
            let end = input.number()?;
            if system.edges.insert(owner.clone(), (edge, end)).is_some() {
                return Err(DecodeError::Inconsistent("an edge twice"));
            }
            system.edge_ends.insert((end, owner));
        }
        for _ in 0..input.length()? {
            let key = (input.take()?, input.take()?);
            let claimed = Remembered {
                fingerprint: input.take()?,
                answer: ClaimedKey {
                    answer: input.take()?,
                    work: None,
                },
                end: input.number()?,
            };
            system.answers.restore(key, claimed);
        }
        system.events.sequence = input.number()?;
        system.events.id = input.number()?;
        for _ in 0..input.length()? {
            let made = input.number()?;
            system.events.kept.push(made, &input.take()?);
        }
        if rules >= 2 {
            system.take_work(&mut input)?;
            if !input.is_empty() {
                system.auth = input.take()?;
            }
        }
        input.finish()?;
        Ok(system)
    }
}

/// Encodes the table. Nodes exchange it in this form, and the snapshot contains it.
pub(crate) fn put_table(out: &mut Writer, table: &NamespaceTable) {
    out.length(table.prefix_segments());
    out.put(&table.default_algorithm());
    out.number(table.version());
    out.length(table.rows().count());
    for (name, algorithm) in table.rows() {
        out.put(name);
        out.put(&algorithm);
    }
}

pub(crate) fn take_table(input: &mut Reader<'_>) -> Result<NamespaceTable, DecodeError> {
    let prefix_segments = usize::try_from(input.number()?).map_err(|_| DecodeError::Number)?;
    let default: Algorithm = input.take()?;
    let version = input.number()?;
    let rows: Vec<(Namespace, Algorithm)> = input.list()?;
    Ok(NamespaceTable::restore(
        prefix_segments,
        default,
        version,
        rows,
    ))
}

fn put_underway(out: &mut Writer, underway: &PendingChange) {
    out.put(&underway.namespace);
    out.option(underway.to.as_ref());
    out.put(&underway.steps.region);
    out.byte(match underway.steps.reach {
        AffectedGroups::OwnGroup => 0,
        AffectedGroups::AllGroups => 1,
    });
    out.put(&underway.steps.clear);
    out.put(&underway.steps.algorithm);
    match &underway.phase {
        ChangePhase::Freezing => out.byte(0),
        ChangePhase::Made { version, floor } => {
            out.byte(1);
            out.number(*version);
            out.option(floor.as_ref());
        }
        ChangePhase::Refused { live } => {
            out.byte(2);
            out.put(live);
        }
    }
}

fn take_underway(input: &mut Reader<'_>) -> Result<PendingChange, DecodeError> {
    Ok(PendingChange {
        namespace: input.take()?,
        to: input.option()?,
        steps: TableChangeSteps {
            region: input.take()?,
            reach: match input.byte()? {
                0 => AffectedGroups::OwnGroup,
                1 => AffectedGroups::AllGroups,
                found => return Err(DecodeError::Tag { of: "reach", found }),
            },
            clear: input.take()?,
            algorithm: input.take()?,
        },
        phase: match input.byte()? {
            0 => ChangePhase::Freezing,
            1 => ChangePhase::Made {
                version: input.number()?,
                floor: input.option()?,
            },
            2 => ChangePhase::Refused {
                live: input.take()?,
            },
            found => return Err(DecodeError::Tag { of: "phase", found }),
        },
        claim: None,
    })
}
