//! The record of an upload lock: the holder's pid on the first line, and below it one line of
//! Tenure's own, which the original does not read.
//!
//! The original decides by the first line whether the file is a lock, so the parser follows the
//! original (U6 (accepted first lines)): a text that the original parses as a number is a lock,
//! everything else is junk. This module opens no files and checks no processes.

use serde_json::{Map, Value};

use super::file::Fencing;
use crate::identity::Identity;
use crate::process::PID_MAX;
use crate::record_layout::{self, FenceRoom, RecordLayout};

/// Maximum size of a record (U7 (upload record size limit)).
pub(crate) const LIMIT: usize = 4096;
/// Junk above this size may be user data and stays (U13.4 order of upload tests).
pub(crate) const JUNK_LIMIT: usize = 64;
/// Prefix of Tenure's line in a lock and in a request.
const MARK: &str = "tenure ";

/// The content of a lock file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UploadRecord {
    pub(crate) first: FirstLine,
    /// The `tenure` block, if a line has one that parses.
    pub(crate) tenure: Option<Identity>,
}

/// The first line, classified by U6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FirstLine {
    /// A process id in plain decimal.
    Pid(u32),
    /// A number in a notation that the original accepts, but that Tenure does not use as a pid.
    OtherSpelling,
    /// A number that is not a possible pid (K15 (records without a block)).
    NoPid,
    /// Not a number for the original.
    Junk,
}

impl UploadRecord {
    /// Parses the whole file, which is at most [`LIMIT`] bytes long.
    pub(crate) fn parse(bytes: &[u8]) -> UploadRecord {
        let mut lines = bytes.split(|byte| *byte == b'\n');
        let first = FirstLine::parse(lines.next().unwrap_or_default());
        UploadRecord {
            first,
            tenure: lines.find_map(block).as_ref().map(Identity::from_json),
        }
    }
}

/// Returns the object of a `tenure` line. A line that does not parse is ignored (U5 (the `tenure`
/// line)).
pub(crate) fn block(line: &[u8]) -> Option<Map<String, Value>> {
    serde_json::from_slice(line.strip_prefix(MARK.as_bytes())?).ok()
}

/// Returns the record of a new holder (U4 (pid on the first line), U5).
pub(crate) fn encode(own: &Identity, fence: Fencing, purpose: Option<&str>) -> Vec<u8> {
    let room = match fence {
        Fencing::Taken => FenceRoom::ForFence,
        Fencing::None => FenceRoom::None,
    };
    let mut block = record_layout::identity(own, room, RecordLayout::Compact);
    if let Some(purpose) = purpose {
        // Insert the member before the closing brace.
        block.truncate(block.len() - 1);
        block.push_str(&format!(",\"request\":{}}}", Value::from(purpose)));
    }
    let pid = own.pid.expect("a holder knows its pid");
    format!("{pid}\n{MARK}{block}\n").into_bytes()
}

/// Returns `block` as a line.
pub(crate) fn line(block: &Map<String, Value>) -> String {
    format!("{MARK}{}\n", Value::Object(block.clone()))
}

impl FirstLine {
    fn parse(line: &[u8]) -> FirstLine {
        let Ok(line) = str::from_utf8(line) else {
            return FirstLine::Junk;
        };
        let line = line.strip_suffix('\r').unwrap_or(line);
        let word = line.trim_matches([' ', '\t']);
        match plain_decimal(word) {
            Some(pid) if pid > i64::from(PID_MAX) => FirstLine::NoPid,
            Some(pid) => FirstLine::Pid(u32::try_from(pid).expect("checked against PID_MAX")),
            // White space that only the original skips (form feeds, for example) makes it another
            // notation.
            None if accepted_by_original(line.trim()) => FirstLine::OtherSpelling,
            None => FirstLine::Junk,
        }
    }
}

/// Parses a number from 1 to 2⁶³−1 without sign, prefix or leading zero.
fn plain_decimal(word: &str) -> Option<i64> {
    let plain = word.bytes().all(|byte| byte.is_ascii_digit()) && !word.starts_with('0');
    plain.then(|| word.parse::<i64>().ok()).flatten()
}

/// Whether the original accepts the number: optional `+`, prefix `0x`/`0o`/`0b`/`0`, `_` between
/// digits, value at least 1 and within 64 bits.
fn accepted_by_original(word: &str) -> bool {
    let unsigned = word.strip_prefix('+').unwrap_or(word);
    let (radix, digits) = match unsigned.get(..2).map(str::to_ascii_lowercase).as_deref() {
        Some("0x") => (16, &unsigned[2..]),
        Some("0o") => (8, &unsigned[2..]),
        Some("0b") => (2, &unsigned[2..]),
        _ => (10, unsigned),
    };
    let digits = if radix == 10 {
        digits
    } else {
        digits.strip_prefix('_').unwrap_or(digits)
    };
    let well_formed = !digits.split('_').any(str::is_empty);
    let digits = digits.replace('_', "");
    well_formed
        && digits.chars().all(|digit| digit.is_digit(radix))
        && i64::from_str_radix(&digits, radix).is_ok_and(|value| value >= 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// U6: every notation is classified as by the original, and doubt means held.
    #[test]
    fn first_lines_are_sorted_as_the_original_does() {
        use FirstLine::{Junk, NoPid, OtherSpelling, Pid};
        for (line, expected) in [
            ("40217", Pid(40217)),
            ("1", Pid(1)),
            ("4194304", Pid(4_194_304)),
            ("  40217\t", Pid(40217)),
            ("40217\r", Pid(40217)),
            ("40217 \r", Pid(40217)),
            ("4194305", NoPid),
            ("4294967297", NoPid),
            ("9223372036854775807", NoPid),
            ("9223372036854775808", Junk),
            ("99999999999999999999", Junk),
            ("+40217", OtherSpelling),
            ("0x9d19", OtherSpelling),
            ("0X9D19", OtherSpelling),
            ("0x_9d19", OtherSpelling),
            ("0o17", OtherSpelling),
            ("0b101", OtherSpelling),
            ("1_0", OtherSpelling),
            ("007", OtherSpelling),
            ("\u{c}40217", OtherSpelling),
            ("+4294967297", OtherSpelling),
            ("", Junk),
            ("0", Junk),
            ("00", Junk),
            ("0x0", Junk),
            ("0x", Junk),
            ("+", Junk),
            ("++5", Junk),
            ("-5", Junk),
            ("1__0", Junk),
            ("1_", Junk),
            ("_1", Junk),
            ("0b2", Junk),
            ("40217.5", Junk),
            ("40217 atlas-3", Junk),
            ("40217\0", Junk),
            ("locked", Junk),
            ("{\"pid\":40217}", Junk),
            ("٣", Junk),
        ] {
            assert_eq!(FirstLine::parse(line.as_bytes()), expected, "{line:?}");
        }
        assert_eq!(FirstLine::parse(b"\xff\xfe"), Junk);
    }

    /// U5: the block may be on any later line; a line that does not parse is ignored.
    #[test]
    fn tenure_lines_are_found_and_broken_ones_ignored() {
        let found = |text: &str| UploadRecord::parse(text.as_bytes()).tenure.is_some();
        assert!(found("40217\ntenure {\"v\":1}\n"));
        assert!(found("40217\nhost=atlas-3\ntenure {\"v\":1}"));
        assert!(found("40217\ntenure {\"v\":\ntenure {\"v\":1}\n"));
        assert!(!found("40217\n"));
        assert!(!found("40217\ntenure {\"v\":1,\"pid\":\n"));
        assert!(!found("40217\ntenure [1]\n"));
        assert!(!found("40217\n tenure {\"v\":1}\n"));
        assert!(!found("tenure {\"v\":1}\n"), "the first line is the pid's");
    }

    /// Arbitrary bytes cause no panic, and a pid is never invented.
    #[test]
    fn arbitrary_bytes_are_sorted_without_panic() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        for _ in 0..20_000 {
            let bytes: Vec<u8> = (0..state % 24)
                .map(|_| {
                    state = state
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1);
                    b"0123456789+-_xXoObB \t\r\n.\0t\xff{"[(state >> 33) as usize % 28]
                })
                .collect();
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            if let FirstLine::Pid(pid) = UploadRecord::parse(&bytes).first {
                let text = String::from_utf8_lossy(&bytes);
                let line = text.split('\n').next().unwrap_or_default();
                assert_eq!(line.trim(), pid.to_string(), "{text:?}");
            }
        }
    }
}
