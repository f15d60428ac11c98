//! Credentials of a client: how it verifies the daemon, how it proves itself, and to which nodes.

use tenure_wire::tls::{ClientTls, ClientTlsOptions};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint as Target};
use tonic::{Request, transport};

use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::tenure::DaemonAccess;

/// Credentials of this client, read and checked once.
#[derive(Clone)]
pub(super) struct Credentials {
    /// For nodes that use TLS.
    tls: Option<ClientTls>,
    token: Option<MetadataValue<Ascii>>,
    /// What decides whether and how a node gets the token.
    access: DaemonAccess,
}

impl Credentials {
    /// Reads the files that connections to these nodes need.
    pub(super) fn new(nodes: &[Endpoint], access: &DaemonAccess) -> Result<Credentials, Error> {
        let token = match &access.token {
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
        };
        if let Some(node) = nodes.iter().find(|node| credentials.would_leak(node)) {
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

    fn uses_tls(&self, node: &Endpoint) -> bool {
        self.access.tls || node.is_tls()
    }

    /// Whether a node gets the token: only the nodes that it was given for.
    fn is_for(&self, node: &Endpoint) -> bool {
        let is_same = |one: &Endpoint| (one.host(), one.port()) == (node.host(), node.port());
        self.access.nodes.iter().any(is_same)
    }

    fn would_leak(&self, node: &Endpoint) -> bool {
        let is_private = self.uses_tls(node) || node.is_loopback() || self.access.plaintext;
        self.token.is_some() && self.is_for(node) && !is_private
    }

    /// Connects to a node, with TLS if it uses it.
    pub(super) async fn connect(
        &self,
        node: &Endpoint,
        target: Target,
    ) -> Result<Channel, transport::Error> {
        match &self.tls {
            Some(tls) if self.uses_tls(node) => tls.connect(target).await,
            _ => target.connect().await,
        }
    }

    /// Adds the token to a request to this node, if the node may have it.
    pub(super) fn sign<T>(&self, node: &Endpoint, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(token) = &self.token
            && self.is_for(node)
            && !self.would_leak(node)
        {
            request
                .metadata_mut()
                .insert("authorization", token.clone());
        }
        request
    }

    /// Returns advice if a node refuses a client whose token it did not get.
    pub(super) fn advice(&self, node: &Endpoint) -> &'static str {
        if self.token.is_some() && !self.is_for(node) {
            "; the token was not sent: it is for the nodes of TENURE_URL"
        } else {
            ""
        }
    }
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
        let request = credentials.sign(&nodes[0], ());
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
}
