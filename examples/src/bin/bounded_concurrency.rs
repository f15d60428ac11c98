//! Bounded concurrency: however many jobs on however many machines, at most so many run at once.
//!
//! ```sh
//! TENURE_URL=127.0.0.1:50051 bounded_concurrency 2 6 jobs.log
//! ```
//!
//! A namespace of the daemon with the policy `semaphore` gives out permits instead of locks. Everybody names the same
//! number. A job that dies gives its permit back when its lease has run out, so none is ever lost.

#![allow(clippy::print_stdout, reason = "an example talks to people")]

use std::error::Error;
use std::fs::OpenOptions;
use std::io::Write;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tenure::{Algorithm, Tenure};
use tokio::task::JoinSet;

const NAMESPACE: &str = "pool:/converters";
const SLOTS: &str = "pool:/converters/slots";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [permits, jobs, log] = arguments.as_slice() else {
        return Err("usage: bounded_concurrency PERMITS JOBS LOG".into());
    };
    let (permits, jobs): (NonZeroU32, u32) = (permits.parse()?, jobs.parse()?);

    let tenure = Tenure::from_env()?;
    // An operator does this once: `tenure policy set pool:/converters semaphore`.
    tenure.set_policy(NAMESPACE, Algorithm::Semaphore).await?;

    let mut running = JoinSet::new();
    for job in 0..jobs {
        let (tenure, log) = (tenure.clone(), PathBuf::from(log));
        running.spawn(async move {
            tenure
                .lock(SLOTS)?
                .permit(permits)
                .ttl(Duration::from_secs(5))
                .purpose(format!("job {job}"))
                .with(async |_permit| Ok(convert(job, &log).await?))
                .await
        });
    }
    while let Some(ended) = running.join_next().await {
        ended?.map_err(|error: Failed| error)?;
    }
    println!("{jobs} jobs done");
    Ok(())
}

/// The work; it says when it begins and when it ends.
async fn convert(job: u32, log: &Path) -> std::io::Result<()> {
    let mut log = OpenOptions::new().append(true).create(true).open(log)?;
    log.write_all(format!("begin {} {job}\n", std::process::id()).as_bytes())?;
    tokio::time::sleep(Duration::from_millis(50)).await;
    log.write_all(format!("end {} {job}\n", std::process::id()).as_bytes())
}

/// Why a job failed.
#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error(transparent)]
    Lock(#[from] tenure::Error),
    #[error("the log: {0}")]
    Log(#[from] std::io::Error),
}
