//! Three replicas of one group over a network that loses, repeats and reorders, and disks that lose
//! what was not synced. Every message and every record goes through the codec.

use std::collections::VecDeque;

use bytes::Bytes;

use super::*;
use crate::codec;
use tenure_random::SplitMix64;

fn take(replica: &mut Replica) -> Option<Ready> {
    let mut work = Ready::default();
    replica.take(&mut work).then_some(work)
}

fn member(number: u32) -> ReplicaId {
    ReplicaId::new(NodeId::new(number).unwrap(), 7)
}

/// What one replica has on disk, and what is on its way there.
#[derive(Clone, Default)]
struct TestDisk {
    base: Base,
    hard_state: HardState,
    entries: Vec<Entry>,
}

impl TestDisk {
    fn write(&mut self, entries: Vec<(LogPosition, Bytes)>, hard_state: Option<Bytes>) {
        for (place, payload) in entries {
            let payload = codec::payload(payload).unwrap();
            let entry = Entry { place, payload };
            self.entries
                .retain(|old| old.place.index < entry.place.index);
            self.entries.push(entry);
        }
        if let Some(bytes) = hard_state {
            self.hard_state = codec::hard_state(&bytes).unwrap();
        }
    }

    fn open(&self, me: ReplicaId, random: SplitMix64) -> Replica {
        RestoredState {
            base: self.base.clone(),
            hard_state: self.hard_state,
            entries: self.entries.clone(),
        }
        .open(me, random)
    }
}

struct TestReplica {
    me: ReplicaId,
    replica: Replica,
    disk: TestDisk,
    /// Writes not yet durable, and the messages that wait for each.
    unsynced: VecDeque<Unsynced>,
    applied: Vec<(u64, Bytes)>,
    confirmed: Vec<(ReadRound, u64)>,
}

type Unsynced = (u64, Vec<(LogPosition, Bytes)>, Option<Bytes>, Vec<Message>);

struct LogLimit {
    replicas: Vec<TestReplica>,
    wire: Vec<Message>,
    random: SplitMix64,
    /// Of a hundred messages this many are lost, and as many repeated.
    loss: u64,
}

impl LogLimit {
    fn new(seed: u64, loss: u64) -> LogLimit {
        let mut random = SplitMix64::new(seed);
        let members: Vec<ReplicaId> = (1..=3).map(member).collect();
        let replicas = members
            .iter()
            .map(|me| {
                let found = RestoredState::newborn(Membership {
                    voters: members.clone(),
                    ..Membership::default()
                });
                let disk = TestDisk {
                    base: found.base.clone(),
                    hard_state: found.hard_state,
                    entries: Vec::new(),
                };
                TestReplica {
                    me: *me,
                    replica: found.open(*me, random.split_for(u64::from(me.node.number()))),
                    disk,
                    unsynced: VecDeque::new(),
                    applied: Vec::new(),
                    confirmed: Vec::new(),
                }
            })
            .collect();
        LogLimit {
            replicas,
            wire: Vec::new(),
            random,
            loss,
        }
    }

    fn leader(&self) -> Option<usize> {
        let term = self
            .replicas
            .iter()
            .map(|test_replica| test_replica.replica.term())
            .max()?;
        self.replicas.iter().position(|test_replica| {
            test_replica.replica.role() == Role::Leader && test_replica.replica.term() == term
        })
    }

    fn work(&mut self, at: usize) {
        let test_replica = &mut self.replicas[at];
        while let Some(work) = take(&mut test_replica.replica) {
            self.wire.extend(work.messages);
            for entry in work.committed {
                if let Payload::Commands(data) = &entry.payload {
                    test_replica.applied.push((entry.place.index, data.clone()));
                }
                test_replica.replica.applied(entry.place.index);
                if let Payload::Membership(change) = &entry.payload {
                    test_replica.replica.enact(change, ReplicaNumbering::None);
                }
            }
            test_replica.confirmed.extend(work.confirmed);
            test_replica.unsynced.push_back((
                work.number,
                work.entries
                    .iter()
                    .map(|entry| (entry.place, entry.payload_bytes()))
                    .collect(),
                work.hard_state.as_ref().map(HardState::to_bytes),
                work.after,
            ));
        }
    }

    fn sync(&mut self, at: usize) {
        let test_replica = &mut self.replicas[at];
        while let Some((number, entries, hard_state, after)) = test_replica.unsynced.pop_front() {
            test_replica.disk.write(entries, hard_state);
            test_replica.replica.persisted(number);
            self.wire.extend(after);
        }
        self.work(at);
    }

    fn deliver(&mut self, message: Message) {
        let mut writer = codec::Writer::new();
        codec::encode_message(&mut writer, &message);
        let bytes = Bytes::from(writer.into_bytes());
        let mut reader = codec::Reader::new(&bytes);
        let decoded = codec::message(&mut reader, &bytes).unwrap();
        reader.finish().unwrap();
        assert_eq!(decoded, message, "a message must survive the codec");
        let at = message.to.node.number() as usize - 1;
        self.replicas[at].replica.receive(decoded);
        self.work(at);
    }

    /// One random thing happens.
    fn step(&mut self) {
        match self.random.below(8) {
            0 => {
                let at = self.random.below(3) as usize;
                let number = self.random.below(2);
                self.replicas[at].replica.tick(number);
                self.work(at);
            }
            1 | 2 => {
                let at = self.random.below(3) as usize;
                self.sync(at);
            }
            _ if !self.wire.is_empty() => {
                let which = self.random.below(self.wire.len() as u64) as usize;
                let message = self.wire.swap_remove(which);
                if self.random.below(100) < self.loss {
                    return;
                }
                if self.random.below(100) < self.loss {
                    self.wire.push(message.clone());
                }
                self.deliver(message);
            }
            _ => {}
        }
    }

    fn crash(&mut self, at: usize) {
        let random = self.random.split_for(at as u64);
        let test_replica = &mut self.replicas[at];
        // Whatever was not synced is gone, and with it the messages that waited for it.
        test_replica.unsynced.clear();
        test_replica.replica = test_replica.disk.open(test_replica.me, random);
        test_replica.applied.clear();
        self.work(at);
    }
}

fn run(seed: u64) -> (Vec<(u64, Bytes)>, u64) {
    let mut room = LogLimit::new(seed, 10);
    let mut committed: Vec<(u64, Bytes)> = Vec::new();
    let mut proposed = 0u64;
    for turn in 0..8_000u64 {
        room.step();
        if turn % 40 == 0
            && let Some(at) = room.leader()
        {
            let data = Bytes::from(format!("command {proposed}"));
            if room.replicas[at].replica.propose(data).is_ok() {
                proposed += 1;
            }
            room.work(at);
        }
        if turn % 1_999 == 1_998 {
            let victim = room.random.below(3) as usize;
            room.crash(victim);
        }
        for test_replica in &room.replicas {
            for (applied, known) in test_replica.applied.iter().zip(&committed) {
                assert_eq!(applied, known, "two replicas applied different commands");
            }
            if test_replica.applied.len() > committed.len() {
                committed = test_replica.applied.clone();
            }
        }
    }
    // Heal: no more loss, and everybody catches up with what was ever applied anywhere.
    room.loss = 0;
    for _ in 0..10_000 {
        room.step();
    }
    for test_replica in &room.replicas {
        assert!(
            test_replica.applied.starts_with(&committed),
            "what was once applied must be everywhere in the end"
        );
        assert_eq!(
            test_replica.replica.malformed(),
            0,
            "batching of appends is off"
        );
    }
    let longest = room
        .replicas
        .iter()
        .map(|test_replica| test_replica.applied.len())
        .max();
    assert!(longest.unwrap() > 50, "the group must make progress");
    (committed, proposed)
}

#[test]
fn replicas_agree_under_loss_repetition_reordering_and_crashes() {
    for seed in 1..=3 {
        run(seed);
    }
}

#[test]
fn equal_seeds_give_equal_runs() {
    assert_eq!(run(42), run(42));
}

/// A lone voter leads as soon as it campaigns and its vote is durable, and confirms rounds by itself.
#[test]
fn a_lone_voter_leads_at_once() {
    let me = member(1);
    let found = RestoredState::newborn(Membership {
        voters: vec![me],
        ..Membership::default()
    });
    let mut replica = found.open(me, SplitMix64::new(1));
    assert!(replica.is_alone());
    replica.campaign();
    while let Some(work) = take(&mut replica) {
        for entry in &work.committed {
            replica.applied(entry.place.index);
        }
        replica.persisted(work.number);
    }
    assert_eq!(replica.role(), Role::Leader);
    let round = ReadRound {
        node: me.node,
        nonce: 1,
        number: 1,
    };
    replica.read(round);
    let work = take(&mut replica).unwrap();
    assert_eq!(work.confirmed, vec![(round, 2)]);
    assert!(work.messages.is_empty());
}

/// A leader that has decided its own removal leads no more: the library would go on, and panic at
/// the next acknowledgement.
#[test]
fn a_leader_that_is_removed_steps_down() {
    for seed in 1..=20 {
        let mut room = LogLimit::new(seed, 0);
        let removed = loop {
            room.step();
            if let Some(at) = room.leader() {
                break at;
            }
        };
        let leader = &mut room.replicas[removed];
        let me = leader.me;
        let change = MembershipChange {
            steps: vec![MembershipStep::Remove(me)],
        };
        leader.replica.change(&change).unwrap();
        for _ in 0..3 {
            leader.replica.propose(Bytes::from_static(b"x")).unwrap();
        }
        room.work(removed);
        for _ in 0..5_000 {
            room.step();
        }
        let leader = room.leader().unwrap();
        assert_ne!(leader, removed, "seed {seed}");
        let membership = room.replicas[leader].replica.store().membership();
        assert!(!membership.voters.contains(&me), "seed {seed}");
        assert_eq!(room.replicas[leader].applied.len(), 3, "seed {seed}");
    }
}

/// The library acknowledged entries it did not have when an append had a gap; both ends check.
#[test]
fn an_append_with_a_gap_is_dropped_and_counted() {
    let mut room = LogLimit::new(3, 0);
    let entry = |index| Entry {
        place: LogPosition { term: 2, index },
        payload: Payload::Commands(Bytes::from_static(b"x")),
    };
    let message = Message {
        from: member(2),
        to: member(1),
        term: 2,
        kind: MessageKind::Append,
        index: 1,
        log_term: 1,
        commit: 1,
        commit_term: 1,
        reject: None,
        request_snapshot: 0,
        entries: vec![entry(3)],
        context: Bytes::new(),
        snapshot: None,
    };
    let replica = &mut room.replicas[0].replica;
    replica.receive(message.clone());
    assert_eq!(replica.malformed(), 1);
    assert_eq!(replica.term(), 1, "not even its term was looked at");
    replica.receive(Message {
        entries: vec![entry(2), entry(4)],
        ..message.clone()
    });
    assert_eq!(replica.malformed(), 2);
    replica.receive(Message {
        entries: vec![entry(2), entry(3)],
        ..message
    });
    assert_eq!(replica.malformed(), 2);
    assert_eq!(replica.term(), 2);
}

/// A wiped voter has a new incarnation: what is meant for the old one does not reach it.
#[test]
fn a_message_to_an_earlier_life_is_not_received() {
    let mut room = LogLimit::new(4, 0);
    let vote = Message {
        from: member(2),
        to: ReplicaId {
            incarnation: 6,
            ..member(1)
        },
        term: 9,
        kind: MessageKind::Vote,
        index: 1,
        log_term: 1,
        commit: 0,
        commit_term: 0,
        reject: None,
        request_snapshot: 0,
        entries: Vec::new(),
        context: Bytes::new(),
        snapshot: None,
    };
    room.replicas[0].replica.receive(vote);
    assert!(take(&mut room.replicas[0].replica).is_none());
    assert_eq!(room.replicas[0].replica.term(), 1);
}

/// A follower that becomes the only voter while a part of its log is not durable stands for election when it
/// is. The library would panic before.
#[test]
fn a_lone_voter_stands_when_its_log_is_durable() {
    let mut random = SplitMix64::new(3);
    let (me, leader) = (member(1), member(2));
    let mut replica = RestoredState::newborn(Membership {
        voters: vec![me, leader],
        ..Membership::default()
    })
    .open(me, random.split_for(1));
    let removal = MembershipChange {
        steps: vec![MembershipStep::Remove(leader)],
    };
    let append = |index: u64, payload: Payload| Message {
        from: leader,
        to: me,
        term: 2,
        kind: MessageKind::Append,
        index: index - 1,
        log_term: if index == 2 { 1 } else { 2 },
        commit: 2,
        commit_term: 0,
        reject: None,
        request_snapshot: 0,
        entries: vec![Entry {
            place: LogPosition { term: 2, index },
            payload,
        }],
        context: Bytes::new(),
        snapshot: None,
    };
    replica.receive(append(2, Payload::Membership(removal.clone())));
    let work = take(&mut replica).unwrap();
    replica.persisted(work.number);
    let work = take(&mut replica).unwrap();
    assert_eq!(work.committed.len(), 1);
    // Behind the removal comes an entry that is not durable yet.
    replica.receive(append(3, Payload::Commands(Bytes::from_static(b"x"))));
    let unsynced = take(&mut replica).unwrap();
    replica.enact(&removal, ReplicaNumbering::None);
    replica.applied(2);
    assert!(replica.is_alone());
    replica.leader_is_gone(0);
    for number in 0..100 {
        replica.tick(number);
    }
    assert_eq!(replica.role(), Role::Follower);
    replica.persisted(unsynced.number);
    replica.campaign();
    assert_eq!(replica.role(), Role::Leader);
}

fn changed(steps: Vec<MembershipStep>, numbering: ReplicaNumbering) -> Option<Vec<MembershipStep>> {
    let present = Membership {
        voters: vec![member(1), member(2).numbered(5)],
        learners: vec![member(3).numbered(8)],
        ..Membership::default()
    };
    let change = MembershipChange { steps };
    Some(change.resolve(&present, numbering)?.steps)
}

/// An addition is named by the index of its entry; everything else names a member.
#[test]
fn additions_are_numbered_by_their_entry() {
    use MembershipStep::{Learner, Remove, Voter};
    let by = |steps| changed(steps, ReplicaNumbering::ByIndex(9));
    assert_eq!(
        by(vec![Learner(member(4)), Voter(member(3).numbered(8))]),
        Some(vec![
            Learner(member(4).numbered(9)),
            Voter(member(3).numbered(8))
        ])
    );
    let demoted = vec![Learner(member(2).numbered(5)), Remove(member(1))];
    assert_eq!(by(demoted.clone()), Some(demoted));
    assert_eq!(by(vec![Learner(member(1))]), Some(vec![Learner(member(1))]));
    for wrong in [
        // A replica of that node is there, or comes with the same change.
        vec![Learner(member(3))],
        vec![Learner(member(4)), Learner(member(4))],
        vec![Remove(member(3).numbered(8)), Learner(member(3))],
        // Named by a number that is not its own.
        vec![Learner(member(4).numbered(7))],
        vec![Voter(member(3))],
        vec![Voter(member(4))],
    ] {
        assert_eq!(by(wrong.clone()), None, "{wrong:?}");
        // Release 0.1.0 takes all of these as they are.
        assert_eq!(changed(wrong.clone(), ReplicaNumbering::None), Some(wrong));
    }
}
