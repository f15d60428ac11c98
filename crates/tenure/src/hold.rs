//! Serialized holds that outlive their process: C13 (holds for scripts).
//!
//! The text form contains the address, the secret that proves ownership, mode, ttl and fence. The
//! client stores nothing else.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::address::Address;
use crate::error::Error;
use crate::values::{Fence, Mode};

/// A hold that outlives its process: the output of `tenure lock` and the input of `renew` and
/// `unlock`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    pub(crate) place: Address,
    /// The token in a lock file, the ticket of a repository, the owner on the daemon.
    pub(crate) secret: String,
    pub(crate) mode: Mode,
    pub(crate) ttl: Option<Duration>,
    pub(crate) fence: Option<Fence>,
}

impl Hold {
    /// Returns the address of the lock.
    pub fn place(&self) -> &Address {
        &self.place
    }

    /// Returns the mode of the hold.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns the lease time, if there is a lease.
    pub fn ttl(&self) -> Option<Duration> {
        self.ttl
    }

    /// Returns the fence, if there is one.
    pub fn fence(&self) -> Option<Fence> {
        self.fence
    }
}

/// Format: `tenure-hold:<secret>,<mode>,<ttl>,<fence>,<address>`. All other bytes are
/// percent-encoded, so that a shell sees one word.
const PREFIX: &str = "tenure-hold:";

impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ttl = self.ttl.map_or(0, crate::values::whole_millis);
        let fence = self.fence.map_or(0, Fence::get);
        let mode = match self.mode {
            Mode::Permit(of) => format!("permit-{of}"),
            other => other.name().to_owned(),
        };
        let place = escape(&self.place.to_string());
        write!(
            f,
            "{PREFIX}{},{mode},{ttl},{fence},{place}",
            escape(&self.secret)
        )
    }
}

impl FromStr for Hold {
    type Err = Error;

    fn from_str(text: &str) -> Result<Hold, Error> {
        parse(text)
            .ok_or_else(|| Error::input(text, "is not a hold: pass on what `tenure lock` printed"))
    }
}

fn parse(text: &str) -> Option<Hold> {
    let mut parts = text.trim().strip_prefix(PREFIX)?.splitn(5, ',');
    let mut next = || parts.next();
    let secret = unescape(next()?)?;
    let mode = match next()? {
        "exclusive" => Mode::Exclusive,
        "shared" => Mode::Shared,
        "shared-tree" => Mode::SharedTree,
        permit => Mode::Permit(permit.strip_prefix("permit-")?.parse().ok()?),
    };
    let ttl = match next()?.parse().ok()? {
        0 => None,
        millis => Some(Duration::from_millis(millis)),
    };
    let fence = Fence::new(next()?.parse().ok()?);
    let place = unescape(next()?)?.parse().ok()?;
    Some(Hold {
        place,
        secret,
        mode,
        ttl,
        fence,
    })
}

fn escape(text: &str) -> String {
    use std::fmt::Write;
    let mut word = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => word.push(char::from(byte)),
            b'.' | b'-' | b'_' | b'/' | b':' | b'@' | b'#' => word.push(char::from(byte)),
            // Writing to a `String` cannot fail.
            other => drop(write!(word, "%{other:02x}")),
        }
    }
    word
}

fn unescape(word: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        rest = tail;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let (digits, tail) = rest.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
        rest = tail;
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// C13: the text is a single word and carries all fields.
    #[test]
    fn a_hold_is_one_word_and_comes_back_whole() {
        let hold = Hold {
            place: "sidecar:/srv/a file, with 100 %".parse().unwrap(),
            secret: "o w,n".into(),
            mode: Mode::Permit(3.try_into().unwrap()),
            ttl: Some(Duration::from_millis(1500)),
            fence: Fence::new(9),
        };
        let word = hold.to_string();
        assert!(!word.contains(char::is_whitespace), "{word}");
        assert_eq!(word.parse::<Hold>().unwrap(), hold);
        for bad in [
            "",
            "tenure-hold:",
            "tenure-hold:a,exclusive,0,0",
            "tenure-hold:%zz,shared,0,0,x",
        ] {
            assert!(
                matches!(
                    bad.parse::<Hold>().unwrap_err(),
                    Error::Input(_) | Error::Unsupported(_)
                ),
                "{bad}"
            );
        }
    }
}
