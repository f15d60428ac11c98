//! A node of the daemon: host and port.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, InputError};

/// Where a node listens. Without a port it is the daemon's own, 50051.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    host: String,
    port: u16,
}

/// The daemon's port.
const PORT: u16 = 50051;

impl Endpoint {
    /// A node by host and port. An IPv6 address comes without brackets.
    pub fn new(host: impl Into<String>, port: u16) -> Endpoint {
        Endpoint {
            host: host.into(),
            port,
        }
    }

    /// The host, without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Whether it is on this machine: no TLS is asked for then.
    pub fn is_loopback(&self) -> bool {
        self.host == "localhost"
            || self
                .host
                .parse::<std::net::IpAddr>()
                .is_ok_and(|address| address.is_loopback())
    }

    /// Several nodes, separated by commas: `TENURE_URL` and the host part of an address.
    pub fn list(text: &str) -> Result<Vec<Endpoint>, Error> {
        let text = ["tenure://", "http://", "https://"]
            .iter()
            .find_map(|scheme| text.strip_prefix(scheme))
            .unwrap_or(text)
            .trim_end_matches('/');
        text.split(',').map(|node| node.trim().parse()).collect()
    }
}

impl Default for Endpoint {
    /// The daemon of this machine.
    fn default() -> Endpoint {
        Endpoint::new("127.0.0.1", PORT)
    }
}

impl FromStr for Endpoint {
    type Err = Error;

    fn from_str(text: &str) -> Result<Endpoint, Error> {
        let bad = |what: &str| Err(Error::Input(InputError::new(text, what)));
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => match rest.split_once(']') {
                Some((host, port)) => (
                    host,
                    port.strip_prefix(':').or(port.is_empty().then_some("")),
                ),
                None => return bad("has a bracket that does not end"),
            },
            None => match text.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, Some("")),
            },
        };
        if host.is_empty()
            || host.contains(['/', '@', '?', '#'])
            || host.contains(char::is_whitespace)
        {
            return bad("names no host: write host:port");
        }
        let port = match port {
            Some("") => PORT,
            Some(digits) => match digits.parse() {
                Ok(port) => port,
                Err(_) => return bad("has no port from 0 to 65535 after the colon"),
            },
            None => return bad("has something else than a port after the bracket"),
        };
        Ok(Endpoint::new(host, port))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}
