//! Errors as data: a binding makes an exception of its language from them.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tenure::{Error, LostLock};

/// Returns the error as JSON: `kind` selects the exception, `message` is for people, the other members
/// are its fields.
pub fn error_json(error: &Error) -> Value {
    let mut json = match error {
        Error::Busy(busy) | Error::TimedOut(busy) => serde_json::to_value(busy).unwrap_or_default(),
        Error::Lost(lost) => lost_json(lost),
        Error::Refused(refusal) => json!({
            "place": refusal.place,
            "what": refusal.what,
            "next": refusal.next,
        }),
        Error::Input(input) => json!({ "about": input.about, "what": input.what }),
        Error::Unsupported(unsupported) => json!({
            "place": unsupported.place,
            "what": unsupported.what,
        }),
        Error::Unavailable(unavailable) => json!({
            "place": unavailable.place,
            "what": unavailable.what,
            "retry_after_ms": u64::try_from(unavailable.retry_after.as_millis()).unwrap_or(u64::MAX),
        }),
        Error::Denied { place, what } => json!({ "place": place, "what": what }),
        // A kind that this version does not know.
        _ => json!({}),
    };
    json["kind"] = kind(error).into();
    json["class"] = error.class().name().into();
    json["message"] = error.to_string().into();
    json
}

/// Returns a loss as JSON, with the time in milliseconds at which this process noticed it.
pub(crate) fn lost_json(lost: &LostLock) -> Value {
    let mut json = serde_json::to_value(lost).unwrap_or_default();
    json["kind"] = "lost".into();
    json["class"] = "Compromised".into();
    json["message"] = lost.to_string().into();
    json["seen_ms"] = millis_since_epoch(lost.seen).into();
    json
}

fn millis_since_epoch(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn kind(error: &Error) -> &'static str {
    match error {
        Error::Busy(_) => "busy",
        Error::TimedOut(_) => "timed-out",
        Error::Lost(_) => "lost",
        Error::Refused(_) => "refused",
        Error::Input(_) => "input",
        Error::Unsupported(_) => "unsupported",
        Error::Unavailable(_) => "unavailable",
        Error::Denied { .. } => "denied",
        _ => "error",
    }
}
