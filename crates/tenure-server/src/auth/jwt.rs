//! JSON Web Tokens of an identity provider as proof of identity: `jwt:ISSUER/SUBJECT`.
//!
//! ```text
//!   jwt_jwks_path, jwt_jwks_url ──▶ public keys ─┐
//!   bearer token ──▶ key of its `kid` ──▶ signature, iss, aud, exp, nbf ──▶ principal
//! ```
//!
//! Each public key verifies one algorithm, the one of its type: RS256, ES256 or EdDSA. The header of
//! a token must name exactly that one, so a token cannot choose how it is verified: `none` and
//! symmetric algorithms are never accepted.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use aws_lc_rs::digest;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, JwkSet, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use serde::Deserialize;
use tenure_core::auth::Principal;

use super::{Credential, escaped};
use crate::config::{JwksSource, JwtConfig};

/// The file of keys is checked for a change after this time.
const FILE_CHECK: Duration = Duration::from_secs(2);
/// Keys of a URL are fetched again after this time.
const REFRESH: Duration = Duration::from_secs(300);
/// Keys of a URL are fetched for an unknown `kid`, or after a failure, at most this often.
const REFETCH: Duration = Duration::from_secs(10);
/// Time limit of a fetch.
const FETCH: Duration = Duration::from_secs(10);
/// Largest answer of the URL, in bytes.
const LONGEST_ANSWER: usize = 1 << 20;
/// Largest token, in bytes.
const LONGEST_TOKEN: usize = 16 << 10;
/// Clock difference between the provider and this node that is tolerated, in seconds.
const LEEWAY_SECONDS: u64 = 30;
/// Verified tokens that are remembered, so that a signature is checked once.
const REMEMBERED: usize = 4096;

/// Verifies the tokens of one issuer.
pub(crate) struct TokenIssuer {
    issuer: String,
    audience: String,
    source: JwksSource,
    state: Arc<Mutex<IssuerState>>,
    /// Asks the task that fetches the URL.
    refetch: Arc<tokio::sync::Notify>,
}

#[derive(Default)]
struct IssuerState {
    keys: PublicKeys,
    /// Counts the sets of keys so far.
    generation: u64,
    /// When the file was checked, and its time of change then.
    looked: Option<(Instant, Option<SystemTime>)>,
    /// Verified tokens by their hash. Emptied when the keys change.
    verified: HashMap<[u8; 32], Credential>,
}

#[derive(Default)]
struct PublicKeys(Vec<Arc<PublicKey>>);

struct PublicKey {
    id: Option<String>,
    algorithm: Algorithm,
    key: DecodingKey,
}

#[derive(Deserialize)]
struct Claims {
    sub: String,
    exp: u64,
}

impl TokenIssuer {
    /// Starts to verify tokens. The keys of a URL are fetched by a task of the present runtime.
    pub(crate) fn new(config: &JwtConfig) -> TokenIssuer {
        let issuer = TokenIssuer {
            issuer: config.issuer.clone(),
            audience: config.audience.clone(),
            source: config.keys.clone(),
            state: Arc::default(),
            refetch: Arc::default(),
        };
        match &issuer.source {
            JwksSource::File(path) => {
                if let Err(error) = issuer.read_file(path) {
                    tracing::error!(%error, "jwt_jwks_path cannot be used: no token is accepted");
                }
            }
            JwksSource::Url(url) => {
                let (state, refetch) = (Arc::clone(&issuer.state), Arc::clone(&issuer.refetch));
                tokio::spawn(keep_fetched(url.clone(), state, refetch));
            }
        }
        issuer
    }

    /// Returns whether a bearer token has the form of a JSON Web Token.
    pub(crate) fn is_token(shown: &[u8]) -> bool {
        let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_".contains(byte);
        let parts = shown.split(|byte| *byte == b'.');
        shown.starts_with(b"eyJ")
            && parts.clone().count() == 3
            && parts.into_iter().flatten().all(is_part)
    }

    /// Verifies a token, or says what is wrong with it.
    pub(crate) fn verify(&self, token: &[u8], now_ms: u64) -> Result<Credential, String> {
        if token.len() > LONGEST_TOKEN {
            return Err("the token is too long".to_owned());
        }
        if let JwksSource::File(path) = &self.source
            && let Err(error) = self.read_file(path)
        {
            tracing::error!(%error, "jwt_jwks_path cannot be read: the keys known so far stay valid");
        }
        let hash = hash(token);
        let state = lock(&self.state);
        if let Some(Credential::Token { expires_ms, .. }) = state.verified.get(&hash)
            && *expires_ms > now_ms
            && let Some(known) = state.verified.get(&hash)
        {
            return Ok(known.clone());
        }
        let header = jsonwebtoken::decode_header(token)
            .map_err(|_| "the token has no valid header".to_owned())?;
        let generation = state.generation;
        let key = state.keys.find(header.kid.as_deref(), header.alg);
        // Signatures are checked beside each other: strangers must not make others wait.
        drop(state);
        let Some(key) = key else {
            self.refetch.notify_one();
            return Err(format!(
                "the token is signed with a key that is not among the keys of {}",
                self.issuer
            ));
        };
        let mut validation = Validation::new(key.algorithm);
        validation.set_issuer(&[&self.issuer]);
        validation.set_audience(&[&self.audience]);
        validation.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
        validation.leeway = LEEWAY_SECONDS;
        validation.validate_nbf = true;
        let claims = jsonwebtoken::decode::<Claims>(token, &key.key, &validation)
            .map_err(|error| format!("the token is not valid: {error}"))?
            .claims;
        let credential = Credential::Token {
            principal: self.principal(&claims.sub)?,
            expires_ms: claims
                .exp
                .saturating_add(LEEWAY_SECONDS)
                .saturating_mul(1000),
        };
        let mut state = lock(&self.state);
        // The key may be gone since.
        if state.generation != generation {
            return Ok(credential);
        }
        if state.verified.len() >= REMEMBERED {
            state.verified.clear();
        }
        state.verified.insert(hash, credential.clone());
        Ok(credential)
    }

    /// Returns the principal of a subject.
    fn principal(&self, subject: &str) -> Result<Principal, String> {
        let name = format!("jwt:{}/{}", escaped(&self.issuer), escaped(subject));
        match subject.is_empty() {
            true => Err("the token has no subject".to_owned()),
            false => Principal::parse(&name).map_err(|_| {
                "the subject of the token is too long or has control characters".to_owned()
            }),
        }
    }

    /// Parses a key set, for the fuzzer.
    #[cfg(test)]
    pub(crate) fn try_keys(text: &[u8]) {
        let _ = PublicKeys::parse(text);
    }

    /// Reads the file if it has changed.
    fn read_file(&self, path: &PathBuf) -> Result<(), String> {
        let now = Instant::now();
        let mut state = lock(&self.state);
        let known = match state.looked {
            Some((at, _)) if now.saturating_duration_since(at) < FILE_CHECK => return Ok(()),
            Some((_, changed)) => changed,
            None => None,
        };
        let show = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let metadata = std::fs::metadata(path).map_err(|error| show(&error))?;
        let changed = metadata.modified().ok();
        state.looked = Some((now, changed));
        if changed.is_some() && changed == known {
            return Ok(());
        }
        let text = std::fs::read(path).map_err(|error| show(&error))?;
        let keys = PublicKeys::parse(&text).map_err(|error| show(&error))?;
        state.set(keys);
        Ok(())
    }
}

impl IssuerState {
    fn set(&mut self, keys: PublicKeys) {
        self.keys = keys;
        self.generation += 1;
        // A key that is gone verifies nothing any more.
        self.verified.clear();
    }
}

impl PublicKeys {
    /// Parses a key set. Keys of other types, and keys for encryption, are left out.
    fn parse(text: &[u8]) -> Result<PublicKeys, String> {
        let set: JwkSet = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        let keys = set.keys.iter().filter_map(public_key).map(Arc::new);
        let keys: Vec<Arc<PublicKey>> = keys.collect();
        match keys.is_empty() {
            true => Err("there is no RSA, P-256 or Ed25519 key for signatures".to_owned()),
            false => Ok(PublicKeys(keys)),
        }
    }

    /// Returns the key of this id. A token without an id is verified only if one key fits.
    fn find(&self, id: Option<&str>, algorithm: Algorithm) -> Option<Arc<PublicKey>> {
        let mut fitting = self
            .0
            .iter()
            .filter(|key| key.algorithm == algorithm && (id.is_none() || key.id.as_deref() == id));
        match (fitting.next(), fitting.next()) {
            (Some(only), None) => Some(Arc::clone(only)),
            _ => None,
        }
    }
}

fn public_key(jwk: &Jwk) -> Option<PublicKey> {
    if jwk
        .common
        .public_key_use
        .as_ref()
        .is_some_and(|usage| *usage != PublicKeyUse::Signature)
    {
        return None;
    }
    let algorithm = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => Algorithm::RS256,
        AlgorithmParameters::EllipticCurve(curve) if is_curve(&curve.curve, "P-256") => {
            Algorithm::ES256
        }
        AlgorithmParameters::OctetKeyPair(pair) if is_curve(&pair.curve, "Ed25519") => {
            Algorithm::EdDSA
        }
        // A symmetric key in a public set would let everyone who reads it sign.
        _ => return None,
    };
    Some(PublicKey {
        id: jwk.common.key_id.clone(),
        algorithm,
        key: DecodingKey::from_jwk(jwk).ok()?,
    })
}

/// Returns whether a curve has this registered name.
fn is_curve(curve: &EllipticCurve, name: &str) -> bool {
    serde_json::to_value(curve).is_ok_and(|found| found == name)
}

/// Fetches the keys of a URL at start, at intervals, and when a token names an unknown one.
async fn keep_fetched(
    url: String,
    state: Arc<Mutex<IssuerState>>,
    refetch: Arc<tokio::sync::Notify>,
) {
    loop {
        let wait = match fetch(&url).await {
            Ok(keys) => {
                lock(&state).set(keys);
                REFRESH
            }
            Err(error) => {
                tracing::error!(%error, url, "jwt_jwks_url cannot be used: the keys known so far stay valid");
                REFETCH
            }
        };
        tokio::time::sleep(REFETCH).await;
        let _ = tokio::time::timeout(wait.saturating_sub(REFETCH), refetch.notified()).await;
    }
}

async fn fetch(url: &str) -> Result<PublicKeys, String> {
    let show = |error: reqwest::Error| error.to_string();
    let client = reqwest::Client::builder()
        .timeout(FETCH)
        .https_only(true)
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .map_err(show)?;
    let mut answer = client.get(url).send().await.map_err(show)?;
    if !answer.status().is_success() {
        return Err(format!("the server answers {}", answer.status()));
    }
    let mut text = Vec::new();
    while let Some(piece) = answer.chunk().await.map_err(show)? {
        text.extend_from_slice(&piece);
        if text.len() > LONGEST_ANSWER {
            return Err("the answer is too long".to_owned());
        }
    }
    PublicKeys::parse(&text)
}

fn hash(token: &[u8]) -> [u8; 32] {
    let digest = digest::digest(&digest::SHA256, token);
    let mut hash = [0; 32];
    hash.copy_from_slice(digest.as_ref());
    hash
}

fn lock(state: &Mutex<IssuerState>) -> MutexGuard<'_, IssuerState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
    use jsonwebtoken::{EncodingKey, Header};
    use serde_json::{Value, json};

    use super::*;

    const ISSUER: &str = "https://issuer.example";

    struct Provider {
        pair: EncodingKey,
        jwks: Value,
        _dir: tempfile::TempDir,
        issuer: TokenIssuer,
    }

    fn base64(bytes: &[u8]) -> String {
        const LETTERS: &[u8; 64] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        let mut text = String::new();
        for piece in bytes.chunks(3) {
            let word = piece
                .iter()
                .fold(0u32, |word, byte| word << 8 | u32::from(*byte));
            let word = word << (8 * (3 - piece.len()));
            for at in 0..=piece.len() {
                let letter = LETTERS[(word >> (18 - 6 * at) & 63) as usize];
                text.push(char::from(letter));
            }
        }
        text
    }

    fn provider() -> Provider {
        let document =
            Ed25519KeyPair::generate_pkcs8(&aws_lc_rs::rand::SystemRandom::new()).unwrap();
        let pair = Ed25519KeyPair::from_pkcs8(document.as_ref()).unwrap();
        let jwks = json!({ "keys": [{
            "kty": "OKP", "crv": "Ed25519", "kid": "one", "use": "sig",
            "x": base64(pair.public_key().as_ref()),
        }]});
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("jwks.json");
        std::fs::write(&path, jwks.to_string()).unwrap();
        let issuer = TokenIssuer::new(&JwtConfig {
            issuer: ISSUER.to_owned(),
            audience: "tenure".to_owned(),
            keys: JwksSource::File(path),
        });
        Provider {
            pair: EncodingKey::from_ed_der(document.as_ref()),
            jwks,
            _dir: dir,
            issuer,
        }
    }

    fn now() -> u64 {
        super::super::now_ms()
    }

    fn claims() -> Value {
        let exp = now() / 1000 + 600;
        json!({ "iss": ISSUER, "aud": "tenure", "sub": "ci@corp", "exp": exp })
    }

    fn header(kid: &str) -> Header {
        Header {
            kid: Some(kid.to_owned()),
            ..Header::new(Algorithm::EdDSA)
        }
    }

    fn sign(provider: &Provider, header: &Header, claims: &Value) -> String {
        jsonwebtoken::encode(header, claims, &provider.pair).unwrap()
    }

    #[test]
    fn a_valid_token_names_its_issuer_and_subject() {
        let provider = provider();
        let token = sign(&provider, &header("one"), &claims());
        assert!(TokenIssuer::is_token(token.as_bytes()));
        for _ in 0..2 {
            let found = provider.issuer.verify(token.as_bytes(), now()).unwrap();
            let Credential::Token { principal, .. } = found else {
                panic!("{found:?}");
            };
            assert_eq!(principal.as_str(), "jwt:https://issuer.example/ci%40corp");
        }
    }

    #[test]
    fn every_claim_is_required_and_checked() {
        let provider = provider();
        let changed = |name: &str, value: Value| {
            let mut claims = claims();
            match value {
                Value::Null => drop(claims.as_object_mut().unwrap().remove(name)),
                value => claims[name] = value,
            }
            claims
        };
        let past = now() / 1000 - 60;
        for claims in [
            changed("iss", json!("https://other.example")),
            changed("iss", Value::Null),
            changed("aud", json!("another service")),
            changed("aud", Value::Null),
            changed("exp", json!(past)),
            changed("exp", Value::Null),
            changed("nbf", json!(now() / 1000 + 300)),
            changed("sub", Value::Null),
            changed("sub", json!("")),
            changed("sub", json!("a\nb")),
            changed("sub", json!("x".repeat(300))),
        ] {
            let token = sign(&provider, &header("one"), &claims);
            let verified = provider.issuer.verify(token.as_bytes(), now());
            assert!(verified.is_err(), "{claims}");
        }
    }

    /// The public key must not be taken for a symmetric one, `none` must not be taken at all, and
    /// another key must not verify.
    #[test]
    fn a_token_does_not_choose_how_it_is_verified() {
        let provider = provider();
        let secret = provider.jwks["keys"][0]["x"].as_str().unwrap();
        let symmetric = Header {
            kid: Some("one".to_owned()),
            ..Header::new(Algorithm::HS256)
        };
        let secret = EncodingKey::from_secret(secret.as_bytes());
        let confused = jsonwebtoken::encode(&symmetric, &claims(), &secret).unwrap();
        let none = format!(
            "{}.{}.",
            base64(br#"{"alg":"none","kid":"one"}"#),
            base64(claims().to_string().as_bytes())
        );
        let mut forged = sign(&provider, &header("one"), &claims()).into_bytes();
        let end = forged.len() - 10;
        forged[end] = if forged[end] == b'A' { b'B' } else { b'A' };
        let other = super::tests::provider();
        let foreign = sign(&other, &header("one"), &claims());
        let unknown = sign(&provider, &header("two"), &claims());
        for token in [
            confused.as_bytes(),
            none.as_bytes(),
            &forged,
            foreign.as_bytes(),
            unknown.as_bytes(),
        ] {
            assert!(provider.issuer.verify(token, now()).is_err());
        }
    }

    #[test]
    fn a_remembered_token_still_expires() {
        let provider = provider();
        let token = sign(&provider, &header("one"), &claims());
        assert!(provider.issuer.verify(token.as_bytes(), now()).is_ok());
        let state = lock(&provider.issuer.state);
        let Some(Credential::Token { expires_ms, .. }) = state.verified.values().next() else {
            panic!("not remembered");
        };
        let end = *expires_ms;
        drop(state);
        assert!(end > now() && end < now() + 700_000);
        lock(&provider.issuer.state).keys = PublicKeys::default();
        assert!(provider.issuer.verify(token.as_bytes(), end - 1).is_ok());
        assert!(provider.issuer.verify(token.as_bytes(), end).is_err());
    }

    #[test]
    fn symmetric_keys_and_keys_for_encryption_are_left_out() {
        for jwk in [
            json!({ "kty": "oct", "k": "c2VjcmV0", "alg": "HS256" }),
            json!({ "kty": "OKP", "crv": "Ed25519", "use": "enc", "x": "AA" }),
        ] {
            let set = json!({ "keys": [jwk] }).to_string();
            assert!(PublicKeys::parse(set.as_bytes()).is_err(), "{set}");
        }
        for text in ["", "{}", "[]", "{\"keys\": 7}"] {
            assert!(PublicKeys::parse(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn a_key_verifies_the_algorithm_of_its_type_only() {
        let all = [Algorithm::EdDSA, Algorithm::ES256, Algorithm::RS256];
        for (name, own) in ["ed25519", "p256", "rsa"].into_iter().zip(all) {
            let path = concat!(env!("CARGO_MANIFEST_DIR"), "/seeds/jwks/");
            let text = std::fs::read(format!("{path}{name}")).unwrap();
            let keys = PublicKeys::parse(&text).unwrap();
            assert_eq!(keys.0.len(), 1, "{name}");
            for other in all.into_iter().chain([Algorithm::HS256, Algorithm::PS256]) {
                let found = keys.find(None, other).is_some();
                assert_eq!(found, other == own, "{name} {other:?}");
            }
        }
    }

    #[test]
    fn only_three_parts_of_base64_are_a_token() {
        for no in [
            "",
            "eyJ",
            "eyJ.a",
            "eyJ.a.b.c",
            "eyJ.a.b c",
            "xyz.a.b",
            "tnr_a.b.c",
        ] {
            assert!(!TokenIssuer::is_token(no.as_bytes()), "{no}");
        }
        assert!(TokenIssuer::is_token(b"eyJh.b-_9.c"));
    }
}
