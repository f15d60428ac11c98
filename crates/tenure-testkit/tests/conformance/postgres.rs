//! What a PostgreSQL database must do beyond the suite: everything that the daemon does. Each
//! [`Tenure`] is a client of its own, with its own copy of the state.

use std::num::NonZeroU32;
use std::sync::mpsc;
use std::thread;

use tenure::{Algorithm, Endpoint, Error, Tenure};
use tenure_files::Token;
use tenure_files::internal::block_on;

use crate::SOON;
use crate::backends::POSTGRES;

fn client() -> Tenure {
    let nodes = Endpoint::list(&POSTGRES.address).unwrap();
    Tenure::builder().nodes(nodes).build().unwrap()
}

fn tree() -> String {
    format!("t:/{}", Token::random())
}

/// A write covers everything below its path, also for another client.
#[test]
fn a_tree_is_locked_as_a_whole() {
    let (one, two, tree) = (client(), client(), tree());
    let guard = one
        .lock(format!("{tree}/a"))
        .unwrap()
        .blocking()
        .acquire()
        .unwrap();
    for path in ["a", "a/b", "a/b/c"] {
        let lock = two.lock(format!("{tree}/{path}")).unwrap().blocking();
        assert!(lock.no_wait().acquire().unwrap_err().is_busy(), "{path}");
    }
    let beside = two.lock(format!("{tree}/b")).unwrap().blocking();
    beside.no_wait().acquire().unwrap().release().unwrap();
    guard.release().unwrap();
    let below = two.lock(format!("{tree}/a/b/c")).unwrap().blocking();
    below.no_wait().acquire().unwrap().release().unwrap();
}

/// R79 (no overtaking): clients get the lock in the order in which they came, and fences grow.
#[test]
fn waiters_are_served_in_order() {
    const WAITERS: usize = 5;
    let path = format!("{}/lock", tree());
    let guard = client().lock(&path).unwrap().blocking().acquire().unwrap();
    let (granted, order) = mpsc::channel();
    thread::scope(|scope| {
        for number in 0..WAITERS {
            let (waits, waiting) = mpsc::channel();
            let (path, granted) = (path.clone(), granted.clone());
            scope.spawn(move || {
                let lock = client().lock(&path).unwrap().blocking().wait(SOON);
                let guard = lock
                    .on_wait(move |_| {
                        let _ = waits.send(());
                    })
                    .acquire()
                    .unwrap();
                granted.send((number, guard.fence().unwrap())).unwrap();
                guard.release().unwrap();
            });
            waiting.recv_timeout(SOON).unwrap();
        }
        let mut last = guard.fence().unwrap();
        guard.release().unwrap();
        for number in 0..WAITERS {
            let (got, fence) = order.recv_timeout(SOON).unwrap();
            assert_eq!(got, number);
            assert!(fence > last, "{fence:?} after {last:?}");
            last = fence;
        }
    });
}

/// E5 (refuse on deadlock): the wait that would close the cycle is refused, and names it.
#[test]
fn a_deadlock_is_refused() {
    let (one, two, tree) = (client(), client(), tree());
    let a = one.lock(format!("{tree}/a")).unwrap().blocking();
    let a = a.acquire().unwrap();
    let owner = a.owner();
    let b = two.session("bob").lock(format!("{tree}/b")).unwrap();
    let b = b.blocking().acquire().unwrap();
    let (waits, waiting) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| {
            // The owner of `a` waits for `b`.
            let lock = one.session(&owner).lock(format!("{tree}/b")).unwrap();
            let lock = lock.blocking().wait(SOON);
            let lock = lock.on_wait(move |_| {
                let _ = waits.send(());
            });
            lock.acquire().unwrap().release().unwrap();
        });
        waiting.recv_timeout(SOON).unwrap();
        let closing = two.session("bob").lock(format!("{tree}/a")).unwrap();
        let error = closing.blocking().wait(SOON).refuse_deadlock().acquire();
        match error.unwrap_err() {
            Error::Busy(busy) => assert!(busy.deadlock.contains(&"bob".to_owned()), "{busy:?}"),
            other => panic!("{other:?}"),
        }
        b.release().unwrap();
    });
    a.release().unwrap();
}

/// R50 (semaphores need permits), and a policy that all clients see.
#[test]
fn a_semaphore_has_its_permits() {
    let (one, two, tree) = (client(), client(), tree());
    block_on(one.set_policy(&tree, Algorithm::Semaphore)).unwrap();
    assert!(block_on(two.policy(&tree)).unwrap().explicit);
    let of = NonZeroU32::new(2).unwrap();
    let permit = |tenure: &Tenure| {
        let lock = tenure.lock(format!("{tree}/gpu")).unwrap().blocking();
        lock.permit(of).no_wait().acquire()
    };
    let first = permit(&one).unwrap();
    let second = permit(&two).unwrap();
    assert!(permit(&two).unwrap_err().is_busy());
    first.release().unwrap();
    permit(&two).unwrap().release().unwrap();
    second.release().unwrap();
}

/// Snapshots replace old entries; a client that comes later has the same state, and fences go on.
#[test]
fn a_later_client_catches_up_behind_a_trimmed_log() {
    let (one, path) = (client(), format!("{}/lock", tree()));
    let held = one.lock(format!("{path}-held")).unwrap().blocking();
    let held = held.acquire().unwrap();
    let mut last = None;
    for _ in 0..300 {
        let guard = one.lock(&path).unwrap().blocking().acquire().unwrap();
        last = guard.fence();
        guard.release().unwrap();
    }
    let two = client();
    let lock = two.lock(format!("{path}-held")).unwrap().blocking();
    assert!(lock.no_wait().acquire().unwrap_err().is_busy());
    let guard = two.lock(&path).unwrap().blocking().acquire().unwrap();
    assert!(guard.fence() > last);
    guard.release().unwrap();
    held.check().unwrap();
    held.release().unwrap();
}

/// A database without the tables is refused, with the command that creates them.
#[test]
fn an_unprepared_database_is_refused() {
    let server = POSTGRES.address.rsplit_once('/').unwrap().0;
    let place = format!("{server}/template1/t:/a/b");
    let lock = client().lock(place).unwrap().blocking().no_wait();
    let error = lock.acquire().unwrap_err().to_string();
    assert!(error.contains("tenure doctor --prepare"), "{error}");
}

/// Processes that take one lock in turn.
const PROCESSES: usize = 32;
/// How often each takes it: `TENURE_TURNS`.
const TURNS: usize = 6;

/// Processes are killed and stopped while they hold and while they wait. No two hold at the same
/// time, later grants have higher fences, and every process that is not killed finishes.
#[test]
#[ignore = "takes minutes: cargo xtask slow engines"]
fn torture() {
    use rustix::process::{Pid, Signal, kill_process};
    let path = format!("{}/t:/{}/lock", POSTGRES.address, Token::random());
    let turns = std::env::var("TENURE_TURNS").map_or(TURNS, |turns| turns.parse().unwrap());
    let log = tempfile::NamedTempFile::new().unwrap();
    let start = || {
        std::process::Command::new(env!("CARGO_BIN_EXE_lock-actor"))
            .args([&path, "2000", &turns.to_string()])
            .arg(log.path())
            .spawn()
            .unwrap()
    };
    let mut actors: Vec<_> = (0..PROCESSES).map(|_| start()).collect();
    let mut random = tenure_random::SplitMix64::new(1);
    let (mut kills, mut stops) = (0, 0);
    let began = std::time::Instant::now();
    loop {
        actors.retain_mut(|actor| match actor.try_wait().unwrap() {
            Some(status) => {
                assert!(status.success() || status.code().is_none(), "{status}");
                false
            }
            None => true,
        });
        if actors.is_empty() {
            break;
        }
        assert!(began.elapsed().as_secs() < 3600, "a process is stuck");
        // Faults come at any moment; there is nothing to wait for.
        thread::sleep(std::time::Duration::from_millis(150));
        let victim = random.index(actors.len());
        let pid = Pid::from_child(&actors[victim]);
        match random.below(4) {
            0 if kills < 40 => {
                kills += 1;
                let _ = kill_process(pid, Signal::KILL);
                actors.push(start());
            }
            1 if stops < 40 => {
                stops += 1;
                let _ = kill_process(pid, Signal::STOP);
                thread::sleep(std::time::Duration::from_millis(2500));
                let _ = kill_process(pid, Signal::CONT);
            }
            _ => {}
        }
    }
    let text = std::fs::read_to_string(log.path()).unwrap();
    let line = |line: &str| -> [u64; 3] {
        let numbers: Vec<u64> = line.split(' ').map(|one| one.parse().unwrap()).collect();
        numbers.try_into().unwrap()
    };
    let mut holds: Vec<[u64; 3]> = text.lines().map(line).collect();
    holds.sort_unstable();
    eprintln!(
        "{} grants, {kills} kills, {stops} stops, {:?}",
        holds.len(),
        began.elapsed()
    );
    // A process that was killed is replaced; a hold that was lost while its process was stopped does
    // not count.
    assert!(holds.len() + stops >= PROCESSES * turns, "{}", holds.len());
    for pair in holds.windows(2) {
        let ([fence, _, until], [next, from, _]) = (pair[0], pair[1]);
        assert!(fence < next, "fence {fence} was granted twice");
        assert!(until <= from, "fence {next} began before {fence} had ended");
    }
}
