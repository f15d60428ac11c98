//! Strict RFC 3339 parser for `started_at` (X4 (start time format)).
//!
//! General date parsers accept more: a blank or a lower-case `t` between date and time, leap
//! seconds, zone names. If one side accepts a record that the other refuses, only one of them
//! respects the lock. So this module checks the shape byte by byte and leaves only the calendar to
//! the library.

use jiff::Timestamp;

/// Parses `YYYY-MM-DDTHH:MM:SS[.digits](Z|±HH:MM)`, upper-case letters only, and drops the
/// fraction. `None` for any other text.
pub(super) fn parse(text: &str) -> Option<Timestamp> {
    let (date_time, rest) = text.split_at_checked(19)?;
    let zone = after_fraction(rest)?;
    let zone_is_valid = zone == "Z"
        || (has_shape(zone, "±00:00") && in_range(&zone[1..3], 23) && in_range(&zone[4..], 59));
    let is_valid = has_shape(date_time, "0000-00-00T00:00:00")
        && in_range(&date_time[11..13], 23)
        && in_range(&date_time[17..], 59)
        && zone_is_valid;
    is_valid
        .then(|| format!("{date_time}{zone}").parse().ok())
        .flatten()
}

/// Whether this is the zero time, which means "not set" in records (X2 (exclusive record fields)).
pub(super) fn is_zero(time: Timestamp) -> bool {
    const ZERO: i64 = -62_135_596_800; // 0001-01-01T00:00:00Z
    time.as_second() == ZERO
}

/// Returns the text after the optional fraction.
fn after_fraction(text: &str) -> Option<&str> {
    let Some(fraction) = text.strip_prefix('.') else {
        return Some(text);
    };
    let zone = fraction.trim_start_matches(|c: char| c.is_ascii_digit());
    (zone.len() < fraction.len()).then_some(zone)
}

/// Whether `text` matches `shape`: `0` matches a digit, `±` a sign, every other character itself.
fn has_shape(text: &str, shape: &str) -> bool {
    text.chars().count() == shape.chars().count()
        && text
            .chars()
            .zip(shape.chars())
            .all(|(c, expected)| match expected {
                '0' => c.is_ascii_digit(),
                '±' => c == '+' || c == '-',
                _ => c == expected,
            })
}

fn in_range(digits: &str, max: u8) -> bool {
    digits.parse::<u8>().is_ok_and(|number| number <= max)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// X4: zone and fraction are accepted, and so are future times.
    #[test]
    fn valid_stamps_give_their_instant() {
        for (text, instant) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2026-03-07T09:00:00Z", 1_772_874_000),
            ("2026-03-07T09:00:00.482913Z", 1_772_874_000),
            ("2026-03-07T09:00:00.48291312345678901Z", 1_772_874_000),
            ("2026-03-07T14:30:00.25+05:30", 1_772_874_000),
            ("2026-03-06T23:00:00-10:00", 1_772_874_000),
            ("2026-03-08T08:59:00+23:59", 1_772_874_000),
            ("2999-01-01T00:00:00Z", 32_472_144_000),
            ("2024-02-29T12:00:00Z", 1_709_208_000),
        ] {
            assert_eq!(
                parse(text).map(Timestamp::as_second),
                Some(instant),
                "{text}"
            );
        }
    }

    /// X2: the zero time is recognised in every zone.
    #[test]
    fn the_zero_time_is_not_set() {
        for text in ["0001-01-01T00:00:00Z", "0001-01-01T05:30:00+05:30"] {
            assert!(is_zero(parse(text).unwrap()), "{text}");
        }
        assert!(!is_zero(parse("0001-01-01T00:00:01Z").unwrap()));
    }

    /// X4: every other form is refused.
    #[test]
    fn everything_else_is_refused() {
        for text in [
            "",
            "yesterday",
            "2026-03-07",
            "2026-03-07 09:00:00",
            "2026-03-07 09:00:00Z",
            "2026-03-07t09:00:00Z",
            "2026-03-07T09:00:00z",
            "2026-03-07T09:00:00",
            "2026-03-07T09:00Z",
            "2026-03-07T09:00:00.Z",
            "2026-03-07T09:00:00,5Z",
            "2026-03-07T09:00:60Z",
            "2026-03-07T09:60:00Z",
            "2026-03-07T24:00:00Z",
            "2026-02-29T09:00:00Z",
            "2026-13-07T09:00:00Z",
            "2026-00-07T09:00:00Z",
            "2026-03-00T09:00:00Z",
            "2026-3-7T09:00:00Z",
            "+026-03-07T09:00:00Z",
            "2026-03-07T09:00:00+5:30",
            "2026-03-07T09:00:00+0530",
            "2026-03-07T09:00:00+24:00",
            "2026-03-07T09:00:00+05:60",
            "2026-03-07T09:00:00Z ",
            " 2026-03-07T09:00:00Z",
            "2026-03-07T09:00:00ZZ",
            "2026-03-07T09:00:00Z[UTC]",
            "２０２６-03-07T09:00:00Z",
        ] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }
}
