//! Names in JSON bodies, read from the proto file: enum values in responses (`?enums=names`), and
//! unknown fields in error messages.

use std::collections::HashMap;
use std::sync::LazyLock;

use prost::Message;
use prost_types::field_descriptor_proto::Type;
use prost_types::{DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorSet};
use serde_json::Value;

struct Names {
    messages: HashMap<String, DescriptorProto>,
    enums: HashMap<String, EnumDescriptorProto>,
}

static NAMES: LazyLock<Names> = LazyLock::new(|| {
    let set = FileDescriptorSet::decode(tenure_wire::DESCRIPTORS).unwrap_or_default();
    let mut names = Names {
        messages: HashMap::new(),
        enums: HashMap::new(),
    };
    for file in set.file {
        for message in file.message_type {
            names.messages.insert(message.name().to_owned(), message);
        }
        for one in file.enum_type {
            names.enums.insert(one.name().to_owned(), one);
        }
    }
    names
});

fn last(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

/// Returns the field of a message with this JSON or proto name.
fn field<'a>(message: &'a DescriptorProto, name: &str) -> Option<&'a FieldDescriptorProto> {
    let fields = &mut message.field.iter();
    fields.find(|field| field.json_name() == name || field.name() == name)
}

/// Replaces the numbers of enums by the names of their values.
pub(super) fn name_enums(message: &str, body: &mut Value) {
    let Some(message) = NAMES.messages.get(message) else {
        return;
    };
    let Value::Object(fields) = body else {
        return;
    };
    for (name, value) in fields {
        let Some(field) = field(message, name) else {
            continue;
        };
        let values: &mut [Value] = match value {
            Value::Array(all) => all,
            one => std::slice::from_mut(one),
        };
        for value in values {
            match field.r#type() {
                Type::Message => name_enums(last(field.type_name()), value),
                Type::Enum => {
                    let number = value.as_i64();
                    let known = NAMES.enums.get(last(field.type_name()));
                    let found = known.and_then(|known| {
                        known
                            .value
                            .iter()
                            .find(|one| Some(i64::from(one.number())) == number)
                    });
                    if let Some(found) = found {
                        *value = Value::from(found.name());
                    }
                }
                _ => {}
            }
        }
    }
}

/// Names the fields of a request that its message does not have, for the message of an error: most
/// often they are why a required field is missing.
pub(super) fn unknown_fields(message: &str, body: &[u8]) -> Option<String> {
    let body: Value = serde_json::from_slice(body).ok()?;
    let mut unknown = Vec::new();
    collect_unknown(message, &body, "", &mut unknown);
    let (name, known) = unknown.first()?;
    let hint = match known {
        Some(known) => format!(": did you mean `{known}`?"),
        None => String::new(),
    };
    let more = match unknown.len() - 1 {
        0 => String::new(),
        more => format!(" (and {more} more)"),
    };
    Some(format!("unknown field `{name}`{hint}{more}"))
}

fn collect_unknown(
    message: &str,
    body: &Value,
    path: &str,
    unknown: &mut Vec<(String, Option<String>)>,
) {
    let (Some(message), Value::Object(fields)) = (NAMES.messages.get(message), body) else {
        return;
    };
    for (name, value) in fields {
        let shown: String = format!("{path}{name}").escape_debug().take(80).collect();
        let Some(field) = field(message, name) else {
            unknown.push((shown, nearest(message, name)));
            continue;
        };
        // The entries of a map have names of their own.
        if field.r#type() != Type::Message || !NAMES.messages.contains_key(last(field.type_name()))
        {
            continue;
        }
        let values = match value {
            Value::Array(all) => all.as_slice(),
            one => std::slice::from_ref(one),
        };
        for value in values {
            collect_unknown(
                last(field.type_name()),
                value,
                &format!("{shown}."),
                unknown,
            );
        }
    }
}

/// Returns the field whose name contains the given one, or is contained in it, in any spelling.
fn nearest(message: &DescriptorProto, name: &str) -> Option<String> {
    let plain = |text: &str| text.replace(['_', '-'], "").to_lowercase();
    let wanted = plain(name);
    if wanted.is_empty() {
        return None;
    }
    let mut fields = message.field.iter().map(FieldDescriptorProto::json_name);
    let found = fields.find(|known| {
        let known = plain(known);
        known.contains(&wanted) || wanted.contains(&known)
    });
    found.map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_unknown_field_is_named_with_the_nearest_known_one() {
        let text = |message, body: Value| unknown_fields(message, body.to_string().as_bytes());
        let owner = text("AcquireRequest", json!({"owner": "amy", "ttlMs": 5}));
        assert_eq!(
            owner.as_deref(),
            Some("unknown field `owner`: did you mean `ownerId`?")
        );
        let inner = json!({"ownerId": "a", "requests": [{"lock": "t:/a"}], "x": 1});
        assert_eq!(
            text("AcquireRequest", inner).as_deref(),
            Some("unknown field `requests.lock` (and 1 more)")
        );
        let labels = json!({"holder": {"labels": {"any": "thing"}}, "owner_id": "amy"});
        assert_eq!(text("AcquireRequest", labels), None);
    }

    #[test]
    fn enums_get_their_names_at_every_depth() {
        let mut body = json!({"status": 3, "reason": 17, "blocker": {"mode": 1}, "deadlock": []});
        name_enums("AcquireResponse", &mut body);
        assert_eq!(
            body,
            json!({"status": "ACQUIRE_STATUS_QUEUED", "reason": "REASON_CODE_QUEUED",
                "blocker": {"mode": "MODE_READ"}, "deadlock": []})
        );
    }
}
