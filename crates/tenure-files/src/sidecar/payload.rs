//! JSON record of a sidecar lock: the caller's members, Tenure's, and the token as a white-space
//! line, as newer originals write it (S5 (record format)–S12 (trailer from the token)).

use std::path::Path;
use std::time::SystemTime;

use serde_json::Value;

use super::options::{Options, Payload};
use crate::clock::format_millis;
use crate::error::{Class, Error, Result};
use crate::identity::{Identity, Token};
use crate::record_layout::{self, FenceRoom, RecordLayout};

/// Maximum size of a lock file (S9 (sidecar record size limit)).
pub const LIMIT: usize = 1_048_576;

/// Returns the record of one attempt, or `BadInput` or `TooLarge` for a payload that is not
/// allowed.
pub(super) fn compose(
    options: &Options,
    payload: &Payload,
    identity: &Identity,
    token: Token,
    now: SystemTime,
    lock_path: &Path,
) -> Result<Vec<u8>> {
    let refuse = |what: &str| Err(Error::new(Class::BadInput, lock_path, what));
    if payload.contains_key("tenure") {
        return refuse("a payload must not have a member called `tenure`");
    }
    // A hold that follows another process is kept alive by `renew`, which moves the modification
    // time like a heartbeat (S11 (no creation date with heartbeats)).
    let beats = options.heartbeat_interval().is_some() || options.follows.is_some();
    if beats && payload.contains_key("createdAt") {
        return refuse(
            "with `createdAt` in the payload others would call the lock stale however alive it \
             is; leave it out, or turn the heartbeat off",
        );
    }
    let indented = |value: &Value| record_layout::value_text(value, RecordLayout::Indented);
    let mut members: Vec<(&str, String)> = payload
        .iter()
        .map(|(name, value)| (name.as_str(), indented(value)))
        .collect();
    // A member that the caller sets itself takes precedence.
    let mut add = |name: &'static str, value: Option<Value>| {
        if let Some(value) = value
            && !payload.contains_key(name)
        {
            members.push((name, indented(&value)));
        }
    };
    add("pid", identity.pid.map(Value::from));
    add("starttime", identity.start.map(Value::from));
    add("host", identity.host.clone().map(Value::from));
    add("acquiredAt", Some(format_millis(now).into()));
    if !beats {
        add("createdAt", Some(format_millis(now).into()));
    }
    let room = if options.fence {
        FenceRoom::ForFence
    } else {
        FenceRoom::None
    };
    members.push((
        "tenure",
        record_layout::identity(identity, room, RecordLayout::Indented),
    ));

    let mut record = record_layout::join(members, RecordLayout::Indented);
    record.push('\n');
    // JSON parsers skip the trailer, because it is white space.
    record.push_str(&trailer(token));
    if record.len() > LIMIT {
        let what = format!(
            "the record would have {} bytes, at most {LIMIT} fit",
            record.len()
        );
        return Err(Error::new(Class::TooLarge, lock_path, what));
    }
    Ok(record.into_bytes())
}

/// Returns the trailer: eight tabs, then the 128 bits of the token as tabs (1) and blanks (0), most
/// significant bit first (S8 (ownership trailer), S12).
fn trailer(token: Token) -> String {
    let mut line = "\t".repeat(8);
    for byte in token.bytes() {
        for bit in (0..8).rev() {
            line.push(if byte >> bit & 1 == 1 { '\t' } else { ' ' });
        }
    }
    line.push('\n');
    line
}

/// Parses `createdAt` as JavaScript does. For a date and time without a zone, the result is the
/// latest possible instant (UTC−12), so that a lock never looks older than it is (K3 (resolve doubt
/// toward exclusion)).
pub(super) fn created_at(payload: &Payload) -> Option<SystemTime> {
    let text = payload.get("createdAt")?.as_str()?.trim();
    if let Ok(timestamp) = text.parse::<jiff::Timestamp>() {
        return Some(timestamp.into());
    }
    if let Ok(zoned) = jiff::fmt::rfc2822::parse(text) {
        return Some(zoned.timestamp().into());
    }
    let is_date_only = text.len() == 10;
    let date_time: jiff::civil::DateTime = text.parse().ok()?;
    let offset = if is_date_only { 0 } else { -12 };
    let timestamp = jiff::tz::Offset::constant(offset)
        .to_timestamp(date_time)
        .ok()?;
    Some(timestamp.into())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::sidecar::Heartbeat;

    fn payload(value: Value) -> Payload {
        value.as_object().unwrap().clone()
    }

    fn compose_with(options: &Options, payload: &Payload) -> Result<String> {
        let token = Token::parse("6f0c4f9d2d7f4a0fb1f6f6f1f0a9d3c2").unwrap();
        let identity = Identity::own(token, true);
        let now = SystemTime::UNIX_EPOCH + Duration::from_millis(1_772_874_000_482);
        compose(options, payload, &identity, token, now, Path::new("x.lock"))
            .map(|bytes| String::from_utf8(bytes).unwrap())
    }

    /// S5, S6 (well-known members), S10 (example sidecar record), S12: layout, member order,
    /// well-known members, and the trailer made from the token.
    #[test]
    fn the_record_is_laid_out_as_the_protocol_says() {
        let caller = payload(json!({"what": "compact", "n": {"a": 1}}));
        let record = compose_with(&Options::new("x"), &caller).unwrap();
        let (json, trailer) = record.split_at(record.find("}\n\t").unwrap() + 2);
        assert!(json.starts_with("{\n  \"n\": {\n    \"a\": 1\n  },\n  \"what\": \"compact\",\n"));
        let object =
            record_layout::parse_object(record.as_bytes()).expect("JSON parsers skip the trailer");
        assert_eq!(object["pid"], json!(std::process::id()));
        assert_eq!(object["starttime"], object["tenure"]["start"]);
        assert_eq!(object["host"], object["tenure"]["host"]);
        assert_eq!(object["acquiredAt"], "2026-03-07T09:00:00.482Z");
        assert_eq!(object["tenure"]["beat"], "0000000000");
        assert!(json.find("\"what\"") < json.find("\"pid\""));

        assert_eq!(trailer.len(), 8 + 128 + 1);
        let bits = trailer.trim_end_matches('\n').as_bytes()[8..]
            .iter()
            .fold(0_u128, |bits, &c| bits << 1 | u128::from(c == b'\t'));
        assert_eq!(format!("{bits:032x}"), object["tenure"]["token"]);
    }

    /// S11: `createdAt` is written only without heartbeats.
    #[test]
    fn created_at_is_written_only_without_heartbeats() {
        let beating = compose_with(&Options::new("x"), &Payload::new()).unwrap();
        assert!(!beating.contains("createdAt"));
        let still = Options::new("x").heartbeat(Heartbeat::Off);
        let record = compose_with(&still, &Payload::new()).unwrap();
        let object = record_layout::parse_object(record.as_bytes()).unwrap();
        assert_eq!(object["createdAt"], "2026-03-07T09:00:00.482Z");
        let dated = payload(json!({"createdAt": "2026-03-07T09:00:00Z"}));
        let refused = compose_with(&Options::new("x"), &dated).unwrap_err();
        assert_eq!(refused.class(), Class::BadInput);
        assert!(compose_with(&still, &dated).is_ok());
    }

    /// S9, S10: too large and a member called `tenure` are refused.
    #[test]
    fn payloads_out_of_bounds_are_refused() {
        let own = payload(json!({"tenure": 1}));
        let class = |payload| {
            compose_with(&Options::new("x"), &payload)
                .unwrap_err()
                .class()
        };
        assert_eq!(class(own), Class::BadInput);
        assert_eq!(
            class(payload(json!({"big": "x".repeat(LIMIT)}))),
            Class::TooLarge
        );
    }

    /// S19.4 (order of sidecar tests): which dates are valid.
    #[test]
    fn dates_are_read_as_the_original_reads_them() {
        let read = |value: Value| created_at(&payload(json!({"createdAt": value})));
        let nine = SystemTime::UNIX_EPOCH + Duration::from_secs(1_772_874_000);
        assert_eq!(read(json!("2026-03-07T09:00:00.000Z")), Some(nine));
        assert_eq!(read(json!("2026-03-07T10:00:00+01:00")), Some(nine));
        assert_eq!(read(json!("Sat, 07 Mar 2026 09:00:00 GMT")), Some(nine));
        let day = SystemTime::UNIX_EPOCH + Duration::from_secs(1_772_841_600);
        assert_eq!(read(json!("2026-03-07")), Some(day));
        let zoneless = read(json!("2026-03-07T09:00:00")).unwrap();
        assert_eq!(zoneless, nine + Duration::from_secs(12 * 3600));
        for value in [
            json!("yesterday"),
            json!(""),
            json!(1_772_874_000_000_u64),
            json!(null),
        ] {
            assert_eq!(read(value.clone()), None, "{value}");
        }
    }
}
