//! Leader election: one of the processes leads, the others wait in a queue.
//!
//! ```sh
//! TENURE_URL=127.0.0.1:50051 leader_election anna
//! ```
//!
//! The holder of the lock is the leader, and the fence is its term. A leader that crashes or loses
//! its connection is replaced when its lease expires. A leader that gets a release request (`tenure
//! ask election:/billing/leader`) steps down at once.
//!
//! Everything that a leader writes should carry its term, so that the store refuses a former leader
//! that resumes late.

#![allow(clippy::print_stdout, reason = "an example talks to people")]

use std::time::Duration;

use tenure::{Builder, Error, Fence, Guard};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "anna".to_owned());
    let tenure = Builder::from_env()?.name(&name).build()?;
    loop {
        let follower = name.clone();
        let office = tenure
            .lock("election:/billing/leader")?
            .ttl(Duration::from_secs(2))
            .purpose("leading")
            .on_wait(move |busy| {
                if let Some(leader) = &busy.blocker {
                    println!("{follower} follows {}", leader.holder.name);
                }
            })
            .acquire()
            .await?;
        serve_a_term(&name, office).await?;
    }
}

/// Leads until the lock is lost or another process asks for it.
async fn serve_a_term(name: &str, office: Guard) -> Result<(), Error> {
    let term = office.fence();
    println!("{name} leads, term {}", term.map_or(0, Fence::get));
    tokio::select! {
        never = lead(term) => match never {},
        // No other process leads yet at this point: there is time to stop.
        lost = office.lost() => {
            println!("{name} is deposed: {lost}");
            Ok(())
        }
        request = office.release_requested() => {
            println!("{name} steps down: {request}");
            office.release().await
        }
    }
}

/// The work of the leader. It is cancelled at any of its awaits.
async fn lead(_term: Option<Fence>) -> std::convert::Infallible {
    loop {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
