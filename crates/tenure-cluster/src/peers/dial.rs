//! Dialers: one per peer and channel keeps a connection to it, for as long as it has a node record.

use std::os::fd::AsFd;
use std::rc::Rc;
use std::time::Duration;

use tenure_node::{Channel, NodeId};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::connection::{self, ConnectionError, KeepAlive};
use super::registry::RegistryEvent;
use super::{HandshakeRefusal, Hello, IncarnationCheck, PeersContext, tls};
use crate::node_record::NodeRecord;

const CONNECT: Duration = Duration::from_secs(2);
/// Between attempts: at first, and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// A node that knows another dials it again within this time, also when an attempt is lost.
pub(crate) const REDIAL_WITHIN: Duration = Duration::from_millis(2500);

/// Keeps a connection until the node record is taken away.
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
            // A new address is worth an attempt at once.
            changed = node_record.changed() => if changed.is_err() { return },
        }
    }
}

/// A node that can never talk to the others is excluded (R161).
fn tell_misfit(home: &PeersContext, node: NodeId, error: &ConnectionError) {
    if let ConnectionError::Refused(
        refusal @ (HandshakeRefusal::Facts { .. } | HandshakeRefusal::Version { .. }),
    ) = error
    {
        home.tell(RegistryEvent::Excluded(format!("{node}: {refusal}")));
    }
}

/// Finds out which cluster a node belongs to, without joining it. Gossip may name one of another
/// cluster; a datagram may be an old one, sent again, so only a handshake counts.
pub(crate) async fn identify(home: Rc<PeersContext>, node: NodeId, address: String) {
    let identify = async {
        let stream = timeout(CONNECT, TcpStream::connect(&address))
            .await
            .map_err(|_| ConnectionError::Slow)??;
        let (reader, writer) = tls::dialed(home.tls.as_ref(), stream, &address).await?;
        let mine = home
            .hello(Channel::Main, home.next_connection(), None)
            .await?;
        let theirs = connection::identify(reader, writer, &mine, &home.token).await;
        tell_rival(&home, &mine, theirs)
    };
    match identify.await {
        Ok(theirs) if theirs.cluster.is_some() => {
            home.tell(RegistryEvent::Candidate(Box::new(theirs)))
        }
        // It waits for a cluster itself.
        Ok(_) => {}
        Err(error) => {
            tracing::debug!(address, "which cluster is it in? {error}");
            tell_misfit(&home, node, &error);
        }
    }
}

/// Passes on what a handshake gave; the registry hears of another cluster.
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

/// One connection, from the attempt to its end.
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
        // What TLS makes of it only the connection's own task knows.
        (Channel::Main, Some(_)) | (Channel::Bulk, _) => None,
    };
    let (reader, writer) = tls::dialed(home.tls.as_ref(), stream, &node_record.internal).await?;
    let mine = home.hello(channel, connection, Some(node)).await?;
    let proven = connection::dial(reader, writer, &mine, &home.token).await;
    let proven = tell_rival(home, &mine, proven)?;
    let theirs = &proven.theirs;
    if let Err(why) = home.agree(theirs).await {
        return Err(ConnectionError::RefusedUs(why));
    }
    home.tell(RegistryEvent::Met {
        node_record: Box::new(theirs.node_record.clone()),
        belongs: IncarnationCheck::of(theirs.cluster),
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
