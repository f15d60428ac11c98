//! Protection of the web port against pages of other origins: DNS rebinding and cross-site requests.
//!
//! A browser on the daemon's machine can reach a loopback port on behalf of any page. A page whose
//! own name is made to resolve to 127.0.0.1 is even of the same origin for the browser. So the
//! names under which the daemon is addressed are checked, and requests that a page of another
//! origin has caused are refused.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use http::header::{HOST, ORIGIN, X_CONTENT_TYPE_OPTIONS};
use http::uri::Authority;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use super::json::refuse;
use crate::status::Code;

static SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
static RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

/// The host names that requests may address.
#[derive(Clone, Debug)]
pub(crate) struct HostNames {
    /// Names and addresses without a port, in lower case; addresses without brackets.
    known: Arc<[String]>,
    /// Beyond loopback without configured names, a request may address any name: there every
    /// connection uses TLS, and a page that rebinds its name has no certificate for it.
    any: bool,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OriginRefusal {
    /// No host, several, or something that is none.
    NoHost,
    /// A name that is not the daemon's.
    OtherHost,
    /// Caused by a page of another origin.
    OtherOrigin,
}

impl OriginRefusal {
    fn status(self) -> StatusCode {
        match self {
            OriginRefusal::NoHost => StatusCode::BAD_REQUEST,
            OriginRefusal::OtherHost => StatusCode::MISDIRECTED_REQUEST,
            OriginRefusal::OtherOrigin => StatusCode::FORBIDDEN,
        }
    }

    /// Returns the message for the client.
    pub(crate) fn text(self) -> &'static str {
        match self {
            OriginRefusal::NoHost => "the request must have exactly one Host",
            OriginRefusal::OtherHost => {
                "the Host of the request is not a name of this daemon: use localhost, or add the name to web_hosts"
            }
            OriginRefusal::OtherOrigin => {
                "the request comes from a page of another origin: add its host to web_hosts to allow it"
            }
        }
    }

    fn code(self) -> Code {
        match self {
            OriginRefusal::NoHost | OriginRefusal::OtherHost => Code::InvalidArgument,
            OriginRefusal::OtherOrigin => Code::PermissionDenied,
        }
    }
}

impl HostNames {
    /// Creates the check of a port that is bound to this address. `configured` are names besides
    /// those of loopback.
    pub(crate) fn new(bound: SocketAddr, configured: &[String]) -> HostNames {
        let mut known: Vec<String> = configured.iter().map(|name| host_of(name)).collect();
        known.push("localhost".to_owned());
        if !bound.ip().is_unspecified() {
            known.push(bound.ip().to_string());
        }
        HostNames {
            known: known.into(),
            any: configured.is_empty() && !bound.ip().is_loopback(),
        }
    }

    fn knows(&self, host: &str) -> bool {
        let host = host_of(host);
        // Every loopback address is this machine, and no name can be made to equal one.
        let is_loopback = || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
        self.known.contains(&host) || is_loopback()
    }

    /// Checks the addressed host and the origin of a request.
    pub(crate) fn check<B>(&self, request: &http::Request<B>) -> Result<(), OriginRefusal> {
        let host = addressed(request)?;
        if !self.any && !self.knows(host.host()) {
            return Err(OriginRefusal::OtherHost);
        }
        self.check_origin(request.headers(), Some(&host))
    }

    /// Checks the origin alone. `host` is what the request addresses: a page of that origin may
    /// send requests.
    pub(crate) fn check_origin(
        &self,
        headers: &HeaderMap,
        host: Option<&Authority>,
    ) -> Result<(), OriginRefusal> {
        if let Some(origin) = headers.get(ORIGIN) {
            let origin = origin.to_str().ok().and_then(|origin| {
                let (_, authority) = origin.split_once("://")?;
                authority.parse::<Authority>().ok()
            });
            let is_ours = origin.is_some_and(|origin| {
                Some(&origin) == host || self.known_beyond_loopback(origin.host())
            });
            return if is_ours {
                Ok(())
            } else {
                Err(OriginRefusal::OtherOrigin)
            };
        }
        match headers.get(&SEC_FETCH_SITE).map(HeaderValue::as_bytes) {
            None | Some(b"same-origin" | b"none") => Ok(()),
            Some(_) => Err(OriginRefusal::OtherOrigin),
        }
    }

    /// Whether a name is configured. A page on another port of this machine is another origin.
    fn known_beyond_loopback(&self, host: &str) -> bool {
        let host = host_of(host);
        let is_loopback = host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
        host != "localhost" && !is_loopback && self.known.contains(&host)
    }

    /// Adds the check in front of routes, and the headers that keep responses from other origins.
    pub(crate) fn wrap(&self, routes: Router) -> Router {
        routes.layer(middleware::from_fn_with_state(self.clone(), guarded))
    }
}

async fn guarded(State(names): State<HostNames>, request: Request, next: Next) -> Response {
    let mut response = match names.check(&request) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refuse(refusal.status(), refusal.code(), refusal.text()),
    };
    let headers = response.headers_mut();
    headers.insert(&RESOURCE_POLICY, HeaderValue::from_static("same-origin"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// Returns the host that a request addresses: `:authority` or `Host`. If both are there, they must
/// be equal.
fn addressed<B>(request: &http::Request<B>) -> Result<Authority, OriginRefusal> {
    let mut hosts = request.headers().get_all(HOST).iter();
    let header = match (hosts.next(), hosts.next()) {
        (None, _) => None,
        (Some(host), None) => {
            let host = host.to_str().ok().and_then(|host| host.parse().ok());
            Some(host.ok_or(OriginRefusal::NoHost)?)
        }
        (Some(_), Some(_)) => return Err(OriginRefusal::NoHost),
    };
    match (request.uri().authority(), header) {
        (Some(authority), None) => Ok(authority.clone()),
        (None, Some(header)) => Ok(header),
        (Some(authority), Some(header)) if *authority == header => Ok(header),
        (None, None) | (Some(_), Some(_)) => Err(OriginRefusal::NoHost),
    }
}

/// Returns a host in lower case, without a port, the brackets of IPv6 and a final dot.
fn host_of(text: &str) -> String {
    let text = text.trim();
    let host = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address,
        None if text.parse::<IpAddr>().is_ok() => text,
        None => text.split(':').next().unwrap_or_default(),
    };
    host.trim_end_matches('.').to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(bound: &str, configured: &[&str]) -> HostNames {
        let configured: Vec<String> = configured.iter().map(|&name| name.to_owned()).collect();
        HostNames::new(bound.parse().unwrap(), &configured)
    }

    fn request(headers: &[(&str, &str)]) -> http::Request<()> {
        let mut request = http::Request::post("/v1/acquire");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap()
    }

    #[test]
    fn only_the_names_of_the_daemon_are_served_on_loopback() {
        let names = names("127.0.0.1:8443", &["locks.test"]);
        let check = |host: &str| names.check(&request(&[("host", host)]));
        for host in [
            "localhost",
            "LOCALHOST:8443",
            "localhost.:8443",
            "127.0.0.1:8443",
            "127.1.2.3",
            "[::1]:8443",
            "locks.test:443",
        ] {
            assert_eq!(check(host), Ok(()), "{host}");
        }
        for host in [
            "evil.example:8443",
            "localhost.evil.example",
            "10.0.0.1",
            "[::2]:1",
        ] {
            assert_eq!(check(host), Err(OriginRefusal::OtherHost), "{host}");
        }
        for host in ["", "a b", "user@"] {
            assert_eq!(check(host), Err(OriginRefusal::NoHost), "{host:?}");
        }
        assert_eq!(names.check(&request(&[])), Err(OriginRefusal::NoHost));
        let twice = request(&[("host", "localhost"), ("host", "localhost")]);
        assert_eq!(names.check(&twice), Err(OriginRefusal::NoHost));
    }

    /// HTTP/2 and HTTP/3 have `:authority`. A `Host` beside it must say the same.
    #[test]
    fn the_authority_is_checked_like_a_host() {
        let names = names("127.0.0.1:8443", &[]);
        let with = |uri: &str, host: Option<&str>| {
            let mut request = http::Request::post(uri);
            if let Some(host) = host {
                request = request.header("host", host);
            }
            names.check(&request.body(()).unwrap())
        };
        let (ours, other) = ("https://localhost:1/v1/x", "https://evil.example/v1/x");
        assert_eq!(with(ours, None), Ok(()));
        assert_eq!(with(ours, Some("localhost:1")), Ok(()));
        assert_eq!(with(other, None), Err(OriginRefusal::OtherHost));
        assert_eq!(with(other, Some("localhost")), Err(OriginRefusal::NoHost));
    }

    #[test]
    fn pages_of_other_origins_are_refused() {
        let names = names("127.0.0.1:8443", &["locks.test"]);
        let check = |more: &[(&str, &str)]| {
            let mut headers = vec![("host", "localhost:8443")];
            headers.extend(more);
            names.check(&request(&headers))
        };
        assert_eq!(check(&[("origin", "https://localhost:8443")]), Ok(()));
        assert_eq!(check(&[("origin", "https://locks.test")]), Ok(()));
        assert_eq!(check(&[("sec-fetch-site", "same-origin")]), Ok(()));
        assert_eq!(check(&[("sec-fetch-site", "none")]), Ok(()));
        for other in [
            &[("origin", "http://evil.example:8443")][..],
            &[("origin", "http://localhost:3000")],
            &[("origin", "null")],
            &[("sec-fetch-site", "cross-site")],
            &[("sec-fetch-site", "same-site")],
        ] {
            assert_eq!(check(other), Err(OriginRefusal::OtherOrigin), "{other:?}");
        }
    }

    /// Beyond loopback the names of a daemon are not known, unless they are configured.
    #[test]
    fn beyond_loopback_names_are_checked_if_they_are_known() {
        let foreign = request(&[("host", "node-1.example")]);
        assert_eq!(names("0.0.0.0:8443", &[]).check(&foreign), Ok(()));
        let configured = names("0.0.0.0:8443", &["locks.test"]);
        assert_eq!(configured.check(&foreign), Err(OriginRefusal::OtherHost));
    }
}
