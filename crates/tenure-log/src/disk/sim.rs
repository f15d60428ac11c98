//! Simulated in-memory disk with power loss, torn writes and injected faults.
//!
//! ```text
//!   write ──▶ seen (what the process reads) + pending ──finish_sync──▶ durable
//!                                               └──crash: any sectors of it survive──▶ durable
//!   create, rename, remove ──▶ names + pending ──sync_dir──▶ durable names
//!                                               └──crash: a first part of them survives
//! ```
//!
//! It is deterministic: the same calls and the same decisions of [`SimDisk::crash`] give the same
//! bytes. It has no notion of time. A simulator models a slow disk by waiting before an append and
//! between the two halves of a sync; a crash in between affects everything that is not yet synced.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tenure_random::SplitMix64;

use super::{Disk, DiskFile, SyncPoint};

/// A simulated disk. Clones are handles to the same disk.
#[derive(Clone)]
pub struct SimDisk {
    state: Arc<Mutex<SimState>>,
    incarnation: u64,
}

/// A file on a [`SimDisk`].
#[derive(Debug)]
pub struct SimFile {
    disk: SimDisk,
    inode: u64,
}

/// The directory lock of a [`SimDisk`]. A crash releases it like a drop.
#[derive(Debug)]
pub struct SimLock {
    disk: SimDisk,
}

#[derive(Clone)]
struct SimState {
    sector: usize,
    /// Number of crashes. Handles of an earlier incarnation return errors.
    incarnation: u64,
    /// Number of power losses.
    boot: u128,
    locked: bool,
    names: BTreeMap<String, u64>,
    durable_names: BTreeMap<String, u64>,
    pending_names: Vec<NameChange>,
    inodes: BTreeMap<u64, Inode>,
    next_inode: u64,
    next_write: u64,
    /// For salts and sectors.
    random: SplitMix64,
    operations: u64,
    power_ends_at: Option<u64>,
    syncs_until_failure: Option<u64>,
    writes_until_failure: Option<u64>,
    silent_fault: Option<SilentFault>,
    syncs_that_lie: u64,
    capacity: Option<u64>,
}

/// A write that reports success and does something else on the disk. The process still reads what
/// it wrote, until the disk is read anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SilentFault {
    /// The write never reaches the disk.
    Lost,
    /// It reaches the disk at a wrong place of the same file.
    Misdirected,
    /// It reaches the disk where it should, and once more at a wrong place of the same file.
    Duplicated,
}

#[derive(Clone)]
enum NameChange {
    Create(String, u64),
    Rename(String, String),
    Remove(String),
}

#[derive(Clone, Default)]
struct Inode {
    seen: Vec<u8>,
    durable: Vec<u8>,
    pending: Vec<PendingWrite>,
}

#[derive(Clone)]
struct PendingWrite {
    number: u64,
    offset: usize,
    bytes: Vec<u8>,
}

impl SimDisk {
    /// The usual sector size of disks. A crash keeps or loses whole sectors.
    pub const SECTOR: usize = 512;

    /// Creates an empty disk. The seed decides [`Disk::random`] and what a failed sync leaves.
    pub fn new(seed: u64) -> SimDisk {
        SimDisk::with_sector(seed, SimDisk::SECTOR)
    }

    /// Creates an empty disk that tears writes at multiples of `sector` bytes. 1 is worse than any
    /// hardware.
    pub fn with_sector(seed: u64, sector: usize) -> SimDisk {
        let state = SimState {
            sector: sector.max(1),
            incarnation: 0,
            boot: 1,
            locked: false,
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            pending_names: Vec::new(),
            inodes: BTreeMap::new(),
            next_inode: 0,
            next_write: 0,
            random: SplitMix64::new(seed),
            operations: 0,
            power_ends_at: None,
            syncs_until_failure: None,
            writes_until_failure: None,
            silent_fault: None,
            syncs_that_lie: 0,
            capacity: None,
        };
        SimDisk {
            state: Arc::new(Mutex::new(state)),
            incarnation: 0,
        }
    }

    /// Simulates a power loss and returns the handle of the new incarnation.
    ///
    /// `keep` decides for every sector of every unsynced write, oldest first, whether it reached
    /// the disk. Then it decides for each unsynced change of a name, until it returns `false`,
    /// because directories keep their order.
    #[must_use = "handles from before the crash are dead"]
    pub fn crash(&self, keep: &mut dyn FnMut() -> bool) -> SimDisk {
        let mut state = self.state();
        let sector = state.sector;
        for inode in state.inodes.values_mut() {
            inode.lose_power(sector, keep);
        }
        let changes = std::mem::take(&mut state.pending_names);
        for change in changes {
            if !keep() {
                break;
            }
            change.apply(&mut state.durable_names);
        }
        state.names = state.durable_names.clone();
        let SimState { names, inodes, .. } = &mut *state;
        inodes.retain(|number, _| names.values().any(|named| named == number));
        state.power_ends_at = None;
        state.syncs_until_failure = None;
        state.writes_until_failure = None;
        state.boot += 1;
        state.begin_incarnation();
        SimDisk {
            state: Arc::clone(&self.state),
            incarnation: state.incarnation,
        }
    }

    /// Simulates the death of the process (`kill -9`). The machine continues, so nothing is lost.
    #[must_use = "handles of the dead process are dead too"]
    pub fn kill(&self) -> SimDisk {
        let mut state = self.state();
        state.begin_incarnation();
        SimDisk {
            state: Arc::clone(&self.state),
            incarnation: state.incarnation,
        }
    }

    /// Removes all files, as if the disk were replaced.
    #[must_use = "handles from before are dead"]
    pub fn wipe(&self) -> SimDisk {
        let mut state = self.state();
        state.names.clear();
        state.durable_names.clear();
        state.pending_names.clear();
        state.inodes.clear();
        state.begin_incarnation();
        SimDisk {
            state: Arc::clone(&self.state),
            incarnation: state.incarnation,
        }
    }

    /// Copies the disk with its contents and its random state.
    pub fn copy(&self) -> SimDisk {
        SimDisk {
            state: Arc::new(Mutex::new(self.state().clone())),
            incarnation: self.incarnation,
        }
    }

    /// Returns the number of writes, syncs and changes of names so far.
    pub fn operations(&self) -> u64 {
        self.state().operations
    }

    /// Ends the power *during* the operation with this number (counted by [`SimDisk::operations`]).
    ///
    /// That operation and all later ones return errors. Its effect is as uncertain as that of any
    /// unsynced write.
    pub fn power_ends_at(&self, operation: u64) {
        self.state().power_ends_at = Some(operation);
    }

    /// Makes the sync (of a file or of the directory) after `syncs` more fail.
    ///
    /// What it should have made durable is then partly on disk and no longer pending: the next sync
    /// succeeds without writing it, as on real kernels.
    pub fn fail_sync_after(&self, syncs: u64) {
        self.state().syncs_until_failure = Some(syncs);
    }

    /// Makes the write after `writes` more fail half way.
    pub fn fail_write_after(&self, writes: u64) {
        self.state().writes_until_failure = Some(writes);
    }

    /// Makes the next write go wrong without an error.
    pub fn next_write_is(&self, fault: SilentFault) {
        self.state().silent_fault = Some(fault);
    }

    /// Makes the next `syncs` syncs of files report success without making anything durable. A later
    /// sync does; a power loss before it loses the writes.
    pub fn lie_about_syncs(&self, syncs: u64) {
        self.state().syncs_that_lie = syncs;
    }

    /// Limits the total size of all files. `None` removes the limit.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.state().capacity = bytes;
    }

    /// Returns the total size of all files.
    pub fn used(&self) -> u64 {
        self.state().used()
    }

    /// Simulates bit rot: flips one bit on the disk. Returns `false` if the file does not have that
    /// byte.
    pub fn flip_bit(&self, name: &str, offset: usize, bit: u8) -> bool {
        let mut state = self.state();
        let Some(inode) = state.names.get(name).copied() else {
            return false;
        };
        let Some(inode) = state.inodes.get_mut(&inode) else {
            return false;
        };
        if offset >= inode.durable.len() || offset >= inode.seen.len() {
            return false;
        }
        inode.durable[offset] ^= 1 << (bit % 8);
        inode.seen[offset] ^= 1 << (bit % 8);
        true
    }

    /// Returns the bytes of a file as the process reads them.
    pub fn bytes(&self, name: &str) -> Option<Vec<u8>> {
        let state = self.state();
        let inode = state.names.get(name)?;
        Some(state.inodes[inode].seen.clone())
    }

    /// Creates a file that is durable at once.
    pub fn put(&self, name: &str, bytes: Vec<u8>) {
        let mut state = self.state();
        let number = state.next_inode;
        state.next_inode += 1;
        state.names.insert(name.to_owned(), number);
        state.durable_names.insert(name.to_owned(), number);
        let inode = Inode {
            seen: bytes.clone(),
            durable: bytes,
            pending: Vec::new(),
        };
        state.inodes.insert(number, inode);
    }

    fn state(&self) -> MutexGuard<'_, SimState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the state, or an error if this handle belongs to an earlier incarnation.
    fn alive(&self) -> io::Result<MutexGuard<'_, SimState>> {
        let state = self.state();
        if state.incarnation == self.incarnation {
            Ok(state)
        } else {
            Err(io::Error::other(
                "the process that held this handle is dead",
            ))
        }
    }

    fn change_names(&self, change: impl FnOnce(&mut SimState) -> io::Result<()>) -> io::Result<()> {
        let mut state = self.alive()?;
        state.powered()?;
        change(&mut state)?;
        state.count()
    }
}

impl std::fmt::Debug for SimDisk {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("SimDisk")
            .field("life", &self.incarnation)
            .finish_non_exhaustive()
    }
}

impl SimState {
    fn begin_incarnation(&mut self) {
        self.incarnation += 1;
        self.locked = false;
        self.silent_fault = None;
        self.syncs_that_lie = 0;
    }

    fn used(&self) -> u64 {
        self.names
            .values()
            .map(|inode| self.inodes[inode].seen.len() as u64)
            .sum()
    }

    fn powered(&self) -> io::Result<()> {
        match self.power_ends_at {
            Some(end) if self.operations >= end => Err(io::Error::other("the power is gone")),
            _ => Ok(()),
        }
    }

    /// Counts a completed operation. Returns an error if the power ended during it.
    fn count(&mut self) -> io::Result<()> {
        self.operations += 1;
        self.powered()
    }

    /// Returns `true` if the current sync is the one that must fail.
    fn sync_fails(&mut self) -> bool {
        let fails = self.syncs_until_failure == Some(0);
        self.syncs_until_failure = self
            .syncs_until_failure
            .and_then(|left| left.checked_sub(1));
        fails
    }

    fn change_name(&mut self, change: NameChange) {
        change.apply(&mut self.names);
        self.pending_names.push(change);
    }
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<String, u64>) {
        match self {
            NameChange::Create(name, inode) => {
                names.insert(name.clone(), *inode);
            }
            NameChange::Rename(from, to) => {
                if let Some(inode) = names.remove(from) {
                    names.insert(to.clone(), inode);
                }
            }
            NameChange::Remove(name) => {
                names.remove(name);
            }
        }
    }
}

impl Inode {
    /// Keeps the sectors of pending writes for which `keep` returns `true` and drops the others.
    fn lose_power(&mut self, sector: usize, keep: &mut dyn FnMut() -> bool) {
        for write in std::mem::take(&mut self.pending) {
            let end = write.offset + write.bytes.len();
            let mut from = write.offset;
            while from < end {
                let to = end.min((from / sector + 1) * sector);
                if keep() {
                    let bytes = &write.bytes[from - write.offset..to - write.offset];
                    put_at(&mut self.durable, from, bytes);
                }
                from = to;
            }
        }
        self.seen.clone_from(&self.durable);
    }

    fn make_durable(&mut self, before: u64) {
        let pending = std::mem::take(&mut self.pending);
        for write in pending {
            if write.number < before {
                put_at(&mut self.durable, write.offset, &write.bytes);
            } else {
                self.pending.push(write);
            }
        }
    }
}

fn put_at(bytes: &mut Vec<u8>, offset: usize, part: &[u8]) {
    let end = offset + part.len();
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    bytes[offset..end].copy_from_slice(part);
}

/// Returns an offset one page after the right one, or before it at the end of the file.
fn wrong_place(offset: usize, length: usize, file: usize) -> Option<usize> {
    const PAGE: usize = 4096;
    let after = offset + PAGE;
    if after + length <= file {
        Some(after)
    } else {
        offset.checked_sub(PAGE)
    }
}

fn not_found(name: &str) -> io::Error {
    io::Error::new(ErrorKind::NotFound, format!("no file {name}"))
}

impl Disk for SimDisk {
    type File = SimFile;
    type Lock = SimLock;

    fn place(&self) -> String {
        "a simulated disk".to_owned()
    }

    fn lock(&self) -> io::Result<Option<SimLock>> {
        let mut state = self.alive()?;
        if state.locked {
            return Ok(None);
        }
        state.locked = true;
        Ok(Some(SimLock { disk: self.clone() }))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.alive()?.names.keys().cloned().collect())
    }

    fn create(&self, name: &str) -> io::Result<SimFile> {
        let mut made = 0;
        self.change_names(|state| {
            made = state.next_inode;
            state.next_inode += 1;
            state.inodes.insert(made, Inode::default());
            state.change_name(NameChange::Create(name.to_owned(), made));
            Ok(())
        })?;
        Ok(SimFile {
            disk: self.clone(),
            inode: made,
        })
    }

    fn open(&self, name: &str) -> io::Result<SimFile> {
        let state = self.alive()?;
        state.powered()?;
        let inode = *state.names.get(name).ok_or_else(|| not_found(name))?;
        Ok(SimFile {
            disk: self.clone(),
            inode,
        })
    }

    fn open_durable(&self, name: &str) -> io::Result<SimFile> {
        let mut state = self.alive()?;
        let number = *state.names.get(name).ok_or_else(|| not_found(name))?;
        state.powered()?;
        let all = state.next_write;
        let inode = state
            .inodes
            .get_mut(&number)
            .ok_or_else(|| not_found(name))?;
        // Flush, then drop the clean pages: see `RealDisk::open_durable`.
        inode.make_durable(all);
        inode.seen.clone_from(&inode.durable);
        state.count()?;
        Ok(SimFile {
            disk: self.clone(),
            inode: number,
        })
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.change_names(|state| {
            if !state.names.contains_key(from) {
                return Err(not_found(from));
            }
            state.change_name(NameChange::Rename(from.to_owned(), to.to_owned()));
            Ok(())
        })
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.change_names(|state| {
            if !state.names.contains_key(name) {
                return Err(not_found(name));
            }
            state.change_name(NameChange::Remove(name.to_owned()));
            Ok(())
        })
    }

    fn sync_dir(&self) -> io::Result<()> {
        let mut state = self.alive()?;
        state.powered()?;
        state.count()?;
        if state.sync_fails() {
            return Err(io::Error::other("a simulated sync error"));
        }
        for change in std::mem::take(&mut state.pending_names) {
            change.apply(&mut state.durable_names);
        }
        Ok(())
    }

    fn boot(&self) -> Option<u128> {
        Some(self.state().boot)
    }

    fn random(&self) -> u64 {
        self.state().random.next()
    }
}

impl DiskFile for SimFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.disk.alive()?.inodes[&self.inode].seen.len() as u64)
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let state = self.disk.alive()?;
        let seen = &state.inodes[&self.inode].seen;
        let from = usize::try_from(offset).map_err(|_| ErrorKind::UnexpectedEof)?;
        let part = from
            .checked_add(bytes.len())
            .and_then(|to| seen.get(from..to))
            .ok_or(ErrorKind::UnexpectedEof)?;
        bytes.copy_from_slice(part);
        Ok(())
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.disk.alive()?;
        state.powered()?;
        let offset = usize::try_from(offset).map_err(|_| ErrorKind::FileTooLarge)?;
        let grows = (offset + bytes.len()).saturating_sub(state.inodes[&self.inode].seen.len());
        if state
            .capacity
            .is_some_and(|capacity| state.used() + grows as u64 > capacity)
        {
            return Err(ErrorKind::StorageFull.into());
        }
        let fails = state.writes_until_failure == Some(0);
        state.writes_until_failure = state
            .writes_until_failure
            .and_then(|left| left.checked_sub(1));
        let bytes = if fails {
            &bytes[..bytes.len() / 2]
        } else {
            bytes
        };

        let number = state.next_write;
        state.next_write += 1;
        let silent = state.silent_fault.take();
        if let Some(inode) = state.inodes.get_mut(&self.inode) {
            put_at(&mut inode.seen, offset, bytes);
            let (there, elsewhere) = match silent {
                None => (true, false),
                Some(SilentFault::Lost) => (false, false),
                Some(SilentFault::Misdirected) => (false, true),
                Some(SilentFault::Duplicated) => (true, true),
            };
            let wrong = wrong_place(offset, bytes.len(), inode.seen.len()).filter(|_| elsewhere);
            for offset in there.then_some(offset).into_iter().chain(wrong) {
                inode.pending.push(PendingWrite {
                    number,
                    offset,
                    bytes: bytes.to_vec(),
                });
            }
        }
        state.count()?;
        if fails {
            Err(io::Error::other("a simulated write error"))
        } else {
            Ok(())
        }
    }

    fn begin_sync(&mut self) -> SyncPoint {
        SyncPoint(self.disk.state().next_write)
    }

    fn finish_sync(&mut self, point: SyncPoint) -> io::Result<()> {
        let mut state = self.disk.alive()?;
        state.powered()?;
        // If the power ends during a sync, the crash decides about the pending writes.
        state.count()?;
        let fails = state.sync_fails();
        let sector = state.sector;
        let mut dice = state.random.next();
        if state.syncs_that_lie > 0 {
            state.syncs_that_lie -= 1;
            return Ok(());
        }
        let Some(inode) = state.inodes.get_mut(&self.inode) else {
            return Ok(());
        };
        if !fails {
            inode.make_durable(point.0);
            return Ok(());
        }
        // The page cache still shows the written bytes, but no later sync writes them.
        let seen = inode.seen.clone();
        inode.lose_power(sector, &mut || {
            dice = dice.rotate_left(1);
            dice & 1 == 1
        });
        inode.seen = seen;
        Err(io::Error::other("a simulated sync error"))
    }
}

impl Drop for SimLock {
    fn drop(&mut self) {
        if let Ok(mut state) = self.disk.alive() {
            state.locked = false;
        }
    }
}
