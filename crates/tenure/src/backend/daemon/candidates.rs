//! Which node to connect to next: every address of every known node, the unsuspicious ones first, in
//! random order.
//!
//! ```text
//!   configured nodes ─┐
//!   learned members ──┴─▶ resolve each name ─▶ one candidate per address ─▶ shuffle ─▶ recently
//!                                                                           failed ones last
//! ```

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use tenure_base::Token;
use tokio::task::JoinSet;

use crate::endpoint::Endpoint;

/// Time limit for the resolution of names, if some addresses are known without it.
const RESOLVE_MORE: Duration = Duration::from_millis(300);
/// Time limit for the resolution of names, if no address is known.
const RESOLVE_FIRST: Duration = Duration::from_secs(4);
/// How long a failure puts an address behind the others.
const REMEMBER_FAILURE: Duration = Duration::from_secs(60);

/// One address of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    /// The name of the node. TLS verifies it.
    pub(super) node: Endpoint,
    pub(super) address: SocketAddr,
    /// The configuration does not name it, but a member of the cluster did.
    pub(super) is_learned: bool,
}

/// What the client knows of the nodes.
#[derive(Default)]
pub(super) struct KnownNodes {
    configured: Vec<Endpoint>,
    members: Vec<Endpoint>,
    /// The last addresses of each name.
    resolved: HashMap<Endpoint, Vec<SocketAddr>>,
    failed: HashMap<SocketAddr, Instant>,
}

impl KnownNodes {
    pub(super) fn new(configured: Vec<Endpoint>) -> KnownNodes {
        KnownNodes {
            configured,
            ..KnownNodes::default()
        }
    }

    /// Returns the nodes that the configuration names.
    pub(super) fn configured(&self) -> &[Endpoint] {
        &self.configured
    }

    /// Stores the members of the cluster, as the node at `reached` reports them.
    ///
    /// A loopback address means another machine there than here, unless the connection itself is
    /// local.
    pub(super) fn learn(&mut self, members: Vec<Endpoint>, reached: SocketAddr) {
        let is_usable = |member: &Endpoint| {
            let is_nowhere = member
                .host()
                .parse::<IpAddr>()
                .is_ok_and(|address| address.is_unspecified());
            !is_nowhere && (!member.is_loopback() || reached.ip().is_loopback())
        };
        self.members = members.into_iter().filter(is_usable).collect();
    }

    pub(super) fn failed(&mut self, address: SocketAddr) {
        self.failed.insert(address, Instant::now());
    }

    /// Returns whether there is an address other than this one.
    pub(super) fn has_another(&self, address: SocketAddr) -> bool {
        self.candidates()
            .iter()
            .any(|candidate| candidate.address != address)
    }

    /// Returns the names that need a resolution, and its time limit.
    pub(super) fn to_resolve(&self) -> (Vec<Endpoint>, Duration) {
        let nodes = self.configured.iter().chain(&self.members);
        let mut names: Vec<Endpoint> = nodes
            .filter(|node| node.host().parse::<IpAddr>().is_err())
            .cloned()
            .collect();
        names.sort();
        names.dedup();
        let limit = match self.candidates().is_empty() {
            true => RESOLVE_FIRST,
            false => RESOLVE_MORE,
        };
        (names, limit)
    }

    /// Stores the addresses. A name without an answer keeps its last ones.
    pub(super) fn store(&mut self, resolved: &mut Resolved) {
        for (name, addresses) in resolved.addresses.drain(..) {
            self.resolved.insert(name, addresses);
        }
    }

    /// Returns all addresses, as far as they are known.
    fn candidates(&self) -> Vec<Candidate> {
        let mut candidates: Vec<Candidate> = Vec::new();
        let configured = self.configured.iter().map(|node| (node, false));
        let learned = self.members.iter().map(|node| (node, true));
        for (node, is_learned) in configured.chain(learned) {
            let addresses = match node.host().parse::<IpAddr>() {
                Ok(address) => vec![SocketAddr::new(address, node.port())],
                Err(_) => self.resolved.get(node).cloned().unwrap_or_default(),
            };
            for address in addresses {
                let is_known = candidates.iter().any(|known| known.address == address);
                if !is_known {
                    candidates.push(Candidate {
                        node: node.clone(),
                        address,
                        is_learned,
                    });
                }
            }
        }
        candidates
    }

    /// Returns the candidates in the order in which to try them.
    pub(super) fn in_order(&mut self) -> Vec<Candidate> {
        self.failed
            .retain(|_, failed| failed.elapsed() < REMEMBER_FAILURE);
        let mut candidates = self.candidates();
        // A random key for each: a fleet of clients spreads over the nodes.
        candidates.sort_by_cached_key(|candidate| {
            let last_failed = self.failed.get(&candidate.address).copied();
            (last_failed, Token::random().bytes())
        });
        candidates
    }
}

/// The result of a resolution.
#[derive(Default)]
pub(super) struct Resolved {
    addresses: Vec<(Endpoint, Vec<SocketAddr>)>,
    /// Names without an address, as messages.
    pub(super) troubles: Vec<String>,
}

/// Resolves the names at the same time, within the limit.
pub(super) async fn resolve((names, limit): (Vec<Endpoint>, Duration)) -> Resolved {
    let mut lookups = JoinSet::new();
    for name in names {
        lookups.spawn(async move {
            let found = tokio::net::lookup_host((name.host(), name.port())).await;
            let found = found.map(Iterator::collect::<Vec<SocketAddr>>);
            (name, found)
        });
    }
    let mut resolved = Resolved::default();
    let collect = async {
        while let Some(found) = lookups.join_next().await {
            match found {
                Ok((name, Ok(addresses))) => resolved.addresses.push((name, addresses)),
                Ok((name, Err(error))) => resolved.troubles.push(format!(
                    "{name}: {}",
                    super::connection_messages::plain(&error.to_string())
                )),
                Err(_) => {}
            }
        }
    };
    if tokio::time::timeout(limit, collect).await.is_err() {
        let what = "a name was not resolved in time";
        resolved.troubles.push(what.to_owned());
    }
    resolved
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn known(list: &str) -> KnownNodes {
        KnownNodes::new(Endpoint::list(list).unwrap())
    }

    /// The address that failed last comes last, whatever the random order is.
    #[test]
    fn what_failed_comes_last() {
        let mut nodes = known("10.0.0.1:1,10.0.0.2:1,10.0.0.3:1");
        nodes.failed(address("10.0.0.2:1"));
        std::thread::sleep(Duration::from_millis(1));
        nodes.failed(address("10.0.0.1:1"));
        for _ in 0..20 {
            let order: Vec<SocketAddr> = nodes
                .in_order()
                .into_iter()
                .map(|candidate| candidate.address)
                .collect();
            let expected = ["10.0.0.3:1", "10.0.0.2:1", "10.0.0.1:1"].map(address);
            assert_eq!(order, expected);
        }
    }

    /// A name with several addresses is several candidates.
    #[test]
    fn every_address_of_a_name_is_a_candidate() {
        let mut nodes = known("cluster.example:1");
        assert!(nodes.in_order().is_empty());
        let addresses = vec![address("10.0.0.1:1"), address("10.0.0.2:1")];
        nodes
            .resolved
            .insert(Endpoint::new("cluster.example", 1), addresses);
        assert_eq!(nodes.in_order().len(), 2);
        assert!(nodes.has_another(address("10.0.0.1:1")));
    }

    /// A member that calls itself `localhost` is another machine from here.
    #[test]
    fn a_loopback_member_counts_only_on_the_same_machine() {
        let members = || Endpoint::list("localhost:1,127.0.0.1:1,0.0.0.0:1,10.0.0.2:1").unwrap();
        let mut nodes = known("10.0.0.1:1");
        nodes.learn(members(), address("10.0.0.1:1"));
        let learned: Vec<_> = nodes
            .candidates()
            .into_iter()
            .filter(|c| c.is_learned)
            .collect();
        assert_eq!(learned.len(), 1);
        assert_eq!(learned[0].address, address("10.0.0.2:1"));
        nodes.learn(members(), address("127.0.0.1:7"));
        assert_eq!(nodes.members.len(), 3);
    }
}
