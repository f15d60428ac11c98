//! One authenticated connection between two nodes: handshake, sending, receiving.
//!
//! A connection carries messages in one direction, from the dialer to the listener. The two main
//! connections of a peer form a pair, which is established or lost as a whole (see the registry).
//! The listener reads only the hello before the dialer has proved the token, and says nothing about
//! itself before. The dialer writes no frame before the listener has proved it and accepted the connection.

use std::io;
use std::net::TcpStream;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use tenure_node::Channel;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use super::frame_mac::{HEAD, MacReader, MacWriter};
use super::frame_writer::{self, CONTROL, FRAME, FrameQueue, FrameWriter, OutboundMessage, PING};
use super::handshake::{
    CHALLENGE, Challenge, HandshakeRefusal, Hello, MAX_HELLO, PROOF, ProofSide, TokenKey,
    Transcript,
};
use super::tls::PeerStream;

/// Time limit for a handshake.
const HANDSHAKE: Duration = Duration::from_secs(3);
/// First two bytes of a TLS alert, read as the length of a hello.
const TLS_ALERT: u16 = u16::from_le_bytes([21, 3]);
/// Stands in place of the length of a hello before a challenge. No hello is that long.
const CHALLENGED: u16 = u16::MAX;
/// Maximum number of bytes in one write to the socket.
pub(super) const WRITE_AT_ONCE: usize = 64 * 1024;

pub(crate) type ReadHalf = Box<dyn AsyncRead + Send + Unpin>;
pub(crate) type WriteHalf = Box<dyn AsyncWrite + Send + Unpin>;

/// Keep-alive times of a channel. A peer that is silent for longer than `silence` is lost.
pub(crate) struct KeepAlive {
    ping: Duration,
    silence: Duration,
    /// Longest time for which the socket may accept no bytes (R170 (large transfers complete)): a
    /// slow link accepts a few bytes often.
    stall: Duration,
}

impl KeepAlive {
    pub(crate) fn of(channel: Channel) -> KeepAlive {
        match channel {
            Channel::Main => KeepAlive {
                ping: Duration::from_millis(250),
                silence: Duration::from_millis(1000),
                stall: Duration::from_secs(10),
            },
            Channel::Bulk => KeepAlive {
                ping: Duration::from_secs(5),
                silence: Duration::from_secs(30),
                stall: Duration::from_secs(60),
            },
        }
    }
}

/// Reason why a connection ended or could not be established.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectionError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("the TLS handshake failed ({0}): set the three peer_tls keys on all nodes or on none")]
    Tls(io::Error),
    #[error(
        "the peer uses TLS and this node does not: set the three peer_tls keys on all nodes or on none"
    )]
    SpeaksTls,
    #[error("timed out: the peer did not answer in time")]
    Slow,
    #[error("the connection was closed")]
    Closed,
    #[error("the peer has another internal_auth_token")]
    Stranger,
    #[error("the peer sent an invalid message")]
    Rubbish,
    #[error("{0}")]
    Refused(#[from] HandshakeRefusal),
    #[error("the peer refused this node: {0}")]
    RefusedUs(String),
    /// The peer has proved the token but belongs to another cluster. Both sides know that by now.
    #[error("{}", HandshakeRefusal::Cluster)]
    Rival(Box<Hello>),
}

/// A connection whose other end has proved the token.
pub(crate) struct AuthenticatedConnection {
    pub(crate) theirs: Hello,
    /// Negotiated version of the peer protocol.
    pub(crate) version: u8,
    reader: ReadHalf,
    writer: WriteHalf,
    sealer: MacWriter,
    opener: MacReader,
}

/// Runs the dialer's half of the handshake.
pub(crate) async fn dial(
    mut stream: PeerStream,
    mine: &Hello,
    token: &TokenKey,
) -> Result<AuthenticatedConnection, ConnectionError> {
    let shake = async {
        let ours = mine.to_bytes();
        let met = meet(&mut stream, &ours, token).await?;
        let (transcript, token, theirs) = (met.transcript(&ours), &met.token, met.theirs.clone());
        let PeerStream {
            reader, mut writer, ..
        } = stream;
        let judged = mine.assess(&theirs);
        if matches!(judged, Ok(_) | Err(HandshakeRefusal::Cluster)) {
            // Also for a rival cluster: the listener must learn of it, and it trusts only a proof.
            let proof = transcript.proof(token, ProofSide::Dialer);
            writer.write_all(proof.as_ref()).await?;
            writer.flush().await?;
        }
        if let Err(HandshakeRefusal::Cluster) = judged {
            return Err(ConnectionError::Rival(Box::new(theirs)));
        }
        let version = judged?;
        let mut proven = AuthenticatedConnection {
            theirs,
            version,
            reader,
            writer,
            sealer: MacWriter::new(transcript.key(token, ProofSide::Dialer)),
            opener: MacReader::new(transcript.key(token, ProofSide::Listener)),
        };
        let mut buffer = BytesMut::new();
        let verdict = proven.next(&mut buffer, HANDSHAKE).await?;
        if verdict.is_empty() {
            Ok(proven)
        } else {
            let why = String::from_utf8_lossy(&verdict).into_owned();
            Err(ConnectionError::RefusedUs(why))
        }
    };
    timeout(HANDSHAKE, shake)
        .await
        .map_err(|_| ConnectionError::Slow)?
}

/// A listener that has proved the token.
struct MetListener {
    theirs: Hello,
    /// Their hello as sent.
    answer: Vec<u8>,
    binding: Option<Vec<u8>>,
    /// The token that both sides use.
    token: TokenKey,
}

impl MetListener {
    fn transcript<'a>(&'a self, ours: &'a [u8]) -> Transcript<'a> {
        Transcript {
            dialer: ours,
            listener: &self.answer,
            binding: self.binding.as_deref(),
        }
    }
}

/// Sends the hello, answers a challenge, and verifies the listener.
async fn meet(
    stream: &mut PeerStream,
    ours: &[u8],
    token: &TokenKey,
) -> Result<MetListener, ConnectionError> {
    write_hello(&mut stream.writer, ours, &[]).await?;
    let mut length = stream.reader.read_u16_le().await?;
    let mut binding = None;
    if length == CHALLENGED {
        let mut nonce = [0; CHALLENGE];
        stream.reader.read_exact(&mut nonce).await?;
        let challenge = Challenge {
            dialer: ours,
            nonce: &nonce,
            binding: &stream.binding,
        };
        let proof = challenge.proof(token);
        stream.writer.write_all(proof.as_ref()).await?;
        stream.writer.flush().await?;
        binding = Some(stream.binding.clone());
        length = match stream.reader.read_u16_le().await {
            Ok(length) => length,
            // The listener says nothing to a node whose token it does not know.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(ConnectionError::Stranger);
            }
            Err(error) => return Err(error.into()),
        };
    }
    let answer = read_hello(&mut stream.reader, length).await?;
    let proof = read_proof(&mut stream.reader).await?;
    let transcript = Transcript {
        dialer: ours,
        listener: &answer,
        binding: binding.as_deref(),
    };
    let token = transcript.verify(token, ProofSide::Listener, &proof);
    let token = token.ok_or(ConnectionError::Stranger)?;
    let theirs = Hello::from_bytes(&answer).map_err(|_| ConnectionError::Rubbish)?;
    check_certificate(&stream.nodes, &theirs)?;
    Ok(MetListener {
        theirs,
        answer,
        binding,
        token,
    })
}

/// Checks that the certificate of a peer, if it names nodes, names this one.
fn check_certificate(named: &[u32], theirs: &Hello) -> Result<(), HandshakeRefusal> {
    let found = theirs.node_record.node().number();
    match named.first() {
        Some(&first) if !named.contains(&found) => Err(HandshakeRefusal::Certificate {
            found,
            named: first,
        }),
        _ => Ok(()),
    }
}

/// Starts the dialer's half of the handshake to learn who listens. The listener proves the token;
/// this side then closes the connection without a proof of its own, so the listener ignores it.
/// Exception: if the two belong to different clusters, this side proves the token too, because both
/// must know.
pub(crate) async fn identify(
    mut stream: PeerStream,
    mine: &Hello,
    token: &TokenKey,
) -> Result<Hello, ConnectionError> {
    let shake = async {
        let ours = mine.to_bytes();
        let met = meet(&mut stream, &ours, token).await?;
        let theirs = met.theirs.clone();
        if let Err(HandshakeRefusal::Cluster) = mine.assess(&theirs) {
            let proof = met.transcript(&ours).proof(&met.token, ProofSide::Dialer);
            stream.writer.write_all(proof.as_ref()).await?;
            stream.writer.flush().await?;
            return Err(ConnectionError::Rival(Box::new(theirs)));
        }
        mine.assess(&theirs)?;
        Ok(theirs)
    };
    timeout(HANDSHAKE, shake)
        .await
        .map_err(|_| ConnectionError::Slow)?
}

/// Runs the listener's half of the handshake. `mine` makes the answer to a hello. `admit` decides
/// about an authenticated node; it gets the result of the checks so far.
pub(crate) async fn answer(
    stream: PeerStream,
    mine: impl FnOnce(&Hello) -> Hello,
    token: &TokenKey,
    admit: impl AsyncFnOnce(Hello, Result<u8, HandshakeRefusal>) -> Result<u8, String>,
) -> Result<AuthenticatedConnection, ConnectionError> {
    let PeerStream {
        mut reader,
        mut writer,
        binding,
        nodes,
    } = stream;
    let shake = async {
        let length = reader.read_u16_le().await?;
        let offer = read_hello(&mut reader, length).await?;
        let theirs = Hello::from_bytes(&offer).map_err(|_| ConnectionError::Rubbish)?;
        let mut known = token.clone();
        if theirs.proves_first {
            let mut nonce = [0; CHALLENGE];
            rustix::rand::getrandom(&mut nonce, rustix::rand::GetRandomFlags::empty())
                .map_err(io::Error::from)?;
            writer.write_all(&CHALLENGED.to_le_bytes()).await?;
            writer.write_all(&nonce).await?;
            writer.flush().await?;
            let proof = read_proof(&mut reader).await?;
            let challenge = Challenge {
                dialer: &offer,
                nonce: &nonce,
                binding: &binding,
            };
            let proved = challenge.verify(token, &proof);
            known = proved.ok_or(ConnectionError::Stranger)?;
        }
        let token = &known;
        check_certificate(&nodes, &theirs)?;
        let mine = mine(&theirs);
        let ours = mine.to_bytes();
        let transcript = Transcript {
            dialer: &offer,
            listener: &ours,
            binding: theirs.proves_first.then_some(binding.as_slice()),
        };
        let proof = transcript.proof(token, ProofSide::Listener);
        write_hello(&mut writer, &ours, proof.as_ref()).await?;
        let proof = read_proof(&mut reader).await?;
        let proved = transcript.verify(token, ProofSide::Dialer, &proof);
        // A dialer of the first release has chosen among its tokens; ours was the first one.
        let token = &proved.ok_or(ConnectionError::Stranger)?;
        let verdict = admit(theirs.clone(), mine.assess(&theirs)).await;
        let version = *verdict.as_ref().unwrap_or(&mine.versions.oldest);
        let mut proven = AuthenticatedConnection {
            theirs,
            version,
            reader,
            writer,
            sealer: MacWriter::new(transcript.key(token, ProofSide::Listener)),
            opener: MacReader::new(transcript.key(token, ProofSide::Dialer)),
        };
        let text = verdict.as_ref().err().map_or("", String::as_str);
        let head = proven.sealer.head(&[text.as_bytes()]);
        proven.writer.write_all(&head).await?;
        proven.writer.write_all(text.as_bytes()).await?;
        proven.writer.flush().await?;
        verdict.map_err(ConnectionError::RefusedUs)?;
        Ok(proven)
    };
    timeout(HANDSHAKE, shake)
        .await
        .map_err(|_| ConnectionError::Slow)?
}

async fn write_hello(
    writer: &mut WriteHalf,
    hello: &[u8],
    proof: &[u8],
) -> Result<(), ConnectionError> {
    let length = u16::try_from(hello.len()).map_err(|_| ConnectionError::Rubbish)?;
    let mut bytes = length.to_le_bytes().to_vec();
    bytes.extend_from_slice(hello);
    bytes.extend_from_slice(proof);
    writer.write_all(&bytes).await?;
    Ok(writer.flush().await?)
}

/// Reads a hello of this length.
async fn read_hello(reader: &mut ReadHalf, length: u16) -> Result<Vec<u8>, ConnectionError> {
    if usize::from(length) > MAX_HELLO {
        return Err(ConnectionError::Rubbish);
    }
    let mut bytes = vec![0; usize::from(length)];
    match reader.read_exact(&mut bytes).await {
        // The peer speaks TLS: this is a short alert about our hello, not a truncated hello.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && length == TLS_ALERT => {
            Err(ConnectionError::SpeaksTls)
        }
        read => Ok(read.map(|_| bytes)?),
    }
}

async fn read_proof(reader: &mut ReadHalf) -> Result<[u8; PROOF], ConnectionError> {
    let mut proof = [0; PROOF];
    reader.read_exact(&mut proof).await?;
    Ok(proof)
}

/// The task of an outgoing connection.
pub(crate) struct SendTask {
    reader: ReadHalf,
    writer: WriteHalf,
    queue: FrameQueue,
}

impl SendTask {
    /// Sends pings and writes what the frame writers could not write, until either end closes the
    /// connection.
    pub(crate) async fn run(mut self, pace: &KeepAlive) -> ConnectionError {
        let mut bytes = Vec::new();
        let mut nothing = [0; 1];
        loop {
            tokio::select! {
                biased;
                more = self.queue.woken.recv() => {
                    if more.is_none() {
                        return ConnectionError::Closed;
                    }
                }
                // The listener sends nothing after its verdict, so a readable socket means that it
                // was closed.
                _ = self.reader.read(&mut nothing) => return ConnectionError::Closed,
                () = tokio::time::sleep(pace.ping) => {
                    if self.queue.ping().is_err() {
                        return ConnectionError::Closed;
                    }
                }
            }
            while self.queue.take(&mut bytes) {
                if let Err(error) = self.write(&bytes, pace).await {
                    return error;
                }
            }
        }
    }

    async fn write(&mut self, bytes: &[u8], pace: &KeepAlive) -> Result<(), ConnectionError> {
        for part in bytes.chunks(WRITE_AT_ONCE) {
            timeout(pace.stall, self.writer.write_all(part))
                .await
                .map_err(|_| ConnectionError::Slow)??;
        }
        timeout(pace.stall, self.writer.flush())
            .await
            .map_err(|_| ConnectionError::Slow)??;
        Ok(())
    }
}

impl AuthenticatedConnection {
    /// Creates the frame writer and the task of this connection. `socket` is a second handle of its
    /// socket for direct writes.
    pub(crate) fn frame_writer(
        self,
        channel: Channel,
        socket: Option<TcpStream>,
    ) -> (FrameWriter, SendTask) {
        let (frame_writer, queue) = frame_writer::pair(channel, self.sealer, socket);
        let sending = SendTask {
            reader: self.reader,
            writer: self.writer,
            queue,
        };
        (frame_writer, sending)
    }

    /// Receives until the connection ends and returns the reason. Calls `rest` when all buffered
    /// messages have been taken, before it waits for more.
    pub(crate) async fn receive_all<F: Future<Output = ()>>(
        mut self,
        pace: &KeepAlive,
        mut take: impl FnMut(OutboundMessage) -> F,
        mut rest: impl FnMut(),
    ) -> ConnectionError {
        let mut buffer = BytesMut::with_capacity(WRITE_AT_ONCE);
        loop {
            if !has_frame(&buffer) {
                rest();
            }
            let content = match self.next(&mut buffer, pace.silence).await {
                Ok(content) => content,
                Err(error) => return error,
            };
            let outbound = match content.split_first() {
                Some((&PING, _)) => continue,
                Some((&FRAME, _)) => OutboundMessage::Frame(content.slice(1..)),
                Some((&CONTROL, _)) => OutboundMessage::Control(content.slice(1..)),
                // Unknown kind, from a later release: ignored.
                Some(_) => continue,
                None => return ConnectionError::Rubbish,
            };
            take(outbound).await;
        }
    }

    /// Reads the next frame. Any received byte restarts the silence timeout.
    async fn next(
        &mut self,
        buffer: &mut BytesMut,
        silence: Duration,
    ) -> Result<Bytes, ConnectionError> {
        self.fill(buffer, HEAD, silence).await?;
        let mut head = [0; HEAD];
        buffer.copy_to_slice(&mut head);
        let length = MacReader::length(&head).map_err(|_| ConnectionError::Rubbish)?;
        self.fill(buffer, length, silence).await?;
        // Copied, so that a frame that is kept does not keep the whole buffer alive.
        let content = Bytes::copy_from_slice(&buffer[..length]);
        buffer.advance(length);
        self.opener
            .check(&head, &content)
            .map_err(|_| ConnectionError::Rubbish)?;
        Ok(content)
    }

    async fn fill(
        &mut self,
        buffer: &mut BytesMut,
        length: usize,
        silence: Duration,
    ) -> Result<(), ConnectionError> {
        while buffer.len() < length {
            // Memory grows with the bytes received, not with the announced length.
            buffer.reserve(WRITE_AT_ONCE);
            let read = timeout(silence, self.reader.read_buf(buffer))
                .await
                .map_err(|_| ConnectionError::Slow)??;
            if read == 0 {
                return Err(ConnectionError::Closed);
            }
        }
        Ok(())
    }
}

/// Returns whether the buffer contains a complete frame.
fn has_frame(buffer: &[u8]) -> bool {
    let length = buffer.first_chunk().map(MacReader::length);
    matches!(length, Some(Ok(length)) if buffer.len() >= HEAD + length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_record::tests::node_record;
    use tenure_core::policy::Algorithm;
    use tenure_node::ClusterConfig;
    use tokio::sync::mpsc;

    fn hello(node: u32) -> Hello {
        let facts = ClusterConfig {
            group_count: 4,
            prefix_segments: 1,
            default_algorithm: Algorithm::RecursiveRw,
        };
        let nonce = [node as u8; 32];
        let node_record = node_record(node, 1);
        Hello::new(facts, Some(1), node_record, (Channel::Main, 1), None, nonce)
    }

    fn stream(
        reader: impl AsyncRead + Send + Unpin + 'static,
        writer: impl AsyncWrite + Send + Unpin + 'static,
    ) -> PeerStream {
        PeerStream::new(Box::new(reader), Box::new(writer))
    }

    /// A stranger learns nothing from a listener: no name, no address, no proof of the token.
    #[tokio::test]
    async fn a_listener_says_nothing_before_the_dialer_has_proved_the_token() {
        let (near, mut far) = tokio::io::duplex(4096);
        let (reader, writer) = tokio::io::split(near);
        let token = TokenKey::new(&[1; 32]);
        let listen = answer(
            stream(reader, writer),
            |_| hello(2),
            &token,
            async |_, _| Err("a stranger is never admitted".to_owned()),
        );
        let stranger = async {
            let hello = hello(1).to_bytes();
            far.write_all(&(hello.len() as u16).to_le_bytes())
                .await
                .unwrap();
            far.write_all(&hello).await.unwrap();
            let mut challenge = [0; 2 + CHALLENGE];
            far.read_exact(&mut challenge).await.unwrap();
            assert_eq!(challenge[..2], CHALLENGED.to_le_bytes());
            far.write_all(&[0; PROOF]).await.unwrap();
            let mut rest = Vec::new();
            far.read_to_end(&mut rest).await.unwrap();
            rest
        };
        let (answered, rest) = tokio::join!(listen, stranger);
        assert!(matches!(answered, Err(ConnectionError::Stranger)));
        assert_eq!(rest, []);
    }

    /// The token is changed node by node: neighbours in the change always have one in common.
    #[tokio::test]
    async fn a_second_token_is_accepted_in_both_directions() {
        let (old, new) = ([1; 32], [2; 32]);
        let stages = [
            TokenKey::new(&old),
            TokenKey::new(&old).or(&new),
            TokenKey::new(&new).or(&old),
            TokenKey::new(&new),
        ];
        for (at, dialer) in stages.iter().enumerate() {
            for (other, listener) in stages.iter().enumerate() {
                let (dialed, answered) = connect(4096, dialer, listener, Ok(())).await;
                if at.abs_diff(other) <= 1 {
                    assert!(dialed.is_ok() && answered.is_ok(), "{at} dials {other}");
                }
            }
        }
        let (dialed, answered) = connect(4096, &stages[0], &stages[3], Ok(())).await;
        assert!(dialed.is_err() && answered.is_err());
    }

    /// A certificate that names a node is valid for that node only.
    #[test]
    fn a_certificate_names_its_node() {
        assert_eq!(check_certificate(&[], &hello(1)), Ok(()));
        assert_eq!(check_certificate(&[1, 2], &hello(2)), Ok(()));
        let refused = check_certificate(&[2], &hello(1)).unwrap_err();
        assert_eq!(
            refused,
            HandshakeRefusal::Certificate { found: 1, named: 2 }
        );
    }

    /// Returns both ends of a connection through a pipe of this size.
    async fn connect(
        pipe: usize,
        dialer: &TokenKey,
        listener: &TokenKey,
        verdict: Result<(), String>,
    ) -> (
        Result<AuthenticatedConnection, ConnectionError>,
        Result<AuthenticatedConnection, ConnectionError>,
    ) {
        let (near, far) = tokio::io::duplex(pipe);
        let (near_reader, near_writer) = tokio::io::split(near);
        let (far_reader, far_writer) = tokio::io::split(far);
        let (one, two) = (hello(1), hello(2));
        tokio::join!(
            dial(stream(near_reader, near_writer), &one, dialer),
            answer(
                stream(far_reader, far_writer),
                |_| two,
                listener,
                async |_, judged: Result<u8, HandshakeRefusal>| {
                    verdict.and(judged.map_err(|refusal| refusal.to_string()))
                }
            )
        )
    }

    /// R168 (internal authentication): without the token neither side gets further than the hello.
    #[tokio::test]
    async fn strangers_are_refused_on_both_sides() {
        let (ours, theirs) = (TokenKey::new(&[1; 32]), TokenKey::new(&[2; 32]));
        let (dialed, answered) = connect(4096, &ours, &theirs, Ok(())).await;
        assert!(matches!(dialed, Err(ConnectionError::Stranger)));
        assert!(answered.is_err());
        let (dialed, answered) = connect(4096, &ours, &ours, Err("full".into())).await;
        assert!(matches!(dialed, Err(ConnectionError::RefusedUs(why)) if why == "full"));
        assert!(answered.is_err());
        let (dialed, answered) = connect(4096, &ours, &ours, Ok(())).await;
        assert_eq!(dialed.unwrap().theirs, hello(2));
        assert_eq!(answered.unwrap().theirs, hello(1));
    }

    /// A node without TLS that dials one with TLS reports the cause.
    #[tokio::test]
    async fn an_alert_is_no_hello() {
        let (near, mut far) = tokio::io::duplex(4096);
        let (reader, writer) = tokio::io::split(near);
        far.write_all(&[21, 3, 3, 0, 2, 2, 50]).await.unwrap();
        far.shutdown().await.unwrap();
        let token = TokenKey::new(&[1; 32]);
        let dialed = dial(stream(reader, writer), &hello(1), &token).await;
        assert!(matches!(dialed, Err(ConnectionError::SpeaksTls)));
    }

    /// R170: a frame that takes longer than the silence timeout still arrives, because a sender
    /// that makes slow progress is alive.
    #[tokio::test]
    async fn a_slow_link_is_not_a_dead_one() {
        let token = TokenKey::new(&[1; 32]);
        let (near, far) = tokio::io::duplex(1024);
        let (slow, fast) = tokio::io::duplex(1024);
        // A link that passes one kilobyte every few milliseconds.
        tokio::spawn(async move {
            let (mut from, mut answers) = tokio::io::split(far);
            let (mut back, mut to) = tokio::io::split(slow);
            tokio::spawn(async move { tokio::io::copy(&mut back, &mut answers).await });
            let mut bytes = [0; 1024];
            while let Ok(count @ 1..) = from.read(&mut bytes).await {
                tokio::time::sleep(Duration::from_millis(5)).await;
                if to.write_all(&bytes[..count]).await.is_err() {
                    return;
                }
            }
        });
        let (near_reader, near_writer) = tokio::io::split(near);
        let (far_reader, far_writer) = tokio::io::split(fast);
        let (one, two) = (hello(1), hello(2));
        let (dialed, answered) = tokio::join!(
            dial(stream(near_reader, near_writer), &one, &token),
            answer(
                stream(far_reader, far_writer),
                |_| two,
                &token,
                async |_, judged: Result<u8, HandshakeRefusal>| judged.map_err(|_| String::new())
            )
        );
        let pace = KeepAlive::of(Channel::Main);
        let (frame_writer, sending) = dialed.unwrap().frame_writer(Channel::Main, None);
        let large = Bytes::from(vec![7; 300 * 1024]);
        frame_writer
            .send(OutboundMessage::Frame(large.clone()))
            .unwrap();
        frame_writer
            .send(OutboundMessage::Control(Bytes::from_static(b"after")))
            .unwrap();
        let (taken, mut arrived) = mpsc::unbounded_channel();
        let began = std::time::Instant::now();
        let send = sending.run(&pace);
        let take = |outbound| {
            let _ = taken.send(outbound);
            std::future::ready(())
        };
        let receive = answered.unwrap().receive_all(&pace, take, || ());
        let both = async {
            let first = arrived.recv().await;
            (first, arrived.recv().await)
        };
        tokio::select! {
            (first, second) = both => {
                assert!(matches!(first, Some(OutboundMessage::Frame(bytes)) if bytes == large));
                assert!(matches!(second, Some(OutboundMessage::Control(bytes)) if &bytes[..] == b"after"));
            }
            why = send => panic!("the sender gave up: {why}"),
            why = receive => panic!("the receiver gave up: {why}"),
        }
        assert!(
            began.elapsed() > pace.silence,
            "otherwise nothing was shown"
        );
    }
}
