//! Compatibility test: this release decodes the recorded first messages and datagrams of all
//! releases.
//!
//! `compat/<release>/first-words` is written once, by `cargo test -p tenure-cluster -- --ignored
//! recorded_compat::record`, and never changed.

use std::path::PathBuf;

use tenure_core::policy::Algorithm;
use tenure_node::{Channel, ClusterConfig, NodeId, ReplicaId};

use crate::gossip::{Packet, RecordPacket};
use crate::node_record::NodeRecord;
use crate::peers::{ControlMessage, Hello, TokenKey};
use crate::status_report::{GroupReport, NodeReport};

fn recorded() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../compat")
}

fn token() -> TokenKey {
    TokenKey::new(b"a-token-of-a-recorded-conversation")
}

fn member(node: u32) -> ReplicaId {
    ReplicaId::new(NodeId::new(node).unwrap(), 0x1234_5678)
}

fn node_record(node: u32) -> NodeRecord {
    NodeRecord {
        member: member(node),
        born_ms: 1_700_000_000_000,
        start: 3,
        revision: 2,
        name: format!("tenure-{}", node - 1),
        internal: format!("10.0.0.{node}:50052"),
        gossip: format!("node-{node}.example:7946"),
        public: format!("https://10.0.0.{node}:50051"),
        draining: node == 2,
    }
}

fn facts() -> ClusterConfig {
    ClusterConfig {
        group_count: 256,
        prefix_segments: 1,
        default_algorithm: Algorithm::RecursiveRw,
    }
}

fn hello() -> Hello {
    let wanted = NodeId::new(2);
    let hello = Hello::new(
        facts(),
        Some(99),
        node_record(1),
        (Channel::Bulk, 12),
        wanted,
        [5; 32],
    );
    // The first release does not answer a challenge.
    Hello {
        proves_first: false,
        ..hello
    }
}

fn packets() -> [Packet; 3] {
    let tell = RecordPacket {
        nonce: 8,
        cluster: Some(99),
        facts: facts(),
        node_records: vec![node_record(1), node_record(2)],
        should_bootstrap: false,
    };
    let ask = Packet::Ask {
        nonce: 7,
        cluster: None,
        node_record: node_record(3),
        should_bootstrap: false,
    };
    let swim = Packet::Swim {
        cluster: 99,
        data: vec![9; 40],
    };
    [ask, Packet::Tell(tell), swim]
}

fn control_messages() -> [ControlMessage; 5] {
    let group = GroupReport {
        group: 4,
        leads: true,
        term: 6,
        rules: 0,
        applied: 1000,
        voters: vec![member(1), member(2), member(3)],
        learners: vec![member(4)],
        changing: true,
        lag: 3,
        holds: 17,
        waiters: 2,
    };
    let report = NodeReport {
        member: member(3),
        release: String::new(),
        rules: 0,
        groups: vec![group],
    };
    [
        ControlMessage::NodeRecords(vec![node_record(1), node_record(3)]),
        ControlMessage::Removed(vec![member(9)]),
        ControlMessage::Drain(true),
        ControlMessage::Ask(5),
        ControlMessage::Told(5, report),
    ]
}

/// Returns all messages, each with its length.
fn words() -> Vec<u8> {
    let packets = packets().map(|packet| packet.seal(&token()));
    let control_messages = control_messages().map(|control| control.to_bytes());
    let mut bytes = Vec::new();
    for part in [hello().to_bytes()]
        .iter()
        .chain(&packets)
        .chain(&control_messages)
    {
        bytes.extend_from_slice(&u32::try_from(part.len()).unwrap().to_le_bytes());
        bytes.extend_from_slice(part);
    }
    bytes
}

fn part<'a>(bytes: &mut &'a [u8]) -> &'a [u8] {
    let (length, rest) = bytes.split_first_chunk::<4>().unwrap();
    let (part, rest) = rest.split_at(u32::from_le_bytes(*length) as usize);
    *bytes = rest;
    part
}

#[test]
fn the_first_words_of_every_release_are_understood() {
    for entry in std::fs::read_dir(recorded()).unwrap() {
        let release = entry.unwrap().path();
        if !release.is_dir() {
            continue;
        }
        let bytes = std::fs::read(release.join("first-words")).unwrap();
        let mut rest = &bytes[..];
        assert_eq!(
            Hello::from_bytes(part(&mut rest)),
            Ok(hello()),
            "{release:?}"
        );
        for packet in packets() {
            assert_eq!(Packet::open(part(&mut rest), &token()), Some(packet));
        }
        for control in control_messages() {
            assert_eq!(
                ControlMessage::from_bytes(part(&mut rest)),
                Ok(Some(control))
            );
        }
        assert!(rest.is_empty());
    }
    // This release must still encode what it has recorded: a change needs a new version.
    let present = recorded().join(env!("CARGO_PKG_VERSION"));
    assert_eq!(std::fs::read(present.join("first-words")).unwrap(), words());
}

#[test]
#[ignore = "writes into the repository, once for a release"]
fn record() {
    let release = recorded().join(env!("CARGO_PKG_VERSION"));
    assert!(!release.join("first-words").exists(), "never changed");
    std::fs::create_dir_all(&release).unwrap();
    std::fs::write(release.join("first-words"), words()).unwrap();
}
