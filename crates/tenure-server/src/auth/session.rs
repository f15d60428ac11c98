//! Sessions of the web console: a cookie that proves a key without containing it.
//!
//! The cookie is `<id of the key>.<end>.<MAC>`. The MAC covers the hash of the key, so a session ends
//! with its key, and the daemon stores nothing. Its secret is derived from the token of the cluster,
//! so that every node accepts the session; a node without peers draws one at its start.
//!
//! A browser sends the cookie with every request, also with those that another page has caused. So
//! the cookie counts only together with a header that a page of another origin cannot set.

use std::time::Duration;

use aws_lc_rs::{digest, hmac};
use http::HeaderMap;
use http::header::{AUTHORIZATION, COOKIE};

use super::api_key::put_hex;
use super::{
    AccessControl, Bearer, Caller, Credential, REVOKED, not_loaded, now_ms, unauthenticated,
};
use crate::handlers::internal;
use crate::status::{Code, Failure};

/// The name of the cookie.
const NAME: &str = "tenure_session";
/// The header that the console sends with every request.
pub(crate) const HEADER: &str = "x-tenure-console";
/// How long a session lasts.
const LASTS: Duration = Duration::from_secs(12 * 3600);
/// Stands for the id of a key in sessions of `client_auth_token`.
const TOKEN: &str = "token";

/// Opens and checks sessions. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Sessions {
    access: AccessControl,
    /// `None` if there were no random numbers to draw it from.
    secret: Option<hmac::Key>,
}

impl Sessions {
    /// Creates the sessions of a node. `shared` is the token that all nodes of the cluster have.
    pub(crate) fn new(access: AccessControl, shared: Option<&str>) -> Sessions {
        let mut secret = [0; 32];
        let drawn = match shared {
            Some(token) => {
                let mut context = digest::Context::new(&digest::SHA256);
                context.update(b"tenure console session\0");
                context.update(token.as_bytes());
                secret.copy_from_slice(context.finish().as_ref());
                Ok(())
            }
            None => aws_lc_rs::rand::fill(&mut secret),
        };
        Sessions {
            access,
            secret: drawn
                .ok()
                .map(|()| hmac::Key::new(hmac::HMAC_SHA256, &secret)),
        }
    }

    /// Opens a session for a key or the shared token. Returns the caller and the `Set-Cookie` header.
    pub(crate) fn open(&self, key: &str, is_local: bool) -> Result<(Caller, String), Failure> {
        let credential = match self
            .access
            .bearer(&[b"Bearer ", key.trim().as_bytes()].concat())
        {
            Bearer::Proven(credential) => credential,
            Bearer::Wrong(why) => return Err(refused(&why)),
            Bearer::NotLoaded => return Err(not_loaded()),
            Bearer::Foreign => return Err(refused("this is not a key: it starts with tnr_")),
        };
        let caller = self.access.caller(&credential)?;
        // A session names its credential, so each kind needs its own name here: a session of another
        // kind under the name of the shared token would be an administrator's.
        let id = match &credential {
            Credential::Key(id) => id,
            Credential::SharedToken => TOKEN,
            Credential::Loopback
            | Credential::Nothing
            | Credential::Unix(_)
            | Credential::Named(_)
            | Credential::Token { .. } => {
                return Err(refused("only keys and client_auth_token can sign in"));
            }
        };
        let end = now_ms() + u64::try_from(LASTS.as_millis()).unwrap_or(0);
        let signed = format!("{id}.{end}");
        let secret = self.secret.as_ref();
        let secret = secret.ok_or_else(|| internal(&"no random numbers for sessions"))?;
        let message = signed_message(&signed, &self.proof(&credential)?);
        let mut mac = String::new();
        put_hex(&mut mac, hmac::sign(secret, &message).as_ref());
        let cookie = set_cookie(&format!("{signed}.{mac}"), LASTS, is_local);
        Ok((caller, cookie))
    }

    /// Returns the `Set-Cookie` header that ends a session.
    pub(crate) fn close(is_local: bool) -> String {
        set_cookie("", Duration::ZERO, is_local)
    }

    /// Returns the caller of the session that a request belongs to; `None` if it has none.
    pub(crate) fn caller(&self, headers: &HeaderMap) -> Option<Result<Caller, Failure>> {
        if headers.contains_key(AUTHORIZATION) || !headers.contains_key(HEADER) {
            return None;
        }
        let cookies = headers.get_all(COOKIE).iter();
        let cookies = cookies.filter_map(|cookies| cookies.to_str().ok());
        let mut cookies = cookies.flat_map(|cookies| cookies.split(';'));
        let cookie = cookies.find_map(|one| {
            let (name, value) = one.trim().split_once('=')?;
            (name == NAME && !value.is_empty()).then_some(value)
        })?;
        Some(self.verify(cookie))
    }

    fn verify(&self, cookie: &str) -> Result<Caller, Failure> {
        let ended = || unauthenticated("the session has ended: sign in again".to_owned());
        let (signed, mac) = cookie.rsplit_once('.').ok_or_else(ended)?;
        let (id, end) = signed.split_once('.').ok_or_else(ended)?;
        let end: u64 = end.parse().map_err(|_| ended())?;
        let credential = match id {
            TOKEN => Credential::SharedToken,
            id => Credential::Key(id.into()),
        };
        let mac = from_hex(mac).ok_or_else(ended)?;
        let message = signed_message(signed, &self.proof(&credential)?);
        let secret = self.secret.as_ref().ok_or_else(ended)?;
        hmac::verify(secret, &message, &mac).map_err(|_| ended())?;
        if end <= now_ms() {
            return Err(ended());
        }
        self.access.caller(&credential)
    }

    /// Returns the hash of the key, which the session ends with.
    fn proof(&self, credential: &Credential) -> Result<[u8; 32], Failure> {
        match credential {
            Credential::Key(id) => {
                let table = self.access.table().ok_or_else(not_loaded)?;
                let key = table.key(id);
                let key = key.ok_or_else(|| unauthenticated(REVOKED.to_owned()))?;
                Ok(key.hash)
            }
            _ => {
                let token = self.access.0.token.as_ref();
                let token = token.ok_or_else(|| unauthenticated(REVOKED.to_owned()))?;
                let mut hash = [0; 32];
                let digest = digest::digest(&digest::SHA256, token.as_bytes());
                hash.copy_from_slice(digest.as_ref());
                Ok(hash)
            }
        }
    }
}

fn signed_message(signed: &str, proof: &[u8; 32]) -> Vec<u8> {
    [signed.as_bytes(), proof].concat()
}

fn refused(why: &str) -> Failure {
    Failure::new(Code::Unauthenticated, why)
}

/// Beyond loopback the web port serves TLS only. On loopback it also serves plaintext, over which
/// a browser would not store a `Secure` cookie.
fn set_cookie(value: &str, lasts: Duration, is_local: bool) -> String {
    let seconds = lasts.as_secs();
    let secure = if is_local { "" } else { "; Secure" };
    format!("{NAME}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}")
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    if !digits.len().is_multiple_of(2) {
        return None;
    }
    let pairs = digits.chunks_exact(2).map(|pair| {
        let pair = std::str::from_utf8(pair).ok()?;
        u8::from_str_radix(pair, 16).ok()
    });
    pairs.collect()
}
