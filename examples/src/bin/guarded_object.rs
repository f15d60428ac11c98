//! Read-modify-write of an object in a store, protected by a lock and its fence.
//!
//! ```sh
//! guarded_object mem:objects/counter                        # or objects:/counters/one on a daemon
//! ```
//!
//! The lock makes conflicts rare; the fence makes them harmless.
//!
//! A program can be paused between its last check of the lock and its write, for longer than any
//! lease. So each object stores the fence of its last writer, and a writer with a smaller fence is
//! refused. The store's conditional write makes check and write atomic.

#![allow(clippy::print_stdout, reason = "an example talks to people")]

use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions, UpdateVersion};
use serde::{Deserialize, Serialize};
use tenure::{Fence, Force, Tenure};

/// The stored object.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Counter {
    fence: u64,
    count: u64,
}

#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error(transparent)]
    Lock(#[from] tenure::Error),
    #[error(transparent)]
    Store(#[from] object_store::Error),
    #[error("the object does not parse: {0}")]
    Damaged(#[from] serde_json::Error),
    #[error("too late: fence {theirs} has written, mine is {mine}")]
    Overtaken { mine: u64, theirs: u64 },
    #[error("this lock has no fence")]
    NoFence,
}

/// Increments the counter for the holder of this fence.
async fn add_one(store: &dyn ObjectStore, object: &Path, fence: Fence) -> Result<u64, Failed> {
    loop {
        let (mut counter, mode) = match store.get(object).await {
            Err(object_store::Error::NotFound { .. }) => (Counter::default(), PutMode::Create),
            Err(error) => return Err(error.into()),
            Ok(found) => {
                let version = UpdateVersion {
                    e_tag: found.meta.e_tag.clone(),
                    version: found.meta.version.clone(),
                };
                let counter: Counter = serde_json::from_slice(&found.bytes().await?)?;
                (counter, PutMode::Update(version))
            }
        };
        let (mine, theirs) = (fence.get(), counter.fence);
        if theirs > mine {
            return Err(Failed::Overtaken { mine, theirs });
        }
        counter.fence = mine;
        counter.count += 1;
        let bytes = serde_json::to_vec(&counter)?;
        match store
            .put_opts(object, bytes.into(), PutOptions::from(mode))
            .await
        {
            Ok(_) => return Ok(counter.count),
            // Another writer was faster, possibly with a larger fence. Read again.
            Err(
                object_store::Error::Precondition { .. }
                | object_store::Error::AlreadyExists { .. },
            ) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Failed> {
    let place = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "mem:objects/counter".to_owned());
    let (tenure, store, object) = (Tenure::from_env()?, InMemory::new(), Path::from("counter"));

    for _ in 0..10 {
        let lock = tenure.lock(&place)?.fenced();
        lock.with(async |guard| {
            add_one(&store, &object, guard.fence().ok_or(Failed::NoFence)?).await
        })
        .await?;
    }

    // The case that no lease prevents: a holder is paused, its lock is broken and acquired by
    // another, and then the first holder resumes in the middle of its work.
    let paused = tenure.lock(&place)?.fenced().acquire().await?;
    let old = paused.fence().ok_or(Failed::NoFence)?;
    tenure
        .break_hold(&place, None, Force::Yes, "it does not answer")
        .await?;
    let lock = tenure.lock(&place)?.fenced();
    let count = lock
        .with(async |guard| add_one(&store, &object, guard.fence().ok_or(Failed::NoFence)?).await)
        .await?;
    println!("count {count}");
    match add_one(&store, &object, old).await {
        Err(late @ Failed::Overtaken { .. }) => println!("{late}"),
        other => println!("a late writer was not refused: {other:?}"),
    }
    Ok(())
}
