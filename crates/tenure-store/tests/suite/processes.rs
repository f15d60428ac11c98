//! Simultaneous starts of separate processes, in a directory and on the test server. The test
//! starts itself as child processes, which share nothing but the store.
//! [`contention`](crate::contention) has the many rounds.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use tenure_files::internal::block_on as wait;
use tenure_store::{LockPurpose, Options, Repository, RepositoryGuard};

use crate::support::LockMode;
use crate::support::s3_server::{BUCKET, S3Server};
use crate::support::virtual_time::s3_config;

const CHILD: &str = "TENURE_TEST_RACE_AT";
const LANES: usize = 10;
const ROUNDS: usize = 5;

/// A child process: for each line of input it tries to acquire the lock in that repository once,
/// reports the result, and releases the lock on request.
fn contend(told: &str) {
    let [mode, endpoint] = told.split('|').collect::<Vec<_>>()[..] else {
        panic!("a mode and an endpoint");
    };
    let mode = match mode {
        "exclusive" => LockMode::Exclusive,
        _ => LockMode::Shared,
    };
    let mut lines = std::io::stdin().lines();
    while let Some(Ok(place)) = lines.next() {
        let options = Options {
            config: s3_config(endpoint),
            ..Options::default()
        };
        let repository = Repository::open(place.parse().expect("an address"), options);
        let taken = wait(
            repository
                .expect("a repository")
                .lock(LockPurpose::new(mode, "race")),
        );
        let said = match &taken {
            Ok(_) => "held".to_owned(),
            Err(error) if error.is_busy() => "busy".to_owned(),
            Err(error) => format!("failed: {error}"),
        };
        println!("\nanswer {said}");
        lines.next();
        if let Ok(guard) = taken {
            wait(RepositoryGuard::release(guard)).expect("what is held is given back");
        }
        println!("\nanswer done");
    }
}

struct Contender {
    child: Child,
    output: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Contender {
    fn start(mode: &str, endpoint: &str) -> Contender {
        let mut child = Command::new(std::env::current_exe().expect("this test"))
            .args([
                "processes::separate_processes_never_both_hold",
                "--exact",
                "--nocapture",
            ])
            .env(CHILD, format!("{mode}|{endpoint}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this test starts again");
        let output = BufReader::new(child.stdout.take().expect("piped")).lines();
        Contender { child, output }
    }

    fn tell(&mut self, line: &str) {
        let input = self.child.stdin.as_mut().expect("piped");
        writeln!(input, "{line}").expect("the child reads");
    }

    fn answer(&mut self) -> String {
        self.output
            .by_ref()
            .map_while(Result::ok)
            .find_map(|line| line.strip_prefix("answer ").map(str::to_owned))
            .expect("the child answers")
    }

    fn end(mut self) {
        drop(self.child.stdin.take());
        let status = self.child.wait().expect("the child is waited for");
        assert!(status.success(), "{status}");
    }
}

/// P28 (acquire the exclusive lock), P30: two conflicting processes never both hold.
#[test]
fn separate_processes_never_both_hold() {
    if let Ok(told) = std::env::var(CHILD) {
        return contend(&told);
    }
    let server = S3Server::start();
    let directory = tempfile::tempdir().expect("a directory");
    let place = |lane: usize| {
        if lane.is_multiple_of(2) {
            format!("s3://{BUCKET}/lane-{lane}")
        } else {
            let path = directory.path().join(lane.to_string());
            std::fs::create_dir_all(&path).expect("a directory for a lane");
            format!("repo:{}", path.display())
        }
    };
    std::thread::scope(|scope| {
        for lane in 0..LANES {
            let (place, endpoint) = (place(lane), server.endpoint());
            // Both kinds of store with both modes.
            let second = if lane % 4 < 2 { "exclusive" } else { "shared" };
            scope.spawn(move || race(&place, &endpoint, second));
        }
    });
}

fn race(place: &str, endpoint: &str, second: &str) {
    let mut two = [
        Contender::start("exclusive", endpoint),
        Contender::start(second, endpoint),
    ];
    let (mut won, mut neither) = (0, 0);
    for _ in 0..ROUNDS {
        two.iter_mut().for_each(|one| one.tell(place));
        let answers = two.each_mut().map(Contender::answer);
        match answers.each_ref().map(String::as_str) {
            ["held", "held"] => panic!("{place}: both hold"),
            ["held", "busy"] | ["busy", "held"] => won += 1,
            ["busy", "busy"] => neither += 1,
            other => panic!("{place}: {other:?}"),
        }
        two.iter_mut().for_each(|one| one.tell("go on"));
        two.iter_mut()
            .for_each(|one| assert_eq!(one.answer(), "done"));
    }
    println!("{place}, exclusive and {second}: won {won}, neither {neither}");
    assert!(won > 0, "{place}: no process ever wins");
    two.into_iter().for_each(Contender::end);
}
