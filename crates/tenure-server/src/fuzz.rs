//! Mutation fuzzing of everything that a stranger or an operator hands to the daemon as bytes: keys,
//! tokens, key sets, names of certificates, configuration files.
//!
//! The seeds are in `seeds/TARGET/`; a finding becomes a seed. A test runs some thousand mutations of
//! each; `TENURE_FUZZ_SECONDS` sets a time instead (`cargo xtask slow fuzz`).

use std::path::Path;
use std::time::{Duration, Instant};

use rustls::pki_types::CertificateDer;
use tenure_random::SplitMix64;

use crate::auth::{ApiKey, TokenIssuer};
use crate::config::{Config, JwksSource, JwtConfig, MachineDefaults, RawSettings, Writable};
use crate::transport::tls::ClientCertificate;

/// Mutations of a run without a time.
const MUTATIONS: usize = 5_000;

/// Returns the seeds of a target, in the order of their names.
fn seeds(target: &str) -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("seeds")
        .join(target);
    let mut files: Vec<_> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    let seeds: Vec<_> = files
        .iter()
        .map(|file| std::fs::read(file).unwrap())
        .collect();
    assert!(!seeds.is_empty(), "{target} has no seeds");
    seeds
}

/// Changes some bytes: flips, inserts, removes, repeats, or joins parts of two seeds.
fn mutate(random: &mut SplitMix64, seeds: &[Vec<u8>]) -> Vec<u8> {
    const ODD: &[u8] = b"\0\x01\x7f\x80\xff\"'\\{}[]=.,_-:;@%#\n eyJtnr09AZ";
    let mut bytes = seeds[random.index(seeds.len())].clone();
    for _ in 0..=random.below(6) {
        let at = random.index(bytes.len() + 1);
        match random.below(6) {
            0 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            1 => bytes.insert(at, random.pick(ODD)),
            2 => {
                let end = at + random.index(bytes.len() - at + 1);
                bytes.drain(at..end);
            }
            3 => {
                let end = at + random.index((bytes.len() - at).min(64) + 1);
                let part = bytes[at..end].to_vec();
                for _ in 0..=random.below(20) {
                    bytes.splice(at..at, part.iter().copied());
                }
            }
            4 => {
                let other = &seeds[random.index(seeds.len())];
                let from = random.index(other.len() + 1);
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..]);
            }
            _ if at < bytes.len() => bytes[at] = random.pick(ODD),
            _ => {}
        }
        bytes.truncate(1 << 16);
    }
    bytes
}

/// Prints the input of a check that panics.
struct ShownOnPanic<'a>(&'a str, &'a [u8]);

impl Drop for ShownOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}: {}", self.0, self.1.escape_ascii());
        }
    }
}

/// Runs a target on its seeds and on mutations of them.
fn run(target: &str, mut check: impl FnMut(&[u8])) {
    let seeds = seeds(target);
    for seed in &seeds {
        check(seed);
    }
    let seconds = std::env::var("TENURE_FUZZ_SECONDS").ok();
    let seconds: Option<u64> = seconds.and_then(|text| text.parse().ok());
    // A timed run starts elsewhere each time, and says where.
    let start = match seconds {
        Some(_) => u64::from(std::process::id()) << 32,
        None => 1,
    };
    let (begun, mut number) = (Instant::now(), 0);
    let goes_on = |number: usize| match seconds {
        Some(seconds) => begun.elapsed() < Duration::from_secs(seconds),
        None => number < MUTATIONS,
    };
    while goes_on(number) {
        let mut random = SplitMix64::new(start + number as u64);
        let bytes = mutate(&mut random, &seeds);
        let _shown = ShownOnPanic(target, &bytes);
        check(&bytes);
        number += 1;
    }
}

/// A text is a key only in one form, and a changed key is none: the checksum and the hash see to it.
#[test]
fn keys() {
    let real = ApiKey::generate().unwrap();
    let mut real_seeds = vec![real.reveal().as_bytes().to_vec()];
    run("key", |bytes| {
        let Ok(text) = std::str::from_utf8(bytes) else {
            return;
        };
        if let Some(key) = ApiKey::parse(text) {
            assert_eq!(key.reveal(), text, "a key has one form");
        }
    });
    real_seeds.extend(seeds("key"));
    for number in 0..MUTATIONS as u64 {
        let bytes = mutate(&mut SplitMix64::new(number), &real_seeds);
        let parsed = std::str::from_utf8(&bytes).ok().and_then(ApiKey::parse);
        let is_same = bytes == real.reveal().as_bytes();
        let proves = parsed.is_some_and(|key| key.hash() == real.hash());
        assert_eq!(proves, is_same, "{}", bytes.escape_ascii());
    }
}

/// No token that the provider did not sign is accepted.
#[test]
fn tokens() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds/jwks/ed25519");
    let issuer = TokenIssuer::new(&JwtConfig {
        issuer: "https://id.example".to_owned(),
        audience: "tenure".to_owned(),
        keys: JwksSource::File(path),
    });
    run("token", |bytes| {
        let _ = TokenIssuer::is_token(bytes);
        assert!(issuer.verify(bytes, 0).is_err(), "{}", bytes.escape_ascii());
    });
}

/// A set of keys is read or refused.
#[test]
fn key_sets() {
    run("jwks", TokenIssuer::try_keys);
}

/// The name of a certificate is a principal's, whatever its bytes are.
#[test]
fn names_of_certificates() {
    run("certificate", |bytes| {
        let certificate = ClientCertificate(CertificateDer::from(bytes.to_vec()));
        if let Some(principal) = certificate.principal() {
            assert!(principal.as_str().starts_with("cert:"), "{principal}");
            assert!(!principal.as_str().contains('@'), "{principal}");
        }
    });
}

/// A configuration file is read, or its mistakes are listed, without the secrets in it.
#[test]
fn configuration_files() {
    run("config", |bytes| {
        let Ok(text) = std::str::from_utf8(bytes) else {
            return;
        };
        if let Ok(raw) = RawSettings::new(Some(text), []) {
            let machine = MachineDefaults {
                system_directory: Writable::Yes,
                user_state: None,
            };
            let _ = Config::from_settings(raw, &machine);
        }
    });
}
