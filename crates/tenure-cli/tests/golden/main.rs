//! Transcripts of the real binary, compared with kept files: mistakes, `why`, and the JSON of every verb.
//!
//! A transcript has sections (`# …`), each in an empty directory of its own. A line `% …` is run silently to
//! prepare the section, a line `$ …` is shown with its output and its exit code. All run in `sh` with a real
//! daemon. `TENURE_UPDATE_GOLDEN=1` writes the outputs anew; look at the difference before you commit it.

#![allow(
    clippy::unwrap_used,
    reason = "a test fails where something is not as it must be"
)]

#[path = "../support/mod.rs"]
mod support;

mod schema;
mod transcript;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use support::Daemon;
use support::foreign::Moto;
use transcript::Stage;

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name)
}

/// The daemon of all transcripts.
fn daemon() -> &'static Daemon {
    static DAEMON: OnceLock<(tempfile::TempDir, Daemon)> = OnceLock::new();
    let (_, daemon) = DAEMON.get_or_init(|| {
        let data = tempfile::tempdir().unwrap();
        let daemon = Daemon::start_until_we_end(data.path());
        (data, daemon)
    });
    daemon
}

/// At least 120 mistakes, each with what happened, why and what to do next.
#[test]
fn mistakes_are_explained() {
    let shown = Stage::new(daemon()).play(&file("mistakes.txt"));
    assert!(shown.commands >= 120, "{} mistakes", shown.commands);
    for raw in [
        "os error",
        "transport error",
        "Error performing",
        "\n  error: ",
        "thread '",
        "RUST_BACKTRACE",
    ] {
        assert!(!shown.text.contains(raw), "a raw message: {raw}");
    }
}

/// The same with a store.
#[test]
fn mistakes_with_a_bucket_are_explained() {
    let moto = Moto::start();
    let mut stage = Stage::new(daemon());
    for (name, value) in moto.environment() {
        stage.set(name, value);
    }
    let shown = stage.play(&file("bucket.txt"));
    assert!(!shown.text.contains("<Error>"), "a raw document");
}

/// `why` in 20 situations.
#[test]
fn why_answers_in_twenty_situations() {
    let shown = Stage::new(daemon()).play(&file("why.txt"));
    assert!(shown.commands >= 20, "{} situations", shown.commands);
}
