//! Clock readings and the time stamp format of records.
//!
//! Leases and observations use [`BootTime`] (`CLOCK_BOOTTIME`, K35 (lease time)): it never jumps
//! and advances while the machine is suspended. Wall time is used only in records, because
//! originals judge by it. Both are passed in as a [`Now`]; this module reads no clock.

use std::ops::Add;
use std::time::Duration;

use jiff::civil::Date;
use jiff::tz::Offset;
use jiff::{SignedDuration, Timestamp};

/// A reading of `CLOCK_BOOTTIME`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct BootTime(pub Duration);

impl BootTime {
    /// Later than any reading: wait until another event.
    pub const NEVER: BootTime = BootTime(Duration::MAX);

    /// Returns the time from `earlier` to this reading, or zero if `earlier` is later.
    pub fn since(self, earlier: BootTime) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for BootTime {
    type Output = BootTime;

    fn add(self, span: Duration) -> BootTime {
        BootTime(self.0.saturating_add(span))
    }
}

/// A reading of both clocks at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Now {
    /// `CLOCK_BOOTTIME`, for leases.
    pub boot: BootTime,
    /// The wall clock, for the dates in records.
    pub wall: Timestamp,
}

/// Formats a time as Tenure writes it: nine fractional digits and `Z`, so that the length is
/// constant (P31 (refresh the lease)).
pub fn stamp(time: Timestamp) -> String {
    format!("{time:.9}")
}

/// Parses a time stamp (P8 (time stamp format)): RFC 3339 with upper-case `T` and `Z`, and a
/// fraction after `.` or `,`. Digits after the ninth are ignored.
pub fn parse_stamp(text: &str) -> Option<Timestamp> {
    let bytes = text.as_bytes();
    let (head, tail) = bytes.split_at_checked(19)?;
    let separators = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')];
    if separators.iter().any(|&(at, want)| head[at] != want) {
        return None;
    }
    let (nanos, zone) = fraction(tail)?;
    let day = date_of(
        digits(&head[0..4])?,
        digits(&head[5..7])?,
        digits(&head[8..10])?,
    )?;
    let (hour, minute) = (digits(&head[11..13])?, digits(&head[14..16])?);
    let second = digits(&head[17..19])?;
    if hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let civil = day.at(
        i8::try_from(hour).ok()?,
        i8::try_from(minute).ok()?,
        i8::try_from(second).ok()?,
        nanos,
    );
    offset(zone)?.to_timestamp(civil).ok()
}

fn date_of(year: u32, month: u32, day: u32) -> Option<Date> {
    let month = i8::try_from(month).ok()?;
    let day = i8::try_from(day).ok()?;
    Date::new(i16::try_from(year).ok()?, month, day).ok()
}

/// Splits `.123Z` into nanoseconds and the time zone.
fn fraction(tail: &[u8]) -> Option<(i32, &[u8])> {
    if !matches!(tail.first(), Some(b'.' | b',')) {
        return Some((0, tail));
    }
    let length = tail[1..]
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .count();
    if length == 0 {
        return None;
    }
    let kept = &tail[1..=length.min(9)];
    let value = i32::try_from(digits(kept)?).ok()?;
    let scale = 10_i32.pow(9 - u32::try_from(kept.len()).ok()?);
    Some((value * scale, &tail[1 + length..]))
}

fn offset(zone: &[u8]) -> Option<Offset> {
    let sign = match zone.first()? {
        b'Z' if zone.len() == 1 => return Some(Offset::UTC),
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    if zone.len() != 6 || zone[3] != b':' {
        return None;
    }
    let (hours, minutes) = (digits(&zone[1..3])?, digits(&zone[4..6])?);
    if hours > 23 || minutes > 59 {
        return None;
    }
    let seconds = i32::try_from(hours * 3600 + minutes * 60).ok()?;
    Offset::from_seconds(sign * seconds).ok()
}

fn digits(bytes: &[u8]) -> Option<u32> {
    bytes.iter().try_fold(0_u32, |value, byte| match byte {
        b'0'..=b'9' => value.checked_mul(10)?.checked_add(u32::from(byte - b'0')),
        _ => None,
    })
}

/// Returns `later - earlier`, or zero if `later` is not later (K46 (future time stamps): a date in
/// the future proves no age).
pub(crate) fn span(earlier: Timestamp, later: Timestamp) -> Duration {
    Duration::try_from(later.duration_since(earlier)).unwrap_or(Duration::ZERO)
}

/// Returns `time + span`, limited to the latest representable time.
pub(crate) fn after(time: Timestamp, span: Duration) -> Timestamp {
    let span = SignedDuration::try_from(span).unwrap_or(SignedDuration::MAX);
    time.saturating_add(span).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    /// P8: up to nine digits, `.` or `,`, `Z` or an offset.
    #[test]
    fn every_spelling_of_the_originals_is_read() {
        let want = at("2026-03-07T09:00:00.48Z");
        for text in [
            "2026-03-07T09:00:00.48Z",
            "2026-03-07T09:00:00.480000000Z",
            "2026-03-07T09:00:00,48Z",
            "2026-03-07T14:30:00.48+05:30",
            "2026-03-07T08:00:00.4800000009-01:00",
        ] {
            assert_eq!(parse_stamp(text), Some(want), "{text}");
        }
        assert_eq!(
            parse_stamp("2026-03-07T09:00:00Z"),
            Some(at("2026-03-07T09:00:00Z"))
        );
    }

    /// P8: texts that are not time stamps. P15 (expired records) then treats the lock as held.
    #[test]
    fn nothing_else_is_a_time_stamp() {
        for text in [
            "",
            "2026-03-07t09:00:00Z",
            "2026-03-07T09:00:00z",
            "2026-03-07 09:00:00Z",
            "2026-03-07T09:00:00",
            "2026-03-07T09:00:00.Z",
            "2026-03-07T09:00:00Zx",
            "2026-02-30T09:00:00Z",
            "2026-03-07T24:00:00Z",
            "2026-03-07T09:00:60Z",
            "2026-03-07T09:00:00+5:30",
            "2026-03-07T09:00:00+05:60",
            "٢026-03-07T09:00:00Z",
        ] {
            assert_eq!(parse_stamp(text), None, "{text}");
        }
    }

    /// P31: the length is constant.
    #[test]
    fn tenure_writes_nine_digits() {
        assert_eq!(
            stamp(at("2026-03-07T09:00:00Z")),
            "2026-03-07T09:00:00.000000000Z"
        );
        assert_eq!(
            parse_stamp(&stamp(at("2026-03-07T09:00:00.5Z"))),
            Some(at("2026-03-07T09:00:00.5Z"))
        );
    }
}
