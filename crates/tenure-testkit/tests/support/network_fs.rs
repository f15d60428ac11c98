//! A file system in memory with the documented peculiarities of network file systems, mounted by
//! FUSE. The kernels of test machines have no NFS or SMB client; what such a client does to a lock
//! protocol is a handful of answers, and this file system gives exactly those.
//!
//! Its own locks (`flock`) are answered here, not by the kernel, so that they can be mandatory or
//! refuse a read-only descriptor.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use fuser::{
    BackgroundSession, FileAttr, FileType, Filesystem, KernelConfig, MountOption, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request,
    TimeOrNow,
};

/// How the file system differs from a local one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Peculiarities {
    /// The name in messages of the tests.
    pub(crate) name: &'static str,
    /// `flock(LOCK_EX)` needs a descriptor that may write, as on NFSv4: flock(2), "NFS details".
    pub(crate) lock_needs_write: bool,
    /// A lock keeps other descriptors from reading and writing, as on SMB: flock(2), "CIFS
    /// details".
    pub(crate) mandatory_locks: bool,
    /// Two names of one file have different inode numbers, as on sshfs.
    pub(crate) inode_per_name: bool,
    /// The answer of every `unlink`, `rename` and `link` is lost once and the request repeated, as
    /// on NFS over a bad network: the second answer is the one that the program gets.
    pub(crate) repeats_requests: bool,
    /// The error of `link`: `EPERM` where there are no hard links, as on exFAT or a mounted object
    /// store, `EACCES` where a security module forbids them. Zero: there are hard links.
    pub(crate) link_error: i32,
    /// `stat` fails with `EIO` once after a public name has appeared.
    pub(crate) stat_fails_after_link: bool,
}

pub(crate) const NFS3: Peculiarities = Peculiarities {
    name: "nfs3",
    repeats_requests: true,
    ..PLAIN
};
pub(crate) const NFS4: Peculiarities = Peculiarities {
    name: "nfs4",
    lock_needs_write: true,
    ..PLAIN
};
pub(crate) const SMB: Peculiarities = Peculiarities {
    name: "smb",
    lock_needs_write: true,
    mandatory_locks: true,
    ..PLAIN
};
pub(crate) const SSHFS: Peculiarities = Peculiarities {
    name: "sshfs",
    inode_per_name: true,
    ..PLAIN
};
pub(crate) const NO_LINKS: Peculiarities = Peculiarities {
    name: "no hard links",
    link_error: libc::EPERM,
    ..PLAIN
};
pub(crate) const FORBIDDEN_LINKS: Peculiarities = Peculiarities {
    name: "forbidden hard links",
    link_error: libc::EACCES,
    ..PLAIN
};
pub(crate) const PLAIN: Peculiarities = Peculiarities {
    name: "plain",
    lock_needs_write: false,
    mandatory_locks: false,
    inode_per_name: false,
    repeats_requests: false,
    link_error: 0,
    stat_fails_after_link: false,
};

/// A mounted file system with one directory. Dropping it unmounts it.
pub(crate) struct NetworkFs {
    view: tempfile::TempDir,
    session: Option<BackgroundSession>,
    state: Arc<Mutex<FsState>>,
}

impl NetworkFs {
    /// Mounts it. Panics where FUSE is missing: a test that cannot run must not pass.
    pub(crate) fn mount(peculiarities: Peculiarities) -> NetworkFs {
        let view = tempfile::tempdir().expect("a mount point");
        let state = Arc::new(Mutex::new(FsState::new(peculiarities)));
        let served = ServedFs(Arc::clone(&state));
        let options = [
            MountOption::FSName("tenure-testkit".into()),
            MountOption::NoDev,
        ];
        let session = fuser::spawn_mount2(served, view.path(), &options).unwrap_or_else(|error| {
            panic!("this test mounts a FUSE file system, which needs /dev/fuse and root: {error}")
        });
        NetworkFs {
            view,
            session: Some(session),
            state,
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.view.path()
    }

    /// The names in the directory.
    pub(crate) fn names(&self) -> Vec<String> {
        let names = lock(&self.state);
        names
            .root
            .keys()
            .map(|name| name.to_string_lossy().into_owned())
            .collect()
    }

    /// The server has removed the directory: every request is answered with `ESTALE`.
    pub(crate) fn remove_on_the_server(&self) {
        lock(&self.state).is_gone = true;
    }

    /// The directory has no room for another name: `rename` fails with `ENOSPC`.
    pub(crate) fn fill_the_directory(&self) {
        lock(&self.state).is_full = true;
    }

    /// Refuses every request that would create a name or change a file.
    pub(crate) fn make_read_only(&self) {
        lock(&self.state).is_read_only = true;
    }

    pub(crate) fn make_writable(&self) {
        lock(&self.state).is_read_only = false;
    }

    /// How many requests were refused because of a lock of another descriptor.
    pub(crate) fn refusals_by_lock(&self) -> usize {
        lock(&self.state).refusals_by_lock
    }
}

impl Drop for NetworkFs {
    fn drop(&mut self) {
        // Detach first: an actor that a failed test left behind may keep the mount busy.
        let _ = std::process::Command::new("umount")
            .arg("-l")
            .arg(self.view.path())
            .status();
        if let Some(session) = self.session.take() {
            drop(session);
        }
    }
}

const ROOT: u64 = 1;
/// Every answer is valid for no time: the kernel asks again.
const NO_TTL: Duration = Duration::ZERO;
/// Open flag: reads and writes reach this file system, not the page cache.
const DIRECT_IO: u32 = 1;

struct FsState {
    peculiarities: Peculiarities,
    root: BTreeMap<OsString, u64>,
    nodes: HashMap<u64, Node>,
    files: HashMap<u64, FileData>,
    opens: HashMap<u64, OpenHandle>,
    next: u64,
    is_gone: bool,
    is_read_only: bool,
    is_full: bool,
    /// A public name has just appeared, and the next `stat` fails.
    stat_fails: bool,
    refusals_by_lock: usize,
}

/// What a name leads to. Several nodes may share one file (`inode_per_name`).
#[derive(Clone, Copy)]
struct Node {
    file: u64,
}

struct FileData {
    kind: FileType,
    bytes: Vec<u8>,
    mode: u16,
    gid: u32,
    modified: SystemTime,
    changed: SystemTime,
    links: u32,
    /// Handles that have a lock, and whether it is exclusive.
    locks: Vec<(u64, bool)>,
}

#[derive(Clone, Copy)]
struct OpenHandle {
    file: u64,
    flags: i32,
}

struct ServedFs(Arc<Mutex<FsState>>);

impl FsState {
    fn new(peculiarities: Peculiarities) -> FsState {
        let mut state = FsState {
            peculiarities,
            root: BTreeMap::new(),
            nodes: HashMap::new(),
            files: HashMap::new(),
            opens: HashMap::new(),
            next: ROOT,
            is_gone: false,
            is_read_only: false,
            is_full: false,
            stat_fails: false,
            refusals_by_lock: 0,
        };
        let root = state.new_file(FileType::Directory, 0o755);
        assert_eq!(root, ROOT);
        state
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// Makes a file and a node of the same number.
    fn new_file(&mut self, kind: FileType, mode: u32) -> u64 {
        let number = self.number();
        let now = SystemTime::now();
        let data = FileData {
            kind,
            bytes: Vec::new(),
            mode: (mode & 0o7777) as u16,
            gid: 0,
            modified: now,
            changed: now,
            links: 1,
            locks: Vec::new(),
        };
        self.files.insert(number, data);
        self.nodes.insert(number, Node { file: number });
        number
    }

    fn attr(&self, node: u64) -> Result<FileAttr, i32> {
        if self.is_gone {
            return Err(libc::ESTALE);
        }
        let file = self.nodes.get(&node).ok_or(libc::ENOENT)?.file;
        let data = self.files.get(&file).ok_or(libc::ESTALE)?;
        Ok(FileAttr {
            ino: node,
            size: data.bytes.len() as u64,
            blocks: 1,
            atime: data.modified,
            mtime: data.modified,
            ctime: data.changed,
            crtime: data.changed,
            kind: data.kind,
            perm: data.mode,
            nlink: data.links,
            uid: 0,
            gid: data.gid,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }

    fn find(&self, name: &OsStr) -> Result<u64, i32> {
        match self.is_gone {
            true => Err(libc::ESTALE),
            false => self.root.get(name).copied().ok_or(libc::ENOENT),
        }
    }

    fn file_of(&mut self, node: u64) -> Result<&mut FileData, i32> {
        let file = self.nodes.get(&node).ok_or(libc::ENOENT)?.file;
        self.files.get_mut(&file).ok_or(libc::ESTALE)
    }

    /// Carries a request out, and again if its first answer is lost on the way.
    fn request(&mut self, act: impl Fn(&mut FsState) -> Result<(), i32>) -> Result<(), i32> {
        if self.is_gone {
            return Err(libc::ESTALE);
        }
        if self.is_read_only {
            return Err(libc::EROFS);
        }
        let first = act(self);
        match self.peculiarities.repeats_requests {
            true => act(self),
            false => first,
        }
    }

    fn remove(&mut self, name: &OsStr, kind: FileType) -> Result<(), i32> {
        let node = self.find(name)?;
        let data = self.file_of(node)?;
        match (data.kind == kind, kind) {
            (true, _) => {}
            (false, FileType::Directory) => return Err(libc::ENOTDIR),
            (false, _) => return Err(libc::EISDIR),
        }
        data.links -= 1;
        data.changed = SystemTime::now();
        self.root.remove(name);
        Ok(())
    }

    fn appeared(&mut self, name: &OsStr) {
        let is_public = !name.to_string_lossy().starts_with(".state")
            && !name.to_string_lossy().starts_with(".up")
            && !name.to_string_lossy().starts_with("..");
        if self.peculiarities.stat_fails_after_link && is_public {
            self.stat_fails = true;
        }
    }

    /// Whether a lock of another handle forbids this one to read, or to write.
    fn is_barred(&mut self, handle: u64, writes: bool) -> bool {
        if !self.peculiarities.mandatory_locks {
            return false;
        }
        let Some(open) = self.opens.get(&handle) else {
            return false;
        };
        let locks = self.files.get(&open.file).map(|data| data.locks.clone());
        let is_barred = locks
            .unwrap_or_default()
            .iter()
            .any(|(holder, exclusive)| *holder != handle && (*exclusive || writes));
        self.refusals_by_lock += usize::from(is_barred);
        is_barred
    }

    fn set_lock(&mut self, handle: u64, kind: i32) -> Result<(), i32> {
        let open = *self.opens.get(&handle).ok_or(libc::EBADF)?;
        let exclusive = kind == libc::F_WRLCK;
        let may_write = open.flags & libc::O_ACCMODE != libc::O_RDONLY;
        if exclusive && self.peculiarities.lock_needs_write && !may_write {
            return Err(libc::EBADF);
        }
        let data = self.files.get_mut(&open.file).ok_or(libc::ESTALE)?;
        let others = data.locks.iter().any(|(holder, theirs)| {
            *holder != handle && (exclusive || *theirs) && kind != libc::F_UNLCK
        });
        if others {
            return Err(libc::EAGAIN);
        }
        data.locks.retain(|(holder, _)| *holder != handle);
        if kind != libc::F_UNLCK {
            data.locks.push((handle, exclusive));
        }
        Ok(())
    }
}

impl ServedFs {
    fn state(&self) -> MutexGuard<'_, FsState> {
        lock(&self.0)
    }

    fn entry(&self, node: Result<u64, i32>, reply: ReplyEntry) {
        match node.and_then(|node| self.state().attr(node)) {
            Ok(attr) => reply.entry(&NO_TTL, &attr, 0),
            Err(errno) => reply.error(errno),
        }
    }
}

fn lock(state: &Mutex<FsState>) -> MutexGuard<'_, FsState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn answer(done: Result<(), i32>, reply: ReplyEmpty) {
    match done {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

impl Filesystem for ServedFs {
    fn init(&mut self, _: &Request<'_>, config: &mut KernelConfig) -> Result<(), i32> {
        config
            .add_capabilities(fuser::consts::FUSE_FLOCK_LOCKS)
            .expect("the kernel passes flock on");
        Ok(())
    }

    fn lookup(&mut self, _: &Request<'_>, _parent: u64, name: &OsStr, reply: ReplyEntry) {
        let node = self.state().find(name);
        self.entry(node, reply);
    }

    fn getattr(&mut self, _: &Request<'_>, node: u64, _handle: Option<u64>, reply: ReplyAttr) {
        let mut state = self.state();
        if node != ROOT && std::mem::take(&mut state.stat_fails) {
            return reply.error(libc::EIO);
        }
        match state.attr(node) {
            Ok(attr) => reply.attr(&NO_TTL, &attr),
            Err(errno) => reply.error(errno),
        }
    }

    fn setattr(
        &mut self,
        _: &Request<'_>,
        node: u64,
        mode: Option<u32>,
        _uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<u64>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<u32>,
        reply: ReplyAttr,
    ) {
        let mut state = self.state();
        let done = state.file_of(node).map(|data| {
            if let Some(mode) = mode {
                data.mode = (mode & 0o7777) as u16;
            }
            if let Some(gid) = gid {
                data.gid = gid;
            }
            if let Some(size) = size {
                data.bytes.resize(size as usize, 0);
            }
            data.changed = SystemTime::now();
            match mtime {
                Some(TimeOrNow::SpecificTime(time)) => data.modified = time,
                Some(TimeOrNow::Now) => data.modified = SystemTime::now(),
                None if size.is_some() => data.modified = SystemTime::now(),
                None => {}
            }
        });
        match done.and_then(|()| state.attr(node)) {
            Ok(attr) => reply.attr(&NO_TTL, &attr),
            Err(errno) => reply.error(errno),
        }
    }

    fn mkdir(
        &mut self,
        _: &Request<'_>,
        _parent: u64,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let node = {
            let mut state = self.state();
            match state.find(name) {
                Ok(_) => Err(libc::EEXIST),
                Err(libc::ENOENT) => {
                    let node = state.new_file(FileType::Directory, mode);
                    state.root.insert(name.to_owned(), node);
                    Ok(node)
                }
                Err(errno) => Err(errno),
            }
        };
        self.entry(node, reply);
    }

    fn unlink(&mut self, _: &Request<'_>, _parent: u64, name: &OsStr, reply: ReplyEmpty) {
        let done = self
            .state()
            .request(|state| state.remove(name, FileType::RegularFile));
        answer(done, reply);
    }

    fn rmdir(&mut self, _: &Request<'_>, _parent: u64, name: &OsStr, reply: ReplyEmpty) {
        let done = self
            .state()
            .request(|state| state.remove(name, FileType::Directory));
        answer(done, reply);
    }

    fn rename(
        &mut self,
        _: &Request<'_>,
        _parent: u64,
        name: &OsStr,
        _newparent: u64,
        newname: &OsStr,
        flags: u32,
        reply: ReplyEmpty,
    ) {
        if flags != 0 {
            return reply.error(libc::EINVAL);
        }
        let done = self.state().request(|state| {
            if state.is_full {
                return Err(libc::ENOSPC);
            }
            let node = state.find(name)?;
            state.root.remove(name);
            if let Some(replaced) = state.root.insert(newname.to_owned(), node)
                && let Ok(data) = state.file_of(replaced)
            {
                data.links -= 1;
            }
            state.file_of(node)?.changed = SystemTime::now();
            Ok(())
        });
        answer(done, reply);
    }

    fn link(
        &mut self,
        _: &Request<'_>,
        node: u64,
        _newparent: u64,
        newname: &OsStr,
        reply: ReplyEntry,
    ) {
        let linked = {
            let mut state = self.state();
            let peculiarities = state.peculiarities;
            if peculiarities.link_error != 0 {
                return reply.error(peculiarities.link_error);
            }
            let done = state.request(|state| {
                if state.find(newname).is_ok() {
                    return Err(libc::EEXIST);
                }
                let file = state.nodes.get(&node).ok_or(libc::ENOENT)?.file;
                let new = match peculiarities.inode_per_name {
                    true => {
                        let number = state.number();
                        state.nodes.insert(number, Node { file });
                        number
                    }
                    false => node,
                };
                let data = state.files.get_mut(&file).ok_or(libc::ESTALE)?;
                data.links += 1;
                data.changed = SystemTime::now();
                state.root.insert(newname.to_owned(), new);
                Ok(())
            });
            state.appeared(newname);
            done.and_then(|()| state.find(newname))
        };
        self.entry(linked, reply);
    }

    fn open(&mut self, _: &Request<'_>, node: u64, flags: i32, reply: ReplyOpen) {
        let mut state = self.state();
        let handle = state.number();
        match state.nodes.get(&node).copied() {
            Some(Node { file }) if !state.is_gone => {
                state.opens.insert(handle, OpenHandle { file, flags });
                reply.opened(handle, DIRECT_IO);
            }
            _ => reply.error(libc::ESTALE),
        }
    }

    fn create(
        &mut self,
        _: &Request<'_>,
        _parent: u64,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let mut state = self.state();
        match state.find(name) {
            Ok(_) => reply.error(libc::EEXIST),
            Err(libc::ENOENT) if state.is_read_only => reply.error(libc::EROFS),
            Err(libc::ENOENT) => {
                let node = state.new_file(FileType::RegularFile, mode);
                state.root.insert(name.to_owned(), node);
                let handle = state.number();
                state.opens.insert(handle, OpenHandle { file: node, flags });
                match state.attr(node) {
                    Ok(attr) => reply.created(&NO_TTL, &attr, 0, handle, DIRECT_IO),
                    Err(errno) => reply.error(errno),
                }
                state.appeared(name);
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn read(
        &mut self,
        _: &Request<'_>,
        node: u64,
        handle: u64,
        offset: i64,
        size: u32,
        _flags: i32,
        _lock_owner: Option<u64>,
        reply: ReplyData,
    ) {
        let mut state = self.state();
        if state.is_gone {
            return reply.error(libc::ESTALE);
        }
        if state.is_barred(handle, false) {
            return reply.error(libc::EACCES);
        }
        match state.file_of(node) {
            Ok(data) => {
                let start = (offset as usize).min(data.bytes.len());
                let end = (start + size as usize).min(data.bytes.len());
                reply.data(&data.bytes[start..end]);
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn write(
        &mut self,
        _: &Request<'_>,
        node: u64,
        handle: u64,
        offset: i64,
        bytes: &[u8],
        _write_flags: u32,
        _flags: i32,
        _lock_owner: Option<u64>,
        reply: ReplyWrite,
    ) {
        let mut state = self.state();
        if state.is_gone {
            return reply.error(libc::ESTALE);
        }
        if state.is_barred(handle, true) {
            return reply.error(libc::EACCES);
        }
        match state.file_of(node) {
            Ok(data) => {
                let end = offset as usize + bytes.len();
                if data.bytes.len() < end {
                    data.bytes.resize(end, 0);
                }
                data.bytes[offset as usize..end].copy_from_slice(bytes);
                data.modified = SystemTime::now();
                data.changed = data.modified;
                reply.written(bytes.len() as u32);
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn flush(&mut self, _: &Request<'_>, _: u64, _: u64, _lock_owner: u64, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&mut self, _: &Request<'_>, _: u64, _: u64, _datasync: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsyncdir(&mut self, _: &Request<'_>, _: u64, _: u64, _datasync: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn release(
        &mut self,
        _: &Request<'_>,
        _node: u64,
        handle: u64,
        _flags: i32,
        _lock_owner: Option<u64>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let mut state = self.state();
        if let Some(open) = state.opens.remove(&handle)
            && let Some(data) = state.files.get_mut(&open.file)
        {
            data.locks.retain(|(holder, _)| *holder != handle);
        }
        reply.ok();
    }

    fn readdir(
        &mut self,
        _: &Request<'_>,
        _node: u64,
        _handle: u64,
        offset: i64,
        mut reply: ReplyDirectory,
    ) {
        let state = self.state();
        if state.is_gone {
            return reply.error(libc::ESTALE);
        }
        let entries = state.root.iter().enumerate().skip(offset as usize);
        for (index, (name, node)) in entries {
            let kind = state
                .attr(*node)
                .map_or(FileType::RegularFile, |it| it.kind);
            if reply.add(*node, index as i64 + 1, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn setlk(
        &mut self,
        _: &Request<'_>,
        _node: u64,
        handle: u64,
        _lock_owner: u64,
        _start: u64,
        _end: u64,
        kind: i32,
        _pid: u32,
        sleep: bool,
        reply: ReplyEmpty,
    ) {
        let done = self.state().set_lock(handle, kind);
        // A blocked request would occupy the only thread of this file system. Tenure blocks in
        // `flock` on local file systems only.
        match (done, sleep) {
            (Err(libc::EAGAIN), true) => reply.error(libc::ENOLCK),
            (done, _) => answer(done, reply),
        }
    }
}
