//! The objects of the test server, and the effect of a request on them.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Bound;

use axum::body::Bytes;

use super::fault::FaultKind;
use super::wire::{Condition, HttpRequest, HttpResponse, Listed};

/// How the store handles condition headers (P26: levels of conditional writes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Conditions {
    /// Honored on PUT and DELETE: level 2.
    Honoured,
    /// Honored on PUT only; a conditional DELETE deletes unconditionally: level 1.
    OnPutOnly,
    /// Ignored and answered with 200: level 0 without saying so.
    Ignored,
    /// Refused with this status: level 0, and the client can tell.
    Refused(u16),
}

/// An object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Object {
    pub(crate) bytes: Bytes,
    /// A hash of the bytes, in quotes.
    pub(crate) etag: String,
    /// By the server's clock; responses truncate it to whole seconds.
    pub(crate) modified_ms: i64,
    /// Incremented with every write, as in GCS. S3 clients do not use it.
    pub(crate) generation: u64,
}

pub(super) struct Bucket {
    pub(super) objects: BTreeMap<String, Object>,
    pub(super) conditions: Conditions,
    pub(super) page_size: usize,
    written: u64,
}

impl Default for Bucket {
    fn default() -> Bucket {
        Bucket {
            objects: BTreeMap::new(),
            conditions: Conditions::Honoured,
            page_size: 1000,
            written: 0,
        }
    }
}

impl Bucket {
    /// Applies one request atomically.
    pub(super) fn apply(&mut self, call: &HttpRequest, now_ms: i64) -> HttpResponse {
        if let (Some(_), Conditions::Refused(status)) = (&call.condition, self.conditions) {
            return HttpResponse::error(status);
        }
        match call.kind {
            FaultKind::Put => self.put(call, now_ms),
            FaultKind::Get | FaultKind::Head => self.get(call),
            FaultKind::Delete => self.delete(call),
            FaultKind::BulkDelete => {
                for key in &call.keys {
                    self.objects.remove(key);
                }
                HttpResponse::deleted(&call.keys)
            }
            FaultKind::List => self.list(call),
        }
    }

    pub(super) fn plant(&mut self, key: &str, bytes: Bytes, modified_ms: i64) {
        self.written += 1;
        let object = Object {
            etag: etag(&bytes),
            bytes,
            modified_ms,
            generation: self.written,
        };
        self.objects.insert(key.to_owned(), object);
    }

    fn put(&mut self, call: &HttpRequest, now_ms: i64) -> HttpResponse {
        let judged = !matches!(self.conditions, Conditions::Ignored);
        let there = self.objects.get(&call.key);
        match &call.condition {
            Some(condition) if judged => match (condition, there) {
                (Condition::Absent, Some(_)) => return HttpResponse::error(412),
                (Condition::Is(_), None) => return HttpResponse::error(404),
                (Condition::Is(version), Some(object)) if !version.is_of(object) => {
                    return HttpResponse::error(412);
                }
                (Condition::Absent, None) | (Condition::Is(_), Some(_)) => {}
            },
            Some(_) | None => {}
        }
        self.plant(&call.key, call.body.clone(), now_ms);
        HttpResponse::stored(&self.objects[&call.key])
    }

    fn get(&self, call: &HttpRequest) -> HttpResponse {
        match (self.objects.get(&call.key), call.range) {
            (None, _) => HttpResponse::error(404),
            (Some(object), None) => HttpResponse::object(object.clone()),
            (Some(object), Some((first, _))) if first >= object.bytes.len() => {
                HttpResponse::error(416)
            }
            (Some(object), Some((first, last))) => {
                let end = last.saturating_add(1).min(object.bytes.len());
                HttpResponse::part(object.clone(), first..end)
            }
        }
    }

    fn delete(&mut self, call: &HttpRequest) -> HttpResponse {
        if let (Some(condition), Conditions::Honoured) = (&call.condition, self.conditions) {
            match (condition, self.objects.get(&call.key)) {
                (Condition::Absent, _) => return HttpResponse::error(501),
                (Condition::Is(version), Some(object)) if !version.is_of(object) => {
                    return HttpResponse::error(412);
                }
                // In S3, deleting a missing object succeeds, unless a version was required.
                (Condition::Is(_), None) => return HttpResponse::error(404),
                (Condition::Is(_), Some(_)) => {}
            }
        }
        self.objects.remove(&call.key);
        HttpResponse::empty(204)
    }

    fn list(&self, call: &HttpRequest) -> HttpResponse {
        let after = match &call.list_after {
            Some(key) => Bound::Excluded(key.clone()),
            None => Bound::Unbounded,
        };
        let limit = call.max_keys.unwrap_or(usize::MAX).min(self.page_size);
        let mut found = self
            .objects
            .range((after, Bound::Unbounded))
            .filter(|(key, _)| key.starts_with(&call.key))
            .filter(|(key, _)| !below_delimiter(&key[call.key.len()..], call));
        let page: Vec<Listed> = found
            .by_ref()
            .take(limit)
            .map(|(key, object)| Listed {
                key: key.clone(),
                object: object.clone(),
            })
            .collect();
        let next = found.next().and(page.last().map(|last| last.key.clone()));
        HttpResponse::page(&call.key, page, next)
    }
}

/// With a delimiter, deeper objects are replaced by common prefixes. No test uses the common
/// prefixes, so they are omitted.
fn below_delimiter(rest: &str, call: &HttpRequest) -> bool {
    call.delimiter
        .as_ref()
        .is_some_and(|delimiter| rest.contains(delimiter.as_str()))
}

fn etag(bytes: &[u8]) -> String {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    format!("\"{:016x}{:016x}\"", hasher.finish(), bytes.len())
}
