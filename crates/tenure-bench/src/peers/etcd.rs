//! etcd client: a lock is a key with a lease, created in a transaction that requires the key to be
//! absent.
//!
//! Queueing uses etcd's server-side lock service. Only the needed messages are declared, with the
//! field numbers of etcd's protocol.

use http::uri::PathAndQuery;
use prost::Message;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::Channel;
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::scenario::{LoadWorker, Scenario, WorkerReply, WorkerRequest};
use crate::unary::Caller;

#[derive(Clone, PartialEq, Message)]
struct Compare {
    /// 0: equal.
    #[prost(int32, tag = "1")]
    result: i32,
    /// 1: create revision, 3: value.
    #[prost(int32, tag = "2")]
    target: i32,
    #[prost(bytes = "vec", tag = "3")]
    key: Vec<u8>,
    #[prost(oneof = "CompareResult", tags = "5, 7")]
    wanted: Option<CompareResult>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum CompareResult {
    #[prost(int64, tag = "5")]
    CreateRevision(i64),
    #[prost(bytes, tag = "7")]
    Value(Vec<u8>),
}

#[derive(Clone, PartialEq, Message)]
struct Put {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
    #[prost(int64, tag = "3")]
    lease: i64,
}

#[derive(Clone, PartialEq, Message)]
struct KeyRequest {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct KeyChange {
    #[prost(oneof = "TxnOp", tags = "2, 3")]
    doing: Option<TxnOp>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum TxnOp {
    #[prost(message, tag = "2")]
    Put(Put),
    #[prost(message, tag = "3")]
    Delete(KeyRequest),
}

#[derive(Clone, PartialEq, Message)]
struct Txn {
    #[prost(message, repeated, tag = "1")]
    compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    success: Vec<KeyChange>,
}

#[derive(Clone, PartialEq, Message)]
struct TxnAnswer {
    #[prost(bool, tag = "2")]
    succeeded: bool,
}

#[derive(Clone, PartialEq, Message)]
struct RangeResult {
    #[prost(int64, tag = "4")]
    count: i64,
}

#[derive(Clone, PartialEq, Message)]
struct LeaseRequest {
    /// Time to live in seconds.
    #[prost(int64, tag = "1")]
    first: i64,
    #[prost(int64, tag = "2")]
    id: i64,
}

#[derive(Clone, PartialEq, Message)]
struct KeepAlive {
    #[prost(int64, tag = "1")]
    id: i64,
}

#[derive(Clone, PartialEq, Message)]
struct KeptAlive {
    #[prost(int64, tag = "3")]
    ttl: i64,
}

#[derive(Clone, PartialEq, Message)]
struct LeaseAnswer {
    #[prost(int64, tag = "2")]
    id: i64,
}

#[derive(Clone, PartialEq, Message)]
struct LockCall {
    #[prost(bytes = "vec", tag = "1")]
    name: Vec<u8>,
    #[prost(int64, tag = "2")]
    lease: i64,
}

#[derive(Clone, PartialEq, Message)]
struct LockReply {
    #[prost(bytes = "vec", tag = "2")]
    key: Vec<u8>,
}

/// A response whose fields are not used.
#[derive(Clone, PartialEq, Message)]
struct Ignored {}

/// The client of one worker, with its own lease.
pub(crate) struct Etcd {
    grpc: tonic::client::Grpc<Channel>,
    lease: i64,
    beats: Option<KeepAliveStream>,
    /// The key that the lock service returned.
    held: Vec<u8>,
}

/// The stream on which a lease is renewed.
struct KeepAliveStream {
    requests: mpsc::UnboundedSender<KeepAlive>,
    answers: Streaming<KeptAlive>,
}

impl KeepAliveStream {
    async fn new(
        grpc: &mut tonic::client::Grpc<Channel>,
        lease: i64,
    ) -> Result<KeepAliveStream, Status> {
        let (requests, stream) = mpsc::unbounded_channel();
        // etcd does not send response headers before the first renewal, so one is sent first.
        let _ = requests.send(KeepAlive { id: lease });
        grpc.ready().await.map_err(failed)?;
        let answers = grpc
            .streaming(
                Request::new(UnboundedReceiverStream::new(stream)),
                PathAndQuery::from_static("/etcdserverpb.Lease/LeaseKeepAlive"),
                ProstCodec::<KeepAlive, KeptAlive>::default(),
            )
            .await?;
        let mut beats = KeepAliveStream {
            requests,
            answers: answers.into_inner(),
        };
        match beats.answers.message().await? {
            Some(kept) if kept.ttl > 0 => Ok(beats),
            _ => Err(Status::not_found("the lease is gone")),
        }
    }
}

fn failed(error: tonic::transport::Error) -> Status {
    Status::unavailable(error.to_string())
}

async fn unary<Q, A>(
    grpc: &mut tonic::client::Grpc<Channel>,
    path: &'static str,
    message: Q,
) -> Result<A, Status>
where
    Q: Message + Send + Sync + 'static,
    A: Message + Default + Send + Sync + 'static,
{
    grpc.ready().await.map_err(failed)?;
    let answer = grpc
        .unary(
            Request::new(message),
            PathAndQuery::from_static(path),
            ProstCodec::<Q, A>::default(),
        )
        .await?;
    Ok(answer.into_inner())
}

impl Etcd {
    pub(crate) async fn new(channel: Channel, scenario: Scenario) -> Result<Etcd, Status> {
        let mut etcd = Etcd::once(channel).await?;
        if scenario == Scenario::Renew {
            etcd.beats = Some(KeepAliveStream::new(&mut etcd.grpc, etcd.lease).await?);
        }
        Ok(etcd)
    }

    /// Creates a client that opens a new stream for each renewal.
    pub(crate) async fn once(channel: Channel) -> Result<Etcd, Status> {
        let mut grpc = tonic::client::Grpc::new(channel);
        let lease: LeaseAnswer = unary(
            &mut grpc,
            "/etcdserverpb.Lease/LeaseGrant",
            LeaseRequest { first: 600, id: 0 },
        )
        .await?;
        Ok(Etcd {
            grpc,
            lease: lease.id,
            beats: None,
            held: Vec::new(),
        })
    }

    async fn take(&mut self, worker: &LoadWorker) -> Result<WorkerReply, Status> {
        let key = worker.path.as_bytes().to_vec();
        let txn = Txn {
            compare: vec![Compare {
                result: 0,
                target: 1,
                key: key.clone(),
                wanted: Some(CompareResult::CreateRevision(0)),
            }],
            success: vec![KeyChange {
                doing: Some(TxnOp::Put(Put {
                    key,
                    value: worker.owner.as_bytes().to_vec(),
                    lease: self.lease,
                })),
            }],
        };
        let answer: TxnAnswer = unary(&mut self.grpc, "/etcdserverpb.KV/Txn", txn).await?;
        Ok(held(answer.succeeded, WorkerReply::Granted(1)))
    }

    async fn release(&mut self, worker: &LoadWorker) -> Result<WorkerReply, Status> {
        let key = worker.path.as_bytes().to_vec();
        let txn = Txn {
            compare: vec![Compare {
                result: 0,
                target: 3,
                key: key.clone(),
                wanted: Some(CompareResult::Value(worker.owner.as_bytes().to_vec())),
            }],
            success: vec![KeyChange {
                doing: Some(TxnOp::Delete(KeyRequest { key })),
            }],
        };
        let answer: TxnAnswer = unary(&mut self.grpc, "/etcdserverpb.KV/Txn", txn).await?;
        Ok(held(answer.succeeded, WorkerReply::Done))
    }
}

fn held(truth: bool, reply: WorkerReply) -> WorkerReply {
    if truth {
        reply
    } else {
        WorkerReply::Failed("not held".to_owned())
    }
}

impl Caller for Etcd {
    async fn call(
        &mut self,
        worker: &LoadWorker,
        ask: WorkerRequest,
    ) -> Result<WorkerReply, Status> {
        match ask {
            WorkerRequest::Take => self.take(worker).await,
            WorkerRequest::Wait => {
                let lock = LockCall {
                    name: worker.path.as_bytes().to_vec(),
                    lease: self.lease,
                };
                let locked: LockReply = unary(&mut self.grpc, "/v3lockpb.Lock/Lock", lock).await?;
                self.held = locked.key;
                Ok(WorkerReply::Granted(1))
            }
            WorkerRequest::Release if !self.held.is_empty() => {
                let key = KeyRequest {
                    key: std::mem::take(&mut self.held),
                };
                let _: Ignored = unary(&mut self.grpc, "/v3lockpb.Lock/Unlock", key).await?;
                Ok(WorkerReply::Done)
            }
            WorkerRequest::Release => self.release(worker).await,
            WorkerRequest::Renew => {
                let Some(beats) = &mut self.beats else {
                    KeepAliveStream::new(&mut self.grpc, self.lease).await?;
                    return Ok(WorkerReply::Done);
                };
                let _ = beats.requests.send(KeepAlive { id: self.lease });
                let kept = beats.answers.message().await?;
                Ok(held(
                    kept.is_some_and(|kept| kept.ttl > 0),
                    WorkerReply::Done,
                ))
            }
            WorkerRequest::Check => {
                let key = KeyRequest {
                    key: worker.path.as_bytes().to_vec(),
                };
                let found: RangeResult =
                    unary(&mut self.grpc, "/etcdserverpb.KV/Range", key).await?;
                Ok(held(found.count == 1, WorkerReply::Done))
            }
        }
    }

    async fn grant(&mut self) -> Result<WorkerReply, Status> {
        Err(Status::internal("the lock service answers when it is held"))
    }
}
