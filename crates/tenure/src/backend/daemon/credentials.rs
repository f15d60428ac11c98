//! Credentials of a client: how it verifies the daemon, how it proves itself, and to which nodes.

use std::time::Duration;

use tenure_wire::tls::{ClientTls, ClientTlsOptions};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint as Target};
use tonic::{Request, transport};

use super::candidates::Candidate;
use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::tenure::DaemonAccess;

/// Time limit for a TCP connection.
const CONNECT: Duration = Duration::from_secs(2);
/// Keep-alive of the connection.
const PING: Duration = Duration::from_secs(10);
const PONG: Duration = Duration::from_secs(5);

/// Credentials of this client, read from their files for each search for a node: certificates and
/// tokens change while a program runs.
#[derive(Clone)]
pub(super) struct Credentials {
    /// For nodes that use TLS.
    tls: Option<ClientTls>,
    token: Option<MetadataValue<Ascii>>,
    /// What decides whether and how a node gets the token.
    access: DaemonAccess,
    /// What the members get that the configured nodes have named.
    members: MemberAccess,
}

/// A member that a configured node has named is treated like the configured nodes.
#[derive(Clone, Copy)]
struct MemberAccess {
    is_tls: bool,
    gets_token: bool,
}

impl Credentials {
    /// Reads the files that connections to these nodes need.
    pub(super) fn new(nodes: &[Endpoint], access: &DaemonAccess) -> Result<Credentials, Error> {
        let token = match (&access.token, &access.token_file) {
            (Some(token), _) => Some(token.clone()),
            (None, Some(file)) => {
                let token = std::fs::read_to_string(file).map_err(|error| {
                    let file = file.display().to_string();
                    Error::input(file, format!("cannot be read: {error}"))
                })?;
                Some(token.trim_end().to_owned())
            }
            (None, None) => None,
        };
        let token = match token {
            Some(token) => match format!("Bearer {token}").parse::<MetadataValue<Ascii>>() {
                Ok(mut value) => {
                    value.set_sensitive(true);
                    Some(value)
                }
                Err(_) => {
                    return Err(Error::input(
                        "the client token",
                        "has characters that no header can carry",
                    ));
                }
            },
            None => None,
        };
        let tls = if access.tls || nodes.iter().any(Endpoint::is_tls) {
            Some(tls(access)?)
        } else {
            None
        };
        let credentials = Credentials {
            tls,
            token,
            access: access.clone(),
            members: MemberAccess {
                is_tls: nodes.iter().all(Endpoint::is_tls),
                gets_token: nodes.iter().all(|node| is_given_for(access, node)),
            },
        };
        let would_leak = |node: &&Endpoint| {
            let is_private = access.tls || node.is_tls() || node.is_loopback() || access.plaintext;
            credentials.token.is_some() && is_given_for(access, node) && !is_private
        };
        if let Some(node) = nodes.iter().find(would_leak) {
            return Err(Error::input(
                node.to_string(),
                format!(
                    "is another machine, and the token would be sent to it without encryption: \
                     write tenure+tls://{node}, or set TENURE_ALLOW_PLAINTEXT=true"
                ),
            ));
        }
        Ok(credentials)
    }

    fn uses_tls(&self, to: &Candidate) -> bool {
        self.access.tls || to.node.is_tls() || (to.is_learned && self.members.is_tls)
    }

    /// Whether a node gets the token: only the nodes that it was given for, and the members that they
    /// have named.
    fn is_for(&self, to: &Candidate) -> bool {
        if to.is_learned {
            self.members.gets_token
        } else {
            is_given_for(&self.access, &to.node)
        }
    }

    fn would_leak(&self, to: &Candidate) -> bool {
        let is_private = self.uses_tls(to) || to.node.is_loopback() || self.access.plaintext;
        self.token.is_some() && self.is_for(to) && !is_private
    }

    /// Connects to one address of a node, with TLS if the node uses it.
    pub(super) async fn connect(&self, to: &Candidate) -> Result<Channel, transport::Error> {
        let (node, address) = (&to.node, to.address);
        let target = |host: &dyn std::fmt::Display| {
            let target = Target::from_shared(format!("http://{host}"))?
                .connect_timeout(CONNECT)
                .tcp_nodelay(true)
                .http2_keep_alive_interval(PING)
                .keep_alive_timeout(PONG)
                .keep_alive_while_idle(true);
            Ok::<_, transport::Error>(target)
        };
        match &self.tls {
            // The certificate must be for the node's name, at whatever address the node is.
            Some(tls) if self.uses_tls(to) => tls.connect_at(target(node)?, Some(address)).await,
            _ => {
                let mut target = target(&address)?;
                // The node keeps its name in the request.
                if let Ok(origin) = format!("http://{node}").parse() {
                    target = target.origin(origin);
                }
                target.connect().await
            }
        }
    }

    /// Adds the token to a request to this node, if the node may have it.
    pub(super) fn sign<T>(&self, to: &Candidate, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(token) = &self.token
            && self.is_for(to)
            && !self.would_leak(to)
        {
            request
                .metadata_mut()
                .insert("authorization", token.clone());
        }
        request
    }

    /// Returns advice if a node refuses a client whose token it did not get.
    pub(super) fn advice(&self, to: &Candidate) -> &'static str {
        if self.token.is_some() && !self.is_for(to) {
            "; the token was not sent: it is for the nodes of TENURE_URL"
        } else {
            ""
        }
    }
}

/// Whether the token was given for this node.
fn is_given_for(access: &DaemonAccess, node: &Endpoint) -> bool {
    let is_same = |one: &Endpoint| (one.host(), one.port()) == (node.host(), node.port());
    access.nodes.iter().any(is_same)
}

fn tls(access: &DaemonAccess) -> Result<ClientTls, Error> {
    let pin = access.pin.as_deref().map(str::parse).transpose();
    let options = ClientTlsOptions {
        authority: access.authority.clone(),
        identity: access.identity.clone(),
        pin: pin.map_err(|problem: String| Error::input("TENURE_PIN", problem))?,
    };
    ClientTls::new(&options).map_err(|problem| Error::input("TLS", problem))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(nodes: &str) -> DaemonAccess {
        DaemonAccess {
            token: Some("secret".into()),
            nodes: Endpoint::list(nodes).unwrap(),
            ..DaemonAccess::default()
        }
    }

    fn is_sent(access: &DaemonAccess, to: &str) -> Result<bool, String> {
        let nodes = Endpoint::list(to).unwrap();
        let credentials = Credentials::new(&nodes, access).map_err(|error| error.to_string())?;
        let candidate = Candidate {
            node: nodes[0].clone(),
            address: ([127, 0, 0, 1], 1).into(),
            is_learned: false,
        };
        let request = credentials.sign(&candidate, ());
        Ok(request.metadata().contains_key("authorization"))
    }

    /// An address in a command names a host that the token was not given for.
    #[test]
    fn the_token_goes_only_to_the_nodes_that_it_was_given_for() {
        let access = access("tenure+tls://locks.test:1,other.test:1,127.0.0.1:1");
        assert_eq!(is_sent(&access, "tenure+tls://locks.test:1"), Ok(true));
        assert_eq!(is_sent(&access, "127.0.0.1:1"), Ok(true));
        for elsewhere in [
            "tenure+tls://locks.test:2",
            "tenure+tls://evil.test:1",
            "127.0.0.1:2",
        ] {
            assert_eq!(is_sent(&access, elsewhere), Ok(false), "{elsewhere}");
        }
    }

    #[test]
    fn the_token_is_not_sent_to_other_machines_in_clear() {
        let in_clear = access("locks.test:1");
        let refused = is_sent(&in_clear, "locks.test:1").unwrap_err();
        assert!(refused.contains("tenure+tls://locks.test:1"), "{refused}");
        let allowed = DaemonAccess {
            plaintext: true,
            ..in_clear.clone()
        };
        assert_eq!(is_sent(&allowed, "locks.test:1"), Ok(true));
        assert_eq!(is_sent(&access("localhost:1"), "localhost:1"), Ok(true));
        // Without a token there is nothing to hide.
        let anonymous = DaemonAccess {
            token: None,
            ..in_clear
        };
        assert_eq!(is_sent(&anonymous, "locks.test:1"), Ok(false));
    }

    /// A member that the configured nodes have named is treated like them.
    #[test]
    fn a_learned_member_gets_what_the_configured_nodes_get() {
        let learned = |access: &DaemonAccess, configured: &str, member: &str| {
            let nodes = Endpoint::list(configured).unwrap();
            let credentials = Credentials::new(&nodes, access).unwrap();
            let candidate = Candidate {
                node: Endpoint::list(member).unwrap().remove(0),
                address: ([127, 0, 0, 1], 1).into(),
                is_learned: true,
            };
            let request = credentials.sign(&candidate, ());
            let is_sent = request.metadata().contains_key("authorization");
            (credentials.uses_tls(&candidate), is_sent)
        };
        let given = access("tenure+tls://locks.test:1");
        let encrypted = learned(&given, "tenure+tls://locks.test:1", "other.test:1");
        assert_eq!(encrypted, (true, true));
        let elsewhere = learned(&given, "tenure+tls://evil.test:1", "other.test:1");
        assert_eq!(elsewhere, (true, false), "its node does not get the token");
        let local = learned(&access("127.0.0.1:1"), "127.0.0.1:1", "other.test:1");
        assert_eq!(local, (false, false), "never in clear to another machine");
    }
}
