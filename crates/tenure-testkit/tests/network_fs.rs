//! Lock files on file systems with the peculiarities of NFS, SMB and sshfs (K31 (local file
//! systems)): all three protocols, with real processes. See `support/network_fs.rs`.
//!
//! These tests need root and `/dev/fuse`, and fail without them.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the message")]

mod support;

use std::path::Path;
use std::time::Duration;

use support::actor::Actor;
use support::network_fs::{
    FORBIDDEN_LINKS, NFS3, NFS4, NO_LINKS, NetworkFs, PLAIN, Peculiarities, SMB, SSHFS,
};
use tenure_files::exclusive::{ExclusiveServer, Quiesce, Tool};
use tenure_files::sidecar::{Manager, Options};
use tenure_files::upload::{FileLocker, UploadId, UploadLocker};
use tenure_files::{Class, Wait};

const PROTOCOLS: [&str; 3] = ["sidecar", "exclusive", "upload"];
const SYSTEMS: [Peculiarities; 7] = [PLAIN, NFS3, NFS4, SMB, SSHFS, NO_LINKS, FORBIDDEN_LINKS];

fn each(check: impl Fn(&NetworkFs, &str, &str)) {
    for system in SYSTEMS {
        for who in PROTOCOLS {
            let fs = NetworkFs::mount(system);
            check(&fs, who, &format!("{who} on {}", system.name));
        }
    }
}

fn try_lock(who: &str, dir: &Path) -> String {
    Actor::spawn(&["try", who], dir).hear()
}

fn hold(who: &str, dir: &Path, what: &str) -> Actor {
    let holder = Actor::spawn(&["hold", who], dir);
    assert_eq!(holder.hear(), "held", "{what}");
    holder
}

/// The answer to a command. The holder of an upload may first report a release request.
fn answer(holder: &Actor) -> String {
    match holder.hear() {
        asked if asked == "asked" => holder.hear(),
        answer => answer,
    }
}

/// The files that a protocol keeps: the gate.
fn kept(names: Vec<String>) -> Vec<String> {
    let is_left = |name: &String| name != ".exclusive-lock.gate";
    names.into_iter().filter(is_left).collect()
}

/// K17 (publish in one step), K36 (idempotent release): the first acquisition of a free name
/// succeeds, a second one is refused, the holder keeps its lock, and the release leaves nothing.
#[test]
fn a_lock_is_held_once_and_released_completely() {
    each(|fs, who, what| {
        let mut holder = hold(who, fs.path(), what);
        assert_eq!(try_lock(who, fs.path()), "Timeout", "{what}");
        holder.tell("check");
        assert_eq!(answer(&holder), "ok", "{what}");
        holder.tell("release");
        assert_eq!(answer(&holder), "released", "{what}");
        assert!(kept(fs.names()).is_empty(), "{what}: {:?}", fs.names());
        assert_eq!(try_lock(who, fs.path()), "ok", "{what}: again");
    });
}

/// K12 (ask the kernel for the process), K24 (lock before removal): the lock of a dead holder of
/// this machine is reclaimed, also where only a writable descriptor may be locked.
#[test]
fn a_dead_holder_is_replaced() {
    each(|fs, who, what| {
        hold(who, fs.path(), what).kill();
        assert_eq!(try_lock(who, fs.path()), "ok", "{what}");
        assert!(kept(fs.names()).is_empty(), "{what}: {:?}", fs.names());
    });
}

/// K31: where locks are mandatory, a holder keeps none on its record: an original could not even
/// read who holds the lock.
#[test]
fn a_record_can_be_read_while_it_is_held() {
    for who in PROTOCOLS {
        let fs = NetworkFs::mount(SMB);
        let _holder = hold(who, fs.path(), who);
        let name = fs.names().into_iter().find(|name| name.ends_with("lock"));
        let record = std::fs::read_to_string(fs.path().join(name.unwrap()));
        assert!(record.unwrap().contains("tenure"), "{who}");
    }
}

/// X20 (the gate file): a tool waits for a running cycle, and gets the database after it.
#[test]
fn the_gate_works_where_a_lock_needs_a_writable_descriptor() {
    for system in SYSTEMS {
        let fs = NetworkFs::mount(system);
        let server = ExclusiveServer::new(fs.path());
        let tool = || Tool::new(fs.path(), "tool").unwrap();
        let cycle = server
            .begin_cycle()
            .map_err(|skipped| format!("{skipped:?}"));
        let cycle = cycle.unwrap_or_else(|why| panic!("{}: {why}", system.name));
        let short = tool().quiesce(Quiesce::For(Duration::from_millis(50)));
        let error = short.acquire(Wait::No).unwrap_err();
        assert_eq!(error.class(), Class::Timeout, "{}: {error}", system.name);
        drop(cycle);
        let guard = tool().acquire(Wait::No).unwrap();
        assert!(server.should_skip().skips(), "{}", system.name);
        guard.release().unwrap();
        assert!(!server.should_skip().skips(), "{}", system.name);
    }
}

/// K40 (fence counter file): numbers grow on every file system.
#[test]
fn fences_grow() {
    for system in SYSTEMS {
        let fs = NetworkFs::mount(system);
        let options = Options::new(fs.path().join("state.json")).fence();
        for expected in 1..=3 {
            let guard = Manager::new("test").try_acquire(&options).unwrap();
            assert_eq!(guard.fence().unwrap().get(), expected, "{}", system.name);
            guard.release().unwrap();
        }
    }
}

/// K33 (heartbeat in place): the holder writes its heartbeat, and is not hindered by its own lock.
#[test]
fn a_holder_beats() {
    for system in SYSTEMS {
        let fs = NetworkFs::mount(system);
        let options = Options::new(fs.path().join("state.json"));
        let guard = Manager::new("test").try_acquire(&options).unwrap();
        guard.hold().beat().unwrap();
        guard.hold().beat().unwrap();
        guard.verify_still_held().unwrap();
        guard.release().unwrap();
        assert_eq!(
            fs.refusals_by_lock(),
            usize::from(system.mandatory_locks),
            "{}",
            system.name
        );
    }
}

/// K34 (detect a lost lock): the server removed the directory, so the lock is lost, not "unknown".
#[test]
fn a_directory_removed_on_the_server_is_a_lost_lock() {
    for who in PROTOCOLS {
        let fs = NetworkFs::mount(NFS4);
        let mut holder = hold(who, fs.path(), who);
        fs.remove_on_the_server();
        holder.tell("check");
        assert_eq!(answer(&holder), "Compromised", "{who}");
    }
}

/// K17: an error after the name appeared takes the name away again; no record of a process that
/// does not hold the lock stays.
#[test]
fn an_error_after_the_name_appeared_leaves_no_lock() {
    for who in PROTOCOLS {
        for link_error in [0, libc::EPERM] {
            let fs = NetworkFs::mount(Peculiarities {
                stat_fails_after_link: true,
                link_error,
                ..PLAIN
            });
            let answer = try_lock(who, fs.path());
            assert!(["Io", "ok"].contains(&answer.as_str()), "{who}: {answer}");
            assert!(kept(fs.names()).is_empty(), "{who}: {:?}", fs.names());
        }
    }
}

/// K36: a full disk has no room for the second name of a removal. The holder removes its own record
/// nevertheless: an original would wait for it without end.
#[test]
fn a_lock_is_released_on_a_full_disk() {
    for who in PROTOCOLS {
        let fs = NetworkFs::mount(PLAIN);
        let mut holder = hold(who, fs.path(), who);
        fs.fill_the_directory();
        holder.tell("release");
        assert_eq!(answer(&holder), "released", "{who}");
        assert!(kept(fs.names()).is_empty(), "{who}: {:?}", fs.names());
    }
}

/// K45 (age of files and objects): the clock of such a file system is read by creating a file, which
/// a listing must not need.
#[test]
fn a_listing_needs_no_file() {
    let fs = NetworkFs::mount(PLAIN);
    let options = Options::new(fs.path().join("state.json"));
    let guard = Manager::new("test").try_acquire(&options).unwrap();
    fs.make_read_only();
    let listed = tenure_files::sidecar::list(fs.path()).unwrap();
    assert_eq!(
        listed,
        [fs.path().canonicalize().unwrap().join("state.json")]
    );
    let locker = FileLocker::new(fs.path()).unwrap();
    let id = UploadId::new("state.json").unwrap();
    assert_eq!(locker.list().unwrap(), std::slice::from_ref(&id));
    locker.inspect(&id).unwrap();
    fs.make_writable();
    guard.release().unwrap();
}

/// U14 (make a release request): a request reaches the holder's poll on every file system, and both
/// sides remove their files.
#[test]
fn a_release_request_is_made_and_withdrawn() {
    for system in SYSTEMS {
        let fs = NetworkFs::mount(system);
        let _holder = hold("upload", fs.path(), system.name);
        let locker = FileLocker::new(fs.path()).unwrap();
        let id = UploadId::new("up").unwrap();
        let wait = Wait::For(Duration::from_millis(50));
        let error = locker
            .lock(&id, wait, std::sync::Arc::new(|_| {}))
            .unwrap_err();
        assert_eq!(error.class(), Class::Timeout, "{}: {error}", system.name);
        assert_eq!(fs.names(), ["up.lock"], "{}", system.name);
    }
}
