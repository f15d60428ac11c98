//! What the object store client does not offer, taken at the wire: the server's clock (K45), the
//! status of every answer, and the conditional delete (P26 level 2).
//!
//! Each operation runs in the scope of an [`Exchange`]. Our HTTP service, which sits between the
//! client and the network, adds the condition to a `DELETE` on the way out and notes `Date` and
//! status on the way back. The condition is added after the request was signed: S3 and GCS sign
//! only the headers that a request names as signed.

use std::sync::{Arc, Mutex, PoisonError};

use http::header::{DATE, HeaderName, HeaderValue, IF_MATCH};
use http::{Method, StatusCode};
use jiff::Timestamp;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService, ReqwestConnector,
};

tokio::task_local! {
    static EXCHANGE: Arc<Exchange>;
}

/// One operation's conversation with the server.
#[derive(Debug, Default)]
pub(crate) struct Exchange {
    delete_if: Option<Condition>,
    seen: Mutex<LastResponse>,
}

/// What the last answer said.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LastResponse {
    /// The server's clock.
    pub(crate) date: Option<Timestamp>,
    /// The status; `None` if there was no answer at all.
    pub(crate) status: Option<StatusCode>,
}

/// The condition of a delete.
#[derive(Clone, Debug)]
pub(crate) enum Condition {
    /// `If-Match` with an entity tag.
    Tag(String),
    /// Google's generation.
    Generation(String),
}

impl Exchange {
    /// An operation without a condition of ours.
    pub(crate) fn plain() -> Arc<Exchange> {
        Arc::new(Exchange::default())
    }

    /// A delete that shall happen only if the condition holds.
    pub(crate) fn delete_if(condition: Condition) -> Arc<Exchange> {
        Arc::new(Exchange {
            delete_if: Some(condition),
            ..Exchange::default()
        })
    }

    /// Runs `work` in this exchange, and says what was seen.
    pub(crate) async fn run<T>(
        self: Arc<Exchange>,
        work: impl Future<Output = T>,
    ) -> (T, LastResponse) {
        let result = EXCHANGE.scope(Arc::clone(&self), work).await;
        let seen = *self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        (result, seen)
    }

    fn prepare(&self, request: &mut HttpRequest) {
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
        // A tag that is no header value matches nothing, so neither does its stand-in.
        let value = header
            .1
            .unwrap_or(HeaderValue::from_static("\"no such version\""));
        request.headers_mut().insert(header.0, value);
    }

    fn note(&self, response: &HttpResponse) {
        let date = response
            .headers()
            .get(DATE)
            .and_then(|date| http_date(date.as_bytes()));
        let seen = LastResponse {
            date,
            status: Some(response.status()),
        };
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = seen;
    }
}

/// `Sat, 07 Mar 2026 09:00:30 GMT`.
fn http_date(text: &[u8]) -> Option<Timestamp> {
    jiff::fmt::rfc2822::DateTimeParser::new()
        .parse_timestamp(text)
        .ok()
}

/// Makes clients whose traffic goes through an [`Exchange`].
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
        if let Some(exchange) = &exchange {
            exchange.note(&response);
        }
        Ok(response)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// K45: the store's clock is in every answer.
    #[test]
    fn dates_of_servers_are_read() {
        let want = "2026-03-07T09:00:30Z".parse().ok();
        assert_eq!(http_date(b"Sat, 07 Mar 2026 09:00:30 GMT"), want);
        assert_eq!(http_date(b"yesterday"), None);
    }
}
