//! The record of an exclusive lock: one JSON object with the tool and its process.
//!
//! ```text
//!   bytes ──parse──▶ ExclusiveRecord   test its holder: X12 (order of exclusive tests)
//!                └─▶ RecordError       skip, report the damage: X7 (answers of `should_skip`)
//! ```
//!
//! The parser accepts what the original accepts: any order, any letter case of field names, unknown
//! fields, and the last of duplicate fields (X3 (exclusive record syntax)). The writer uses the
//! plain form of X2 (exclusive record fields). This module opens no files and checks no processes.

use std::fmt;

use jiff::Timestamp;
use serde::de::{self, Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

use super::timestamp;
use crate::identity::Identity;
use crate::process;
use crate::record_layout::{self, FenceRoom, RecordLayout};

/// Maximum size of a record (X5 (exclusive record size limit)).
pub(crate) const LIMIT: usize = 64 * 1024;

/// A valid record.
#[derive(Clone, Debug, PartialEq)]
pub struct ExclusiveRecord {
    /// Name of the tool that holds the lock, never empty. Foreign text: escape it before printing.
    pub holder: String,
    /// The tool's process id, in the range of Linux pids (K15 (records without a block)).
    pub pid: u32,
    /// The tool's host name, never empty.
    pub hostname: String,
    /// Time of acquisition by the tool's clock.
    pub started: Timestamp,
    /// Version of the tool.
    pub version: Option<String>,
    /// The `tenure` block, if the record has an object of that name.
    pub tenure: Option<Identity>,
}

/// Why a file is not a record. Both variants have the class `Malformed`; the log distinguishes
/// them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// Not JSON, a field of the wrong type, or too large.
    #[error("malformed lock file: {0}")]
    Malformed(String),
    /// Valid JSON that breaks a rule of X2.
    #[error("invalid lock file: {0}")]
    Invalid(&'static str),
}

impl ExclusiveRecord {
    /// Parses a record. `bytes` is the whole file, or its beginning if the file exceeds the size
    /// limit.
    pub fn parse(bytes: &[u8]) -> Result<ExclusiveRecord, RecordError> {
        if bytes.len() > LIMIT {
            return Err(RecordError::too_large());
        }
        let fields: Option<RecordFields> = serde_json::from_slice(bytes)
            .map_err(|error| RecordError::Malformed(error.to_string()))?;
        // The original treats `null` as an object without fields.
        fields.unwrap_or_default().validate()
    }
}

impl RecordError {
    pub(super) fn too_large() -> RecordError {
        RecordError::Malformed(format!("larger than {LIMIT} bytes"))
    }
}

/// The fields as read. `None` means absent or `null`, which the original does not distinguish.
#[derive(Default)]
struct RecordFields {
    holder: Option<String>,
    pid: Option<i64>,
    hostname: Option<String>,
    started: Option<StampField>,
    version: Option<String>,
    tenure: Option<Value>,
}

struct StampField(Timestamp);

impl RecordFields {
    fn validate(self) -> Result<ExclusiveRecord, RecordError> {
        let filled = |text: Option<String>, problem| {
            text.filter(|text| !text.is_empty())
                .ok_or(RecordError::Invalid(problem))
        };
        let holder = filled(self.holder, "holder is empty")?;
        let pid = self.pid.unwrap_or(0);
        if pid <= 0 {
            return Err(RecordError::Invalid("pid is not positive"));
        }
        let hostname = filled(self.hostname, "hostname is empty")?;
        let StampField(started) = self
            .started
            .filter(|StampField(time)| !timestamp::is_zero(*time))
            .ok_or(RecordError::Invalid("started_at is not set"))?;
        let pid = process::valid_pid(pid)
            .ok_or_else(|| RecordError::Malformed(format!("{pid} cannot be a process id")))?;
        Ok(ExclusiveRecord {
            holder,
            pid,
            hostname,
            started,
            version: self.version,
            tenure: self
                .tenure
                .as_ref()
                .and_then(Value::as_object)
                .map(Identity::from_json),
        })
    }
}

impl<'de> Deserialize<'de> for RecordFields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<RecordFields, D::Error> {
        deserializer.deserialize_map(RecordFieldsVisitor)
    }
}

struct RecordFieldsVisitor;

impl<'de> Visitor<'de> for RecordFieldsVisitor {
    type Value = RecordFields;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RecordFields, A::Error> {
        let mut fields = RecordFields::default();
        while let Some(name) = map.next_key::<String>()? {
            match name.to_ascii_lowercase().as_str() {
                "holder" => fields.holder = map.next_value()?,
                "pid" => fields.pid = map.next_value()?,
                "hostname" => fields.hostname = map.next_value()?,
                "started_at" => fields.started = map.next_value()?,
                "version" => fields.version = map.next_value()?,
                _ if name == "tenure" => fields.tenure = map.next_value()?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(fields)
    }
}

impl<'de> Deserialize<'de> for StampField {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<StampField, D::Error> {
        let text = String::deserialize(deserializer)?;
        let time = timestamp::parse(&text);
        time.map(StampField)
            .ok_or_else(|| de::Error::custom("started_at is not an RFC 3339 time"))
    }
}

/// The fields of a record to write.
pub(super) struct RecordToWrite<'a> {
    pub(super) holder: &'a str,
    pub(super) version: Option<&'a str>,
    pub(super) started_at: &'a str,
    pub(super) own: &'a Identity,
    pub(super) room: FenceRoom,
}

impl RecordToWrite<'_> {
    /// Returns the record in the plain form of X2, with the `tenure` block at the end.
    pub(super) fn encode(&self) -> Vec<u8> {
        let json = |value: &str| Value::from(value).to_string();
        let pid = self.own.pid.expect("a holder knows its pid");
        let hostname = self.own.host.as_deref().unwrap_or_default();
        let mut members = vec![
            ("holder", json(self.holder)),
            ("pid", pid.to_string()),
            ("hostname", json(hostname)),
            ("started_at", json(self.started_at)),
        ];
        members.extend(self.version.map(|version| ("version", json(version))));
        members.push((
            "tenure",
            record_layout::identity(self.own, self.room, RecordLayout::Indented),
        ));
        let mut record = record_layout::join(members, RecordLayout::Indented);
        record.push('\n');
        record.into_bytes()
    }
}
