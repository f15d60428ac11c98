//! Redis client in the common lock pattern: `SET NX PX`, and scripts that compare the owner first.
//!
//! Queueing is `BLPOP` of one token, the fastest fair way. It has no lease and no fence, so it
//! guarantees less than the systems it is compared with.

use std::collections::VecDeque;

use crate::message::TTL_MS;
use crate::pipeline::Wire;
use crate::scenario::{LoadWorker, WorkerReply, WorkerRequest};

/// Deletes the key if the owner holds it.
pub(super) const RELEASE: &str =
    "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end";
/// Extends the expiry if the owner holds the key.
pub(super) const RENEW: &str = "if redis.call('get',KEYS[1])==ARGV[1] then \
     return redis.call('pexpire',KEYS[1],ARGV[2]) else return 0 end";

#[derive(Default)]
pub(crate) struct Redis {
    /// SHA1 digests of the two scripts, once they are loaded.
    scripts: Vec<String>,
    waiting: VecDeque<(u32, WorkerRequest, String)>,
}

impl Redis {
    fn command(out: &mut Vec<u8>, words: &[&str]) {
        out.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
        for word in words {
            out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            out.extend_from_slice(word.as_bytes());
            out.extend_from_slice(b"\r\n");
        }
    }
}

/// A value of the RESP protocol.
enum Value<'a> {
    Text(&'a [u8]),
    Number(i64),
    Nothing,
    Error(&'a [u8]),
    List,
}

/// Decodes the value at the front and its length, if it is complete. The items of a list are
/// skipped.
fn value(input: &[u8]) -> Option<(Value<'_>, usize)> {
    let end = input.windows(2).position(|two| two == b"\r\n")?;
    let line = &input[1..end];
    let after = end + 2;
    let number = || std::str::from_utf8(line).ok()?.parse::<i64>().ok();
    Some(match input[0] {
        b'+' => (Value::Text(line), after),
        b'-' => (Value::Error(line), after),
        b':' => (Value::Number(number()?), after),
        b'$' => match usize::try_from(number()?) {
            Err(_) => (Value::Nothing, after),
            Ok(length) => {
                let text = input.get(after..after + length)?;
                input.get(after + length..after + length + 2)?;
                (Value::Text(text), after + length + 2)
            }
        },
        b'*' => {
            let mut at = after;
            for _ in 0..usize::try_from(number()?).unwrap_or(0) {
                at += value(input.get(at..).filter(|rest| !rest.is_empty())?)?.1;
            }
            (Value::List, at)
        }
        _ => (Value::Error(line), after),
    })
}

impl Wire for Redis {
    fn hello(&mut self, out: &mut Vec<u8>) {
        for script in [RELEASE, RENEW] {
            Redis::command(out, &["SCRIPT", "LOAD", script]);
        }
    }

    fn is_ready(&self) -> bool {
        self.scripts.len() == 2
    }

    fn ask(&mut self, worker: &LoadWorker, ask: WorkerRequest, out: &mut Vec<u8>) {
        let ttl = TTL_MS.to_string();
        match ask {
            WorkerRequest::Take => {
                Redis::command(out, &["SET", &worker.path, &worker.owner, "NX", "PX", &ttl]);
            }
            WorkerRequest::Wait => Redis::command(out, &["BLPOP", &worker.path, "0"]),
            // The token of the queue has no owner to compare.
            WorkerRequest::Release if worker.path.ends_with("/hot") => {
                Redis::command(out, &["RPUSH", &worker.path, "token"]);
            }
            WorkerRequest::Release => {
                let words = [
                    "EVALSHA",
                    &self.scripts[0],
                    "1",
                    &worker.path,
                    &worker.owner,
                ];
                Redis::command(out, &words);
            }
            WorkerRequest::Renew => {
                let words = [
                    "EVALSHA",
                    &self.scripts[1],
                    "1",
                    &worker.path,
                    &worker.owner,
                    &ttl,
                ];
                Redis::command(out, &words);
            }
            WorkerRequest::Check => Redis::command(out, &["GET", &worker.path]),
        }
        self.waiting
            .push_back((worker.number, ask, worker.owner.clone()));
    }

    fn answers(
        &mut self,
        input: &[u8],
        _: &mut Vec<u8>,
        each: &mut dyn FnMut(u32, WorkerReply),
    ) -> Result<usize, String> {
        let mut at = 0;
        while let Some((value, length)) = input
            .get(at..)
            .filter(|rest| !rest.is_empty())
            .and_then(value)
        {
            at += length;
            if self.scripts.len() < 2 {
                let Value::Text(digest) = value else {
                    return Err("a script was not loaded".to_owned());
                };
                self.scripts
                    .push(String::from_utf8_lossy(digest).into_owned());
                continue;
            }
            // Redis answers in the order of the requests.
            let Some((worker, ask, owner)) = self.waiting.pop_front() else {
                return Err("an answer without a question".to_owned());
            };
            let reply = match (ask, value) {
                (_, Value::Error(why)) => {
                    WorkerReply::Failed(String::from_utf8_lossy(why).into_owned())
                }
                (WorkerRequest::Take, Value::Text(_)) | (WorkerRequest::Wait, Value::List) => {
                    WorkerReply::Granted(1)
                }
                (WorkerRequest::Release | WorkerRequest::Renew, Value::Number(1)) => {
                    WorkerReply::Done
                }
                (WorkerRequest::Check, Value::Text(found)) if found == owner.as_bytes() => {
                    WorkerReply::Done
                }
                _ => WorkerReply::Failed("not held".to_owned()),
            };
            each(worker, reply);
        }
        Ok(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_taken_only_when_complete() {
        for whole in [
            "+OK\r\n",
            "$5\r\nhello\r\n",
            "$-1\r\n",
            ":1\r\n",
            "*2\r\n$1\r\na\r\n:2\r\n",
        ] {
            let bytes = whole.as_bytes();
            assert_eq!(value(bytes).map(|(_, length)| length), Some(bytes.len()));
            for cut in 1..bytes.len() {
                assert!(value(&bytes[..cut]).is_none(), "{whole:?} cut at {cut}");
            }
        }
    }
}
