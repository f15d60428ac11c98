//! Object store backend: S3 and compatible stores, Google Cloud Storage, Azure Blob Storage.
//!
//! One [`StoreOp`] is one request; a long listing may take several. The retries of the client
//! library are switched off, because only the protocol knows what a failure of unknown outcome
//! means.

use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
#[cfg(feature = "s3")]
use object_store::aws::AmazonS3Builder;
#[cfg(feature = "azure")]
use object_store::azure::MicrosoftAzureBuilder;
#[cfg(feature = "gcs")]
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::path::Path;
use object_store::{
    ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutResult, RetryConfig,
    UpdateVersion,
};
use tenure_files::internal::{Here, verdict_without_lock};

use crate::address::{Bucket, Scheme};
use crate::connector::{Condition, Connector, ErrorCode, Exchange, LastResponse};
use crate::envelope::{Codec, LIMIT};
use crate::key::ObjectKey;
use crate::protocol::{ConditionFailure, OpBody, OpFailure, OpResult, StoreOp};
use crate::record::{HolderBlock, LockRecord};
use crate::staleness::{Object, ObjectContent, ProcessLiveness, Unreadable, Version};
use crate::store::{BoxFuture, Store, liveness, own_block};
use crate::store_messages;

/// Time limit of one request. A refresh that hangs must leave time for another within the lease
/// (P32 (lease limit at 80 percent)).
const REQUEST_LIMIT: Duration = Duration::from_secs(10);
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// A bucket that stores repository locks.
pub struct Objects {
    client: Box<dyn ObjectStore>,
    scheme: Scheme,
    prefix: String,
    codec: Codec,
}

impl Objects {
    /// Creates a client for `bucket`. Sends no request.
    ///
    /// Credentials, region and endpoint come from the environment variables of the store's own
    /// tools; `config` overrides them by key (`aws_endpoint`, …).
    ///
    /// # Errors
    ///
    /// Returns an error if a key in `config` is unknown or the settings are incomplete.
    pub fn open(
        bucket: &Bucket,
        config: &[(String, String)],
        codec: Codec,
    ) -> Result<Objects, object_store::Error> {
        let client = client(bucket, config)?;
        let (scheme, prefix) = (bucket.scheme, bucket.prefix.clone());
        Ok(Objects {
            client,
            scheme,
            prefix,
            codec,
        })
    }

    fn path(&self, key: &str) -> Result<Path, OpFailure> {
        let whole = match self.prefix.as_str() {
            "" => key.to_owned(),
            prefix => format!("{prefix}/{key}"),
        };
        Path::parse(whole).map_err(|error| OpFailure::lasting(error.to_string()))
    }

    async fn read(&self, key: &ObjectKey) -> Result<OpResult, OpFailure> {
        let path = self.path(&key.path())?;
        let get = async {
            let got = self.client.get(&path).await?;
            let meta = got.meta.clone();
            // An object over the limit is not a record, so it is not downloaded (P13 (repository
            // record size limit)).
            let bytes = if meta.size > LIMIT as u64 {
                None
            } else {
                Some(got.bytes().await?)
            };
            Ok((meta, bytes))
        };
        let (got, seen) = Exchange::plain().run(get).await;
        match got {
            Ok((meta, bytes)) => Ok(OpResult::Found(self.object(key, meta, bytes, seen))),
            // Only the store's own code is absence; a bare 404 may come from a proxy (P25 (failed
            // reads are not absence)).
            Err(_) if seen.code == Some(ErrorCode::NoSuchKey) => Ok(OpResult::Absent),
            Err(error) => Err(failure(&error, seen)),
        }
    }

    fn object(
        &self,
        key: &ObjectKey,
        meta: ObjectMeta,
        bytes: Option<Bytes>,
        seen: LastResponse,
    ) -> Object {
        let content = match (key, bytes) {
            (_, None) => ObjectContent::Unreadable {
                why: Unreadable::TooLarge,
                bytes: meta.size,
            },
            (ObjectKey::Fence, Some(bytes)) => Codec::decode_fence(&bytes),
            (_, Some(bytes)) => self.codec.decode_record(key, &bytes),
        };
        let liveness = match &content {
            ObjectContent::Record(record) => followed(record),
            ObjectContent::Fence(_) | ObjectContent::Unreadable { .. } => ProcessLiveness::Unknown,
        };
        let modified = Timestamp::new(
            meta.last_modified.timestamp(),
            i32::try_from(meta.last_modified.timestamp_subsec_nanos()).unwrap_or(0),
        );
        Object {
            content,
            version: Version {
                e_tag: meta.e_tag,
                generation: meta.version,
            },
            modified: modified.ok(),
            store_now: seen.date,
            liveness,
        }
    }

    async fn list(&self) -> Result<OpResult, OpFailure> {
        let prefix = self.path(ObjectKey::SHARED_PREFIX)?;
        let list = async {
            let mut keys = Vec::new();
            let mut found = self.client.list(Some(&prefix));
            while let Some(meta) = next(&mut found).await {
                keys.push(meta?.location);
            }
            Ok(keys)
        };
        let (listed, seen) = Exchange::plain().run(list).await;
        let listed = listed.map_err(|error| failure(&error, seen))?;
        let below = |path: Path| {
            let path = path.as_ref();
            let key = match self.prefix.as_str() {
                "" => Some(path),
                prefix => path.strip_prefix(prefix)?.strip_prefix('/'),
            };
            ObjectKey::lock(key?)
        };
        Ok(OpResult::Listed(
            listed.into_iter().filter_map(below).collect(),
        ))
    }

    async fn put(
        &self,
        key: &ObjectKey,
        body: &OpBody,
        mode: PutMode,
    ) -> Result<OpResult, OpFailure> {
        let path = self.path(&key.path())?;
        let conditional = !matches!(mode, PutMode::Overwrite);
        let options = PutOptions {
            mode,
            ..PutOptions::default()
        };
        let bytes = self.codec.encode(key, body);
        let put = self.client.put_opts(&path, bytes.into(), options);
        let (put, seen) = Exchange::plain().run(put).await;
        match put {
            Ok(PutResult { e_tag, version, .. }) => Ok(OpResult::Written(Version {
                e_tag,
                generation: version,
            })),
            Err(error) if conditional => refusal(&error, seen),
            Err(error) => Err(failure(&error, seen)),
        }
    }

    async fn delete(&self, key: &ObjectKey, exchange: Deletion) -> Result<OpResult, OpFailure> {
        let path = self.path(&key.path())?;
        let (exchange, conditional) = match exchange {
            Deletion::Anything => (Exchange::plain(), false),
            Deletion::Version(version) => match self.condition(version) {
                Some(condition) => (Exchange::delete_if(condition), true),
                None => return Ok(OpResult::Refused(ConditionFailure::NotSupported)),
            },
        };
        let (deleted, seen) = exchange.run(self.client.delete(&path)).await;
        match deleted {
            Ok(()) => Ok(OpResult::Deleted),
            Err(_) if seen.code == Some(ErrorCode::NoSuchKey) => Ok(OpResult::Absent),
            Err(error) if conditional => refusal(&error, seen),
            Err(error) => Err(failure(&error, seen)),
        }
    }

    fn condition(&self, version: Version) -> Option<Condition> {
        match self.scheme {
            Scheme::S3 => version.e_tag.map(Condition::Tag),
            Scheme::Google => version.generation.map(Condition::Generation),
            // The client sends deletes as a batch request and signs all headers of its parts, so a
            // condition cannot be added after signing.
            Scheme::Azure => None,
        }
    }

    async fn answer(&self, op: StoreOp) -> Result<OpResult, OpFailure> {
        match op {
            StoreOp::Read(key) => self.read(&key).await,
            StoreOp::ListShared => self.list().await,
            StoreOp::Create(key, body) => self.put(&key, &body, PutMode::Create).await,
            StoreOp::Replace(key, body, version) | StoreOp::Renew(key, body, version) => {
                let Version { e_tag, generation } = version;
                let version = UpdateVersion {
                    e_tag,
                    version: generation,
                };
                self.put(&key, &body, PutMode::Update(version)).await
            }
            StoreOp::Put(key, body) => self.put(&key, &body, PutMode::Overwrite).await,
            StoreOp::DeleteVersion(key, version) => {
                self.delete(&key, Deletion::Version(version)).await
            }
            StoreOp::Delete(key) => self.delete(&key, Deletion::Anything).await,
            // The driver waits, and performs one operation at a time here.
            StoreOp::WaitUntil(_) | StoreOp::Batch(_) => Ok(OpResult::Waited),
        }
    }
}

impl std::fmt::Debug for Objects {
    /// Omits the client, which contains credentials.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Objects")
            .field("scheme", &self.scheme)
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

impl Store for Objects {
    fn perform(&self, op: StoreOp) -> BoxFuture<'_, OpResult> {
        Box::pin(async move { self.answer(op).await.unwrap_or_else(OpResult::Failed) })
    }

    fn block(&self) -> HolderBlock {
        own_block()
    }
}

enum Deletion {
    Anything,
    Version(Version),
}

fn client(
    bucket: &Bucket,
    config: &[(String, String)],
) -> Result<Box<dyn ObjectStore>, object_store::Error> {
    let limits = [
        ("timeout", REQUEST_LIMIT),
        ("connect_timeout", CONNECT_LIMIT),
    ];
    let limits = limits.map(|(key, limit)| (key.to_owned(), format!("{} s", limit.as_secs())));
    let settings: Vec<_> = limits.iter().chain(config).collect();
    let retry = RetryConfig {
        max_retries: 0,
        ..RetryConfig::default()
    };
    // A macro, because the three builders have the same methods but no common trait.
    macro_rules! build {
        ($builder:expr) => {{
            let mut builder = $builder
                .with_retry(retry)
                .with_http_connector(Connector::default());
            for (key, value) in settings {
                builder = builder.with_config(key.parse()?, value);
            }
            Box::new(builder.build()?)
        }};
    }
    let name = &bucket.name;
    Ok(match bucket.scheme {
        #[cfg(feature = "s3")]
        // One DELETE request per key: a bulk delete has no conditions.
        Scheme::S3 => build!(
            AmazonS3Builder::from_env()
                .with_bucket_name(name)
                .with_disable_bulk_delete(true)
        ),
        #[cfg(feature = "gcs")]
        Scheme::Google => build!(GoogleCloudStorageBuilder::from_env().with_bucket_name(name)),
        #[cfg(feature = "azure")]
        Scheme::Azure => build!(MicrosoftAzureBuilder::from_env().with_container_name(name)),
        #[cfg(not(all(feature = "s3", feature = "gcs", feature = "azure")))]
        other => {
            return Err(object_store::Error::NotSupported {
                source: format!("{other:?} is not part of this build").into(),
            });
        }
    })
}

/// Checks from this machine whether the holder of an object is alive. An object has no descriptor,
/// so `flock` proves nothing here (K11–K14).
fn followed(record: &LockRecord) -> ProcessLiveness {
    match &record.tenure {
        None => ProcessLiveness::Unknown,
        Some(block) => liveness(verdict_without_lock(&block.identity(), false, &Here::now())),
    }
}

async fn next<S: futures_core::Stream + Unpin>(stream: &mut S) -> Option<S::Item> {
    std::future::poll_fn(|context| std::pin::Pin::new(&mut *stream).poll_next(context)).await
}

/// Translates the failure of a conditional request.
fn refusal(error: &object_store::Error, seen: LastResponse) -> Result<OpResult, OpFailure> {
    let why = match (seen.status.map(|status| status.as_u16()), seen.code) {
        (Some(412), _) | (Some(409), Some(ErrorCode::AlreadyExists)) => ConditionFailure::Condition,
        (Some(409), _) => ConditionFailure::Contention,
        // There is no object to replace.
        (_, Some(ErrorCode::NoSuchKey)) => ConditionFailure::Condition,
        (Some(304 | 400 | 501), _) => ConditionFailure::NotSupported,
        _ => return Err(failure(error, seen)),
    };
    Ok(OpResult::Refused(why))
}

/// Decides whether a retry may help, by the status and the store's code.
fn failure(error: &object_store::Error, seen: LastResponse) -> OpFailure {
    let raw = chain(error);
    let text = store_messages::plain(&raw);
    if store_messages::lasts(&raw) {
        return OpFailure::lasting(text);
    }
    match (seen.status.map(|status| status.as_u16()), seen.code) {
        (None | Some(408 | 409 | 429 | 500..), _) => OpFailure::passing(text),
        // This request had no condition, so the 412 is a store anomaly; a retry may succeed.
        (Some(412), _) => OpFailure::passing(text),
        // The store accepted the request, and the connection was cut before the whole answer came.
        (Some(200..300), _) => OpFailure::passing(text),
        // A proxy without a backend, for example while it reloads: the store has not answered.
        (Some(404), None) => OpFailure::passing(text),
        (Some(_), _) => OpFailure::lasting(text),
    }
}

/// Joins an error and its causes on one line. The text is escaped, because part of it comes from
/// the server.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    let words: Vec<_> = text.split_whitespace().collect();
    tenure_files::internal::printable(&words.join(" "))
}
