//! Session client (E10: Session stream) on a minimal HTTP/2 implementation with one stream.
//!
//! A gRPC library wakes a task for every message; here all requests of a turn become one DATA
//! frame. Only the frames that one stream needs are implemented: headers, data, window updates,
//! settings, pings.

use prost::Message;
use tenure_wire::v1;
use tenure_wire::v1::session_response::Result as Answer;

use crate::message;
use crate::pipeline::Wire;
use crate::scenario::{LoadWorker, WorkerReply, WorkerRequest};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;

const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

/// The id of the only stream.
const STREAM: u32 = 1;
/// Receive window of the client; renewed when half of it is used.
const WINDOW: u32 = 1 << 30;
/// Maximum frame size that HTTP/2 allows without negotiation.
const FRAME: usize = 16_384;

pub(crate) struct SessionClient {
    authority: String,
    token: Option<String>,
    /// Send windows that the server has granted, for the connection and the stream.
    connection: i64,
    stream: i64,
    server_initial: i64,
    received: u32,
    /// The beginning of an incomplete message.
    partial: Vec<u8>,
}

impl SessionClient {
    pub(crate) fn new(authority: String, token: Option<String>) -> SessionClient {
        SessionClient {
            authority,
            token,
            connection: 65_535,
            stream: 65_535,
            server_initial: 65_535,
            received: 0,
            partial: Vec::new(),
        }
    }

    fn data(
        &mut self,
        payload: &[u8],
        out: &mut Vec<u8>,
        each: &mut dyn FnMut(u32, WorkerReply),
    ) -> Result<(), String> {
        self.received += u32::try_from(payload.len()).unwrap_or(u32::MAX);
        if self.received > WINDOW / 2 {
            for stream in [0, STREAM] {
                frame(out, WINDOW_UPDATE, 0, stream, &self.received.to_be_bytes());
            }
            self.received = 0;
        }
        if self.partial.is_empty() {
            let used = messages(payload, each)?;
            self.partial.extend_from_slice(&payload[used..]);
        } else {
            self.partial.extend_from_slice(payload);
            let used = messages(&self.partial, each)?;
            self.partial.drain(..used);
        }
        Ok(())
    }

    fn settings(&mut self, payload: &[u8]) {
        for setting in payload.chunks_exact(6) {
            let value = i64::from(u32::from_be_bytes([
                setting[2], setting[3], setting[4], setting[5],
            ]));
            // SETTINGS_INITIAL_WINDOW_SIZE also changes the window of the open stream (RFC 9113,
            // 6.9.2).
            if setting[..2] == [0, 4] {
                self.stream += value - self.server_initial;
                self.server_initial = value;
            }
        }
    }
}

/// Decodes complete messages at the front and returns how many bytes they have.
fn messages(bytes: &[u8], each: &mut dyn FnMut(u32, WorkerReply)) -> Result<usize, String> {
    let mut at = 0;
    while let Some([flag, a, b, c, d]) = bytes.get(at..at + 5) {
        let length = u32::from_be_bytes([*a, *b, *c, *d]) as usize;
        let Some(body) = bytes.get(at + 5..at + 5 + length) else {
            break;
        };
        if *flag != 0 {
            return Err("a compressed message, although compression is off".to_owned());
        }
        let response = v1::SessionResponse::decode(body).map_err(|error| error.to_string())?;
        match &response.result {
            Some(Answer::Event(event)) => {
                if event.r#type() == v1::EventType::Grant {
                    each(
                        worker_of(&event.owner_id)?,
                        WorkerReply::Granted(event.fence),
                    );
                }
            }
            Some(Answer::Error(error)) if response.id == 0 => {
                return Err(format!("the server ends events: {}", error.message));
            }
            Some(answer) => {
                let worker = u32::try_from(response.id.wrapping_sub(1)).unwrap_or(u32::MAX);
                each(worker, message::reply(answer));
            }
            None => return Err("an answer without a result".to_owned()),
        }
        at += 5 + length;
    }
    Ok(at)
}

/// Returns the worker of an owner id; ids have the form `run-worker`.
fn worker_of(owner: &str) -> Result<u32, String> {
    owner
        .rsplit_once('-')
        .and_then(|(_, worker)| worker.parse().ok())
        .ok_or_else(|| format!("an event for the unknown owner {owner}"))
}

fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    out.extend_from_slice(&length.to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}

/// Appends a header as an HPACK literal without Huffman coding and indexing. `name` is the encoded
/// name.
fn header(block: &mut Vec<u8>, name: &[u8], value: &str) {
    block.extend_from_slice(name);
    // One byte holds lengths up to 126; longer values would be cut off.
    let value = &value.as_bytes()[..value.len().min(126)];
    block.push(value.len() as u8);
    block.extend_from_slice(value);
}

impl Wire for SessionClient {
    fn hello(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        let mut settings = vec![0, 4];
        settings.extend_from_slice(&WINDOW.to_be_bytes());
        frame(out, SETTINGS, 0, 0, &settings);
        frame(out, WINDOW_UPDATE, 0, 0, &(WINDOW - 65_535).to_be_bytes());
        // `:method: POST` and `:scheme: http` are entries 3 and 6 of the static table.
        let mut block = vec![0x83, 0x86];
        header(&mut block, &[0x04], "/pathlockd.v1.PathLock/Session");
        header(&mut block, &[0x01], &self.authority);
        header(&mut block, &[0x0f, 0x10], "application/grpc");
        header(&mut block, b"\x00\x02te", "trailers");
        if let Some(token) = &self.token {
            header(&mut block, &[0x0f, 0x08], &format!("Bearer {token}"));
        }
        frame(out, HEADERS, END_HEADERS, STREAM, &block);
    }

    fn is_ready(&self) -> bool {
        true
    }

    fn ask(&mut self, worker: &LoadWorker, ask: WorkerRequest, out: &mut Vec<u8>) {
        let request = v1::SessionRequest {
            id: u64::from(worker.number) + 1,
            op: Some(message::op(worker, ask)),
        };
        let length = u32::try_from(request.encoded_len()).unwrap_or(u32::MAX);
        out.push(0);
        out.extend_from_slice(&length.to_be_bytes());
        // Encoding to a vector cannot fail: it grows.
        let _ = request.encode(out);
    }

    fn release(&mut self, pending: &mut Vec<u8>, out: &mut Vec<u8>) {
        let window = usize::try_from(self.connection.min(self.stream)).unwrap_or(0);
        let length = pending.len().min(window);
        for chunk in pending[..length].chunks(FRAME) {
            frame(out, DATA, 0, STREAM, chunk);
        }
        pending.drain(..length);
        let sent = i64::try_from(length).unwrap_or(i64::MAX);
        self.connection -= sent;
        self.stream -= sent;
    }

    fn answers(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
        each: &mut dyn FnMut(u32, WorkerReply),
    ) -> Result<usize, String> {
        let mut at = 0;
        while let Some(head) = input.get(at..at + 9) {
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let Some(payload) = input.get(at + 9..at + 9 + length) else {
                break;
            };
            let (kind, flags) = (head[3], head[4]);
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            match kind {
                DATA => self.data(payload, out, each)?,
                SETTINGS if flags & ACK == 0 => {
                    self.settings(payload);
                    frame(out, SETTINGS, ACK, 0, &[]);
                }
                PING if flags & ACK == 0 => frame(out, PING, ACK, 0, payload),
                WINDOW_UPDATE => {
                    let bytes = payload.try_into().map_err(|_| "a short WINDOW_UPDATE")?;
                    let more = i64::from(u32::from_be_bytes(bytes));
                    if stream == 0 {
                        self.connection += more;
                    } else {
                        self.stream += more;
                    }
                }
                GOAWAY | RST_STREAM => {
                    let why = String::from_utf8_lossy(payload);
                    return Err(format!("the server ends the session: {why:?}"));
                }
                HEADERS if flags & END_STREAM != 0 => {
                    return Err("the server ended the session".to_owned());
                }
                _ => {}
            }
            at += 9 + length;
        }
        Ok(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(id: u64) -> Vec<u8> {
        let response = v1::SessionResponse {
            id,
            result: Some(Answer::Release(v1::ReleaseResponse {})),
        };
        let body = response.encode_to_vec();
        let mut bytes = vec![0];
        bytes.extend_from_slice(&u32::try_from(body.len()).unwrap().to_be_bytes());
        bytes.extend_from_slice(&body);
        bytes
    }

    /// A message may arrive in any number of frames, and a frame in any number of reads.
    #[test]
    fn answers_are_found_wherever_they_are_cut() {
        let messages = [answer(1), answer(2)].concat();
        for cut in 0..=messages.len() {
            let mut bytes = Vec::new();
            frame(&mut bytes, DATA, 0, STREAM, &messages[..cut]);
            frame(&mut bytes, DATA, 0, STREAM, &messages[cut..]);
            let mut session = SessionClient::new("t".into(), None);
            let (mut found, mut input) = (Vec::new(), Vec::new());
            for byte in bytes {
                input.push(byte);
                let used = session
                    .answers(&input, &mut Vec::new(), &mut |worker, reply| {
                        found.push((worker, reply));
                    })
                    .unwrap();
                input.drain(..used);
            }
            assert_eq!(
                found,
                [(0, WorkerReply::Done), (1, WorkerReply::Done)],
                "cut at {cut}"
            );
        }
    }

    /// The server's windows limit what is sent.
    #[test]
    fn windows_are_kept() {
        let mut session = SessionClient::new("t".into(), None);
        let (mut pending, mut out) = (vec![7; 70_000], Vec::new());
        session.release(&mut pending, &mut out);
        assert_eq!(pending.len(), 70_000 - 65_535);
        let mut more = Vec::new();
        frame(&mut more, SETTINGS, 0, 0, &[0, 4, 0, 2, 0, 0]);
        frame(&mut more, WINDOW_UPDATE, 0, 0, &100u32.to_be_bytes());
        session.answers(&more, &mut out, &mut |_, _| {}).unwrap();
        session.release(&mut pending, &mut out);
        assert_eq!(pending.len(), 70_000 - 65_535 - 100);
    }
}
