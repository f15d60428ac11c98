//! A killed holder: its lock is free after its ttl, and not before. In real time, with the shortest
//! allowed ttl (30 s).

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tenure_files::internal::block_on as wait;
use tenure_store::{LockPurpose, LockSettings, Options, Repository};

use crate::support::LockMode;
use crate::support::s3_server::{BUCKET, S3Server};
use crate::support::virtual_time::s3_config;

const CHILD: &str = "TENURE_TEST_HOLD_AT";
const TTL: Duration = Duration::from_secs(30);

fn open(place: &str, endpoint: &str) -> Repository {
    let settings = LockSettings {
        ttl: TTL,
        refresh: Duration::from_secs(10),
        ..LockSettings::default()
    };
    let options = Options {
        settings,
        config: s3_config(endpoint),
        ..Options::default()
    };
    Repository::open(place.parse().expect("an address"), options).expect("a repository")
}

/// The test starts itself as the holder.
#[test]
fn a_killed_holder_is_followed_after_its_ttl() {
    if let Ok(at) = std::env::var(CHILD) {
        let (place, endpoint) = at.split_once('|').expect("a place and an endpoint");
        let _guard =
            wait(open(place, endpoint).lock(LockPurpose::new(LockMode::Exclusive, "held")))
                .expect("free");
        println!("\nheld");
        loop {
            std::thread::park();
        }
    }
    let server = S3Server::start();
    let directory = tempfile::tempdir().expect("a directory");
    let in_directory = format!("repo:{}", directory.path().display());
    std::thread::scope(|scope| {
        for place in [format!("s3://{BUCKET}/killed"), in_directory] {
            let endpoint = server.endpoint();
            scope.spawn(move || follow(&place, &endpoint));
        }
    });
}

fn follow(place: &str, endpoint: &str) {
    let mut child = Command::new(std::env::current_exe().expect("this test"))
        .args([
            "sigkill::a_killed_holder_is_followed_after_its_ttl",
            "--exact",
            "--nocapture",
        ])
        .env(CHILD, format!("{place}|{endpoint}"))
        .stdout(Stdio::piped())
        .spawn()
        .expect("this test starts again");
    let output = BufReader::new(child.stdout.take().expect("piped"));
    let held = output
        .lines()
        .map_while(Result::ok)
        .any(|line| line == "held");
    assert!(held, "{place}: the child holds the lock");
    // Wait past the first refreshes, so that a refreshed lease has to expire.
    let repository = open(place, endpoint);
    let refused = || {
        let error = wait(repository.lock(LockPurpose::new(LockMode::Shared, "follower"))).err()?;
        assert!(error.is_busy(), "{place}: {error}");
        Some(())
    };
    let until = Instant::now() + Duration::from_secs(12);
    while Instant::now() < until {
        refused().expect("its holder lives");
        std::thread::sleep(Duration::from_millis(500));
    }
    child.kill().expect("a child can be killed");
    child.wait().expect("and is waited for");
    // Its last refresh was between 0 and 10 s ago.
    let killed = Instant::now();
    while refused().is_some() {
        assert!(
            killed.elapsed() < 2 * TTL,
            "{place}: stuck beyond twice its ttl"
        );
        std::thread::sleep(Duration::from_millis(500));
    }
    // The follower also waits for the settle time of one second.
    let after = killed.elapsed();
    println!("{place}: free {:.1} s after the kill", after.as_secs_f32());
    assert!(
        after >= TTL - Duration::from_secs(10),
        "{place}: free after {after:?}"
    );
}
