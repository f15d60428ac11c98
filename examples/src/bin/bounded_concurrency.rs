//! Distributed semaphore: limits how many jobs run at once on all machines.
//!
//! ```sh
//! TENURE_URL=127.0.0.1:50051 bounded_concurrency 2 6 jobs.log
//! ```
//!
//! A namespace with the policy `semaphore` grants permits instead of locks. All jobs must give the
//! same number. The permit of a job that dies becomes free when its lease expires, so no permit is
//! lost.

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
    // In production, an operator does this once: `tenure policy set pool:/converters semaphore`.
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

/// The work. It logs its begin and its end.
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
