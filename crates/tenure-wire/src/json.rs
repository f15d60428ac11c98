//! JSON deserializers for proto fields. Requests may use several forms; responses use serde's
//! default.
//!
//! | proto type | accepted |
//! |---|---|
//! | integers | an integer, or a decimal string |
//! | enums | the number, or the value's name; any other number is kept for the handler to refuse |
//! | bytes | an array of byte numbers, or base64 |
//! | anything | `null`, the same as absent |

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

/// Reads a string or boolean; `null` is the default.
pub(crate) fn plain<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Deserialize<'de> + Default,
    D: Deserializer<'de>,
{
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// Reads a list or map; `null` is an empty one.
pub(crate) fn list<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Deserialize<'de> + Default,
    D: Deserializer<'de>,
{
    plain(deserializer)
}

/// Reads a message from a JSON object only: serde's derive would also accept an array of its
/// fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JsonObject<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for JsonObject<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<JsonObject<T>, D::Error> {
        struct JsonFields<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for JsonFields<T> {
            type Value = JsonObject<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<JsonObject<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(fields)).map(JsonObject)
            }
        }
        deserializer.deserialize_map(JsonFields(PhantomData))
    }
}

/// Reads a nested message; `null` is `None`.
pub(crate) fn message<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    let found = Option::<JsonObject<T>>::deserialize(deserializer)?;
    Ok(found.map(|JsonObject(message)| message))
}

/// Reads a list of messages; `null` is an empty one.
pub(crate) fn messages<'de, T, D>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    let found: Vec<JsonObject<T>> = plain(deserializer)?;
    Ok(found
        .into_iter()
        .map(|JsonObject(message)| message)
        .collect())
}

/// Reads an integer from a number or a decimal string.
pub(crate) fn integer<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: TryFrom<i128> + Default,
    D: Deserializer<'de>,
{
    struct Integer<T>(PhantomData<T>);

    impl<T: TryFrom<i128> + Default> Visitor<'_> for Integer<T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an integer in range, as a number or a decimal string")
        }
        fn visit_u64<E: de::Error>(self, number: u64) -> Result<T, E> {
            T::try_from(i128::from(number))
                .map_err(|_| E::invalid_value(de::Unexpected::Unsigned(number), &self))
        }
        fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
            T::try_from(i128::from(number))
                .map_err(|_| E::invalid_value(de::Unexpected::Signed(number), &self))
        }
        fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
            let number = text
                .parse::<i128>()
                .ok()
                .and_then(|number| T::try_from(number).ok());
            number.ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
        }
        fn visit_unit<E: de::Error>(self) -> Result<T, E> {
            Ok(T::default())
        }
    }
    deserializer.deserialize_any(Integer(PhantomData))
}

/// A protobuf enum that can be looked up by name.
pub trait NamedEnum: Sized + Into<i32> {
    /// Returns the value with this name.
    fn from_name(name: &str) -> Option<Self>;
}

macro_rules! named {
    ($($name:ident),+ $(,)?) => {
        $(impl NamedEnum for crate::v1::$name {
            fn from_name(name: &str) -> Option<Self> {
                crate::v1::$name::from_str_name(name)
            }
        })+
    };
}
named!(
    Mode,
    LockState,
    LockAlgorithm,
    ReasonCode,
    AcquireStatus,
    ErrorDetail,
    RenewStatus,
    AssertStatus,
    CycleKind,
    EventType,
    ChangeKind,
);

/// Reads an enum from its number or its name. Unknown numbers are kept; the handler refuses them
/// (R12 unknown enum numbers are refused).
pub(crate) fn enumeration<'de, T, D>(deserializer: D) -> Result<i32, D::Error>
where
    T: NamedEnum,
    D: Deserializer<'de>,
{
    struct Enumeration<T>(PhantomData<T>);

    impl<T: NamedEnum> Visitor<'_> for Enumeration<T> {
        type Value = i32;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("the number or the name of an enum value")
        }
        fn visit_u64<E: de::Error>(self, number: u64) -> Result<i32, E> {
            i32::try_from(number)
                .map_err(|_| E::invalid_value(de::Unexpected::Unsigned(number), &self))
        }
        fn visit_i64<E: de::Error>(self, number: i64) -> Result<i32, E> {
            i32::try_from(number)
                .map_err(|_| E::invalid_value(de::Unexpected::Signed(number), &self))
        }
        fn visit_str<E: de::Error>(self, text: &str) -> Result<i32, E> {
            let value = T::from_name(text)
                .map(Into::into)
                .or_else(|| text.parse().ok());
            value.ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
        }
        fn visit_unit<E: de::Error>(self) -> Result<i32, E> {
            Ok(0)
        }
    }
    deserializer.deserialize_any(Enumeration::<T>(PhantomData))
}

/// Reads bytes from an array of numbers or a base64 string.
pub(crate) fn octets<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    struct Octets;

    impl<'de> Visitor<'de> for Octets {
        type Value = Vec<u8>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an array of byte numbers, or base64")
        }
        fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<u8>, A::Error> {
            let mut bytes = Vec::new();
            while let Some(byte) = items.next_element()? {
                bytes.push(byte);
            }
            Ok(bytes)
        }
        fn visit_str<E: de::Error>(self, text: &str) -> Result<Vec<u8>, E> {
            base64(text).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
        }
        fn visit_unit<E: de::Error>(self) -> Result<Vec<u8>, E> {
            Ok(Vec::new())
        }
    }
    deserializer.deserialize_any(Octets)
}

/// Decodes base64 in the standard or URL-safe alphabet, with or without padding.
fn base64(text: &str) -> Option<Vec<u8>> {
    let text = text.trim_end_matches('=');
    let mut bytes = Vec::with_capacity(text.len() * 3 / 4);
    let (mut bits, mut count) = (0u32, 0u32);
    for symbol in text.bytes() {
        let value = match symbol {
            b'A'..=b'Z' => symbol - b'A',
            b'a'..=b'z' => symbol - b'a' + 26,
            b'0'..=b'9' => symbol - b'0' + 52,
            b'+' | b'-' => 62,
            b'/' | b'_' => 63,
            _ => return None,
        };
        bits = (bits << 6) | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count & 0xff) as u8);
        }
    }
    // The remaining bits must be padding: fewer than one symbol, and zero.
    (count < 6 && bits & ((1 << count) - 1) == 0).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::JsonObject;
    use crate::v1::{AcquireRequest, AcquireResponse, DumpLocksRequest, Mode};

    #[test]
    fn an_answer_has_every_field_and_numbers_for_enums() {
        let json = serde_json::to_value(AcquireResponse::default()).unwrap();
        for field in [
            "status",
            "path",
            "owner",
            "reason",
            "fencingToken",
            "currentFencingToken",
            "namespace",
            "position",
            "deadlock",
        ] {
            assert!(json.get(field).is_some(), "{field} is missing in {json}");
        }
        assert_eq!(json["status"], 0);
        assert_eq!(json["fencingToken"], 0);
    }

    #[test]
    fn both_input_forms_are_read() {
        let plain = r#"{"ownerId":"a","ttlMs":5,"requests":[{"path":"t:/a","mode":1}]}"#;
        let other = r#"{"owner_id":"a","ttlMs":"5","requests":[{"path":"t:/a","mode":"MODE_READ"}],
                        "releaseRequests":null,"idempotencyKey":null,"fencingToken":null,"extra":1}"#;
        let plain: AcquireRequest = serde_json::from_str(plain).unwrap();
        let other: AcquireRequest = serde_json::from_str(other).unwrap();
        assert_eq!(plain, other);
        assert_eq!(plain.requests[0].mode(), Mode::Read);
    }

    #[test]
    fn numbers_out_of_range_and_fractions_are_refused() {
        for bad in [
            r#"{"ttlMs":-1}"#,
            r#"{"ttlMs":1.5}"#,
            r#"{"ttlMs":"x"}"#,
            r#"{"ttlMs":18446744073709551616}"#,
            r#"{"ownerId":7}"#,
        ] {
            assert!(
                serde_json::from_str::<AcquireRequest>(bad).is_err(),
                "{bad}"
            );
        }
    }

    #[test]
    fn a_message_is_an_object() {
        type Read = JsonObject<AcquireRequest>;
        assert!(serde_json::from_str::<Read>(r#"{"requests":[{"path":"t:/a"}]}"#).is_ok());
        assert!(serde_json::from_str::<Read>(r#"{"holder":null,"requests":null}"#).is_ok());
        for bad in [
            r#"["amy"]"#,
            "null",
            r#"{"requests":[["t:/a"]]}"#,
            r#"{"requests":[null]}"#,
            r#"{"holder":["amy"]}"#,
        ] {
            assert!(serde_json::from_str::<Read>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn bytes_are_read_as_numbers_and_as_base64() {
        let numbers: DumpLocksRequest = serde_json::from_str(r#"{"cursor":[0,255,3]}"#).unwrap();
        let text: DumpLocksRequest = serde_json::from_str(r#"{"cursor":"AP8D"}"#).unwrap();
        assert_eq!(numbers, text);
        assert!(serde_json::from_str::<DumpLocksRequest>(r#"{"cursor":"A"}"#).is_err());
        assert!(serde_json::from_str::<DumpLocksRequest>(r#"{"cursor":"AP9=D"}"#).is_err());
        assert_eq!(
            serde_json::to_value(&text).unwrap()["cursor"],
            serde_json::json!([0, 255, 3])
        );
    }
}
