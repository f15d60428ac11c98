//! Acceptor: authenticates incoming connections and passes on their messages.

use std::rc::Rc;
use std::time::Duration;

use tenure_node::{Channel, Input, NodeId};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::PeersContext;
use super::connection::{self, ConnectionError, KeepAlive};
use super::frame_writer::OutboundMessage;
use super::handshake::{HandshakeRefusal, Hello};
use super::handshake_slots::{HandshakeSlot, HandshakeSlots};
use super::registry::{Admission, RegistryEvent};
use super::rival_cluster::ClusterClaim;
use super::tls;
use crate::job::Job;
use crate::node_runner::{Drive, FrameKind};

/// Maximum number of concurrent handshakes. A further connection takes the slot of another one.
const HANDSHAKES: usize = 256;
/// Time limit for the first byte: a peer sends its hello as soon as it is connected.
const FIRST_BYTE: Duration = Duration::from_millis(500);
/// Back-pressure limit: above this many bytes of queued frames, connections are not read.
const MOST_WAITING: usize = 64 * 1024 * 1024;
/// Time limit for the connection in the other direction. After it the pair is given up.
const OTHER_DIRECTION: Duration = Duration::from_secs(5);

/// Accepts connections until the task is dropped.
pub(crate) async fn run(home: Rc<PeersContext>, listener: TcpListener) {
    let slots = HandshakeSlots::default();
    loop {
        match listener.accept().await {
            Ok((stream, from)) => {
                let home = Rc::clone(&home);
                let (slot, eviction) = slots.take(HANDSHAKES);
                tokio::task::spawn_local(async move {
                    let ended = tokio::select! {
                        ended = serve(&home, stream, slot) => ended,
                        () = eviction.wait() => Err(ConnectionError::Closed),
                    };
                    if let Err(error) = ended {
                        tracing::debug!(%from, "incoming connection: {error}");
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept connections of peers");
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Handles one connection from its handshake to its end.
async fn serve(
    home: &PeersContext,
    stream: TcpStream,
    slot: HandshakeSlot,
) -> Result<(), ConnectionError> {
    stream.set_nodelay(true)?;
    match timeout(FIRST_BYTE, stream.peek(&mut [0])).await {
        Ok(Ok(1)) => slot.has_spoken(),
        Ok(_) => return Err(ConnectionError::Closed),
        Err(_) => return Err(ConnectionError::Slow),
    }
    let stream = tls::accepted(home.tls.as_ref(), stream).await?;
    let blank = home.hello(Channel::Main, 0, None).await?;
    let ours = blank.claim.clone();
    let mine = |theirs: &Hello| Hello {
        channel: theirs.channel,
        connection: theirs.connection,
        known: home.known_life(theirs.node_record.node()),
        ..blank
    };
    let mut pass = None;
    let admit = async |theirs: Hello, judged: Result<u8, HandshakeRefusal>| {
        let version = judged.map_err(|refusal| {
            refused(home, ours, &theirs, &refusal);
            refusal.to_string()
        })?;
        home.agree(&theirs).await?;
        let (node, channel) = (theirs.node_record.node(), theirs.channel);
        pass = Some((node, channel, admit(home, theirs).await?));
        Ok(version)
    };
    let answer = connection::answer(stream, mine, &home.token, admit).await;
    // The handshake is over: the connection can no longer be closed for another one.
    drop(slot);
    let Some((node, channel, mut pass)) = pass else {
        return answer.map(|_| ());
    };
    let id = pass.id;
    let proven = match answer {
        Ok(proven) => proven,
        Err(error) => {
            // The registry has admitted the connection already, so it must learn that it failed.
            home.tell(RegistryEvent::InDown { node, channel, id });
            return Err(error);
        }
    };
    let (cancel, cancelled) = oneshot::channel();
    home.tell(RegistryEvent::InUp {
        node,
        channel,
        id,
        cancel,
    });
    let receive = async {
        // Answers to incoming frames leave through the other direction, so that must be established
        // first. (The result borrows the watched value and must not live on.)
        let stands = timeout(OTHER_DIRECTION, pass.stands.wait_for(|stands| *stands)).await;
        let stands = stands.is_ok_and(|value| value.is_ok());
        if !stands {
            return ConnectionError::Slow;
        }
        proven
            .receive_all(
                &KeepAlive::of(channel),
                |outbound| take(home, node, channel, outbound),
                // All received messages were enqueued: the node takes a turn, on this thread if no
                // other thread steps it and the turn is short. This thread sends the pings of all
                // connections, so a turn that decodes the state of a large group would break them.
                || {
                    home.runner.drive(Drive::Inline);
                },
            )
            .await
    };
    let why = tokio::select! {
        why = receive => why,
        _ = cancelled => ConnectionError::Closed,
    };
    tracing::debug!(%node, ?channel, "incoming connection: {why}");
    home.tell(RegistryEvent::InDown { node, channel, id });
    Ok(())
}

/// Reports an authenticated node that was refused: a rival cluster, or settings that exclude this
/// node (R161 (settings fixed per cluster)).
fn refused(
    home: &PeersContext,
    ours: Option<ClusterClaim>,
    theirs: &Hello,
    refusal: &HandshakeRefusal,
) {
    match refusal {
        HandshakeRefusal::Cluster => home.tell(RegistryEvent::Rival {
            ours,
            theirs: Box::new(theirs.clone()),
        }),
        HandshakeRefusal::Facts { .. } | HandshakeRefusal::Version { .. }
            if theirs.cluster.is_some() && home.identity.borrow().cluster_id.is_none() =>
        {
            home.tell(RegistryEvent::Excluded(format!(
                "{}: {refusal}",
                theirs.node_record.node()
            )));
        }
        _ => {}
    }
}

async fn admit(home: &PeersContext, theirs: Hello) -> Result<Admission, String> {
    let (reply, answer) = oneshot::channel();
    home.tell(RegistryEvent::Admit {
        theirs: Box::new(theirs),
        reply,
    });
    answer
        .await
        .unwrap_or_else(|_| Err("this node is stopping".to_owned()))
}

async fn take(home: &PeersContext, from: NodeId, channel: Channel, outbound: OutboundMessage) {
    match outbound {
        OutboundMessage::Frame(bytes) => {
            // Large amounts and snapshot parts are handled on the node thread while this one keeps
            // reading.
            let kind = match channel {
                Channel::Main => FrameKind::Short,
                Channel::Bulk => FrameKind::Long,
            };
            let (size, frame) = (bytes.len(), Job::Input(Input::Frame { from, bytes }));
            let mut waiting = home.runner.submit_frame(frame, size, kind);
            while waiting > MOST_WAITING {
                sleep(Duration::from_millis(1)).await;
                waiting = home.runner.frame_bytes();
            }
        }
        OutboundMessage::Control(bytes) => home.tell(RegistryEvent::Control { from, bytes }),
    }
}
