//! HTTP and XML codec: decodes a [`HttpRequest`], encodes an [`HttpResponse`].

use std::collections::BTreeMap;
use std::fmt;
use std::fmt::Write as _;
use std::ops::Range;
use std::time::{Duration, UNIX_EPOCH};

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Method, StatusCode, header, request};
use axum::response::Response;

use super::BUCKET;
use super::bucket::Object;
use super::fault::FaultKind;

const GENERATION: &str = "x-goog-generation";
const GENERATION_MATCH: &str = "x-goog-if-generation-match";

/// The condition of a request on the current object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    /// `If-None-Match: *`
    Absent,
    /// `If-Match: <etag>`, or `x-goog-if-generation-match: <number>`
    Is(Version),
}

/// A version of an object as the client names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Version {
    Tag(String),
    Generation(String),
}

impl Version {
    pub(super) fn is_of(&self, object: &Object) -> bool {
        match self {
            Version::Tag(tag) => *tag == object.etag,
            Version::Generation(number) => *number == object.generation.to_string(),
        }
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Condition::Absent => write!(out, "if-none-match: *"),
            Condition::Is(Version::Tag(tag)) => write!(out, "if-match: {tag}"),
            Condition::Is(Version::Generation(number)) => write!(out, "generation: {number}"),
        }
    }
}

/// A decoded request.
#[derive(Clone, Debug)]
pub(super) struct HttpRequest {
    pub(super) kind: FaultKind,
    /// The key, or the prefix of a list.
    pub(super) key: String,
    /// The keys of a bulk delete.
    pub(super) keys: Vec<String>,
    pub(super) condition: Option<Condition>,
    /// First and last byte.
    pub(super) range: Option<(usize, usize)>,
    pub(super) list_after: Option<String>,
    pub(super) max_keys: Option<usize>,
    pub(super) delimiter: Option<String>,
    pub(super) body: Bytes,
}

impl HttpRequest {
    pub(super) fn parse(parts: &request::Parts, body: Bytes) -> Result<HttpRequest, HttpResponse> {
        let path = parts.uri.path().trim_start_matches('/');
        let (bucket, key) = path.split_once('/').unwrap_or((path, ""));
        if bucket != BUCKET {
            return Err(HttpResponse::error(404));
        }
        let key = decode(key).ok_or(HttpResponse::error(400))?;
        let query = query(parts.uri.query().unwrap_or("")).ok_or(HttpResponse::error(400))?;
        let kind = match (&parts.method, key.is_empty()) {
            (&Method::PUT, false) => FaultKind::Put,
            (&Method::GET, false) => FaultKind::Get,
            (&Method::HEAD, false) => FaultKind::Head,
            (&Method::DELETE, false) => FaultKind::Delete,
            (&Method::GET, true) => FaultKind::List,
            (&Method::POST, true) if query.contains_key("delete") => FaultKind::BulkDelete,
            _ => return Err(HttpResponse::error(405)),
        };
        let keys = match kind {
            FaultKind::BulkDelete => bulk_keys(&body),
            FaultKind::Put
            | FaultKind::Get
            | FaultKind::Head
            | FaultKind::Delete
            | FaultKind::List => Vec::new(),
        };
        let after = query
            .get("continuation-token")
            .or_else(|| query.get("start-after"));
        Ok(HttpRequest {
            kind,
            key: if kind == FaultKind::List {
                query.get("prefix").cloned().unwrap_or_default()
            } else {
                key
            },
            keys,
            condition: condition(&parts.headers)?,
            range: range(&parts.headers)?,
            list_after: after.cloned(),
            max_keys: query.get("max-keys").and_then(|text| text.parse().ok()),
            delimiter: query.get("delimiter").cloned(),
            body,
        })
    }
}

/// Reads the two condition headers of S3 and the one of GCS, where generation 0 means absent.
fn condition(headers: &HeaderMap) -> Result<Option<Condition>, HttpResponse> {
    let text = |name: &str| {
        headers
            .get(name)
            .map(|value| value.to_str().unwrap_or_default())
    };
    match (
        text("if-none-match"),
        text("if-match"),
        text(GENERATION_MATCH),
    ) {
        (None, None, None) => Ok(None),
        (Some("*"), None, None) | (None, None, Some("0")) => Ok(Some(Condition::Absent)),
        (None, Some(tag), None) => Ok(Some(Condition::Is(Version::Tag(tag.to_owned())))),
        (None, None, Some(number)) => {
            Ok(Some(Condition::Is(Version::Generation(number.to_owned()))))
        }
        _ => Err(HttpResponse::error(501)),
    }
}

fn range(headers: &HeaderMap) -> Result<Option<(usize, usize)>, HttpResponse> {
    let Some(value) = headers.get(header::RANGE) else {
        return Ok(None);
    };
    let parsed = value
        .to_str()
        .ok()
        .and_then(|text| text.strip_prefix("bytes="))
        .and_then(|text| text.split_once('-'))
        .and_then(|(first, last)| {
            let last = if last.is_empty() {
                usize::MAX
            } else {
                last.parse().ok()?
            };
            Some((first.parse().ok()?, last))
        });
    parsed.map(Some).ok_or(HttpResponse::error(400))
}

fn query(text: &str) -> Option<BTreeMap<String, String>> {
    text.split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            Some((decode(name)?, decode(value)?))
        })
        .collect()
}

/// Percent-decoding as in S3: a bare `+` is a blank, in paths too (P5: special characters in keys).
fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            b'+' => b' ',
            other => other,
        });
    }
    String::from_utf8(bytes).ok()
}

fn bulk_keys(body: &[u8]) -> Vec<String> {
    let body = String::from_utf8_lossy(body);
    let keys = body
        .split("<Key>")
        .skip(1)
        .filter_map(|part| part.split_once("</Key>"));
    keys.map(|(key, _)| {
        key.replace("&lt;", "<")
            .replace("&gt;", ">")
            .replace("&amp;", "&")
    })
    .collect()
}

/// An entry of a list.
pub(super) struct Listed {
    pub(super) key: String,
    pub(super) object: Object,
}

/// The response of the bucket before encoding.
pub(super) struct HttpResponse {
    status: u16,
    object: Option<Object>,
    part: Option<Range<usize>>,
    version: Option<(String, u64)>,
    xml: String,
}

impl HttpResponse {
    pub(super) fn status(&self) -> u16 {
        self.status
    }

    pub(super) fn empty(status: u16) -> HttpResponse {
        HttpResponse {
            status,
            object: None,
            part: None,
            version: None,
            xml: String::new(),
        }
    }

    pub(super) fn error(status: u16) -> HttpResponse {
        let code = match status {
            304 => "NotModified",
            400 => "InvalidRequest",
            403 => "AccessDenied",
            404 => "NoSuchKey",
            409 => "ConditionalRequestConflict",
            412 => "PreconditionFailed",
            416 => "InvalidRange",
            429 => "TooManyRequests",
            501 => "NotImplemented",
            503 => "SlowDown",
            _ => "InternalError",
        };
        let xml = format!("<Error><Code>{code}</Code><Message>on demand</Message></Error>");
        HttpResponse {
            xml,
            ..HttpResponse::empty(status)
        }
    }

    /// The page of a proxy that has no backend: no date and no code of the store.
    pub(super) fn of_proxy(status: u16) -> Response {
        Response::builder()
            .status(StatusCode::from_u16(status).expect("statuses of this server are legal"))
            .header(header::CONTENT_TYPE, "text/plain")
            .body(Body::from(format!("{status} page not found\n")))
            .expect("headers of this server are legal")
    }

    pub(super) fn stored(object: &Object) -> HttpResponse {
        HttpResponse {
            version: Some((object.etag.clone(), object.generation)),
            ..HttpResponse::empty(200)
        }
    }

    pub(super) fn object(object: Object) -> HttpResponse {
        HttpResponse {
            object: Some(object),
            ..HttpResponse::empty(200)
        }
    }

    pub(super) fn part(object: Object, part: Range<usize>) -> HttpResponse {
        HttpResponse {
            object: Some(object),
            part: Some(part),
            ..HttpResponse::empty(206)
        }
    }

    pub(super) fn deleted(keys: &[String]) -> HttpResponse {
        let mut xml = String::from("<DeleteResult>");
        for key in keys {
            write!(xml, "<Deleted><Key>{}</Key></Deleted>", escape(key)).expect("a string grows");
        }
        HttpResponse {
            xml: xml + "</DeleteResult>",
            ..HttpResponse::empty(200)
        }
    }

    pub(super) fn page(prefix: &str, page: Vec<Listed>, next: Option<String>) -> HttpResponse {
        let mut xml = String::from("<ListBucketResult>");
        let mut tag = |name: &str, text: &str| {
            write!(xml, "<{name}>{}</{name}>", escape(text)).expect("a string grows");
        };
        tag("Name", BUCKET);
        tag("Prefix", prefix);
        tag("KeyCount", &page.len().to_string());
        tag("IsTruncated", if next.is_some() { "true" } else { "false" });
        if let Some(next) = next {
            tag("NextContinuationToken", &next);
        }
        for Listed { key, object } in page {
            let (key, etag) = (escape(&key), escape(&object.etag));
            let (modified, size) = (iso_date(object.modified_ms), object.bytes.len());
            write!(
                xml,
                "<Contents><Key>{key}</Key><LastModified>{modified}</LastModified>\
                 <ETag>{etag}</ETag><Size>{size}</Size></Contents>"
            )
            .expect("a string grows");
        }
        HttpResponse {
            xml: xml + "</ListBucketResult>",
            ..HttpResponse::empty(200)
        }
    }

    pub(super) fn into_response(self, now_ms: i64) -> Response {
        let mut response = Response::builder()
            .status(StatusCode::from_u16(self.status).expect("statuses of this server are legal"))
            .header(header::DATE, http_date(now_ms));
        if let Some((etag, generation)) = &self.version {
            response = response
                .header(header::ETAG, etag)
                .header(GENERATION, *generation);
        }
        let body = match self.object {
            Some(object) => {
                let size = object.bytes.len();
                let range = self.part.unwrap_or(0..size);
                if self.status == 206 {
                    let told = format!("bytes {}-{}/{size}", range.start, range.end - 1);
                    response = response.header(header::CONTENT_RANGE, told);
                }
                response = response
                    .header(header::ETAG, &object.etag)
                    .header(GENERATION, object.generation)
                    .header(header::LAST_MODIFIED, http_date(object.modified_ms))
                    .header(header::CONTENT_LENGTH, range.len());
                Body::from(object.bytes.slice(range))
            }
            None => Body::from(self.xml),
        };
        response
            .body(body)
            .expect("headers of this server are legal")
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

fn http_date(at_ms: i64) -> String {
    let seconds = u64::try_from(at_ms.div_euclid(1000)).expect("the server lives after 1970");
    httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(seconds))
}

/// Formats `2026-03-07T09:00:00.000Z` from the parts of the HTTP date.
fn iso_date(at_ms: i64) -> String {
    let http = http_date(at_ms);
    let [_, day, month, year, time, _] = http.split(' ').collect::<Vec<_>>()[..] else {
        unreachable!("an HTTP date has six words");
    };
    let months = "JanFebMarAprMayJunJulAugSepOctNovDec";
    let month = months.find(month).expect("a month") / 3 + 1;
    format!("{year}-{month:02}-{day}T{time}.000Z")
}
