//! Acquire + release a second with the Rust library alone: what the bindings are measured against.
//!
//! `rates ADDRESS SECONDS durable|fast` prints the rate.

use std::time::{Duration, Instant};

use tenure::{Durability, Tenure, Tuning};

#[allow(
    clippy::print_stdout,
    reason = "the rate is the output of this program"
)]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, seconds, durability] = arguments.as_slice() else {
        return Err("usage: rates ADDRESS SECONDS durable|fast".into());
    };
    let mut tuning = Tuning::default();
    if durability == "fast" {
        tuning.files.durability = Durability::Fast;
    }
    let tenure: Tenure = tenure::Builder::from_env()?.tuning(tuning).build()?;
    let lock = tenure.lock(address)?.blocking();
    // Connects, and creates what only the first acquire needs.
    lock.clone().acquire()?.release()?;
    let time = Duration::from_secs_f64(seconds.parse()?);
    let (began, mut count) = (Instant::now(), 0_u32);
    while began.elapsed() < time {
        lock.clone().acquire()?.release()?;
        count += 1;
    }
    println!("{:.0}", f64::from(count) / began.elapsed().as_secs_f64());
    Ok(())
}
