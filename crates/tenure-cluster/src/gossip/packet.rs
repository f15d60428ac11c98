//! Gossip packet format: small authenticated datagrams. A packet that cannot be decoded is dropped.

use tenure_core::codec::{DecodeError, Encode, Reader, Writer};
use tenure_core::policy::Algorithm;
use tenure_node::ClusterConfig;

use crate::node_record::NodeRecord;
use crate::peers::TokenKey;

const MAGIC: &[u8; 4] = b"TNG\x01";
const TAG: usize = 16;
const PURPOSE: &str = "tenure gossip";

/// A gossip packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Packet {
    /// Announces a node and asks who is there.
    Ask {
        nonce: u64,
        cluster: Option<u64>,
        node_record: NodeRecord,
        /// Whether the node is about to create a cluster.
        should_bootstrap: bool,
    },
    /// The answer to `Ask`.
    Tell(RecordPacket),
    /// SWIM message between two members of a cluster.
    Swim { cluster: u64, data: Vec<u8> },
}

/// Maximum number of bytes that a packet adds to its SWIM data.
pub(crate) const OVERHEAD: usize = 4 + 1 + 10 + 3 + TAG;

/// Content of [`Packet::Tell`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RecordPacket {
    /// The nonce of the question.
    pub(crate) nonce: u64,
    pub(crate) cluster: Option<u64>,
    pub(crate) facts: ClusterConfig,
    pub(crate) node_records: Vec<NodeRecord>,
    /// Whether the answering node is about to create a cluster.
    pub(crate) should_bootstrap: bool,
}

impl Packet {
    /// Encodes the packet and appends its MAC.
    pub(crate) fn seal(&self, token: &TokenKey) -> Vec<u8> {
        let mut out = Writer::append_to(MAGIC.to_vec());
        match self {
            Packet::Ask {
                nonce,
                cluster,
                node_record,
                should_bootstrap,
            } => {
                out.byte(1);
                out.number(*nonce);
                out.number(cluster.unwrap_or(0));
                out.put(node_record);
                put_founds(&mut out, *should_bootstrap);
            }
            Packet::Tell(tell) => {
                out.byte(2);
                out.number(tell.nonce);
                out.number(tell.cluster.unwrap_or(0));
                out.number(u64::from(tell.facts.group_count));
                out.number(tell.facts.prefix_segments as u64);
                out.put(&tell.facts.default_algorithm);
                out.list(&tell.node_records);
                put_founds(&mut out, tell.should_bootstrap);
            }
            Packet::Swim { cluster, data } => {
                out.byte(3);
                out.number(*cluster);
                out.slice(data);
            }
        }
        let mut bytes = out.into_bytes();
        let tag = token.mac(PURPOSE, &[&bytes]);
        bytes.extend_from_slice(&tag.as_ref()[..TAG]);
        bytes
    }

    /// Checks the MAC and decodes the packet. `None`: the MAC is wrong or the content is unknown.
    pub(crate) fn open(bytes: &[u8], token: &TokenKey) -> Option<Packet> {
        let (content, tag) = bytes.split_at_checked(bytes.len().checked_sub(TAG)?)?;
        if !token.is_mac(PURPOSE, &[content], tag) {
            return None;
        }
        decode(content.strip_prefix(MAGIC)?).ok().flatten()
    }
}

/// Release 0.1.0 neither writes nor reads this byte. It is written only if it is true.
fn put_founds(out: &mut Writer, should_bootstrap: bool) {
    if should_bootstrap {
        out.byte(1);
    }
}

fn takes_founds(input: &mut Reader<'_>) -> Result<bool, DecodeError> {
    Ok(input.remaining() > 0 && input.byte()? == 1)
}

fn decode(bytes: &[u8]) -> Result<Option<Packet>, DecodeError> {
    let mut input = Reader::new(bytes);
    let packet = match input.byte()? {
        1 => Packet::Ask {
            nonce: input.number()?,
            cluster: Some(input.number()?).filter(|id| *id != 0),
            node_record: NodeRecord::take(&mut input)?,
            should_bootstrap: takes_founds(&mut input)?,
        },
        2 => Packet::Tell(RecordPacket {
            nonce: input.number()?,
            cluster: Some(input.number()?).filter(|id| *id != 0),
            facts: ClusterConfig {
                group_count: input.small()?,
                prefix_segments: input.small()? as usize,
                default_algorithm: Algorithm::take(&mut input)?,
            },
            node_records: input.list()?,
            should_bootstrap: takes_founds(&mut input)?,
        }),
        3 => Packet::Swim {
            cluster: input.number()?,
            data: input.slice()?.to_vec(),
        },
        // Unknown kind, from a later release.
        _ => return Ok(None),
    };
    Ok(Some(packet))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_record::tests::node_record;

    fn packets() -> [Packet; 3] {
        let tell = RecordPacket {
            nonce: 9,
            cluster: Some(4),
            facts: ClusterConfig {
                group_count: 4,
                prefix_segments: 2,
                default_algorithm: Algorithm::PointRw,
            },
            node_records: vec![node_record(1, 1), node_record(2, 2)],
            should_bootstrap: true,
        };
        let ask = Packet::Ask {
            nonce: 9,
            cluster: None,
            node_record: node_record(3, 3),
            should_bootstrap: true,
        };
        let swim = Packet::Swim {
            cluster: 4,
            data: vec![1; 300],
        };
        assert!(swim.seal(&TokenKey::new(&[1; 32])).len() <= 300 + OVERHEAD);
        [ask, Packet::Tell(tell), swim]
    }

    /// R168 (internal authentication): packets are accepted only with the right token.
    #[test]
    fn a_packet_is_heard_with_the_right_token_only() {
        let token = TokenKey::new(&[1; 32]);
        for packet in packets() {
            let mut bytes = packet.seal(&token);
            assert_eq!(Packet::open(&bytes, &token), Some(packet));
            assert_eq!(Packet::open(&bytes, &TokenKey::new(&[2; 32])), None);
            for end in 0..bytes.len() {
                assert_eq!(Packet::open(&bytes[..end], &token), None);
            }
            for at in 0..bytes.len() {
                bytes[at] ^= 1;
                assert_eq!(Packet::open(&bytes, &token), None);
                bytes[at] ^= 1;
            }
        }
    }
}
