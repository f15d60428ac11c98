//! ZooKeeper client: a lock is an ephemeral node that is created and deleted; a check reads it.
//!
//! Queueing and renewal have no single operation: a queue is a client-side recipe of several calls,
//! and a session renews itself.

use std::collections::VecDeque;

use crate::pipeline::Wire;
use crate::scenario::{LoadWorker, WorkerReply, WorkerRequest};

const CREATE: i32 = 1;
const DELETE: i32 = 2;
const GET_DATA: i32 = 4;
const EPHEMERAL: i32 = 1;
const NO_SUCH: i32 = -101;
const EXISTS: i32 = -110;

#[derive(Default)]
pub(crate) struct ZooKeeper {
    state: ZnodeState,
    xid: i32,
    waiting: VecDeque<(u32, WorkerRequest)>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum ZnodeState {
    #[default]
    Connecting,
    /// The parent node of all locks is being created.
    Preparing,
    Ready,
}

/// Returns a flat name, because a node needs its parents: `bench:/run-3/item/9-1` becomes
/// `/bench/bench__run-3_item_9-1`.
fn node(path: &str) -> String {
    format!("/bench/{}", path.replace([':', '/'], "_"))
}

/// Writes one request with its length prefix.
fn packet(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    write(out);
    let length = u32::try_from(out.len() - start - 4).unwrap_or(u32::MAX);
    out[start..start + 4].copy_from_slice(&length.to_be_bytes());
}

fn int(out: &mut Vec<u8>, number: i32) {
    out.extend_from_slice(&number.to_be_bytes());
}

fn text(out: &mut Vec<u8>, text: &str) {
    int(out, i32::try_from(text.len()).unwrap_or(i32::MAX));
    out.extend_from_slice(text.as_bytes());
}

impl ZooKeeper {
    fn create(&mut self, out: &mut Vec<u8>, path: &str, data: &str, flags: i32) {
        self.xid += 1;
        let xid = self.xid;
        packet(out, |out| {
            int(out, xid);
            int(out, CREATE);
            text(out, path);
            text(out, data);
            // One access rule: all permissions for everyone.
            int(out, 1);
            int(out, 31);
            text(out, "world");
            text(out, "anyone");
            int(out, flags);
        });
    }
}

impl Wire for ZooKeeper {
    fn hello(&mut self, out: &mut Vec<u8>) {
        packet(out, |out| {
            int(out, 0);
            out.extend_from_slice(&0u64.to_be_bytes());
            int(out, 30_000);
            out.extend_from_slice(&0u64.to_be_bytes());
            int(out, 16);
            out.extend_from_slice(&[0; 16]);
        });
    }

    fn is_ready(&self) -> bool {
        self.state == ZnodeState::Ready
    }

    fn ask(&mut self, worker: &LoadWorker, ask: WorkerRequest, out: &mut Vec<u8>) {
        let path = node(&worker.path);
        self.waiting.push_back((worker.number, ask));
        match ask {
            WorkerRequest::Take | WorkerRequest::Wait | WorkerRequest::Renew => {
                self.create(out, &path, &worker.owner, EPHEMERAL)
            }
            WorkerRequest::Release => {
                self.xid += 1;
                packet(out, |out| {
                    int(out, self.xid);
                    int(out, DELETE);
                    text(out, &path);
                    int(out, -1);
                });
            }
            WorkerRequest::Check => {
                self.xid += 1;
                packet(out, |out| {
                    int(out, self.xid);
                    int(out, GET_DATA);
                    text(out, &path);
                    out.push(0);
                });
            }
        }
    }

    fn answers(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
        each: &mut dyn FnMut(u32, WorkerReply),
    ) -> Result<usize, String> {
        let mut at = 0;
        while let Some([a, b, c, d]) = input.get(at..at + 4) {
            let length = u32::from_be_bytes([*a, *b, *c, *d]) as usize;
            let Some(body) = input.get(at + 4..at + 4 + length) else {
                break;
            };
            at += 4 + length;
            // The first packet is the answer to the connect request and has no header.
            if self.state == ZnodeState::Connecting {
                self.state = ZnodeState::Preparing;
                self.create(out, "/bench", "", 0);
                continue;
            }
            // Header of an answer: xid (4 bytes), zxid (8), error (4).
            let error = body
                .get(12..16)
                .and_then(|four| four.try_into().ok())
                .map(i32::from_be_bytes)
                .ok_or("a short answer")?;
            if self.state == ZnodeState::Preparing {
                if error != 0 && error != EXISTS {
                    return Err(format!("/bench cannot be created: {error}"));
                }
                self.state = ZnodeState::Ready;
                continue;
            }
            // ZooKeeper answers in the order of the requests.
            let Some((worker, ask)) = self.waiting.pop_front() else {
                return Err("an answer without a question".to_owned());
            };
            each(
                worker,
                match (error, ask) {
                    (0, WorkerRequest::Take | WorkerRequest::Wait) => WorkerReply::Granted(1),
                    (0, _) => WorkerReply::Done,
                    (EXISTS, _) => WorkerReply::Failed("held by another".to_owned()),
                    (NO_SUCH, _) => WorkerReply::Failed("not held".to_owned()),
                    (other, _) => WorkerReply::Failed(format!("error {other}")),
                },
            );
        }
        Ok(at)
    }
}
