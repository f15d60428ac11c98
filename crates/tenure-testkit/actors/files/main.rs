//! A participant in the tests with real processes: it holds, tries or works under a lock, as Tenure
//! or as a stand-in of an original program. The test kills, stops and asks it.
//!
//! ```text
//! actor hold WHO DIR     lock, print `held`, obey `check` and `release`; print `asked` when asked
//! actor try WHO DIR      one attempt: print `ok` or the class of the refusal
//! actor work WHO DIR     pass through the critical section in DIR until DIR/stop exists
//! actor cycle DIR        one cycle of a Tenure server: print `running` or `skip`, end with stdin
//! actor exit WHO DIR     lock, then exit without dropping the guard
//! actor signals WHO DIR  lock, print `held`, wait for a signal that ends the process
//! actor fork WHO DIR     lock, fork: print how a release ends in the child, then in the parent
//! actor original-server DIR    the original server's check: print `skip` or `proceed`
//! ```
//!
//! WHO is a protocol, or the stand-in of an original.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test program: it panics and prints"
)]

mod holder;
mod original_exclusive;
mod original_upload;
mod section;

use std::io::{BufRead, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use holder::HolderSpec;
use section::Section;
use tenure_files::exclusive::{CycleKind, ExclusiveServer};
use tenure_testkit::Rng;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[1..] {
        ["hold", who, dir] => hold(&HolderSpec::parse(who, Path::new(dir))),
        ["try", who, dir] => attempt(&HolderSpec::parse(who, Path::new(dir))),
        ["work", who, dir] => work(who, Path::new(dir)),
        ["exit", who, dir] => exit(&HolderSpec::parse(who, Path::new(dir))),
        ["signals", who, dir] => {
            tenure_files::sidecar::release_on_signals().unwrap();
            hold(&HolderSpec::parse(who, Path::new(dir)));
        }
        ["fork", who, dir] => fork(&HolderSpec::parse(who, Path::new(dir))),
        ["cycle", dir] => cycle(Path::new(dir)),
        ["original-server", dir] => say(original_server(Path::new(dir))),
        _ => panic!("unknown arguments: {args:?}"),
    }
}

fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).unwrap();
}

fn hold(who: &HolderSpec) {
    let held = match who.acquire(Duration::from_secs(60), Arc::new(|| say("asked"))) {
        Ok(held) => held,
        Err(class) => return say(&class),
    };
    say("held");
    for line in std::io::stdin().lock().lines() {
        match line.unwrap().as_str() {
            "check" => say(held.check().err().as_deref().unwrap_or("ok")),
            "release" => return say(held.release().err().as_deref().unwrap_or("released")),
            other => panic!("unknown command: {other}"),
        }
    }
    drop(held);
}

fn exit(who: &HolderSpec) {
    let held = who.acquire(Duration::from_secs(60), Arc::new(|| {}));
    std::mem::forget(held.unwrap());
    say("held");
    std::process::exit(0);
}

fn attempt(who: &HolderSpec) {
    let wait = Duration::from_millis(30);
    match who.acquire(wait, Arc::new(|| {})) {
        Ok(held) => say(held.release().err().as_deref().unwrap_or("ok")),
        Err(class) => say(&class),
    }
}

fn work(name: &str, dir: &Path) {
    let who = HolderSpec::parse(name, dir);
    let mut section = Section::new(dir, name);
    let mut rng = Rng::new(u64::from(std::process::id()));
    while !dir.join("stop").exists() {
        match who.acquire(Duration::from_secs(60), Arc::new(|| {})) {
            Ok(held) => {
                let pause = Duration::from_micros(rng.below(200));
                section.pass(|| std::thread::sleep(pause));
                if held.check().is_err() | held.release().is_err() {
                    section.report(&format!("noticed {}", std::process::id()));
                }
            }
            Err(class) => section.report(&format!("refused with {class}")),
        }
    }
}

/// Tests a copy of the handle in a forked child, and whether the parent's still works afterwards.
fn fork(who: &HolderSpec) {
    let held = who
        .acquire(Duration::from_secs(60), Arc::new(|| {}))
        .unwrap();
    #[allow(unsafe_code, reason = "this is about fork, which has no safe form")]
    // SAFETY: the child only uses the handle and ends without running destructors of others.
    let child = unsafe { libc::fork() };
    if child == 0 {
        say(&format!(
            "child: {}",
            held.release().err().as_deref().unwrap_or("ok")
        ));
        #[allow(
            unsafe_code,
            reason = "a forked child must not run its parent's exit handlers"
        )]
        // SAFETY: plain system call.
        unsafe {
            libc::_exit(0)
        };
    }
    let _ = std::io::stdin().lock().lines().next();
    let outcome = held.check().and_then(|()| held.release());
    say(&format!(
        "parent: {}",
        outcome.err().as_deref().unwrap_or("ok")
    ));
}

fn original_server(dir: &Path) -> &'static str {
    match original_exclusive::should_skip(dir) {
        true => "skip",
        false => "proceed",
    }
}

fn cycle(dir: &Path) {
    match ExclusiveServer::new(dir).begin_cycle() {
        Ok(cycle) => {
            say("running");
            let _ = std::io::stdin().lock().lines().next();
            drop(cycle);
            say("ended");
        }
        Err(answer) => {
            say(&format!("skip {}", answer.class().unwrap()));
            say(&answer.log_line(CycleKind::Sync).unwrap());
        }
    }
}
