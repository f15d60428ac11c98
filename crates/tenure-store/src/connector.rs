//! HTTP interceptor for the `object_store` client.
//!
//! It adds what the client does not offer: the server's clock (K45 (age of files and objects)), the
//! status and the error code of every response, and the conditional delete (P26 (levels of
//! conditional writes), level 2).
//!
//! Each operation runs in the scope of an [`Exchange`]. The HTTP service in this module sits
//! between the client and the network. It adds the condition to an outgoing `DELETE` and records
//! `Date`, status and error code of the response. The condition is added after the request was
//! signed; this is valid because S3 and GCS sign only the headers that the request lists as signed.

use std::sync::{Arc, Mutex, PoisonError};

use http::header::{DATE, HeaderName, HeaderValue, IF_MATCH};
use http::{Method, StatusCode};
use jiff::Timestamp;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService, ReqwestConnector,
};

/// The header in which Azure sends its error code.
const AZURE_CODE: &str = "x-ms-error-code";

tokio::task_local! {
    static EXCHANGE: Arc<Exchange>;
}

/// The HTTP exchange of one store operation: its delete condition and its last response.
#[derive(Debug, Default)]
pub(crate) struct Exchange {
    delete_if: Option<Condition>,
    seen: Mutex<LastResponse>,
}

/// Date, status and error code of the last response.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LastResponse {
    /// The server's clock, from the `Date` header.
    pub(crate) date: Option<Timestamp>,
    /// The status; `None` if no response arrived.
    pub(crate) status: Option<StatusCode>,
    /// The store's own error code. A proxy between us and the store sends a status without one.
    pub(crate) code: Option<ErrorCode>,
}

/// An error code of S3, GCS or Azure, as far as a decision depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorCode {
    /// The object does not exist.
    NoSuchKey,
    /// The bucket or container does not exist.
    NoSuchBucket,
    /// The object exists already (Azure answers 409 where others answer 412).
    AlreadyExists,
    /// Any other code.
    Other,
}

impl ErrorCode {
    fn parse(code: &str) -> ErrorCode {
        match code {
            "NoSuchKey" | "BlobNotFound" => ErrorCode::NoSuchKey,
            "NoSuchBucket" | "ContainerNotFound" => ErrorCode::NoSuchBucket,
            "BlobAlreadyExists" => ErrorCode::AlreadyExists,
            _ => ErrorCode::Other,
        }
    }

    /// Finds the code in an error document: the first `<Code>` element.
    fn in_document(body: &[u8]) -> Option<ErrorCode> {
        let text = String::from_utf8_lossy(body);
        let (_, rest) = text.split_once("<Code>")?;
        let (code, _) = rest.split_once("</Code>")?;
        Some(ErrorCode::parse(code.trim()))
    }
}

/// The condition of a conditional delete.
#[derive(Clone, Debug)]
pub(crate) enum Condition {
    /// `If-Match` with an entity tag (S3).
    Tag(String),
    /// `x-goog-if-generation-match` (Google Cloud Storage).
    Generation(String),
}

impl Exchange {
    /// Creates an exchange without a delete condition.
    pub(crate) fn plain() -> Arc<Exchange> {
        Arc::new(Exchange::default())
    }

    /// Creates an exchange whose `DELETE` takes effect only if `condition` holds.
    pub(crate) fn delete_if(condition: Condition) -> Arc<Exchange> {
        Arc::new(Exchange {
            delete_if: Some(condition),
            ..Exchange::default()
        })
    }

    /// Runs `work` in this exchange. Returns its result and the last response.
    pub(crate) async fn run<T>(
        self: Arc<Exchange>,
        work: impl Future<Output = T>,
    ) -> (T, LastResponse) {
        let result = EXCHANGE.scope(Arc::clone(&self), work).await;
        let seen = *self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        (result, seen)
    }

    fn prepare(&self, request: &mut HttpRequest) {
        // A request that gets no response must not leave the status of an earlier one.
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = LastResponse::default();
        if request.method() != Method::DELETE {
            return;
        }
        let header = match &self.delete_if {
            None => return,
            Some(Condition::Tag(tag)) => (IF_MATCH, HeaderValue::from_str(tag)),
            Some(Condition::Generation(number)) => {
                let name = HeaderName::from_static("x-goog-if-generation-match");
                (name, HeaderValue::from_str(number))
            }
        };
        // A tag that is not a valid header value matches no object, and neither does this
        // replacement.
        let value = header
            .1
            .unwrap_or(HeaderValue::from_static("\"no such version\""));
        request.headers_mut().insert(header.0, value);
    }

    /// Records the response. Reads the body of an error, which carries the code, and returns a
    /// response with the same body.
    async fn note(&self, response: HttpResponse) -> Result<HttpResponse, HttpError> {
        let (parts, body) = response.into_parts();
        let date = parts
            .headers
            .get(DATE)
            .and_then(|date| http_date(date.as_bytes()));
        let in_header = parts
            .headers
            .get(AZURE_CODE)
            .and_then(|code| code.to_str().ok())
            .map(ErrorCode::parse);
        let mut seen = LastResponse {
            date,
            status: Some(parts.status),
            code: in_header,
        };
        // 202: Azure answers a delete with a document that contains the answers to its parts.
        let is_document = parts.status.is_client_error() || parts.status == StatusCode::ACCEPTED;
        let body = match is_document {
            true => {
                // If the body is cut off, the response is as good as none.
                let bytes = body.bytes().await?;
                seen.code = seen.code.or_else(|| ErrorCode::in_document(&bytes));
                bytes.into()
            }
            false => body,
        };
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = seen;
        Ok(HttpResponse::from_parts(parts, body))
    }
}

/// Parses an HTTP date: `Sat, 07 Mar 2026 09:00:30 GMT`.
fn http_date(text: &[u8]) -> Option<Timestamp> {
    jiff::fmt::rfc2822::DateTimeParser::new()
        .parse_timestamp(text)
        .ok()
}

/// Creates HTTP clients whose requests pass through the current [`Exchange`].
#[derive(Debug, Default)]
pub(crate) struct Connector(ReqwestConnector);

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(WatchedClient(self.0.connect(options)?)))
    }
}

#[derive(Debug)]
struct WatchedClient(HttpClient);

#[async_trait::async_trait]
impl HttpService for WatchedClient {
    async fn call(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let exchange = EXCHANGE.try_with(Arc::clone).ok();
        if let Some(exchange) = &exchange {
            exchange.prepare(&mut request);
        }
        let response = self.0.execute(request).await?;
        match &exchange {
            Some(exchange) => exchange.note(response).await,
            None => Ok(response),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// K45: every response carries the store's clock.
    #[test]
    fn dates_of_servers_are_read() {
        let want = "2026-03-07T09:00:30Z".parse().ok();
        assert_eq!(http_date(b"Sat, 07 Mar 2026 09:00:30 GMT"), want);
        assert_eq!(http_date(b"yesterday"), None);
    }

    /// P25 (failed reads are not absence): only the store's own code says that a key is missing.
    #[test]
    fn codes_are_read_from_error_documents() {
        let code = |text: &str| ErrorCode::in_document(text.as_bytes());
        let xml =
            "<?xml version=\"1.0\"?><Error><Code>NoSuchKey</Code><Message>x</Message></Error>";
        assert_eq!(code(xml), Some(ErrorCode::NoSuchKey));
        assert_eq!(
            code("<Error><Code>NoSuchBucket</Code></Error>"),
            Some(ErrorCode::NoSuchBucket)
        );
        assert_eq!(
            code("<Error><Code>SlowDown</Code></Error>"),
            Some(ErrorCode::Other)
        );
        assert_eq!(code("404 page not found"), None);
        assert_eq!(code("<Code>NoSuchKey"), None);
    }
}
