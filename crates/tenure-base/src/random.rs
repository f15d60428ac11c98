//! Random tokens and delays.

use std::fmt;
use std::time::Duration;

const TOKEN_DIGITS: usize = 32;

/// Unique number of an acquisition: 16 random bytes, written as 32 lower-case hex digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token([u8; 16]);

impl Token {
    /// Creates a token from the kernel's random number generator.
    ///
    /// # Panics
    ///
    /// If the kernel provides no random numbers.
    pub fn random() -> Token {
        Token(random_bytes())
    }

    /// Parses 32 lower-case hex digits; `None` for any other text.
    pub fn parse(text: &str) -> Option<Token> {
        let digits = text.as_bytes();
        if digits.len() != TOKEN_DIGITS
            || !digits
                .iter()
                .all(|d| matches!(d, b'0'..=b'9' | b'a'..=b'f'))
        {
            return None;
        }
        u128::from_str_radix(text, 16)
            .ok()
            .map(|number| Token(number.to_be_bytes()))
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> [u8; 16] {
        self.0
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({self})")
    }
}

/// Returns random bytes of the operating system.
///
/// # Panics
///
/// If the operating system gives none: a lock without a unique token must not exist.
pub fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the operating system gives random numbers");
    bytes
}

/// Returns an interval with ±10 % jitter, so that waiters do not act in step: K43 (poll jitter and
/// deadlines).
pub fn jittered(interval: Duration) -> Duration {
    (interval - interval / 10).saturating_add((interval / 5).mul_f64(random_fraction()))
}

/// Returns a random number in [0, 1).
pub fn random_fraction() -> f64 {
    let bits = u32::from_ne_bytes(random_bytes());
    f64::from(bits) / (f64::from(u32::MAX) + 1.0)
}
