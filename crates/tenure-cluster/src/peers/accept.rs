//! The listener: takes connections, lets them prove themselves, and passes on what they bring.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tenure_node::{Channel, NodeId};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{sleep, timeout};

use super::PeersContext;
use super::connection::{self, ConnectionError, KeepAlive};
use super::frame_writer::OutboundMessage;
use super::handshake::{HandshakeRefusal, Hello};
use super::registry::{Admission, RegistryEvent};
use super::rival_cluster::ClusterClaim;
use super::tls;
use crate::inbox::MUCH;

/// Connections that may be in their handshake at once; strangers wait.
const HANDSHAKES: usize = 64;
/// So many bytes of frames may wait for the node before its peers have to.
const MOST_WAITING: usize = 64 * 1024 * 1024;
/// The other direction stands after this long, or the pair is given up.
const OTHER_DIRECTION: Duration = Duration::from_secs(5);

/// Accepts until the end.
pub(crate) async fn run(home: Rc<PeersContext>, listener: TcpListener) {
    let room = Arc::new(Semaphore::new(HANDSHAKES));
    loop {
        let Ok(place) = Arc::clone(&room).acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((stream, from)) => {
                let home = Rc::clone(&home);
                tokio::task::spawn_local(async move {
                    if let Err(error) = serve(&home, stream, place).await {
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

/// One connection, from its handshake to its end.
async fn serve(
    home: &PeersContext,
    stream: TcpStream,
    place: OwnedSemaphorePermit,
) -> Result<(), ConnectionError> {
    stream.set_nodelay(true)?;
    let (reader, writer) = tls::accepted(home.tls.as_ref(), stream).await?;
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
    let answer = connection::answer(reader, writer, mine, &home.token, admit).await;
    drop(place);
    let Some((node, channel, mut pass)) = pass else {
        return answer.map(|_| ());
    };
    let id = pass.id;
    let proven = match answer {
        Ok(proven) => proven,
        Err(error) => {
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
        // Answers to what comes in here leave by the other direction: it has to stand first.
        // (What it yields borrows the value: it must not live on.)
        let stands = timeout(OTHER_DIRECTION, pass.stands.wait_for(|stands| *stands)).await;
        let stands = stands.is_ok_and(|value| value.is_ok());
        if !stands {
            return ConnectionError::Slow;
        }
        proven
            .receive_all(
                &KeepAlive::of(channel),
                |outbound| take(home, node, channel, outbound),
                || rest(home),
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

/// A proven node cannot come in: this node may have to draw conclusions (R161).
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
            let mut waiting = home.inbox.leave_frame(from, channel, bytes);
            if channel == Channel::Bulk || waiting > MUCH {
                home.inbox.wake();
            }
            while waiting > MOST_WAITING {
                sleep(Duration::from_millis(1)).await;
                waiting = home.inbox.frame_bytes();
            }
        }
        OutboundMessage::Control(bytes) => home.tell(RegistryEvent::Control { from, bytes }),
    }
}

/// All that came was passed on: the node takes its turn, here if it sleeps and the turn is short. This thread
/// sends the pings of all connections: a turn that decodes the state of a large group would break them.
fn rest(home: &PeersContext) {
    if home.inbox.holds_much() {
        home.inbox.wake();
    } else if !home.inbox.is_empty() {
        home.runner.try_step_inline();
    }
}
