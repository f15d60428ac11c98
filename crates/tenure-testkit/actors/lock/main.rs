//! Test process that holds a lock until it is killed: `lock-actor WHERE [ttl in ms]`. Prints `held`
//! when it holds the lock.
//!
//! With a number and a file, `lock-actor WHERE ttl NUMBER FILE`, it takes the lock so often, and
//! appends a line for each time that it was the holder for sure: the fence, from when and until when.

use std::fs::OpenOptions;
use std::io::Write;
use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let place = arguments.next().ok_or("name a place")?;
    let tenure = tenure::Tenure::from_env()?;
    let ttl = arguments.next().map(|ttl| ttl.parse()).transpose()?;
    let ttl = ttl.map(Duration::from_millis);
    if let (Some(number), Some(file)) = (arguments.next(), arguments.next()) {
        let ttl = ttl.unwrap_or(Duration::from_secs(1));
        return work(&tenure, &place, ttl, number.parse()?, &file);
    }
    let mut lock = tenure.lock(&place)?.blocking().purpose("to be killed");
    if let Some(ttl) = ttl {
        lock = lock.ttl(ttl);
    }
    let guard = lock.acquire()?;
    writeln!(std::io::stdout(), "held")?;
    std::io::stdout().flush()?;
    // Waits for the parent: it kills this process or closes the pipe.
    std::io::read_to_string(std::io::stdin())?;
    guard.release()?;
    Ok(())
}

fn work(
    tenure: &tenure::Tenure,
    place: &str,
    ttl: Duration,
    number: u32,
    file: &str,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut file = OpenOptions::new().append(true).open(file)?;
    for _ in 0..number {
        let guard = tenure.lock(place)?.blocking().ttl(ttl).acquire()?;
        let from = tenure::Lease::now().as_nanos();
        let until = tenure::Lease::now().as_nanos();
        // Held now, so it was held until then: this process may have been stopped in between.
        if guard.still_held().is_ok() {
            let fence = guard.fence().map_or(0, tenure::Fence::get);
            file.write_all(format!("{fence} {from} {until}\n").as_bytes())?;
        }
        // A lock that was lost while this process was stopped is no failure.
        let _ = guard.release();
    }
    Ok(())
}
