//! JSON text of records: fixed member order, and fixed-width fields (heartbeat, fence) that are
//! later overwritten in place (K21 (change records in place)).

use serde_json::{Map, Value};

use crate::identity::{BEAT_DIGITS, FENCE_ROOM, Identity};

/// White space of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordLayout {
    /// Indented by two blanks, as in sidecar and exclusive records.
    Indented,
    /// No white space, as in the line of an upload record.
    Compact,
}

/// Returns the `tenure` block as text. With [`FenceRoom::ForFence`], 20 bytes are reserved for the
/// fence, which is known only when the lock is held (K39 (fencing number per acquisition)).
pub(crate) fn identity(identity: &Identity, room: FenceRoom, layout: RecordLayout) -> String {
    let mut members: Vec<(&str, String)> = identity
        .members()
        .into_iter()
        .map(|(name, value)| (name, value_text(&value, layout)))
        .collect();
    if room == FenceRoom::ForFence && identity.fence.is_none() {
        members.push(("fence", format!("{:<FENCE_ROOM$}", "null")));
    }
    join(members, layout)
}

/// Whether the record reserves space for a fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FenceRoom {
    /// Reserve 20 bytes.
    ForFence,
    /// Reserve nothing.
    None,
}

/// Returns an object as text, from members whose values are already JSON text.
pub(crate) fn join<'a>(
    members: impl IntoIterator<Item = (&'a str, String)>,
    layout: RecordLayout,
) -> String {
    // A record has about 500 bytes: one allocation instead of several.
    let mut text = String::with_capacity(1024);
    text.push('{');
    for (index, (name, value)) in members.into_iter().enumerate() {
        if index > 0 {
            text.push(',');
        }
        match layout {
            RecordLayout::Indented => {
                text.push_str("\n  ");
                push_name(&mut text, name);
                text.push_str(": ");
                // JSON strings contain no raw newline, so each newline is layout and needs the
                // indentation.
                for (index, line) in value.split('\n').enumerate() {
                    text.push_str(if index == 0 { "" } else { "\n  " });
                    text.push_str(line);
                }
            }
            RecordLayout::Compact => {
                push_name(&mut text, name);
                text.push(':');
                text.push_str(&value);
            }
        }
    }
    if layout == RecordLayout::Indented && text.len() > 1 {
        text.push('\n');
    }
    text.push('}');
    text
}

/// Adds a quoted name. Our own names need no escaping; a caller's name may contain any character.
fn push_name(text: &mut String, name: &str) {
    if name.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        text.push('"');
        text.push_str(name);
        text.push('"');
    } else {
        text.push_str(&Value::from(name).to_string());
    }
}

/// Returns a JSON value as text.
pub(crate) fn value_text(value: &Value, layout: RecordLayout) -> String {
    let text = match layout {
        RecordLayout::Compact => serde_json::to_string(value),
        RecordLayout::Indented => serde_json::to_string_pretty(value),
    };
    text.expect("a JSON value always has a text")
}

/// Parses a record, and returns `None` if it is not exactly one JSON object (S7 (records that are
/// no objects)). White space after the object is allowed.
pub(crate) fn parse_object(bytes: &[u8]) -> Option<Map<String, Value>> {
    match serde_json::from_slice(bytes) {
        Ok(Value::Object(object)) => Some(object),
        _ => None,
    }
}

/// Returns the offset of the heartbeat digits in a record of ours. The last match is used: our
/// block comes after the caller's members, and inside a JSON string the quotes would be escaped.
pub(crate) fn beat_at(bytes: &[u8]) -> Option<usize> {
    let start = after_key(bytes, b"\"beat\":")?;
    let digits = bytes.get(start + 1..start + 1 + BEAT_DIGITS)?;
    (bytes[start] == b'"' && digits.iter().all(u8::is_ascii_digit)).then_some(start + 1)
}

/// Returns the offset of the space reserved for the fence in a record of ours.
pub(crate) fn fence_at(bytes: &[u8]) -> Option<usize> {
    let start = after_key(bytes, b"\"fence\":")?;
    let room = bytes.get(start..start + FENCE_ROOM)?;
    room.iter()
        .all(|&byte| byte.is_ascii_alphanumeric() || byte == b' ')
        .then_some(start)
}

fn after_key(bytes: &[u8], key: &[u8]) -> Option<usize> {
    let found = bytes.windows(key.len()).rposition(|window| window == key)?;
    let start = found + key.len();
    let blanks = bytes
        .get(start..)?
        .iter()
        .take_while(|&&byte| byte == b' ')
        .count();
    Some(start + blanks)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    fn object<'a>(
        members: impl IntoIterator<Item = (&'a str, Value)>,
        layout: RecordLayout,
    ) -> String {
        let members = members
            .into_iter()
            .map(|(name, value)| (name, value_text(&value, layout)));
        join(members, layout)
    }

    use super::*;
    use crate::identity::Token;

    /// S5: two blanks of indentation, nested values too; an empty object prints as `{}`.
    #[test]
    fn objects_are_indented_by_two() {
        let text = object(
            [("a", json!(1)), ("b", json!({"c": [1, "x\ny"]}))],
            RecordLayout::Indented,
        );
        let expected =
            "{\n  \"a\": 1,\n  \"b\": {\n    \"c\": [\n      1,\n      \"x\\ny\"\n    ]\n  }\n}";
        assert_eq!(text, expected);
        assert_eq!(object([], RecordLayout::Indented), "{}");
        assert_eq!(
            object([("a", json!("x"))], RecordLayout::Compact),
            r#"{"a":"x"}"#
        );
    }

    /// K21: both offsets are found in both layouts, also if the caller's text looks like them.
    #[test]
    fn beat_and_fence_are_found() {
        let own = Identity::own(Token::random(), true);
        for layout in [RecordLayout::Indented, RecordLayout::Compact] {
            let block = identity(&own, FenceRoom::ForFence, layout);
            let decoy = r#""beat": "1111111111" "fence": 12345678901234567890"#;
            let payload = json!({"beat": "2222222222"});
            let text = join(
                [
                    ("payload", value_text(&payload, layout)),
                    ("tenure", block),
                    ("request", value_text(&json!(decoy), layout)),
                ],
                layout,
            );
            let bytes = text.as_bytes();
            let beat = beat_at(bytes).unwrap();
            assert_eq!(&bytes[beat..beat + BEAT_DIGITS], b"0000000000");
            let fence = fence_at(bytes).unwrap();
            assert_eq!(&bytes[fence..fence + FENCE_ROOM], b"null                ");
            assert!(parse_object(bytes).is_some());
        }
        assert_eq!(beat_at(b"{}"), None);
        assert_eq!(fence_at(b"\"fence\":"), None);
    }

    /// S5: a caller's member name may be any text and is read back unchanged.
    #[test]
    fn names_are_escaped_where_they_need_it() {
        for layout in [RecordLayout::Indented, RecordLayout::Compact] {
            for name in ["", "plain", "a \"quoted\" name", "line\nbreak", "ä\\"] {
                let text = object([(name, Value::from(1))], layout);
                assert_eq!(parse_object(text.as_bytes()).unwrap()[name], 1, "{text}");
            }
        }
    }
}
