//! Dialers: one task per peer and channel keeps a connection, as long as the peer has a node
//! record.

use std::os::fd::AsFd;
use std::rc::Rc;
use std::time::Duration;

use tenure_node::{Channel, NodeId};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::connection::{self, ConnectionError, KeepAlive};
use super::registry::RegistryEvent;
use super::{BelongsToCluster, HandshakeRefusal, Hello, PeersContext, tls};
use crate::node_record::NodeRecord;

const CONNECT: Duration = Duration::from_secs(2);
/// Pause between attempts: the first one, and the longest (exponential back-off).
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// A node dials every known peer again within this time, even if an attempt is lost: [`CONNECT`]
/// plus [`LONGEST_PAUSE`].
pub(crate) const REDIAL_WITHIN: Duration = Duration::from_millis(2500);

/// Keeps a connection until the node record is removed.
pub(crate) async fn keep(
    home: Rc<PeersContext>,
    node: NodeId,
    channel: Channel,
    mut node_record: watch::Receiver<Option<NodeRecord>>,
) {
    let mut pause = FIRST_PAUSE;
    let mut said = String::new();
    loop {
        let Some(target) = node_record.borrow_and_update().clone() else {
            return;
        };
        let error = match once(&home, node, channel, &target).await {
            Ok(ended) => {
                pause = FIRST_PAUSE;
                ended
            }
            Err(error) => error,
        };
        let text = error.to_string();
        if text != said {
            tracing::info!(%node, ?channel, address = target.internal, "connection: {text}");
            said = text;
            tell_misfit(&home, node, &error);
        }
        tokio::select! {
            () = sleep(pause) => pause = (pause * 2).min(LONGEST_PAUSE),
            // A new address is tried at once.
            changed = node_record.changed() => if changed.is_err() { return },
        }
    }
}

/// Reports settings or versions with which this node can never join (R161 (settings fixed per
/// cluster)).
fn tell_misfit(home: &PeersContext, node: NodeId, error: &ConnectionError) {
    if let ConnectionError::Refused(
        refusal @ (HandshakeRefusal::Facts { .. } | HandshakeRefusal::Version { .. }),
    ) = error
    {
        home.tell(RegistryEvent::Excluded(format!("{node}: {refusal}")));
    }
}

/// Finds out which cluster a node belongs to, without joining it. Gossip may name a node of another
/// cluster, but a datagram may be replayed, so only a handshake counts.
pub(crate) async fn identify(home: Rc<PeersContext>, node: NodeId, address: String) {
    let identify = async {
        let stream = timeout(CONNECT, TcpStream::connect(&address))
            .await
            .map_err(|_| ConnectionError::Slow)??;
        let stream = tls::dialed(home.tls.as_ref(), stream, &address).await?;
        let mine = home
            .hello(Channel::Main, home.next_connection(), None)
            .await?;
        let theirs = connection::identify(stream, &mine, &home.token).await;
        tell_rival(&home, &mine, theirs)
    };
    match identify.await {
        Ok(theirs) if theirs.cluster.is_some() => {
            home.tell(RegistryEvent::Candidate(Box::new(theirs)))
        }
        // That node waits for a cluster itself.
        Ok(_) => {}
        Err(error) => {
            tracing::debug!(
                address,
                "cannot determine the cluster of this node: {error}"
            );
            tell_misfit(&home, node, &error);
        }
    }
}

/// Returns the result of a handshake; reports a rival cluster to the registry.
fn tell_rival<T>(
    home: &PeersContext,
    mine: &Hello,
    met: Result<T, ConnectionError>,
) -> Result<T, ConnectionError> {
    if let Err(ConnectionError::Rival(theirs)) = &met {
        home.tell(RegistryEvent::Rival {
            ours: mine.claim.clone(),
            theirs: theirs.clone(),
        });
    }
    met
}

/// Handles one connection from the attempt to its end.
async fn once(
    home: &PeersContext,
    node: NodeId,
    channel: Channel,
    node_record: &NodeRecord,
) -> Result<ConnectionError, ConnectionError> {
    let connection = home.next_connection();
    let stream = timeout(CONNECT, TcpStream::connect(&node_record.internal))
        .await
        .map_err(|_| ConnectionError::Slow)??;
    stream.set_nodelay(true)?;
    let socket = match (channel, &home.tls) {
        (Channel::Main, None) => Some(stream.as_fd().try_clone_to_owned()?.into()),
        // Only the connection's own task can write through TLS. Bulk frames always go through the
        // task.
        (Channel::Main, Some(_)) | (Channel::Bulk, _) => None,
    };
    let stream = tls::dialed(home.tls.as_ref(), stream, &node_record.internal).await?;
    let mine = home.hello(channel, connection, Some(node)).await?;
    let proven = connection::dial(stream, &mine, &home.token).await;
    let proven = tell_rival(home, &mine, proven)?;
    let theirs = &proven.theirs;
    if let Err(why) = home.agree(theirs).await {
        return Err(ConnectionError::RefusedUs(why));
    }
    home.tell(RegistryEvent::Met {
        node_record: Box::new(theirs.node_record.clone()),
        belongs: BelongsToCluster::of(theirs.cluster),
    });
    let (incarnation, version) = (theirs.node_record.member.incarnation, proven.version);
    let (frame_writer, sending) = proven.frame_writer(channel, socket);
    home.tell(RegistryEvent::OutUp {
        node,
        incarnation,
        channel,
        connection,
        version,
        frame_writer,
    });
    let why = sending.run(&KeepAlive::of(channel)).await;
    home.tell(RegistryEvent::OutDown {
        node,
        channel,
        connection,
    });
    Ok(why)
}
