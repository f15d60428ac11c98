//! Text for people.

use std::fmt;
use std::time::Duration;

/// Formats a duration for people: `850 ms`, `12 s`, `3 min`, `5 h`, `90 days`.
#[derive(Clone, Copy, Debug)]
pub struct HumanDuration(pub Duration);

impl fmt::Display for HumanDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        match seconds {
            0 => write!(f, "{} ms", self.0.as_millis()),
            1..120 => write!(f, "{seconds} s"),
            120..7200 => write!(f, "{} min", seconds / 60),
            7200..172_800 => write!(f, "{} h", seconds / 3600),
            _ => write!(f, "{} days", seconds / 86_400),
        }
    }
}

/// Escapes control characters and bidirectional overrides in foreign text, so that it can be
/// printed on a terminal.
pub fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}') {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// Returns the name of this host.
#[cfg(unix)]
pub fn host_name() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}

/// Returns the name of this host, or nothing if the environment does not have it.
#[cfg(not(unix))]
pub fn host_name() -> String {
    std::env::var("COMPUTERNAME").unwrap_or_default()
}
