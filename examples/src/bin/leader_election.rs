//! Leader election: of all processes that run this, one leads, and the others stand in line.
//!
//! ```sh
//! TENURE_URL=127.0.0.1:50051 leader_election anna
//! ```
//!
//! The lock is the office, its fence the number of the term. A leader that crashes or is cut off is replaced when its
//! lease has run out; one that is asked (`tenure ask election:/billing/leader`) steps down at once. Whatever a leader
//! writes should carry its term, so that a leader of yesterday that wakes up late is refused by what it writes to.

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

/// Leads until the office is lost or somebody asks for it.
async fn serve_a_term(name: &str, office: Guard) -> Result<(), Error> {
    let term = office.fence();
    println!("{name} leads, term {}", term.map_or(0, Fence::get));
    tokio::select! {
        never = lead(term) => match never {},
        // By now nobody else leads yet: there is time to stop.
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

/// What only one may do. It ends by being dropped, at any of its awaits.
async fn lead(_term: Option<Fence>) -> std::convert::Infallible {
    loop {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
