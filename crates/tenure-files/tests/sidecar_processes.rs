//! Sidecar locks between processes: takeover from dead holders, process exit, forked handles,
//! inherited descriptors, and futures.

#![allow(
    clippy::unwrap_used,
    reason = "a test may hope; its panic is the report"
)]

use std::future::Future;
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tenure_files::Class;
use tenure_files::Durability;
use tenure_files::internal::{Presence, presence};
use tenure_files::sidecar::{AcquireStep, Manager, Options, Retry, acquire_async};
use tenure_testkit::child::{Player, hear, say};

struct ProcessFixture {
    temp: tempfile::TempDir,
    target: PathBuf,
    lock: PathBuf,
}

impl ProcessFixture {
    fn new() -> ProcessFixture {
        let temp = tempfile::tempdir().unwrap();
        let target = temp.path().canonicalize().unwrap().join("state.json");
        ProcessFixture {
            lock: target.with_file_name("state.json.lock"),
            target,
            temp,
        }
    }
    fn names(&self) -> Vec<String> {
        std::fs::read_dir(self.temp.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    }
    fn try_class(&self) -> Option<Class> {
        Manager::new("try")
            .try_acquire(&options(&self.target))
            .err()
            .map(|error| error.class())
    }
}

fn options(target: &Path) -> Options {
    Options::new(target).durability(Durability::Fast)
}

/// Options that poll so rarely that only an event can explain a quick takeover.
fn by_event_only(target: &Path) -> Options {
    let slow = Duration::from_secs(25);
    options(target).retry(Retry {
        min_timeout: slow,
        max_timeout: slow,
        ..Retry::default()
    })
}

/// Not a test: entry point of the child processes of this file.
#[test]
fn child() {
    tenure_testkit::child::play(&[
        ("hold", |target| {
            take_signals();
            hold(target);
        }),
        ("wait", wait),
        ("die in the guarded section", die_in_the_guarded_section),
        ("exit", |target| exit(options(target))),
        ("exit and retain", |target| {
            exit(options(target).retain_on_exit())
        }),
        ("exit in the guarded section", |target| {
            let pause = |point| {
                if point == AcquireStep::GuardMade {
                    say("in the guarded section");
                    std::process::exit(0);
                }
            };
            let _ = Manager::new("exit").acquire(&options(target).pause(pause));
        }),
        ("hold and listen to signals", hold_and_listen),
        ("fork", fork),
        ("inherit", inherit),
        ("end the main thread", end_the_main_thread),
        ("judge another user's process", judge_another_users_process),
    ]);
}

/// Resets SIGINT: a background job of a shell inherits "ignore", and so would this process.
#[allow(
    unsafe_code,
    reason = "std cannot restore the default action of a signal"
)]
fn take_signals() {
    // SAFETY: plain system calls with valid arguments.
    unsafe {
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            libc::signal(signal, libc::SIG_DFL);
        }
    }
}

fn hold(target: &Path) {
    let guard = Manager::new("hold").acquire(&options(target)).unwrap();
    say("held");
    hear();
    guard.release().unwrap();
    say("released");
}

fn wait(target: &Path) {
    say("waiting");
    let guard = Manager::new("wait")
        .acquire(&by_event_only(target))
        .unwrap();
    say("got it");
    guard.release().unwrap();
}

/// K42: an event lets a waiter take over from a killed holder. K10: it does not take over from a
/// stopped one.
#[test]
fn a_killed_holder_is_replaced_at_once() {
    let fixture = ProcessFixture::new();
    let holder = Player::new("hold", &fixture.target);
    holder.expect("held");
    let waiter = Player::new("wait", &fixture.target);
    waiter.expect("waiting");
    holder.signal(Signal::STOP);
    assert_eq!(fixture.try_class(), Some(Class::Held));
    assert_eq!(waiter.hear_within(Duration::from_millis(300)), None);
    let killed = Instant::now();
    holder.kill();
    let took = waiter.expect("got it").duration_since(killed);
    assert!(took < Duration::from_secs(5), "{took:?}: not by event");
    assert!(waiter.wait().success());
    assert!(fixture.names().is_empty());
}

fn die_in_the_guarded_section(target: &Path) {
    let point = match std::env::var("TENURE_TEST_POINT").unwrap().as_str() {
        "guard made" => AcquireStep::GuardMade,
        "dead removed" => AcquireStep::DeadRemoved,
        _ => AcquireStep::Reclaimed,
    };
    let options = options(target).pause(move |reached| {
        if reached == point {
            say("in the guarded section");
            hear();
        }
    });
    let _ = Manager::new("reclaimer").acquire(&options);
}

/// S22 (guards of crashed reclaimers), K27: a reclaimer that dies at any step under the guard does
/// not block other processes.
#[test]
fn a_reclaimer_that_dies_blocks_no_process() {
    for point in ["guard made", "dead removed", "reclaimed"] {
        let fixture = ProcessFixture::new();
        let holder = Player::new("hold", &fixture.target);
        holder.expect("held");
        holder.kill();
        let role = "die in the guarded section";
        let reclaimer = Player::with(role, &fixture.target, &[("TENURE_TEST_POINT", point)]);
        reclaimer.expect("in the guarded section");
        assert!(
            fixture
                .names()
                .contains(&"state.json.lock.reclaim".to_owned()),
            "{point}"
        );
        let waiter = Player::new("wait", &fixture.target);
        waiter.expect("waiting");
        assert_eq!(
            waiter.hear_within(Duration::from_millis(200)),
            None,
            "{point}"
        );
        let killed = Instant::now();
        reclaimer.kill();
        let took = waiter.expect("got it").duration_since(killed);
        assert!(
            took < Duration::from_secs(5),
            "{point}: {took:?}: not by event"
        );
        assert!(waiter.wait().success());
        assert!(fixture.names().is_empty(), "{point}: {:?}", fixture.names());
    }
}

/// Exits while the guard exists and is never dropped.
fn exit(options: Options) {
    std::mem::forget(Manager::new("exit").acquire(&options).unwrap());
    say("held");
    hear();
    std::process::exit(0);
}

/// S27: a normal exit releases all locks except those with `retain_on_exit`.
#[test]
fn a_normal_exit_releases() {
    for (role, stays) in [("exit", false), ("exit and retain", true)] {
        let fixture = ProcessFixture::new();
        let mut player = Player::new(role, &fixture.target);
        player.expect("held");
        assert!(fixture.lock.exists());
        player.tell("exit");
        assert!(player.wait().success());
        assert_eq!(fixture.lock.exists(), stays, "{role}");
    }
}

/// S27: a normal exit during a reclaim removes the guard: an original would wait for it forever.
#[test]
fn a_normal_exit_takes_the_guard_down() {
    let fixture = ProcessFixture::new();
    let holder = Player::new("hold", &fixture.target);
    holder.expect("held");
    holder.kill();
    let reclaimer = Player::new("exit in the guarded section", &fixture.target);
    reclaimer.expect("in the guarded section");
    assert!(reclaimer.wait().success());
    assert_eq!(fixture.names(), ["state.json.lock"]);
}

fn hold_and_listen(target: &Path) {
    take_signals();
    tenure_files::sidecar::release_on_signals().unwrap();
    hold(target);
}

/// S27, K37: signals release the locks of programs that asked for it, and still end them; without
/// that the library handles no signal.
#[test]
fn signals_release_for_programs_that_ask() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        for (role, stays) in [("hold and listen to signals", false), ("hold", true)] {
            let fixture = ProcessFixture::new();
            let player = Player::new(role, &fixture.target);
            player.expect("held");
            player.signal(signal);
            let status = player.wait();
            assert_eq!(status.signal(), Some(signal.as_raw()), "{role}");
            assert_eq!(fixture.lock.exists(), stays, "{role}, {signal:?}");
        }
    }
}

/// Forks, so that the child has a copy of the guard. Ends without exit handlers if asked to.
fn in_forked_child(action: impl FnOnce()) -> i32 {
    #[allow(unsafe_code, reason = "only fork gives a forked copy of a handle")]
    // SAFETY: the child only uses the calls under test and ends by `_exit`.
    unsafe {
        match libc::fork() {
            0 => {
                action();
                libc::_exit(7)
            }
            child => {
                let mut status = 0;
                assert_eq!(libc::waitpid(child, &mut status, 0), child);
                libc::WEXITSTATUS(status)
            }
        }
    }
}

fn fork(target: &Path) {
    let mut guard = Some(Manager::new("fork").acquire(&options(target)).unwrap());
    let hold = Arc::clone(guard.as_ref().unwrap().hold());
    // The child has its own copies: what it takes and drops does not affect the parent.
    let ended = in_forked_child(|| {
        let is_inert = |result: tenure_files::Result<()>| {
            result.is_err_and(|error| error.class() == Class::NotHeld)
        };
        let inert = is_inert(guard.as_ref().unwrap().verify_still_held())
            && is_inert(hold.beat())
            && is_inert(hold.release())
            && Manager::new("fork").held_entries().is_empty();
        drop(guard.take());
        let other = target.with_file_name("the child's own");
        let own = Manager::new("fork").acquire(&options(&other)).unwrap();
        own.release().unwrap();
        std::process::exit(if inert && hold.path().exists() { 0 } else { 1 });
    });
    assert_eq!(ended, 0, "the copy acted");
    let guard = guard.unwrap();
    guard.verify_still_held().unwrap();
    guard.release().unwrap();
    say("inert");
}

/// K36: a forked copy of a handle does nothing in the child, not even at its exit; the child can
/// hold locks of its own.
#[test]
fn a_forked_copy_is_inert() {
    let fixture = ProcessFixture::new();
    let player = Player::new("fork", &fixture.target);
    player.expect("inert");
    assert!(player.wait().success());
    assert!(fixture.names().is_empty());
}

/// Starts a child that inherits the locked descriptor, and waits to be killed.
fn inherit(target: &Path) {
    let guard = Manager::new("inherit").acquire(&options(target)).unwrap();
    let kept = rustix::io::dup(guard.as_fd()).unwrap(); // Without close-on-exec.
    let mut sleeper = Command::new("sleep");
    sleeper
        .arg("600")
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    let mut sleeper = sleeper.process_group(0).spawn().unwrap();
    drop(kept);
    say(&sleeper.id().to_string());
    sleeper.wait().unwrap(); // This process is killed long before.
}

/// K38 (inherit the locked descriptor), K10: while a child has the locked descriptor, no process
/// takes over, although the holder itself was killed; when the child exits, a waiter is woken.
#[test]
fn an_inherited_descriptor_keeps_the_lock() {
    let fixture = ProcessFixture::new();
    let holder = Player::new("inherit", &fixture.target);
    let sleeper: i32 = holder
        .hear_within(Duration::from_secs(30))
        .unwrap()
        .parse()
        .unwrap();
    holder.kill();
    assert_eq!(fixture.try_class(), Some(Class::Held));
    let waiter = Player::new("wait", &fixture.target);
    waiter.expect("waiting");
    assert_eq!(waiter.hear_within(Duration::from_millis(300)), None);
    let ended = Instant::now();
    let sleeper = rustix::process::Pid::from_raw(sleeper).unwrap();
    rustix::process::kill_process(sleeper, Signal::KILL).unwrap();
    let took = waiter.expect("got it").duration_since(ended);
    assert!(took < Duration::from_secs(5), "{took:?}: not by event");
    assert!(waiter.wait().success());
}

/// A process whose main thread has ended while another thread works.
fn end_the_main_thread(_: &Path) {
    #[allow(
        unsafe_code,
        reason = "a test thread is never the main thread; that of a fork is"
    )]
    // SAFETY: the child only starts a thread, prints a line, and ends its own thread by `exit`.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            std::thread::spawn(|| std::thread::sleep(Duration::from_secs(60)));
            say(&std::process::id().to_string());
            libc::syscall(libc::SYS_exit, 0);
        }
        let mut status = 0;
        libc::waitpid(child, &mut status, 0);
    }
}

/// K13: a main thread that ended is shown as a zombie; the process is alive while another thread
/// is, and gone after that.
#[test]
fn a_process_lives_in_its_last_thread() {
    let fixture = ProcessFixture::new();
    let player = Player::new("end the main thread", &fixture.target);
    let pid = player.hear_within(Duration::from_secs(30)).unwrap();
    let looks_dead = || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit(')')
            .next()
            .unwrap()
            .trim_start()
            .starts_with('Z')
    };
    while !looks_dead() {
        std::thread::yield_now();
    }
    let number: u32 = pid.parse().unwrap();
    assert_eq!(presence(number, None), Presence::Running);
    let raw = rustix::process::Pid::from_raw(pid.parse().unwrap()).unwrap();
    rustix::process::kill_process(raw, Signal::KILL).unwrap();
    assert!(player.wait().success());
    assert_eq!(presence(number, None), Presence::Gone);
}

fn judge_another_users_process(target: &Path) {
    let pid: u32 = target
        .file_name()
        .unwrap()
        .to_str()
        .unwrap()
        .parse()
        .unwrap();
    let raw = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    let signal = rustix::process::test_kill_process(raw);
    assert_eq!(
        signal,
        Err(rustix::io::Errno::PERM),
        "the test needs two users"
    );
    say(&format!("{:?}", presence(pid, None)));
}

/// K16: a process that we have no permission to signal is alive. Root therefore runs the check as
/// another user.
#[test]
fn another_users_process_is_alive() {
    let fixture = ProcessFixture::new();
    let (target, is_root) = (
        fixture.temp.path().join("1"),
        rustix::process::geteuid().is_root(),
    );
    let role = "judge another user's process";
    let player = match is_root {
        false => Player::new(role, &target),
        true => {
            // The other user needs access to the test binary.
            let program = fixture.temp.path().join("program");
            std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
            let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            std::fs::set_permissions(fixture.temp.path(), open).unwrap();
            Player::as_user(65534, &program, role, &target)
        }
    };
    player.expect("Running");
}

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}

/// Futures work without a runtime; a dropped future cancels, and the loss of a lock can be awaited.
#[test]
fn a_lock_can_be_awaited() {
    let fixture = ProcessFixture::new();
    let locks = Manager::new("async");
    let held = block_on(acquire_async(&locks, options(&fixture.target))).unwrap();

    let withdrawn = acquire_async(&Manager::new("other"), by_event_only(&fixture.target));
    drop(withdrawn);
    let waiting = acquire_async(&Manager::new("third"), by_event_only(&fixture.target));
    let lost = held.hold().lost();
    held.release().unwrap();
    let third = block_on(waiting).unwrap();
    drop(lost);

    let lost = third.hold().lost();
    std::fs::remove_file(&fixture.lock).unwrap();
    assert!(third.verify_still_held().is_err());
    assert_eq!(block_on(lost).cause, tenure_files::LossCause::Gone);
    drop(third);
    // A lock that is granted during the cancellation is released: the cancelled waiter may hold it
    // for a moment.
    tenure_testkit::eventually("the lock is free", || fixture.try_class().is_none());
}
