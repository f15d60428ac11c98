//! S3 server for tests: the requests of the repository lock, serialized by one mutex, with fault
//! injection.
//!
//! ```text
//!   client ──▶ accept ──▶ read body ──▶ [fault before] ──▶ apply ──▶ [fault after] ──▶ response
//!                                         delay, refuse   one mutex   lose, 500, delay
//! ```
//!
//! The server has its own thread and runtime, so a test that blocks or pauses its runtime does not
//! stop it. It does not check signatures. It keeps the properties of real servers that a mock would
//! simplify: the ETag is a hash of the content (equal bytes, equal ETag), `Last-Modified` has whole
//! seconds, a bare `+` in a path is a blank, a range of an empty object gives 416, and a bulk
//! delete has no conditions.

mod bucket;
mod clock;
mod fault;
mod wire;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};

pub(crate) use bucket::{Conditions, Object};
pub(crate) use clock::Clock;
pub(crate) use fault::{Fault, FaultKind, FaultPlan, Gate};

use bucket::Bucket;
use fault::{After, Before};
use wire::{HttpRequest, HttpResponse};

/// The bucket of all tests.
pub(crate) const BUCKET: &str = "bucket";

/// A request as the server received it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReceivedRequest {
    /// The kind of request.
    pub(crate) kind: FaultKind,
    /// The key, or the prefix of a list.
    pub(crate) key: String,
    /// The condition header, as sent.
    pub(crate) condition: Option<String>,
    /// The status; `None` if the request was cut off before it was applied.
    pub(crate) status: Option<u16>,
}

struct Shared {
    bucket: Bucket,
    plans: Vec<FaultPlan>,
    seen: Vec<ReceivedRequest>,
}

#[derive(Clone)]
struct Inside {
    shared: Arc<Mutex<Shared>>,
    clock: Clock,
    /// Number of applied requests; a reordered request waits for it to change.
    applied: watch::Sender<u64>,
}

/// A running server. Dropping it closes its port and all connections.
pub(crate) struct S3Server {
    address: SocketAddr,
    inside: Inside,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl S3Server {
    /// Starts a server on a free local port that honors conditions and uses the real clock.
    pub(crate) fn start() -> S3Server {
        let inside = Inside {
            shared: Arc::new(Mutex::new(Shared {
                bucket: Bucket::default(),
                plans: Vec::new(),
                seen: Vec::new(),
            })),
            clock: Clock::real(),
            applied: watch::channel(0).0,
        };
        let (stop, stopped) = oneshot::channel();
        let (tell_address, address) = std::sync::mpsc::channel();
        let for_thread = inside.clone();
        let thread = std::thread::spawn(move || {
            tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime for the test server")
                .block_on(async move {
                    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
                    tell_address
                        .send(listener.local_addr().expect("a bound port has an address"))
                        .expect("the test waits for the address");
                    tokio::select! {
                        () = serve(listener, for_thread) => {}
                        _ = stopped => {}
                    }
                });
        });
        S3Server {
            address: address.recv().expect("the server thread sends its address"),
            inside,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// `http://127.0.0.1:port`.
    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The server's clock, the source of `Date` and `Last-Modified`.
    pub(crate) fn clock(&self) -> &Clock {
        &self.inside.clock
    }

    /// Sets how the store handles conditions.
    pub(crate) fn set_conditions(&self, conditions: Conditions) {
        self.lock().bucket.conditions = conditions;
    }

    /// Sets the maximum page size of a list.
    pub(crate) fn set_page_size(&self, keys: usize) {
        self.lock().bucket.page_size = keys;
    }

    /// Adds a planned fault. Plans are tried in the order of addition.
    pub(crate) fn plan(&self, plan: FaultPlan) {
        self.lock().plans.push(plan);
    }

    /// Removes all planned faults.
    pub(crate) fn heal(&self) {
        self.lock().plans.clear();
    }

    /// Returns the object at this key.
    pub(crate) fn object(&self, key: &str) -> Option<Object> {
        self.lock().bucket.objects.get(key).cloned()
    }

    /// Returns all keys with this prefix, in order.
    pub(crate) fn keys(&self, prefix: &str) -> Vec<String> {
        let shared = self.lock();
        shared
            .bucket
            .objects
            .keys()
            .filter(|key| key.starts_with(prefix))
            .cloned()
            .collect()
    }

    /// Stores an object directly, this old by the server's clock.
    pub(crate) fn plant(&self, key: &str, bytes: impl Into<Bytes>, age: Duration) {
        let modified_ms = self.inside.clock.now_ms() - age.as_millis() as i64;
        self.lock().bucket.plant(key, bytes.into(), modified_ms);
    }

    /// Removes all objects.
    pub(crate) fn clear(&self) {
        self.lock().bucket.objects.clear();
    }

    /// Returns all requests since the start or the last call.
    pub(crate) fn take_seen(&self) -> Vec<ReceivedRequest> {
        std::mem::take(&mut self.lock().seen)
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.inside.lock()
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        // Sending fails only if the thread has already ended.
        let _ = self.stop.take().map(|stop| stop.send(()));
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the server thread ends in peace");
        }
    }
}

impl Inside {
    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// The error of a handler that closes the connection without a response.
#[derive(Clone)]
struct Cut;

async fn serve(listener: TcpListener, inside: Inside) {
    let app = Router::new().fallback(handle).with_state(inside);
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            continue;
        };
        let app = TowerToHyperService::new(app.clone());
        tokio::spawn(async move {
            let service = hyper::service::service_fn(move |request| {
                let answer = hyper::service::Service::call(&app, request);
                async move {
                    let Ok::<Response, Infallible>(response) = answer.await;
                    match response.extensions().get::<Cut>() {
                        Some(Cut) => Err("cut on demand"),
                        None => Ok(response),
                    }
                }
            });
            // Returns an error if the client or a fault closes the connection; that is expected.
            let _ = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

async fn handle(State(inside): State<Inside>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let Ok(body) = axum::body::to_bytes(body, 1 << 20).await else {
        return cut();
    };
    let call = match HttpRequest::parse(&parts, body) {
        Ok(call) => call,
        Err(answer) => return answer.into_response(inside.clock.now_ms()),
    };
    // A separate task: a received request is applied even if the client has disconnected.
    let work = tokio::spawn(async move { carry_out(inside, call).await });
    work.await.unwrap_or_else(|_| cut())
}

async fn carry_out(inside: Inside, mut call: HttpRequest) -> Response {
    let fault = fault::take(&mut inside.lock().plans, call.kind, &call.key);
    let (before, after) = fault.map_or((Before::Nothing, After::Answer), Fault::split);
    match before {
        Before::Nothing => {}
        Before::Wait(time) => tokio::time::sleep(time).await,
        Before::BeOvertaken => {
            let mut applied = inside.applied.subscribe();
            // `inside` keeps the sender alive, so waiting cannot fail.
            let _ = applied.changed().await;
        }
        Before::ForgetCondition => call.condition = None,
        Before::Refuse(status) => {
            inside.note(&call, Some(status));
            return HttpResponse::error(status).into_response(inside.clock.now_ms());
        }
        Before::Proxy(status) => {
            inside.note(&call, Some(status));
            return HttpResponse::of_proxy(status);
        }
        Before::Cut => {
            inside.note(&call, None);
            return cut();
        }
    }
    if let After::CutFirst(gate) = &after {
        let (inside, gate) = (inside.clone(), gate.clone());
        tokio::spawn(async move {
            gate.passed().await;
            inside.apply(&call);
        });
        return cut();
    }
    let answer = inside.apply(&call);
    match after {
        After::Answer => {}
        After::Wait(time) => tokio::time::sleep(time).await,
        After::Status(status) => {
            return HttpResponse::error(status).into_response(inside.clock.now_ms());
        }
        After::Cut | After::CutFirst(_) => return cut(),
        After::CutBody => return cut_body(answer.into_response(inside.clock.now_ms())),
    }
    answer.into_response(inside.clock.now_ms())
}

impl Inside {
    fn apply(&self, call: &HttpRequest) -> HttpResponse {
        let answer = {
            let mut shared = self.lock();
            let answer = shared.bucket.apply(call, self.clock.now_ms());
            shared.seen.push(seen(call, Some(answer.status())));
            answer
        };
        self.applied.send_modify(|count| *count += 1);
        answer
    }

    fn note(&self, call: &HttpRequest, status: Option<u16>) {
        self.lock().seen.push(seen(call, status));
    }
}

fn seen(call: &HttpRequest, status: Option<u16>) -> ReceivedRequest {
    let condition = call.condition.as_ref().map(ToString::to_string);
    ReceivedRequest {
        kind: call.kind,
        key: call.key.clone(),
        condition,
        status,
    }
}

fn cut() -> Response {
    let mut response = Response::new(Body::empty());
    response.extensions_mut().insert(Cut);
    response
}

/// Sends the head of the response and closes the connection before its body.
fn cut_body(response: Response) -> Response {
    let (mut parts, _) = response.into_parts();
    parts
        .headers
        .insert(header::CONTENT_LENGTH, HeaderValue::from_static("4096"));
    let start = Ok(Bytes::from_static(b"<"));
    let end = Err(std::io::Error::other("cut on demand"));
    Response::from_parts(
        parts,
        Body::from_stream(futures_util::stream::iter([start, end])),
    )
}
