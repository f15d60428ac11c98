//! Where the time of a round goes: what each thread did and when, if `--trace` asks for it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Instant;

static ON: AtomicBool = AtomicBool::new(false);
static EVENTS: Mutex<Vec<(u64, String)>> = Mutex::new(Vec::new());
static ORIGIN: OnceLock<Instant> = OnceLock::new();

pub(crate) fn begin() {
    ORIGIN.get_or_init(Instant::now);
    if let Ok(mut events) = EVENTS.lock() {
        events.clear();
    }
    ON.store(true, Ordering::Relaxed);
}

/// Something happened.
pub(crate) fn note(what: impl FnOnce() -> String) {
    if ON.load(Ordering::Relaxed) {
        let at = ORIGIN.get_or_init(Instant::now).elapsed();
        let at = u64::try_from(at.as_nanos()).unwrap_or(u64::MAX);
        if let Ok(mut events) = EVENTS.lock() {
            events.push((at, what()));
        }
    }
}

/// Prints everything, in order.
pub(crate) fn end(title: &str) {
    ON.store(false, Ordering::Relaxed);
    let Ok(mut events) = EVENTS.lock() else {
        return;
    };
    events.sort_by_key(|(at, _)| *at);
    println!("{title}: {} events", events.len());
    let first = events.first().map_or(0, |(at, _)| *at);
    for (at, what) in events.iter() {
        println!("{:9.1} us  {what}", (at - first) as f64 / 1e3);
    }
}
