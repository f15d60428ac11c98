//! Lock record: JSON format of the holder, the operation, and the times of a lock (P7–P10, K6 (the
//! `tenure` block)).
//!
//! A [`LockRecord`] contains what the JSON says; missing strings are empty, as in the originals.
//! What a record means is decided in [`staleness`](crate::staleness).

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use tenure_files::Identity;
use tenure_files::internal::FENCE_ROOM;

use crate::time::parse_stamp;

/// The ttl of the originals. Records without a valid ttl of their own are judged by it (P22
/// (evidence of staleness)).
pub(crate) const DEFAULT_TTL: Duration = Duration::from_secs(60);

/// A lock record.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct LockRecord {
    /// The operation of the holder: `backup`, `restore`, `prune`, or any other text.
    pub operation: String,
    /// The holder; by convention `<host name> (pid <decimal>)`.
    pub holder: String,
    /// The time of acquisition, as written. It never changes while the lock is held.
    pub acquired_at: String,
    /// The time when the lock expires unless refreshed, as written.
    pub expires_at: String,
    /// For information only: the key decides the mode (P7 (repository record fields)).
    pub is_shared: bool,
    /// The block that Tenure adds.
    pub tenure: Option<HolderBlock>,
}

/// The identity of the holder in Tenure's format (K6). A reader accepts any member as missing.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct HolderBlock {
    /// Process id in the holder's own PID namespace.
    pub pid: Option<u32>,
    /// Start time of the process, in clock ticks since boot.
    pub start: Option<u64>,
    /// Boot id: identifies one run of the kernel.
    pub boot: Option<String>,
    /// Inode number of the PID namespace.
    pub pidns: Option<u64>,
    /// Host name.
    pub host: Option<String>,
    /// Random token of the acquisition; 32 hex digits.
    pub token: Option<String>,
    /// Whether the holder keeps `flock` on the record (directory stores).
    pub flock: Option<bool>,
    /// Whether the holder's `statfs` reports a local file system.
    pub local: Option<bool>,
    /// Fencing number (P38 (repository fence counter)).
    pub fence: Option<u64>,
    /// The holder's ttl in seconds.
    pub ttl: Option<u64>,
}

/// The identity of one acquisition (P9 (identity of an acquisition)), with Tenure's token.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AcquisitionId {
    /// The `holder` of the record.
    pub holder: String,
    /// The `acquired_at` of the record.
    pub acquired_at: String,
    /// The token of the block, if there is one.
    pub token: Option<String>,
}

impl LockRecord {
    /// Parses the JSON of a record, the innermost layer of the envelope.
    ///
    /// # Errors
    ///
    /// Returns a message that says what is wrong.
    pub fn parse(json: &[u8]) -> Result<LockRecord, String> {
        // Originals replace invalid UTF-8 inside strings. Between tokens it stays a JSON error.
        let text = String::from_utf8_lossy(json);
        let Parsed(record) = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        Ok(record)
    }

    /// Encodes the record as JSON.
    ///
    /// The length depends on neither `expires_at` nor the fence, so that the record can be
    /// rewritten in place (K21 (change records in place), K39 (fencing number per acquisition)).
    pub fn to_json(&self) -> String {
        let mut json = format!(
            r#"{{"operation":{},"holder":{},"acquired_at":{},"expires_at":{}"#,
            Quoted(&self.operation),
            Quoted(&self.holder),
            Quoted(&self.acquired_at),
            Quoted(&self.expires_at),
        );
        if self.is_shared {
            json.push_str(r#","is_shared":true"#);
        }
        if let Some(block) = &self.tenure {
            json.push_str(r#","tenure":"#);
            json.push_str(&block.to_json());
        }
        json.push('}');
        json
    }

    /// Returns `expires_at` as a time, or `None` if it is not a time stamp (P8 (time stamp format),
    /// P15 (expired records)).
    pub fn expires(&self) -> Option<Timestamp> {
        parse_stamp(&self.expires_at)
    }

    /// Returns the ttl by which this record is judged (P22).
    ///
    /// A ttl outside P16 (allowed lease times) is not used: a shorter one is replaced by the
    /// default, a longer one is reduced to the maximum.
    pub(crate) fn ttl(&self) -> Duration {
        match self.tenure.as_ref().and_then(|block| block.ttl) {
            Some(seconds @ 30..=600) => Duration::from_secs(seconds),
            Some(601..) => Duration::from_secs(600),
            Some(_) | None => DEFAULT_TTL,
        }
    }

    /// Returns the identity of the acquisition that wrote this record.
    pub(crate) fn identity(&self) -> AcquisitionId {
        AcquisitionId {
            holder: self.holder.clone(),
            acquired_at: self.acquired_at.clone(),
            token: self.token().map(str::to_owned),
        }
    }

    /// Returns `true` if the acquisition `identity` wrote this record.
    pub(crate) fn is(&self, identity: &AcquisitionId) -> bool {
        self.holder == identity.holder
            && self.acquired_at == identity.acquired_at
            && self.token() == identity.token.as_deref()
    }

    /// Returns the fencing number, if there is one.
    pub fn fence(&self) -> Option<u64> {
        self.tenure.as_ref().and_then(|block| block.fence)
    }

    /// Returns the token of the acquisition, if Tenure wrote the record.
    pub(crate) fn token(&self) -> Option<&str> {
        self.tenure
            .as_ref()
            .and_then(|block| block.token.as_deref())
    }
}

impl HolderBlock {
    /// Converts the block for the liveness check of `tenure-files` (K10–K14).
    pub(crate) fn identity(&self) -> Identity {
        Identity {
            pid: self.pid,
            start: self.start,
            boot: self.boot.clone(),
            pidns: self.pidns,
            host: self.host.clone(),
            token: self.token.clone(),
            beat: None,
            flock: self.flock,
            local: self.local,
            fence: self.fence,
            ttl: self.ttl,
            ..Identity::default()
        }
    }

    /// Members with wrong types or impossible numbers count as missing (K9 (missing identity
    /// members), K15 (records without a block)).
    fn from_json(block: &serde_json::Map<String, serde_json::Value>) -> HolderBlock {
        let read = Identity::from_json(block);
        HolderBlock {
            pid: read.pid,
            start: read.start,
            boot: read.boot,
            pidns: read.pidns,
            host: read.host,
            token: read.token,
            flock: read.flock,
            local: read.local,
            fence: read.fence,
            ttl: read.ttl,
        }
    }

    fn to_json(&self) -> String {
        let mut members = vec![r#""v":1"#.to_owned()];
        let mut add = |name: &str, value: Option<String>| {
            members.extend(value.map(|value| format!(r#""{name}":{value}"#)));
        };
        add("pid", self.pid.map(|pid| pid.to_string()));
        add("start", self.start.map(|start| start.to_string()));
        add(
            "boot",
            self.boot.as_deref().map(|boot| Quoted(boot).to_string()),
        );
        add("pidns", self.pidns.map(|pidns| pidns.to_string()));
        add(
            "host",
            self.host.as_deref().map(|host| Quoted(host).to_string()),
        );
        add(
            "token",
            self.token.as_deref().map(|token| Quoted(token).to_string()),
        );
        add("flock", self.flock.map(|flock| flock.to_string()));
        add("local", self.local.map(|local| local.to_string()));
        add("ttl", self.ttl.map(|ttl| ttl.to_string()));
        let fence = self
            .fence
            .map_or_else(|| "null".to_owned(), |fence| fence.to_string());
        add(
            "fence",
            Some(format!("{fence:<width$}", width = FENCE_ROOM)),
        );
        format!("{{{}}}", members.join(","))
    }
}

/// Formats a string as JSON.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = serde_json::to_string(self.0).map_err(|_| fmt::Error)?;
        f.write_str(&text)
    }
}

/// A record parsed as tolerantly as the originals do: any letter case, the last of duplicate
/// fields, `null` as missing (P10 (repository record syntax)).
struct Parsed(LockRecord);

impl<'de> Deserialize<'de> for Parsed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Parsed, D::Error> {
        struct ParsedFields;

        impl<'de> Visitor<'de> for ParsedFields {
            type Value = LockRecord;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a lock record")
            }

            fn visit_unit<E>(self) -> Result<LockRecord, E> {
                Ok(LockRecord::default())
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<LockRecord, A::Error> {
                let mut record = LockRecord::default();
                while let Some(name) = map.next_key::<String>()? {
                    let text = match name.to_ascii_lowercase().as_str() {
                        "operation" => &mut record.operation,
                        "holder" => &mut record.holder,
                        "acquired_at" => &mut record.acquired_at,
                        "expires_at" => &mut record.expires_at,
                        "is_shared" => {
                            record.is_shared = map.next_value::<Option<bool>>()?.unwrap_or(false);
                            continue;
                        }
                        "tenure" => {
                            // For originals this is an unknown field, so its content cannot make
                            // the record invalid (K4 (ignore extra fields)).
                            let value = map.next_value::<serde_json::Value>()?;
                            record.tenure = value.as_object().map(HolderBlock::from_json);
                            continue;
                        }
                        _ => {
                            map.next_value::<IgnoredAny>()?;
                            continue;
                        }
                    };
                    *text = map.next_value::<Option<String>>()?.unwrap_or_default();
                }
                Ok(record)
            }
        }

        deserializer.deserialize_any(ParsedFields).map(Parsed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held() -> LockRecord {
        LockRecord {
            operation: "prune".into(),
            holder: "atlas-3 (pid 40217)".into(),
            acquired_at: "2026-03-07T09:00:00.482913000Z".into(),
            expires_at: "2026-03-07T09:01:00.482913000Z".into(),
            is_shared: false,
            tenure: Some(HolderBlock {
                token: Some("6f0c4f9d2d7f4a0fb1f6f6f1f0a9d3c2".into()),
                ttl: Some(60),
                ..HolderBlock::default()
            }),
        }
    }

    /// P7: field names are those of the originals; `is_shared` is omitted when false.
    #[test]
    fn a_record_survives_writing_and_reading() {
        let mut record = held();
        assert!(!record.to_json().contains("is_shared"));
        assert_eq!(
            LockRecord::parse(record.to_json().as_bytes()),
            Ok(record.clone())
        );
        record.is_shared = true;
        record.operation = "a \"quoted\"\nname".into();
        assert_eq!(LockRecord::parse(record.to_json().as_bytes()), Ok(record));
    }

    /// K21, K39: a refresh and the fencing number keep the length.
    #[test]
    fn neither_date_nor_fence_changes_the_length() {
        let mut record = held();
        let length = record.to_json().len();
        for fence in [1, 17, u64::MAX] {
            record.tenure.as_mut().unwrap().fence = Some(fence);
            record.expires_at = "2026-03-07T09:01:30.000000001Z".into();
            assert_eq!(record.to_json().len(), length);
            assert_eq!(
                LockRecord::parse(record.to_json().as_bytes())
                    .unwrap()
                    .fence(),
                Some(fence)
            );
        }
    }

    /// P10: letter case, duplicate and unknown fields.
    #[test]
    fn reading_is_as_tolerant_as_the_originals() {
        let json = br#" {"HOLDER":"a","Expires_At":"x","expires_at":"y","new":{"k":[1]}} "#;
        let record = LockRecord::parse(json).unwrap();
        assert_eq!(
            (record.holder.as_str(), record.expires_at.as_str()),
            ("a", "y")
        );
        assert_eq!(LockRecord::parse(b"null"), Ok(LockRecord::default()));
        assert_eq!(
            LockRecord::parse(br#"{"operation":null}"#),
            Ok(LockRecord::default())
        );
    }

    /// P10: a byte order mark, text after the object, a wrong type.
    #[test]
    fn what_does_not_parse_is_said_to() {
        let cases: [&[u8]; 7] = [
            b"",
            b"[]",
            b"7",
            b"\xef\xbb\xbf{}",
            b"{} x",
            br#"{"holder":1}"#,
            br#"{"is_shared":"x"}"#,
        ];
        for json in cases {
            assert!(LockRecord::parse(json).is_err(), "{json:?}");
        }
    }

    /// K4: an invalid block counts as an unknown field; the record stays valid.
    #[test]
    fn a_broken_block_is_ignored() {
        for json in [r#"{"tenure":7}"#, r#"{"tenure":null}"#] {
            assert_eq!(
                LockRecord::parse(json.as_bytes()).unwrap().tenure,
                None,
                "{json}"
            );
        }
        let json = br#"{"tenure":{"ttl":"x","pid":4294967297}}"#;
        assert_eq!(
            LockRecord::parse(json).unwrap().tenure,
            Some(HolderBlock::default())
        );
    }

    /// P16, P22: a ttl out of range is not used.
    #[test]
    fn a_forbidden_ttl_is_not_believed() {
        for (claimed, taken) in [(1, 60), (29, 60), (30, 30), (600, 600), (u64::MAX, 600)] {
            let mut record = held();
            record.tenure.as_mut().unwrap().ttl = Some(claimed);
            assert_eq!(record.ttl(), Duration::from_secs(taken));
        }
    }

    /// P9: holder and time identify an acquisition; Tenure's token is part of it.
    #[test]
    fn only_the_same_acquisition_is_ours() {
        let ours = held().identity();
        assert!(held().is(&ours));
        let mut other = held();
        other.acquired_at.push('0');
        assert!(!other.is(&ours));
        let mut other = held();
        other.tenure.as_mut().unwrap().token = Some("0".repeat(32));
        assert!(!other.is(&ours));
        let mut original = held();
        original.tenure = None;
        assert!(!original.is(&ours));
    }
}
