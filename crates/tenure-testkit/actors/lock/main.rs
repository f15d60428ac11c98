//! Test process that holds a lock until it is killed: `tenure-actor WHERE [ttl in ms]`. Prints
//! `held` when it holds the lock.

use std::io::Write;
use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let place = arguments.next().ok_or("name a place")?;
    let tenure = tenure::Tenure::from_env()?;
    let mut lock = tenure.lock(&place)?.blocking().purpose("to be killed");
    if let Some(ttl) = arguments.next() {
        lock = lock.ttl(Duration::from_millis(ttl.parse()?));
    }
    let guard = lock.acquire()?;
    writeln!(std::io::stdout(), "held")?;
    std::io::stdout().flush()?;
    // Waits for the parent: it kills this process or closes the pipe.
    std::io::read_to_string(std::io::stdin())?;
    guard.release()?;
    Ok(())
}
