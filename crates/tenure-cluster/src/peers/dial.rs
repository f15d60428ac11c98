//! Dialers: one per peer and lane keeps a connection to it, for as long as it has a card.

use std::os::fd::AsFd;
use std::rc::Rc;
use std::time::Duration;

use tenure_node::{Lane, NodeId};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::link::{self, LinkError, Pace};
use super::mesh::Event;
use super::{Home, Refusal, tls};
use crate::card::Card;

const CONNECT: Duration = Duration::from_secs(2);
/// Between attempts: at first, and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Keeps a connection until the card is taken away.
pub(crate) async fn keep(
    home: Rc<Home>,
    node: NodeId,
    lane: Lane,
    mut card: watch::Receiver<Option<Card>>,
) {
    let mut pause = FIRST_PAUSE;
    let mut said = String::new();
    loop {
        let Some(target) = card.borrow_and_update().clone() else {
            return;
        };
        let error = match once(&home, node, lane, &target).await {
            Ok(ended) => {
                pause = FIRST_PAUSE;
                ended
            }
            Err(error) => error,
        };
        let text = error.to_string();
        if text != said {
            tracing::info!(%node, ?lane, address = target.internal, "connection: {text}");
            said = text;
            if let LinkError::Refused(refusal @ (Refusal::Facts { .. } | Refusal::Version { .. })) =
                &error
            {
                home.tell(Event::Excluded(format!("{node}: {refusal}")));
            }
        }
        tokio::select! {
            () = sleep(pause) => pause = (pause * 2).min(LONGEST_PAUSE),
            // A new address is worth an attempt at once.
            changed = card.changed() => if changed.is_err() { return },
        }
    }
}

/// One connection, from the attempt to its end.
async fn once(home: &Home, node: NodeId, lane: Lane, card: &Card) -> Result<LinkError, LinkError> {
    let connection = home.next_connection();
    let stream = timeout(CONNECT, TcpStream::connect(&card.internal))
        .await
        .map_err(|_| LinkError::Slow)??;
    stream.set_nodelay(true)?;
    let socket = match (lane, &home.tls) {
        (Lane::Main, None) => Some(stream.as_fd().try_clone_to_owned()?.into()),
        // What TLS makes of it only the connection's own task knows.
        (Lane::Main, Some(_)) | (Lane::Bulk, _) => None,
    };
    let (reader, writer) = tls::dialed(home.tls.as_ref(), stream, &card.internal).await?;
    let mine = home.hello(lane, connection, Some(node))?;
    let proven = link::dial(reader, writer, &mine, &home.token).await?;
    let theirs = &proven.theirs;
    if let Err(why) = home.agree(theirs.cluster).await {
        return Err(LinkError::RefusedUs(why));
    }
    home.tell(Event::Cards(vec![theirs.card.clone()]));
    let (life, version) = (theirs.card.member.life, proven.version);
    let (outlet, sending) = proven.outlet(lane, socket);
    home.tell(Event::OutUp {
        node,
        life,
        lane,
        connection,
        version,
        outlet,
    });
    let why = sending.run(&Pace::of(lane)).await;
    home.tell(Event::OutDown {
        node,
        lane,
        connection,
    });
    Ok(why)
}
