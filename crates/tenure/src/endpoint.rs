//! Host and port of a daemon node.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, InputError};

/// The address of a daemon node. Default port: 50051.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    host: String,
    port: u16,
    tls: bool,
    /// The address of a database that keeps the log, instead of a daemon.
    engine: Option<String>,
}

/// Schemes of databases that keep the log of the locks.
pub(crate) const ENGINES: [&str; 2] = ["postgres://", "postgresql://"];

/// Schemes of a list of nodes, and whether they mean TLS.
const SCHEMES: [(&str, bool); 4] = [
    ("tenure://", false),
    ("tenure+tls://", true),
    ("http://", false),
    ("https://", true),
];

/// The default port of the daemon.
const PORT: u16 = 50051;

impl Endpoint {
    /// Creates an endpoint. An IPv6 address has no brackets here.
    pub fn new(host: impl Into<String>, port: u16) -> Endpoint {
        Endpoint {
            host: host.into(),
            port,
            tls: false,
            engine: None,
        }
    }

    /// Parses the address of a database that keeps the log, `postgres://[user@]host[:port]/database`.
    ///
    /// # Errors
    ///
    /// [`Error::Input`] if it is no valid address, or if this build has no such engine.
    #[cfg(feature = "postgres")]
    pub(crate) fn engine(text: &str) -> Result<Endpoint, Error> {
        let parsed = text
            .trim()
            .parse::<tenure_hosted::postgres::PostgresAddress>();
        let parsed = parsed.map_err(|error| {
            // The text may contain a password.
            Error::Input(InputError::new("postgres://…", error.to_string()))
        })?;
        // The client runs the engine itself: this process is the node.
        Ok(Endpoint {
            engine: Some(parsed.to_string()),
            ..Endpoint::new("127.0.0.1", 0)
        })
    }

    #[cfg(not(feature = "postgres"))]
    pub(crate) fn engine(_: &str) -> Result<Endpoint, Error> {
        let what = "PostgreSQL is left out of this build";
        Err(Error::Input(InputError::new("postgres://…", what)))
    }

    /// Returns the address of the database that keeps the log, if it is one.
    pub(crate) fn engine_address(&self) -> Option<&str> {
        self.engine.as_deref()
    }

    /// Uses TLS for connections to the node: `tenure+tls://` in an address.
    #[must_use]
    pub fn with_tls(mut self) -> Endpoint {
        self.tls = true;
        self
    }

    /// Returns whether the address asks for TLS.
    pub fn is_tls(&self) -> bool {
        self.tls
    }

    /// Returns the host, without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns the port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns whether the node is on this machine. TLS is not required then.
    pub fn is_loopback(&self) -> bool {
        self.host == "localhost"
            || self
                .host
                .parse::<std::net::IpAddr>()
                .is_ok_and(|address| address.is_loopback())
    }

    /// Parses a comma-separated list of nodes, as in `TENURE_URL` and in addresses. A scheme before a
    /// node applies to it and to the nodes behind it: `tenure://` (also `http://`) without and
    /// `tenure+tls://` (also `https://`) with TLS. `postgres://host/database` is a database that keeps
    /// the log of the locks.
    ///
    /// # Errors
    ///
    /// [`Error::Input`] if a node is no valid `host:port`.
    pub fn list(text: &str) -> Result<Vec<Endpoint>, Error> {
        if ENGINES.iter().any(|scheme| text.trim().starts_with(scheme)) {
            return Ok(vec![Endpoint::engine(text)?]);
        }
        let mut tls = false;
        let node = |node: &str| {
            let mut node = node.trim();
            for (scheme, means_tls) in SCHEMES {
                if let Some(rest) = node.strip_prefix(scheme) {
                    (node, tls) = (rest, means_tls);
                    break;
                }
            }
            let endpoint: Endpoint = node.trim_end_matches('/').parse()?;
            Ok(if tls { endpoint.with_tls() } else { endpoint })
        };
        text.split(',').map(node).collect()
    }
}

impl Default for Endpoint {
    /// Returns the daemon on this machine, 127.0.0.1:50051.
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
        if let Some(engine) = &self.engine {
            f.write_str(engine)
        } else if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every node has its own scheme: a node that asks for TLS is never reached without.
    #[test]
    fn a_scheme_applies_to_its_node() {
        let tls = |text: &str| -> Vec<bool> {
            let nodes = Endpoint::list(text).unwrap();
            nodes.iter().map(Endpoint::is_tls).collect()
        };
        assert_eq!(tls("a:1,b:2"), [false, false]);
        assert_eq!(tls("tenure+tls://a:1,b:2"), [true, true]);
        assert_eq!(tls("https://a:1/"), [true]);
        assert_eq!(tls("http://a,https://b"), [false, true]);
        assert!(Endpoint::list("ftp://a").is_err());
    }
}
