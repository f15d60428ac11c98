//! Environment tests: reused pids, containers, renamed hosts, other users, reboots, FUSE, full and
//! read-only disks. Each for all three protocols, with real processes.
//!
//! These tests need root: they create namespaces and mounts, and run as other users.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the message")]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use support::actor::Actor;
use tenure_testkit::{LiveProcess, OTHER_USER, TIMEOUT, dead_pid, eventually, host};

const ALL: [&str; 3] = ["sidecar", "exclusive", "upload"];
const ACTOR: &str = env!("CARGO_BIN_EXE_files-actor");

fn try_lock(who: &str, dir: &Path) -> String {
    Actor::spawn(&["try", who], dir).hear()
}

fn hold(who: &str, dir: &Path) -> Actor {
    let holder = Actor::spawn(&["hold", who], dir);
    holder.says("held");
    holder
}

/// The actor, started by another program such as `unshare`.
fn under(program: &[&str], args: &[&str], dir: &Path) -> Actor {
    let mut command = Command::new(program[0]);
    command.args(&program[1..]).arg(ACTOR);
    Actor::start(command, args, dir)
}

fn lock_name(who: &str) -> &'static str {
    match who {
        "sidecar" => "state.json.lock",
        "exclusive" => ".exclusive-lock",
        _ => "up.lock",
    }
}

/// An original's record of a process on this host.
fn original_record(who: &str, pid: u32) -> String {
    let host = host();
    match who {
        "sidecar" => format!("{{\"pid\": {pid}, \"host\": \"{host}\"}}\n"),
        "exclusive" => format!(
            "{{\"holder\": \"other\", \"pid\": {pid}, \"hostname\": \"{host}\", \
             \"started_at\": \"2026-03-07T09:00:00Z\"}}\n"
        ),
        _ => format!("{pid}\n"),
    }
}

/// The refusal if the holder can be proven neither alive nor dead: U13 has a class of its own.
fn unproven(who: &str) -> &'static str {
    match who {
        "upload" => "Foreign",
        _ => "Timeout",
    }
}

/// K10 (prove life by flock), K12: the pid of a killed holder was reused. The new process is alive;
/// the holder is not.
#[test]
fn a_reused_pid_is_not_the_holder() {
    for who in ALL {
        let temp = tempfile::tempdir().unwrap();
        let holder = hold(who, temp.path());
        let pid = holder.pid();
        holder.kill();
        let _stranger = process_with_pid(pid);
        assert_eq!(try_lock(who, temp.path()), "ok", "{who}");
    }
}

/// Makes the kernel assign this free pid again.
fn process_with_pid(pid: u32) -> LiveProcess {
    let give_up = Instant::now() + TIMEOUT;
    loop {
        assert!(Instant::now() < give_up, "pid {pid} was not to be had");
        fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string()).unwrap();
        let process = LiveProcess::spawn();
        if process.pid() == pid {
            return process;
        }
    }
}

/// K10, K14: process 1 of one container is not process 1 of another; the flock distinguishes them.
#[test]
fn two_containers_exclude_each_other() {
    let container = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
    for who in ALL {
        let temp = tempfile::tempdir().unwrap();
        let holder = under(&container, &["hold", who], temp.path());
        holder.says("held");
        let record = fs::read_to_string(temp.path().join(lock_name(who))).unwrap();
        assert!(
            record.contains("\"pid\": 1,") || record.contains("\"pid\":1,"),
            "{record}"
        );
        under(&container, &["try", who], temp.path()).says("Timeout");
        assert_eq!(try_lock(who, temp.path()), "Timeout", "{who}: from outside");
        let waiter = under(&container, &["hold", who], temp.path());
        holder.kill();
        waiter.says("held");
    }
}

/// X8 (dead holder on this host), S19, U13: a live original in a container has a pid that no process
/// of this namespace has. It is not dead: the kernel lists its number inside the container (`NSpid`).
#[test]
fn an_original_in_a_container_is_not_dead() {
    for who in ALL {
        let temp = tempfile::tempdir().unwrap();
        let pid = dead_pid();
        let container = ContainedProcess::with_pid(pid);
        fs::write(temp.path().join(lock_name(who)), original_record(who, pid)).unwrap();
        assert_eq!(try_lock(who, temp.path()), "Timeout", "{who}");
        if who == "exclusive" {
            let server = tenure_files::exclusive::ExclusiveServer::new(temp.path());
            assert!(server.should_skip().skips(), "the server must skip");
        }
        assert!(temp.path().join(lock_name(who)).exists(), "{who}");
        drop(container);
        assert_eq!(try_lock(who, temp.path()), "ok", "{who}: now it is dead");
    }
}

/// The same, judged from another container: it cannot see the holder, so nothing is proven.
#[test]
fn a_bare_pid_proves_nothing_inside_a_container() {
    let container = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
    for who in ALL {
        let temp = tempfile::tempdir().unwrap();
        let record = original_record(who, dead_pid());
        fs::write(temp.path().join(lock_name(who)), record).unwrap();
        under(&container, &["try", who], temp.path()).says("Timeout");
        assert!(temp.path().join(lock_name(who)).exists(), "{who}");
    }
}

/// A process in a PID namespace of its own, with a given pid there.
struct ContainedProcess(Child);

impl ContainedProcess {
    fn with_pid(pid: u32) -> ContainedProcess {
        let script = format!(
            "echo {} > /proc/sys/kernel/ns_last_pid; sleep 1000 & echo $!; wait",
            pid - 1
        );
        let mut command = Command::new("unshare");
        command
            .args([
                "--pid",
                "--fork",
                "--kill-child",
                "--mount-proc",
                "sh",
                "-c",
            ])
            .arg(script)
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        let mut stdout = std::io::BufReader::new(child.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut stdout, &mut line).unwrap();
        assert_eq!(line.trim(), pid.to_string(), "its pid inside");
        ContainedProcess(child)
    }
}

impl Drop for ContainedProcess {
    fn drop(&mut self) {
        // `--kill-child`: process 1 of the namespace dies with `unshare`, and the others with it.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// K10 (prove life by flock): the holder locks the file of the overlay, the judge sees the file of
/// the layer below. Their kernel locks are different ones, so a free one proves nothing.
#[test]
fn an_overlay_and_its_upper_directory_are_two_places() {
    let other_container = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
    for who in ALL {
        let overlay = Overlay::mount();
        let holder = hold(who, &overlay.merged());
        assert_eq!(try_lock(who, &overlay.upper()), "Timeout", "{who}");
        under(&other_container, &["try", who], &overlay.upper()).says(unproven(who));
        assert_eq!(try_lock(who, &overlay.merged()), "Timeout", "{who}");
        holder.kill();
        assert_eq!(try_lock(who, &overlay.merged()), "ok", "{who}");
        hold(who, &overlay.merged()).kill();
        assert_eq!(
            try_lock(who, &overlay.upper()),
            "ok",
            "{who}: no such process"
        );
    }
}

/// An overlay on a file system of its own.
struct Overlay {
    disk: LoopDisk,
}

impl Overlay {
    fn mount() -> Overlay {
        let overlay = Overlay {
            disk: LoopDisk::mount("16m"),
        };
        for name in ["lower", "upper", "work", "merged"] {
            fs::create_dir(overlay.disk.path().join(name)).unwrap();
        }
        let root = overlay.disk.path().display();
        let options = format!("lowerdir={root}/lower,upperdir={root}/upper,workdir={root}/work");
        let mut mount = Command::new("mount");
        mount
            .args(["-t", "overlay", "-o", &options, "overlay"])
            .arg(overlay.merged());
        assert!(mount.status().unwrap().success(), "overlayfs is needed");
        overlay
    }

    fn merged(&self) -> PathBuf {
        self.disk.path().join("merged")
    }

    fn upper(&self) -> PathBuf {
        self.disk.path().join("upper")
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        unmount(&self.merged());
    }
}

/// Takes a lock for another process and leaves it, as `tenure lock` does (C13 (holds for scripts)).
/// Such a record claims no flock.
fn lock_for_process(who: &str, dir: &Path, pid: u32) {
    use tenure_files::upload::UploadLocker;
    match who {
        "sidecar" => {
            let options = tenure_files::sidecar::Options::new(dir.join("state.json")).follows(pid);
            let manager = tenure_files::sidecar::Manager::new("lock");
            manager.try_acquire(&options).unwrap().leave();
        }
        "exclusive" => {
            let tool = tenure_files::exclusive::Tool::new(dir, "script").unwrap();
            let guard = tool.follows(pid).acquire(tenure_files::Wait::No);
            guard.unwrap().leave();
        }
        _ => {
            let locker = tenure_files::upload::FileLocker::new(dir).unwrap();
            let id = tenure_files::upload::UploadId::new("up").unwrap();
            let request = tenure_files::upload::LockRequest {
                follows: Some(pid),
                ..tenure_files::upload::LockRequest::new(
                    tenure_files::Wait::No,
                    std::sync::Arc::new(|_| {}),
                )
            };
            locker.lock_for(&id, request).unwrap().leave();
        }
    }
}

/// K11 (a different boot id), K12: a judge with another boot id (a container that mounts its own) or
/// another clock (a time namespace) must not call a live process dead.
#[test]
fn another_boot_id_or_clock_does_not_kill_a_holder() {
    let temp_boot = tempfile::tempdir().unwrap();
    let boot = temp_boot.path().join("boot_id");
    fs::write(&boot, "00000000-0000-4000-8000-000000000000\n").unwrap();
    let script = format!(
        "mount --bind {} /proc/sys/kernel/random/boot_id && exec \"$0\" \"$@\"",
        boot.display()
    );
    let rebooted = ["unshare", "--mount", "sh", "-c", &script];
    let shifted = ["unshare", "--time", "--boottime", "86400", "--fork"];
    for who in ALL {
        for (judge, answer) in [(&rebooted[..], unproven(who)), (&shifted, "Timeout")] {
            let temp = tempfile::tempdir().unwrap();
            let process = LiveProcess::spawn();
            lock_for_process(who, temp.path(), process.pid());
            under(judge, &["try", who], temp.path()).says(answer);
            assert!(temp.path().join(lock_name(who)).exists(), "{who} {judge:?}");
        }
    }
}

/// K11: a record that is older than the boot, with another boot id, is dead: the machine was
/// restarted. The restart is simulated by the boot id and the boot time that the judge sees.
#[test]
fn a_restart_frees_a_lock_of_a_script() {
    let temp_boot = tempfile::tempdir().unwrap();
    let boot = temp_boot.path().join("boot_id");
    fs::write(&boot, "00000000-0000-4000-8000-000000000000\n").unwrap();
    let stat = temp_boot.path().join("stat");
    let soon = std::time::SystemTime::now() + Duration::from_secs(3600);
    let soon = soon
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_secs();
    fs::write(&stat, format!("cpu 0 0 0 0\nbtime {soon}\n")).unwrap();
    let script = format!(
        "mount --bind {} /proc/sys/kernel/random/boot_id && mount --bind {} /proc/stat && \
         exec \"$0\" \"$@\"",
        boot.display(),
        stat.display()
    );
    let restarted = ["unshare", "--mount", "sh", "-c", &script];
    for who in ALL {
        let temp = tempfile::tempdir().unwrap();
        let process = LiveProcess::spawn();
        lock_for_process(who, temp.path(), process.pid());
        under(&restarted, &["try", who], temp.path()).says("ok");
    }
}

/// S22 (guards of crashed reclaimers): in a setgid directory the guard inherits that bit. It is still
/// one of ours, and the next acquirer removes it.
#[test]
fn a_left_guard_in_a_setgid_directory_is_removed() {
    let temp = tempfile::tempdir().unwrap();
    fs::set_permissions(temp.path(), fs::Permissions::from_mode(0o2775)).unwrap();
    hold("sidecar", temp.path()).kill();
    let guard = temp.path().join("state.json.lock.reclaim");
    std::os::unix::fs::DirBuilderExt::mode(&mut fs::DirBuilder::new(), 0o1700)
        .create(&guard)
        .unwrap();
    // The kernel ignores the sticky bit of `mkdir`'s caller only for files.
    let mode = fs::metadata(&guard).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o3700, "{mode:o}");
    assert_eq!(try_lock("sidecar", temp.path()), "ok");
}

/// K32 (file modes and symlinks): in a directory that a group may write, the members of the group
/// judge and reclaim each other's locks.
#[test]
fn a_group_shares_its_locks() {
    const GROUP: u32 = 4242;
    for who in ALL {
        for mode in [0o2770, 0o770] {
            let temp = tempfile::tempdir().unwrap();
            std::os::unix::fs::chown(temp.path(), None, Some(GROUP)).unwrap();
            fs::set_permissions(temp.path(), fs::Permissions::from_mode(mode)).unwrap();
            let first = Actor::spawn_in_group(65_532, GROUP, &["hold", who], temp.path());
            first.says("held");
            let second = |args: &[&str]| Actor::spawn_in_group(65_533, GROUP, args, temp.path());
            second(&["try", who]).says("Timeout");
            first.kill();
            second(&["try", who]).says("ok");
        }
    }
}

/// K8 (compare host names), K10: after a rename the host is still the machine on which the holder
/// runs or died.
#[test]
fn a_renamed_host_changes_nothing() {
    let renamed = [
        "unshare",
        "--uts",
        "sh",
        "-c",
        "hostname elsewhere && exec \"$0\" \"$@\"",
    ];
    for who in ALL {
        let temp = tempfile::tempdir().unwrap();
        let holder = hold(who, temp.path());
        under(&renamed, &["try", who], temp.path()).says("Timeout");
        holder.kill();
        under(&renamed, &["try", who], temp.path()).says("ok");
    }
}

/// K16: a holder of another user is waited for, although we have no permission to signal it or to
/// read its record.
#[test]
fn another_users_holder_is_waited_for() {
    for who in ALL {
        let temp = tempfile::tempdir().unwrap();
        fs::set_permissions(temp.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let _holder = hold(who, temp.path());
        let answer = Actor::spawn_as(OTHER_USER, &["try", who], temp.path()).hear();
        // A record without read permission is reported as such if the protocol has a class for it.
        assert!(
            ["Timeout", "Unreadable"].contains(&answer.as_str()),
            "{who}: {answer}"
        );
        assert!(temp.path().join(lock_name(who)).exists(), "{who}");
    }
}

/// K11 (a different boot id), K24: after a reboot the lock is dead. A process that wrongly assumes
/// a reboot cannot take the lock of a live holder, because the removal needs the flock.
#[test]
fn a_changed_boot_id_frees_only_dead_locks() {
    let temp_boot = tempfile::tempdir().unwrap();
    let boot = temp_boot.path().join("boot_id");
    fs::write(&boot, "00000000-0000-4000-8000-000000000000\n").unwrap();
    let script = format!(
        "mount --bind {} /proc/sys/kernel/random/boot_id && exec \"$0\" \"$@\"",
        boot.display()
    );
    let rebooted = ["unshare", "--mount", "sh", "-c", &script];
    for who in ALL {
        let temp = tempfile::tempdir().unwrap();
        let holder = hold(who, temp.path());
        under(&rebooted, &["try", who], temp.path()).says("Timeout");
        assert!(temp.path().join(lock_name(who)).exists(), "{who}");
        holder.kill();
        under(&rebooted, &["try", who], temp.path()).says("ok");
    }
}

/// K6 (the tenure block), K12, K31: one side sees the directory through FUSE, the other directly.
/// FUSE does not pass the flock through, so neither side claims or trusts one; the process table
/// decides.
#[test]
fn a_directory_seen_through_fuse_is_one_directory() {
    for who in ALL {
        let direct = tempfile::tempdir().unwrap();
        let fuse = Fuse::mount(direct.path());
        for (one, other) in [(fuse.path(), direct.path()), (direct.path(), fuse.path())] {
            let holder = hold(who, one);
            assert_eq!(
                try_lock(who, other),
                "Timeout",
                "{who}: {}",
                other.display()
            );
            holder.kill();
            assert_eq!(try_lock(who, other), "ok", "{who}: {}", other.display());
        }
        let holder = hold(who, fuse.path());
        let record = fs::read_to_string(direct.path().join(lock_name(who))).unwrap();
        let record: String = record.split_whitespace().collect();
        assert!(
            record.contains("\"flock\":false,\"local\":false"),
            "{record}"
        );
        holder.kill();
    }
}

/// A second view of a directory through FUSE.
struct Fuse {
    view: tempfile::TempDir,
    server: Child,
}

impl Fuse {
    fn mount(dir: &Path) -> Fuse {
        install("bindfs");
        let view = tempfile::tempdir().unwrap();
        let mut command = Command::new("bindfs");
        command
            .args(["-f", "--no-allow-other"])
            .arg(dir)
            .arg(view.path());
        let server = command.spawn().unwrap();
        let path = view.path().to_str().unwrap().to_owned();
        eventually("the view is mounted", || {
            fs::read_to_string("/proc/mounts")
                .unwrap()
                .contains(&format!(" {path} fuse"))
        });
        Fuse { view, server }
    }

    fn path(&self) -> &Path {
        self.view.path()
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        unmount(self.view.path());
        let _ = self.server.wait();
    }
}

/// Installs a Debian package that a test needs, if it is missing.
fn install(package: &str) {
    let is_there = || {
        let found = Command::new("which")
            .arg(package)
            .stdout(Stdio::null())
            .status();
        found.is_ok_and(|status| status.success())
    };
    static INSTALLING: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _one = INSTALLING
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    if !is_there() {
        for args in [["update", "-q"], ["install", "-y"]] {
            let mut command = Command::new("apt-get");
            command.args(args).stdout(Stdio::null());
            if args[0] == "install" {
                command.arg(package);
            }
            let _ = command.status();
        }
    }
    assert!(
        is_there(),
        "{package} is needed for this test: apt-get install {package} (as root)"
    );
}

fn unmount(path: &Path) {
    let _ = Command::new("umount").arg("-l").arg(path).status();
}

/// A small separate file system.
struct LoopDisk {
    dir: tempfile::TempDir,
}

impl LoopDisk {
    fn mount(size: &str) -> LoopDisk {
        let dir = tempfile::tempdir().unwrap();
        let options = format!("size={size},mode=0755");
        let mut mount = Command::new("mount");
        mount
            .args(["-t", "tmpfs", "-o", &options, "tmpfs"])
            .arg(dir.path());
        assert!(
            mount.status().unwrap().success(),
            "this test mounts a tmpfs, which needs root"
        );
        LoopDisk { dir }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn remount(&self, option: &str) {
        let mut mount = Command::new("mount");
        mount
            .args(["-o", &format!("remount,{option}")])
            .arg(self.path());
        assert!(mount.status().unwrap().success());
    }

    fn names(&self) -> Vec<PathBuf> {
        fs::read_dir(self.path())
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect()
    }
}

impl Drop for LoopDisk {
    fn drop(&mut self) {
        unmount(self.path());
    }
}

/// A full disk: refused with `Io`, no partial file remains, and it works again when there is space.
#[test]
fn a_full_disk_is_an_error_and_leaves_nothing() {
    for who in ALL {
        let disk = LoopDisk::mount("64k");
        let filler = disk.path().join("filler");
        let full = (1..)
            .map(|pages| vec![0; pages * 4096])
            .find(|bytes| fs::write(&filler, bytes).is_err());
        assert!(full.is_some());
        assert_eq!(try_lock(who, disk.path()), "Io", "{who}");
        assert_eq!(disk.names(), std::slice::from_ref(&filler), "{who}");
        fs::remove_file(filler).unwrap();
        assert_eq!(try_lock(who, disk.path()), "ok", "{who}");
    }
}

/// A read-only disk: `Io`; a dead lock on it stays, and a server skips (X9: skip when in doubt).
#[test]
fn a_read_only_disk_is_an_error() {
    for who in ALL {
        let disk = LoopDisk::mount("64k");
        disk.remount("ro");
        assert_eq!(try_lock(who, disk.path()), "Io", "{who}");
    }
    let disk = LoopDisk::mount("64k");
    drop(Actor::spawn(&["cycle"], disk.path()).hear()); // Creates the gate.
    fs::write(
        disk.path().join(".exclusive-lock"),
        original_record("exclusive", dead_pid()),
    )
    .unwrap();
    disk.remount("ro");
    Actor::spawn(&["cycle"], disk.path()).says("skip Io");
}

/// K26: in a sticky directory only the owner can remove a dead lock; other users get an error at
/// once.
#[test]
fn a_dead_lock_in_a_sticky_directory_is_an_error_at_once() {
    for who in ALL {
        let temp = tempfile::tempdir().unwrap();
        fs::set_permissions(temp.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        let lock = temp.path().join(lock_name(who));
        fs::write(&lock, original_record(who, dead_pid())).unwrap();
        fs::set_permissions(&lock, fs::Permissions::from_mode(0o644)).unwrap();
        let began = Instant::now();
        Actor::spawn_as(OTHER_USER, &["hold", who], temp.path()).says("Io");
        assert!(began.elapsed() < TIMEOUT, "{who}: it waited");
        assert!(lock.exists(), "{who}");
        assert_eq!(try_lock(who, temp.path()), "ok", "{who}: its owner can");
    }
}

/// K17 (publish in one step), K18: a reader sees no record or a complete one, never a part.
#[test]
fn a_reader_never_sees_half_a_record() {
    for who in ALL {
        let temp = tempfile::tempdir().unwrap();
        let writer = Actor::spawn(&["work", who], temp.path());
        let lock = temp.path().join(lock_name(who));
        let mut seen = 0;
        let give_up = Instant::now() + TIMEOUT;
        while seen < 200 {
            assert!(Instant::now() < give_up, "{who}: the writer does not write");
            let Ok(record) = fs::read_to_string(&lock) else {
                continue;
            };
            seen += 1;
            let is_whole = match who {
                "upload" => {
                    record.ends_with("}\n") && record.starts_with(&writer.pid().to_string())
                }
                "exclusive" => record.ends_with("}\n"),
                _ => record.contains("\n}\n"),
            };
            assert!(is_whole, "{who}: {record:?}");
        }
        fs::write(temp.path().join("stop"), "").unwrap();
        writer.finish();
    }
}

/// S27 (release on exit), K37 (release on signals): a process that exits, or ends by a signal after it
/// asked for the release, leaves no lock, whatever the protocol.
#[test]
fn an_exit_releases_every_kind_of_lock() {
    for who in ALL {
        let temp = tempfile::tempdir().unwrap();
        let lock = temp.path().join(lock_name(who));
        let actor = Actor::spawn(&["exit", who], temp.path());
        actor.says("held");
        actor.finish();
        assert!(!lock.exists(), "{who}: exit");
        let actor = Actor::spawn(&["signals", who], temp.path());
        actor.says("held");
        assert!(lock.exists(), "{who}");
        actor.signal(rustix::process::Signal::TERM);
        eventually("the lock is gone", || !lock.exists());
    }
}

/// K6 (the tenure block): a process in a new PID namespace that still sees the old `/proc` writes its
/// own start time, not that of the process with its number there.
#[test]
fn the_start_time_is_the_holders_own() {
    let temp = tempfile::tempdir().unwrap();
    let holder = under(
        &["unshare", "--pid", "--fork", "--kill-child"],
        &["hold", "sidecar"],
        temp.path(),
    );
    holder.says("held");
    let record = fs::read(temp.path().join("state.json.lock")).unwrap();
    let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
    assert_eq!(record["tenure"]["pid"], 1);
    let children = format!("/proc/{0}/task/{0}/children", holder.pid());
    let pid = fs::read_to_string(children).unwrap().trim().to_owned();
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let start: u64 = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .nth(19)
        .unwrap()
        .parse()
        .unwrap();
    assert_eq!(record["tenure"]["start"], start);
}

/// C6 (several locks at once): one lock under two names, of which one is a bind mount, is one lock.
#[test]
fn a_bind_mount_gives_a_lock_no_second_name() {
    let disk = LoopDisk::mount("1m");
    let (one, other) = (disk.path().join("one"), disk.path().join("other"));
    fs::create_dir(&one).unwrap();
    fs::create_dir(&other).unwrap();
    let mut mount = Command::new("mount");
    mount.arg("--bind").args([&one, &other]);
    assert!(mount.status().unwrap().success());
    let addresses = |path: &Path| {
        let path = path.display();
        [
            format!("{path}/f"),
            format!("exclusive:{path}"),
            format!("upload:{path}/up"),
        ]
    };
    for (first, second) in addresses(&one).into_iter().zip(addresses(&other)) {
        let lock = tenure::lock(first.as_str())
            .unwrap()
            .also(second.as_str())
            .unwrap();
        let guards = lock.no_wait().blocking().acquire();
        let guards = guards.unwrap_or_else(|error| panic!("{first} {second}: {error}"));
        for guard in guards {
            guard.release().unwrap();
        }
    }
    unmount(&other);
}

/// K36: a forked copy of a handle does nothing in the child; the parent's still works. The same
/// holds for a server's cycle and its gate (X20: the gate file).
#[test]
fn a_forked_handle_is_inert() {
    for who in ["exclusive", "upload", "server"] {
        let temp = tempfile::tempdir().unwrap();
        let actor = Actor::spawn(&["fork", who], temp.path());
        let child = if who == "server" { "ok" } else { "NotHeld" };
        assert_eq!(actor.hear(), format!("child: {child}"), "{who}");
        if who == "server" {
            let tool = tenure_files::exclusive::Tool::new(temp.path(), "tool").unwrap();
            let quiesce = tenure_files::exclusive::Quiesce::For(Duration::from_millis(20));
            let error = tool
                .quiesce(quiesce)
                .acquire(tenure_files::Wait::No)
                .unwrap_err();
            assert_eq!(
                error.class(),
                tenure_files::Class::Timeout,
                "the child opened the gate"
            );
        }
        let mut actor = actor;
        actor.tell("go on");
        assert_eq!(actor.hear(), "parent: ok", "{who}");
    }
}
