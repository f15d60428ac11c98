//! Simultaneous starts on real stores: two conflicting requests never both succeed.
//!
//! Each round has its own repository, so that hundreds of rounds wait for the settle time at once.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tenure_store::RepositoryAddress;
use tenure_store::{Class, Error, LockPurpose, Options, Repository, RepositoryGuard};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use crate::support::LockMode::{self, Exclusive, Shared};
use crate::support::s3_server::{BUCKET, Conditions, FaultKind, ReceivedRequest, S3Server};
use crate::support::virtual_time::config;

const ROUNDS: usize = 300;
/// Number of concurrent repositories, each with two handles that share nothing, like two processes.
const LANES: usize = 60;

#[derive(Default, Debug)]
struct Tally {
    first: usize,
    second: usize,
    neither: usize,
    /// Number of refusals because another client was faster after both had started to write.
    raced: usize,
}

async fn race(rounds: usize, open: impl Fn(usize) -> Repository, modes: [LockMode; 2]) -> Tally {
    let start = Arc::new(Barrier::new(2 * LANES));
    let mut lanes = JoinSet::new();
    for lane in 0..LANES {
        let (one, two, start) = (open(lane), open(lane), Arc::clone(&start));
        lanes.spawn(async move {
            let mut tally = Tally::default();
            for repository in [&one, &two] {
                repository
                    .abilities()
                    .await
                    .expect("a store that can be probed");
            }
            for round in 0..rounds / LANES {
                let [late_one, late_two] = lateness(lane, round);
                let ends = tokio::join!(
                    lock_at(&start, late_one, &one, modes[0]),
                    lock_at(&start, late_two, &two, modes[1])
                );
                tally.count(ends).await;
            }
            tally
        });
    }
    let mut all = Tally::default();
    while let Some(tally) = lanes.join_next().await {
        let Tally {
            first,
            second,
            neither,
            raced,
        } = tally.expect("a lane ends well");
        all.first += first;
        all.second += second;
        all.neither += neither;
        all.raced += raced;
    }
    all
}

/// Start delays: the same moment, or one of them up to 5 ms later, which is one or two requests. So
/// the two meet at every step of each other.
fn lateness(lane: usize, round: usize) -> [Duration; 2] {
    let step = (lane + 5 * round) as u64 % 11;
    [step.saturating_sub(5), 5_u64.saturating_sub(step)].map(Duration::from_millis)
}

async fn lock_at(
    start: &Barrier,
    late: Duration,
    repository: &Repository,
    mode: LockMode,
) -> Result<RepositoryGuard, Error> {
    start.wait().await;
    tokio::time::sleep(late).await;
    repository.lock(LockPurpose::new(mode, "race")).await
}

impl Tally {
    async fn count(
        &mut self,
        ends: (
            Result<RepositoryGuard, Error>,
            Result<RepositoryGuard, Error>,
        ),
    ) {
        let errors = [ends.0.as_ref().err(), ends.1.as_ref().err()];
        let overtaken = |error: &&Error| error.class() == Class::LostRace;
        self.raced += errors.into_iter().flatten().filter(overtaken).count();
        match ends {
            (Ok(_), Ok(_)) => panic!("both hold"),
            (Ok(guard), Err(_)) => release(guard, &mut self.first).await,
            (Err(_), Ok(guard)) => release(guard, &mut self.second).await,
            (Err(one), Err(two)) => {
                for error in [one, two] {
                    assert!(error.is_busy(), "refused for another reason: {error}");
                }
                self.neither += 1;
            }
        }
    }
}

async fn release(guard: RepositoryGuard, won: &mut usize) {
    guard
        .release()
        .await
        .expect("the winner gives back what it holds");
    *won += 1;
}

fn report(what: &str, tally: &Tally) {
    let rounds = tally.first + tally.second + tally.neither;
    println!("{what}: {rounds} rounds, never both; {tally:?}");
    assert!(rounds >= LANES, "every lane ran");
    assert!(tally.first + tally.second > 0, "no process ever wins");
}

fn in_bucket(server: &S3Server) -> impl Fn(usize) -> Repository {
    let config = config(server);
    move |round| {
        let place = format!("s3://{BUCKET}/round-{round}")
            .parse()
            .expect("an address");
        let options = Options {
            config: config.clone(),
            ..Options::default()
        };
        Repository::open(place, options).expect("a repository on the test server")
    }
}

fn in_directory(root: &Path) -> impl Fn(usize) -> Repository {
    move |round| {
        let dir = root.join(format!("round-{round}"));
        std::fs::create_dir_all(&dir).expect("a directory for a round");
        Repository::open(RepositoryAddress::Directory(dir), Options::default())
            .expect("a repository there")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_exclusives_on_the_test_server() {
    let server = S3Server::start();
    let tally = race(ROUNDS, in_bucket(&server), [Exclusive, Exclusive]).await;
    report("exclusive against exclusive, S3", &tally);
    let refused = |seen: &&ReceivedRequest| {
        seen.kind == FaultKind::Put
            && seen.key.contains("lock.exclusive")
            && seen.status == Some(412)
    };
    let met = server.take_seen().iter().filter(refused).count();
    println!("in {met} of them both wrote, and the store refused one");
    assert!(met > 0, "they never met");
    assert_eq!(
        server
            .keys("")
            .iter()
            .filter(|key| key.contains("lock.exclusive"))
            .count(),
        0
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exclusive_against_shared_on_the_test_server() {
    let server = S3Server::start();
    let tally = race(ROUNDS, in_bucket(&server), [Exclusive, Shared]).await;
    report("exclusive against shared, S3", &tally);
    let left = |part| {
        server
            .keys("")
            .iter()
            .filter(|key| key.contains(part))
            .count()
    };
    assert_eq!(
        (left("lock.exclusive"), left("lock.shared")),
        (0, 0),
        "records left behind"
    );
}

/// Level 0: a server that ignores conditions and answers 200. The settle time replaces them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_exclusives_on_a_liar() {
    let server = S3Server::start();
    server.set_conditions(Conditions::Ignored);
    let tally = race(2 * LANES, in_bucket(&server), [Exclusive, Exclusive]).await;
    report("exclusive against exclusive, level 0", &tally);
}

/// The locks that remain in the repositories of all lanes.
fn left_in(root: &Path) -> Vec<PathBuf> {
    let entries = |dir: &Path| -> Vec<PathBuf> {
        let read = std::fs::read_dir(dir).into_iter().flatten();
        read.map(|entry| entry.expect("a readable directory").path())
            .collect()
    };
    let of_lane = |lane: PathBuf| {
        let exclusive = lane.join("index/lock.exclusive");
        let shared = entries(&lane.join("index/lock.shared"));
        shared
            .into_iter()
            .chain(exclusive.exists().then_some(exclusive))
    };
    entries(root).into_iter().flat_map(of_lane).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_exclusives_in_a_directory() {
    let root = tempfile::tempdir().expect("a directory");
    let tally = race(ROUNDS, in_directory(root.path()), [Exclusive, Exclusive]).await;
    report("exclusive against exclusive, directory", &tally);
    assert!(
        left_in(root.path()).is_empty(),
        "{:?}",
        left_in(root.path())
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exclusive_against_shared_in_a_directory() {
    let root = tempfile::tempdir().expect("a directory");
    let tally = race(ROUNDS, in_directory(root.path()), [Exclusive, Shared]).await;
    report("exclusive against shared, directory", &tally);
    assert!(
        left_in(root.path()).is_empty(),
        "{:?}",
        left_in(root.path())
    );
}
