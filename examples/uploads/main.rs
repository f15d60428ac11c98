//! Resumable uploads: the tus 1.0 core protocol with creation and termination, on any number of
//! instances.
//!
//! ```sh
//! TENURE_URL=127.0.0.1:50051 uploads DIRECTORY 127.0.0.1:8080
//! ```
//!
//! Problem: a client's connection breaks silently, and the instance that reads from it does not
//! notice. The client retries, perhaps on another instance. It must neither wait for a timeout nor
//! write concurrently with the old request.
//!
//! Solution: every request acquires the upload's lock on the daemon and sends a release request to
//! the holder. A request that gets one stops reading, syncs what it has, and releases the lock. The
//! instances share only a directory and the daemon.

#![allow(clippy::print_stdout, reason = "an example talks to people")]

mod files;
mod http_error;

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::{head, post};
use http_body_util::BodyExt;
use tenure::{Guard, Lock, Tenure};

use files::{Files, Upload};
use http_error::HttpError;

#[derive(Clone)]
struct UploadServer {
    tenure: Tenure,
    files: Files,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [directory, address] = arguments.as_slice() else {
        return Err("usage: uploads DIRECTORY ADDRESS".into());
    };
    let server = UploadServer {
        tenure: Tenure::from_env()?,
        files: Files::in_directory(directory),
    };
    let one = head(offset).patch(append).delete(remove).options(abilities);
    let router = Router::new()
        .route("/files", post(create).options(abilities))
        .route("/files/{id}", one)
        .layer(from_fn(speaks_tus))
        .with_state(server);
    let listener = tokio::net::TcpListener::bind(address).await?;
    println!("ready {}", listener.local_addr()?);
    Ok(axum::serve(listener, router).await?)
}

impl UploadServer {
    /// Returns the lock of an upload. It asks the present holder to release.
    fn lock(&self, upload: &Upload) -> Result<Lock, HttpError> {
        let lock = self
            .tenure
            .lock(format!("uploads:/files/{}", upload.id()))?;
        Ok(lock
            .ask()
            .wait(Duration::from_secs(20))
            .ttl(Duration::from_secs(10)))
    }
}

/// Checks the protocol version of requests and adds it to responses.
async fn speaks_tus(request: Request, next: Next) -> Response {
    let version = request.headers().get("tus-resumable");
    let known =
        request.method() == Method::OPTIONS || version.is_some_and(|version| version == "1.0.0");
    let mut response = if known {
        next.run(request).await
    } else {
        (StatusCode::PRECONDITION_FAILED, [("tus-version", "1.0.0")]).into_response()
    };
    response
        .headers_mut()
        .insert("tus-resumable", HeaderValue::from_static("1.0.0"));
    response
}

async fn abilities() -> impl IntoResponse {
    let can = [
        ("tus-version", "1.0.0"),
        ("tus-extension", "creation,termination"),
    ];
    (StatusCode::NO_CONTENT, can)
}

/// Creates an upload. No other client knows it yet, so this needs no lock.
async fn create(
    State(server): State<UploadServer>,
    headers: HeaderMap,
) -> Result<Response, HttpError> {
    let upload = server.files.create(number(&headers, "upload-length")?)?;
    let location = format!("/files/{}", upload.id());
    Ok((StatusCode::CREATED, [("location", location)]).into_response())
}

/// Returns the offset. It is read under the lock, so no other request is still writing.
async fn offset(
    State(server): State<UploadServer>,
    Path(id): Path<String>,
) -> Result<Response, HttpError> {
    let upload = server.files.find(&id)?;
    let (offset, length) = server
        .lock(&upload)?
        .with(async |_| Ok::<_, HttpError>((upload.offset()?, upload.length()?)))
        .await?;
    let told = [
        ("upload-offset", offset.to_string()),
        ("upload-length", length.to_string()),
        ("cache-control", "no-store".to_owned()),
    ];
    Ok((StatusCode::OK, told).into_response())
}

async fn append(
    State(server): State<UploadServer>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, HttpError> {
    let upload = server.files.find(&id)?;
    if headers
        .get("content-type")
        .is_none_or(|kind| kind != "application/offset+octet-stream")
    {
        return Err(HttpError::because(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "send application/offset+octet-stream",
        ));
    }
    let from = number(&headers, "upload-offset")?;
    let lock = server.lock(&upload)?;
    // If the lock is lost, `with` drops the future, so nothing more is read or written.
    let offset = lock
        .with(async |guard| receive(&upload, from, body, guard).await)
        .await?;
    Ok((
        StatusCode::NO_CONTENT,
        [("upload-offset", offset.to_string())],
    )
        .into_response())
}

/// Stores the body until it ends, the connection breaks, or another request asks for the upload.
async fn receive(
    upload: &Upload,
    from: u64,
    mut body: Body,
    guard: &Guard,
) -> Result<u64, HttpError> {
    let mut file = upload.open_at(from)?;
    let end = loop {
        let frame = tokio::select! {
            biased;
            request = guard.release_requested() => break Err(HttpError::because(StatusCode::LOCKED, request)),
            frame = body.frame() => frame,
        };
        match frame {
            None => break Ok(()),
            Some(Err(broken)) => break Err(HttpError::because(StatusCode::BAD_REQUEST, broken)),
            Some(Ok(frame)) => {
                let Ok(bytes) = frame.into_data() else {
                    continue;
                };
                // This process may have been suspended since the frame arrived.
                guard.still_held()?;
                if let Err(refused) = file.append(&bytes) {
                    break Err(refused);
                }
            }
        }
    };
    // Keep what has arrived, whatever ended the loop: the next request continues there.
    tokio::task::block_in_place(|| file.sync())?;
    end.map(|()| file.offset())
}

async fn remove(
    State(server): State<UploadServer>,
    Path(id): Path<String>,
) -> Result<StatusCode, HttpError> {
    let upload = server.files.find(&id)?;
    server
        .lock(&upload)?
        .with(async |_| upload.remove())
        .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Returns a required numeric header.
fn number(headers: &HeaderMap, name: &str) -> Result<u64, HttpError> {
    let text = headers.get(name).and_then(|value| value.to_str().ok());
    text.and_then(|text| text.parse().ok()).ok_or_else(|| {
        HttpError::because(StatusCode::BAD_REQUEST, format!("{name} must be a number"))
    })
}
