//! Handshake of peer connections: mutual proof of the cluster token by HMAC, without sending it
//! (R161 (settings fixed per cluster), R168 (internal authentication)).
//!
//! ```text
//!   dialer  ── hello ─────────────────────────────▶  listener
//!   dialer  ◀── challenge ─────────────────────────  listener
//!   dialer  ── first proof ───────────────────────▶  listener
//!   dialer  ◀── hello, proof ──────────────────────  listener
//!   dialer  ── proof ─────────────────────────────▶  listener
//!   dialer  ◀── accepted or refused, with a MAC ───  listener
//! ```
//!
//! The first proof is an HMAC over the dialer's hello and the challenge, a fresh nonce: the listener
//! says nothing about itself or its token to a stranger. A node of release 0.1.0 does not know the
//! challenge; with it the handshake has the other four messages only.
//!
//! A proof is an HMAC over both hellos. So it is bound to both identities, the connection's number,
//! the channel and two fresh nonces; it cannot be replayed, reflected or moved to another
//! connection. After a challenge, all proofs also cover the binding of the TLS connection below. The
//! same transcript yields the keys of the frame MACs.

use std::fmt;

use aws_lc_rs::hmac;
use tenure_core::codec::{DecodeError, Encode, Reader, Writer, from_bytes, to_bytes};
use tenure_core::policy::Algorithm;
use tenure_node::{Channel, ClusterConfig, NodeId};

use super::incarnations::IncarnationMark;
use super::rival_cluster::ClusterClaim;
use crate::node_record::NodeRecord;

/// Range of peer protocol versions that a node supports. Two nodes use the newest version that both
/// support. Each release supports the version of the previous release, so clusters are upgraded
/// node by node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    /// Oldest supported version.
    pub oldest: u8,
    /// Newest supported version.
    pub newest: u8,
}

impl Versions {
    /// The versions of this release.
    pub const OURS: Versions = Versions {
        oldest: 1,
        newest: 1,
    };

    /// Returns the newest common version, if there is one.
    pub(crate) fn common(self, other: Versions) -> Option<u8> {
        let spoken = self.newest.min(other.newest);
        (spoken >= self.oldest.max(other.oldest)).then_some(spoken)
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.oldest == self.newest {
            write!(f, "version {}", self.newest)
        } else {
            write!(f, "versions {} to {}", self.oldest, self.newest)
        }
    }
}

/// First bytes of a hello.
const MAGIC: &[u8; 4] = b"TNP\x01";
/// Maximum length of a hello.
pub(crate) const MAX_HELLO: usize = 4096;
pub(crate) const PROOF: usize = 32;

/// First message of each side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) versions: Versions,
    /// Id of the node's cluster, if it has joined one.
    pub(crate) cluster: Option<u64>,
    pub(crate) facts: ClusterConfig,
    pub(crate) node_record: NodeRecord,
    pub(crate) channel: Channel,
    /// Number of the connection within the dialer's process.
    pub(crate) connection: u64,
    /// The node that the dialer expects, if it knows.
    pub(crate) wanted: Option<NodeId>,
    pub(crate) nonce: [u8; 32],
    /// Claim about the history of its cluster. The first release sends none.
    pub(crate) claim: Option<ClusterClaim>,
    /// Newest known incarnation of the receiving node. The first release sends none.
    pub(crate) known: Option<IncarnationMark>,
    /// Whether the sender, as a dialer, answers a challenge. The first release does not.
    pub(crate) proves_first: bool,
}

/// Tags of the fields after the nonce. Each field has a tag and a length, so a release skips those
/// that it does not know. The first release ignores everything after the nonce.
const CLAIM: u64 = 1;
const KNOWN: u64 = 2;
const PROVES_FIRST: u64 = 3;

/// Reason why two nodes must not communicate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HandshakeRefusal {
    #[error(
        "the peer supports {theirs} of the peer protocol, and this node {ours}: upgrade a cluster one release at a time"
    )]
    Version { ours: Versions, theirs: Versions },
    #[error("{key} is {theirs} there and {ours} here: it must be equal on all nodes of a cluster")]
    Facts {
        key: &'static str,
        ours: String,
        theirs: String,
    },
    #[error("the peer belongs to another cluster with the same token")]
    Cluster,
    #[error("the peer's cluster is {theirs:016x}, but expected_cluster_id is {expected:016x}")]
    Unexpected { expected: u64, theirs: u64 },
    #[error(
        "the peer is configured as node {0}, which is this node's own number: change node_id of one of them"
    )]
    SameNumber(u32),
    #[error(
        "the certificate of node {found} names node {named}: every node needs its own certificate"
    )]
    Certificate { found: u32, named: u32 },
    #[error("node {found} answered at the address of node {wanted}")]
    Elsewhere { wanted: u32, found: u32 },
    #[error(
        "the data directory of node {0} belongs to an earlier incarnation of that node; stop the daemon of \
         node {0} and run there: tenure cluster rejoin"
    )]
    EarlierLife(u32),
    #[error(
        "the data directory of node {node} is an older copy: it has counted {start} starts, but the cluster knows \
         {known}, so votes since then are missing from it; stop the daemon of node {node} and run there: \
         tenure cluster rejoin"
    )]
    OlderCopy { node: u32, start: u64, known: u64 },
}

impl Hello {
    pub(crate) fn new(
        facts: ClusterConfig,
        cluster: Option<u64>,
        node_record: NodeRecord,
        (channel, connection): (Channel, u64),
        wanted: Option<NodeId>,
        nonce: [u8; 32],
    ) -> Hello {
        Hello {
            versions: Versions::OURS,
            cluster,
            facts,
            node_record,
            channel,
            connection,
            wanted,
            nonce,
            claim: None,
            known: None,
            proves_first: true,
        }
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut out = Writer::append_to(MAGIC.to_vec());
        out.byte(self.versions.oldest);
        out.byte(self.versions.newest);
        out.number(self.cluster.unwrap_or(0));
        out.number(u64::from(self.facts.group_count));
        out.number(self.facts.prefix_segments as u64);
        out.put(&self.facts.default_algorithm);
        out.put(&self.node_record);
        out.byte(match self.channel {
            Channel::Main => 0,
            Channel::Bulk => 1,
        });
        out.number(self.connection);
        out.number(self.wanted.map_or(0, |node| u64::from(node.number())));
        out.slice(&self.nonce);
        if self.proves_first {
            out.number(PROVES_FIRST);
            out.slice(&[]);
        }
        if let Some(claim) = &self.claim {
            out.number(CLAIM);
            out.slice(&to_bytes(claim));
        }
        if let Some(known) = &self.known {
            out.number(KNOWN);
            out.slice(&to_bytes(known));
        }
        out.into_bytes()
    }

    /// Decodes a hello. Unknown fields of a later release are skipped.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Hello, DecodeError> {
        let rest = bytes
            .strip_prefix(MAGIC)
            .ok_or(DecodeError::Inconsistent("not a hello of a Tenure node"))?;
        let mut input = Reader::new(rest);
        let versions = Versions {
            oldest: input.byte()?,
            newest: input.byte()?,
        };
        let cluster = Some(input.number()?).filter(|id| *id != 0);
        let facts = ClusterConfig {
            group_count: input.small()?,
            prefix_segments: input.small()? as usize,
            default_algorithm: Algorithm::take(&mut input)?,
        };
        let node_record = NodeRecord::take(&mut input)?;
        let channel = match input.byte()? {
            0 => Channel::Main,
            1 => Channel::Bulk,
            found => return Err(DecodeError::Tag { of: "lane", found }),
        };
        let connection = input.number()?;
        let wanted = NodeId::new(input.small()?);
        let nonce = input.slice()?;
        let nonce = nonce.try_into().map_err(|_| DecodeError::Truncated)?;
        let mut hello = Hello {
            versions,
            cluster,
            facts,
            node_record,
            channel,
            connection,
            wanted,
            nonce,
            claim: None,
            known: None,
            proves_first: false,
        };
        while input.remaining() > 0 {
            let field = input.number()?;
            let bytes = input.slice()?;
            match field {
                CLAIM => hello.claim = Some(from_bytes(bytes)?),
                KNOWN => hello.known = Some(from_bytes(bytes)?),
                PROVES_FIRST => hello.proves_first = true,
                _ => {}
            }
        }
        Ok(hello)
    }

    /// Checks whether this node may communicate with the sender of `theirs`. Returns the protocol
    /// version.
    pub(crate) fn assess(&self, theirs: &Hello) -> Result<u8, HandshakeRefusal> {
        // Checked first: another cluster with this token is dangerous, whatever else differs.
        if let (Some(ours), Some(theirs)) = (self.cluster, theirs.cluster)
            && ours != theirs
        {
            return Err(HandshakeRefusal::Cluster);
        }
        let common = self.versions.common(theirs.versions);
        let spoken = common.ok_or(HandshakeRefusal::Version {
            ours: self.versions,
            theirs: theirs.versions,
        })?;
        same_facts(&self.facts, &theirs.facts)?;
        let (ours, found) = (self.node_record.node(), theirs.node_record.node());
        if ours == found {
            return Err(HandshakeRefusal::SameNumber(found.number()));
        }
        for (wanted, found) in [(self.wanted, found), (theirs.wanted, ours)] {
            if let Some(wanted) = wanted
                && wanted != found
            {
                return Err(HandshakeRefusal::Elsewhere {
                    wanted: wanted.number(),
                    found: found.number(),
                });
            }
        }
        Ok(spoken)
    }
}

/// Checks the settings that must be equal on all nodes (R161).
pub(crate) fn same_facts(
    ours: &ClusterConfig,
    theirs: &ClusterConfig,
) -> Result<(), HandshakeRefusal> {
    let same = |key, ours: String, theirs: String| {
        if ours == theirs {
            Ok(())
        } else {
            Err(HandshakeRefusal::Facts { key, ours, theirs })
        }
    };
    same(
        "group_count",
        ours.group_count.to_string(),
        theirs.group_count.to_string(),
    )?;
    same(
        "routing_prefix_segments",
        ours.prefix_segments.to_string(),
        theirs.prefix_segments.to_string(),
    )?;
    same(
        "default_lock_algorithm",
        format!("{:?}", ours.default_algorithm),
        format!("{:?}", theirs.default_algorithm),
    )
}

/// The cluster token as an HMAC key, and a second one that is accepted while the token is changed.
/// Not printable.
#[derive(Clone)]
pub(crate) struct TokenKey {
    key: hmac::Key,
    other: Option<hmac::Key>,
}

impl TokenKey {
    pub(crate) fn new(token: &[u8]) -> TokenKey {
        TokenKey {
            key: hmac::Key::new(hmac::HMAC_SHA256, token),
            other: None,
        }
    }

    /// Also accepts another token.
    pub(crate) fn or(mut self, other: &[u8]) -> TokenKey {
        self.other = Some(hmac::Key::new(hmac::HMAC_SHA256, other));
        self
    }

    /// Returns an HMAC over the purpose and the parts, each prefixed with its length.
    pub(crate) fn mac(&self, purpose: &str, parts: &[&[u8]]) -> hmac::Tag {
        mac(&self.key, purpose, parts)
    }

    /// Checks an HMAC, possibly truncated to at least 16 bytes, in constant time. Returns the one
    /// token that it was made with.
    pub(crate) fn verify(
        &self,
        purpose: &str,
        parts: &[&[u8]],
        claimed: &[u8],
    ) -> Option<TokenKey> {
        let keys = [Some(&self.key), self.other.as_ref()];
        let made_with = keys.into_iter().flatten().find(|key| {
            let made = mac(key, purpose, parts);
            let made = made.as_ref().get(..claimed.len());
            claimed.len() >= 16
                && made.is_some_and(|made| {
                    aws_lc_rs::constant_time::verify_slices_are_equal(made, claimed).is_ok()
                })
        });
        made_with.map(|key| TokenKey {
            key: key.clone(),
            other: None,
        })
    }

    /// Checks an HMAC of either token.
    pub(crate) fn is_mac(&self, purpose: &str, parts: &[&[u8]], claimed: &[u8]) -> bool {
        self.verify(purpose, parts, claimed).is_some()
    }
}

fn mac(key: &hmac::Key, purpose: &str, parts: &[&[u8]]) -> hmac::Tag {
    let mut context = hmac::Context::with_key(key);
    for part in [purpose.as_bytes()].iter().chain(parts) {
        context.update(&(part.len() as u64).to_le_bytes());
        context.update(part);
    }
    context.sign()
}

/// The answer of a listener to a dialer that proves itself first.
pub(crate) struct Challenge<'a> {
    pub(crate) dialer: &'a [u8],
    pub(crate) nonce: &'a [u8; CHALLENGE],
    /// Channel binding of the TLS connection. Empty without TLS.
    pub(crate) binding: &'a [u8],
}

/// Length of a challenge.
pub(crate) const CHALLENGE: usize = 32;

impl Challenge<'_> {
    const PURPOSE: &'static str = "tenure peer: dialer first";

    pub(crate) fn proof(&self, token: &TokenKey) -> hmac::Tag {
        token.mac(Self::PURPOSE, &[self.dialer, self.nonce, self.binding])
    }

    /// Returns the token that the dialer has proved.
    pub(crate) fn verify(&self, token: &TokenKey, claimed: &[u8; PROOF]) -> Option<TokenKey> {
        let parts: [&[u8]; 3] = [self.dialer, self.nonce, self.binding];
        token.verify(Self::PURPOSE, &parts, claimed)
    }
}

/// Both hellos as sent.
#[derive(Clone, Copy)]
pub(crate) struct Transcript<'a> {
    pub(crate) dialer: &'a [u8],
    pub(crate) listener: &'a [u8],
    /// Channel binding of the TLS connection. `None` with a node of release 0.1.0, which knows none.
    pub(crate) binding: Option<&'a [u8]>,
}

/// The side that proves the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProofSide {
    Dialer,
    Listener,
}

impl ProofSide {
    fn purpose(self) -> &'static str {
        match self {
            ProofSide::Dialer => "tenure peer: dialer",
            ProofSide::Listener => "tenure peer: listener",
        }
    }
}

impl Transcript<'_> {
    fn parts(&self) -> Vec<&[u8]> {
        let mut parts = vec![self.dialer, self.listener];
        parts.extend(self.binding);
        parts
    }

    pub(crate) fn proof(&self, token: &TokenKey, side: ProofSide) -> hmac::Tag {
        token.mac(side.purpose(), &self.parts())
    }

    /// Returns the token that the other side has proved.
    pub(crate) fn verify(
        &self,
        token: &TokenKey,
        side: ProofSide,
        claimed: &[u8; PROOF],
    ) -> Option<TokenKey> {
        token.verify(side.purpose(), &self.parts(), claimed)
    }

    /// Returns the key for the frames that this side sends.
    pub(crate) fn key(&self, token: &TokenKey, side: ProofSide) -> hmac::Key {
        let purpose = match side {
            ProofSide::Dialer => "tenure frames: dialer",
            ProofSide::Listener => "tenure frames: listener",
        };
        let secret = token.mac(purpose, &self.parts());
        hmac::Key::new(hmac::HMAC_SHA256, secret.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::super::rival_cluster::ClusterHistory;
    use super::*;
    use crate::node_record::tests::node_record;

    fn facts() -> ClusterConfig {
        ClusterConfig {
            group_count: 256,
            prefix_segments: 1,
            default_algorithm: Algorithm::RecursiveRw,
        }
    }

    fn hello(node: u32, connection: u64) -> Hello {
        let nonce = [node as u8; 32];
        let hello = Hello::new(
            facts(),
            Some(7),
            node_record(node, 1),
            (Channel::Main, connection),
            None,
            nonce,
        );
        // As the first release.
        Hello {
            proves_first: false,
            ..hello
        }
    }

    #[test]
    fn a_hello_comes_back_and_rubbish_does_not() {
        let bytes = hello(2, 5).to_bytes();
        assert_eq!(Hello::from_bytes(&bytes), Ok(hello(2, 5)));
        for end in 0..bytes.len() {
            assert!(Hello::from_bytes(&bytes[..end]).is_err());
        }
        let claimed = Hello {
            proves_first: true,
            claim: Some(ClusterClaim {
                history: ClusterHistory {
                    members: 3,
                    applied: 900,
                },
                supersedes: vec![8, 9],
            }),
            known: Some(IncarnationMark::of(&node_record(1, 4))),
            ..hello(2, 5)
        };
        // The part that the first release reads is unchanged.
        assert!(claimed.to_bytes().starts_with(&bytes));
        let mut later = Writer::append_to(claimed.to_bytes());
        later.number(77);
        later.slice(b"what a later release says");
        let later = later.into_bytes();
        assert_eq!(Hello::from_bytes(&later), Ok(claimed.clone()));
        // A cut between two fields looks like a hello of an earlier release.
        let without_known = Hello {
            known: None,
            ..claimed.clone()
        };
        let without_claim = Hello {
            claim: None,
            ..without_known.clone()
        };
        let ends = [without_claim, without_known, claimed].map(|hello| hello.to_bytes().len());
        for end in bytes.len() + 1..later.len() {
            let read = Hello::from_bytes(&later[..end]);
            assert!(read.is_err() || ends.contains(&end), "cut at {end}");
        }
    }

    /// R168: a proof is invalid for another token, side, node or connection.
    #[test]
    fn a_proof_is_bound_to_everything() {
        let token = TokenKey::new(&[1; 32]);
        let (one, two) = (hello(1, 9).to_bytes(), hello(2, 0).to_bytes());
        let transcript = Transcript {
            dialer: &one,
            listener: &two,
            binding: Some(b"channel"),
        };
        let proof = transcript.proof(&token, ProofSide::Dialer);
        let proof: [u8; PROOF] = proof.as_ref().try_into().unwrap();
        let is_proof = |transcript: &Transcript<'_>, token: &TokenKey, side| {
            transcript.verify(token, side, &proof).is_some()
        };
        assert!(is_proof(&transcript, &token, ProofSide::Dialer));
        assert!(
            !is_proof(&transcript, &token, ProofSide::Listener),
            "reflected"
        );
        let stranger = TokenKey::new(&[2; 32]);
        assert!(!is_proof(&transcript, &stranger, ProofSide::Dialer));
        assert!(is_proof(
            &transcript,
            &stranger.or(&[1; 32]),
            ProofSide::Dialer
        ));
        let next = hello(1, 10).to_bytes();
        let replayed = Transcript {
            dialer: &next,
            ..transcript
        };
        assert!(!is_proof(&replayed, &token, ProofSide::Dialer));
        for binding in [None, Some(&b"other channel"[..])] {
            let moved = Transcript {
                binding,
                ..transcript
            };
            assert!(!is_proof(&moved, &token, ProofSide::Dialer));
        }
        assert!(!token.is_mac("x", &[], &[]), "an empty tag proves nothing");
    }

    /// R161: a node with other fixed settings is refused, whichever side notices.
    #[test]
    fn who_may_talk() {
        assert_eq!(hello(1, 1).assess(&hello(2, 1)), Ok(1));
        let mut other = hello(2, 1);
        other.facts.group_count = 4;
        assert!(matches!(
            hello(1, 1).assess(&other),
            Err(HandshakeRefusal::Facts {
                key: "group_count",
                ..
            })
        ));
        let mut newborn = hello(2, 1);
        newborn.cluster = None;
        assert_eq!(hello(1, 1).assess(&newborn), Ok(1));
        newborn.cluster = Some(8);
        assert_eq!(hello(1, 1).assess(&newborn), Err(HandshakeRefusal::Cluster));
        // Also if other checks would fail as well.
        newborn.facts.group_count = 4;
        assert_eq!(hello(1, 1).assess(&newborn), Err(HandshakeRefusal::Cluster));
        assert_eq!(
            hello(1, 1).assess(&hello(1, 1)),
            Err(HandshakeRefusal::SameNumber(1))
        );
        let mut lost = hello(2, 1);
        lost.wanted = NodeId::new(3);
        assert!(matches!(
            hello(1, 1).assess(&lost),
            Err(HandshakeRefusal::Elsewhere { .. })
        ));
    }

    /// Adjacent releases use the newest common version; others get an explanation.
    #[test]
    fn the_lower_version_is_spoken() {
        let speaks = |oldest, newest| Hello {
            versions: Versions { oldest, newest },
            ..hello(2, 1)
        };
        let ours = Hello {
            versions: Versions {
                oldest: 3,
                newest: 4,
            },
            ..hello(1, 1)
        };
        for (theirs, spoken) in [((3, 4), 4), ((4, 5), 4), ((2, 3), 3), ((1, 9), 4)] {
            assert_eq!(ours.assess(&speaks(theirs.0, theirs.1)), Ok(spoken));
        }
        for (theirs, words) in [((5, 6), "versions 5 to 6"), ((2, 2), "version 2")] {
            let refused = ours.assess(&speaks(theirs.0, theirs.1)).unwrap_err();
            assert_eq!(
                refused.to_string(),
                format!(
                    "the peer supports {words} of the peer protocol, and this node versions 3 to 4: \
                     upgrade a cluster one release at a time"
                )
            );
        }
        // An empty range is refused.
        assert!(ours.assess(&speaks(9, 1)).is_err());
    }
}
