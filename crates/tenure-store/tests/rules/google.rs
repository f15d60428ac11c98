//! Locks in Google Cloud Storage, on a minimal server. The available emulators do not support the
//! XML interface that the client uses, and this test is about conditions on generations.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use tenure_store::{BreakTarget, Insist};
use tenure_store::{
    Class, ConditionLevel, LockMode, LockPurpose, LockSettings, Options, OtherClients, Repository,
};

#[derive(Default)]
struct Bucket {
    objects: BTreeMap<String, (Bytes, u64)>,
    generations: u64,
    /// Number of deletes with a condition on the generation.
    conditional_deletes: usize,
}

type Shared = Arc<Mutex<Bucket>>;

async fn serve() -> (String, Shared) {
    let bucket = Shared::default();
    let app = Router::new()
        .fallback(answer)
        .with_state(Arc::clone(&bucket));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });
    (endpoint, bucket)
}

async fn answer(
    State(bucket): State<Shared>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let mut bucket = bucket.lock().unwrap();
    let path = decode(uri.path());
    let key = path
        .strip_prefix("/bucket")
        .unwrap()
        .trim_start_matches('/')
        .to_owned();
    if key.is_empty() {
        return bucket.list(&decode(uri.query().unwrap_or("")));
    }
    let there = bucket.objects.get(&key).map(|(_, generation)| *generation);
    let wanted = headers
        .get("x-goog-if-generation-match")
        .map(|value| value.to_str().unwrap());
    if method == Method::DELETE && wanted.is_some() {
        bucket.conditional_deletes += 1;
    }
    if wanted.is_some_and(|wanted| wanted != there.unwrap_or(0).to_string()) {
        return StatusCode::PRECONDITION_FAILED.into_response();
    }
    match (method, there) {
        (Method::PUT, _) => {
            bucket.generations += 1;
            let generation = bucket.generations;
            bucket.objects.insert(key, (body, generation));
            (dates(generation), "").into_response()
        }
        (_, None) => {
            let missing = "<Error><Code>NoSuchKey</Code></Error>";
            (StatusCode::NOT_FOUND, missing).into_response()
        }
        (Method::GET, Some(generation)) => {
            (dates(generation), bucket.objects[&key].0.clone()).into_response()
        }
        (Method::DELETE, Some(_)) => {
            bucket.objects.remove(&key);
            StatusCode::NO_CONTENT.into_response()
        }
        (_, Some(_)) => StatusCode::NOT_IMPLEMENTED.into_response(),
    }
}

impl Bucket {
    fn list(&self, query: &str) -> Response {
        let prefix = query
            .split('&')
            .find_map(|part| part.strip_prefix("prefix="));
        let prefix = prefix.unwrap_or_default();
        let mut xml = String::from("<ListBucketResult>");
        for key in self.objects.keys().filter(|key| key.starts_with(prefix)) {
            xml += &format!(
                "<Contents><Key>{key}</Key><Size>1</Size>\
                 <LastModified>2026-03-07T09:00:00Z</LastModified><ETag>x</ETag></Contents>"
            );
        }
        (xml + "</ListBucketResult>").into_response()
    }
}

fn dates(generation: u64) -> [(&'static str, String); 3] {
    let now = httpdate::fmt_http_date(std::time::SystemTime::now());
    [
        ("etag", format!("\"{generation}\"")),
        ("x-goog-generation", generation.to_string()),
        ("last-modified", now),
    ]
}

fn decode(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next().unwrap(), rest.next().unwrap()];
                u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap()
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).unwrap()
}

fn open(endpoint: &str) -> Repository {
    let account = format!(
        r#"{{"gcs_base_url":"{endpoint}","disable_oauth":true,"client_email":"","private_key":"","private_key_id":""}}"#
    );
    let config = [
        ("google_service_account_key", account),
        ("google_allow_http", "true".into()),
    ];
    let options = Options {
        config: config.map(|(key, value)| (key.to_owned(), value)).into(),
        settings: LockSettings {
            company: OtherClients::TenureOnly,
            ..LockSettings::default()
        },
        ..Options::default()
    };
    Repository::open("gs://bucket/team/a".parse().unwrap(), options).unwrap()
}

/// P26: conditional writes and deletes by generation give level 2.
#[tokio::test]
async fn a_lock_lives_by_generations() {
    let (endpoint, bucket) = serve().await;
    let repository = open(&endpoint);
    assert_eq!(
        repository.abilities().await.unwrap().level,
        ConditionLevel::Deletes
    );
    let probes = bucket.lock().unwrap().conditional_deletes;
    assert_eq!(probes, 2, "one that must fail, one that must not");

    let guard = repository
        .lock(LockPurpose::new(LockMode::Exclusive, "prune"))
        .await
        .unwrap();
    guard.check().await.unwrap();
    let busy = open(&endpoint)
        .lock(LockPurpose::new(LockMode::Shared, "backup"))
        .await
        .unwrap_err();
    assert_eq!(busy.class(), Class::Held);
    guard.release().await.unwrap();
    assert!(
        bucket.lock().unwrap().conditional_deletes > probes,
        "released by generation"
    );

    let shared = repository
        .lock(LockPurpose::new(LockMode::Shared, "backup"))
        .await
        .unwrap();
    let view = repository.inspect().await.unwrap();
    assert_eq!(view.locks.len(), 1);
    assert!(
        view.locks[0].object.store_now.is_some(),
        "K45: the clock is in the answer"
    );
    let targets = view.locks.iter().map(BreakTarget::from).collect();
    let broken = repository.break_locks(targets, Insist::Yes).await.unwrap();
    assert_eq!(broken.removed.len(), 1);
    assert_eq!(
        shared.check().await.unwrap_err().class(),
        Class::Compromised
    );
}
