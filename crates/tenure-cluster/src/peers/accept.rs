//! The listener: takes connections, lets them prove themselves, and passes on what they bring.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tenure_node::{Channel, NodeId};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{sleep, timeout};

use super::Home;
use super::hello::{Hello, Refusal};
use super::link::{self, LinkError, Pace};
use super::mesh::{Event, Pass};
use super::outlet::Parcel;
use super::rival::Claim;
use super::tls;
use crate::inbox::MUCH;

/// Connections that may be in their handshake at once; strangers wait.
const HANDSHAKES: usize = 64;
/// So many bytes of frames may wait for the node before its peers have to.
const MOST_WAITING: usize = 64 * 1024 * 1024;
/// The other direction stands after this long, or the pair is given up.
const OTHER_DIRECTION: Duration = Duration::from_secs(5);

/// Accepts until the end.
pub(crate) async fn run(home: Rc<Home>, listener: TcpListener) {
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
    home: &Home,
    stream: TcpStream,
    place: OwnedSemaphorePermit,
) -> Result<(), LinkError> {
    stream.set_nodelay(true)?;
    let (reader, writer) = tls::accepted(home.tls.as_ref(), stream).await?;
    let blank = home.hello(Channel::Main, 0, None).await?;
    let ours = blank.claim.clone();
    let mine = |theirs: &Hello| Hello {
        channel: theirs.channel,
        connection: theirs.connection,
        known: home.known_life(theirs.card.node()),
        ..blank
    };
    let mut pass = None;
    let admit = async |theirs: Hello, judged: Result<u8, Refusal>| {
        let version = judged.map_err(|refusal| {
            refused(home, ours, &theirs, &refusal);
            refusal.to_string()
        })?;
        home.agree(&theirs).await?;
        let (node, channel) = (theirs.card.node(), theirs.channel);
        pass = Some((node, channel, admit(home, theirs).await?));
        Ok(version)
    };
    let answer = link::answer(reader, writer, mine, &home.token, admit).await;
    drop(place);
    let Some((node, channel, mut pass)) = pass else {
        return answer.map(|_| ());
    };
    let id = pass.id;
    let proven = match answer {
        Ok(proven) => proven,
        Err(error) => {
            home.tell(Event::InDown { node, channel, id });
            return Err(error);
        }
    };
    let (cancel, cancelled) = oneshot::channel();
    home.tell(Event::InUp {
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
            return LinkError::Slow;
        }
        proven
            .receive_all(
                &Pace::of(channel),
                |parcel| take(home, node, channel, parcel),
                || rest(home),
            )
            .await
    };
    let why = tokio::select! {
        why = receive => why,
        _ = cancelled => LinkError::Closed,
    };
    tracing::debug!(%node, ?channel, "incoming connection: {why}");
    home.tell(Event::InDown { node, channel, id });
    Ok(())
}

/// A proven node cannot come in: this node may have to draw conclusions (R161).
fn refused(home: &Home, ours: Option<Claim>, theirs: &Hello, refusal: &Refusal) {
    match refusal {
        Refusal::Cluster => home.tell(Event::Rival {
            ours,
            theirs: Box::new(theirs.clone()),
        }),
        Refusal::Facts { .. } | Refusal::Version { .. }
            if theirs.cluster.is_some() && home.identity.borrow().cluster_id.is_none() =>
        {
            home.tell(Event::Excluded(format!(
                "{}: {refusal}",
                theirs.card.node()
            )));
        }
        _ => {}
    }
}

async fn admit(home: &Home, theirs: Hello) -> Result<Pass, String> {
    let (reply, answer) = oneshot::channel();
    home.tell(Event::Admit {
        theirs: Box::new(theirs),
        reply,
    });
    answer
        .await
        .unwrap_or_else(|_| Err("this node is stopping".to_owned()))
}

async fn take(home: &Home, from: NodeId, channel: Channel, parcel: Parcel) {
    match parcel {
        Parcel::Frame(bytes) => {
            let mut waiting = home.inbox.leave_frame(from, channel, bytes);
            if channel == Channel::Bulk || waiting > MUCH {
                home.inbox.wake();
            }
            while waiting > MOST_WAITING {
                sleep(Duration::from_millis(1)).await;
                waiting = home.inbox.frame_bytes();
            }
        }
        Parcel::Talk(bytes) => home.tell(Event::Talk { from, bytes }),
    }
}

/// All that came was passed on: the node takes its turn, here if it sleeps and the turn is short. This thread
/// sends the pings of all connections: a turn that decodes the state of a large group would break them.
fn rest(home: &Home) {
    if home.inbox.holds_much() {
        home.inbox.wake();
    } else if !home.inbox.is_empty() {
        home.seat.stand_in();
    }
}
