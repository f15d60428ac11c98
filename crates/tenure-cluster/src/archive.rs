//! Backup file format: the states of all groups with checksums, and a manifest at the end.
//!
//! ```text
//!   magic ‖ length, head: fixed settings and id of the cluster ‖ group… ‖ manifest
//!   group    = 1 ‖ group head: number u32, index u64, length u64, SHA-256 of the state ‖ state
//!   manifest = 0 ‖ count u32 ‖ SHA-256 over the head and all group heads
//! ```
//!
//! Each group is consistent in itself; the groups are not consistent with each other. No guarantee
//! spans groups except those of the system group, whose pending changes any node can continue.

use std::io::{self, Read, Write};

use aws_lc_rs::digest;
use bytes::Bytes;
use tenure_core::codec::{Encode, Reader, Writer};
use tenure_core::policy::Algorithm;
use tenure_node::ClusterConfig;

const MAGIC: &[u8; 8] = b"tenurbk\x01";
const SUM: usize = 32;
/// Maximum length of the head.
const MAX_HEAD: u32 = 4096;
/// Maximum length of a state. A longer one is refused before memory is allocated.
const MAX_STATE: u64 = 4 << 30;

/// Reason why a backup cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The file cannot be read or written.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The file is not a backup or is truncated.
    #[error("this is not a complete backup: {0}")]
    Damaged(&'static str),
    /// The checksum of a group is wrong.
    #[error("the backup is damaged: the checksum of group {0} is wrong; use another backup")]
    Group(u32),
    /// Groups are missing.
    #[error("the backup is incomplete: it has {found} of {wanted} groups; use another backup")]
    Missing {
        /// Number of groups in the file.
        found: usize,
        /// Number of groups of the cluster.
        wanted: usize,
    },
}

/// State of one group in a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedGroup {
    /// Number of the group.
    pub group: u32,
    /// Index of the last entry that the state contains.
    pub index: u64,
    /// The state in the snapshot format.
    pub state: Bytes,
}

/// Writes a backup, one group at a time.
pub struct ArchiveWriter<W: Write> {
    out: W,
    sum: digest::Context,
    count: u32,
}

impl<W: Write> ArchiveWriter<W> {
    /// Starts a backup of a cluster with this id and these fixed settings.
    pub fn new(
        mut out: W,
        facts: &ClusterConfig,
        cluster: Option<u64>,
    ) -> io::Result<ArchiveWriter<W>> {
        let mut head = Writer::new();
        head.number(u64::from(facts.group_count));
        head.number(facts.prefix_segments as u64);
        head.put(&facts.default_algorithm);
        // The first release neither writes nor reads this field.
        head.number(cluster.unwrap_or(0));
        let head = head.into_bytes();
        out.write_all(MAGIC)?;
        out.write_all(&u32::try_from(head.len()).unwrap_or(0).to_le_bytes())?;
        out.write_all(&head)?;
        let mut sum = digest::Context::new(&digest::SHA256);
        sum.update(&head);
        Ok(ArchiveWriter { out, sum, count: 0 })
    }

    /// Appends the state of a group.
    pub fn group(&mut self, group: u32, index: u64, state: &[u8]) -> io::Result<()> {
        let sum = digest::digest(&digest::SHA256, state);
        let mut head = group.to_le_bytes().to_vec();
        head.extend_from_slice(&index.to_le_bytes());
        head.extend_from_slice(&(state.len() as u64).to_le_bytes());
        head.extend_from_slice(sum.as_ref());
        self.sum.update(&head);
        self.out.write_all(&[1])?;
        self.out.write_all(&head)?;
        self.out.write_all(state)?;
        self.count += 1;
        Ok(())
    }

    /// Writes the manifest. Without it the file is not a valid backup.
    pub fn finish(mut self) -> io::Result<W> {
        self.out.write_all(&[0])?;
        self.out.write_all(&self.count.to_le_bytes())?;
        self.out.write_all(self.sum.finish().as_ref())?;
        self.out.flush()?;
        Ok(self.out)
    }
}

/// Contents of a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Archive {
    /// Fixed settings of the original cluster.
    pub facts: ClusterConfig,
    /// Id of the original cluster. `None` in a backup of the first release.
    pub cluster: Option<u64>,
    /// States of all groups, by group number.
    pub groups: Vec<SavedGroup>,
}

/// Reads a complete backup and verifies all checksums.
pub fn read_archive(mut input: impl Read) -> Result<Archive, ArchiveError> {
    if take::<8>(&mut input)? != *MAGIC {
        return Err(ArchiveError::Damaged(
            "the file does not start like a backup",
        ));
    }
    let length = u32::from_le_bytes(take(&mut input)?);
    if length > MAX_HEAD {
        return Err(ArchiveError::Damaged("its header is too long"));
    }
    let mut head = vec![0; length as usize];
    input.read_exact(&mut head)?;
    let (facts, cluster) =
        read_head(&head).map_err(|_| ArchiveError::Damaged("its header cannot be decoded"))?;
    let mut sum = digest::Context::new(&digest::SHA256);
    sum.update(&head);
    let mut groups: Vec<SavedGroup> = Vec::new();
    loop {
        match take::<1>(&mut input)? {
            [1] => {}
            [0] => break,
            _ => return Err(ArchiveError::Damaged("it contains an unknown section")),
        }
        let (number, place, size) = (take(&mut input)?, take(&mut input)?, take(&mut input)?);
        let claimed: [u8; SUM] = take(&mut input)?;
        // The manifest covers the head of each group, so no group can be exchanged or removed.
        for part in [&number[..], &place, &size, &claimed] {
            sum.update(part);
        }
        let group = u32::from_le_bytes(number);
        let index = u64::from_le_bytes(place);
        let length = u64::from_le_bytes(size);
        if length > MAX_STATE {
            return Err(ArchiveError::Group(group));
        }
        // Reads what is there instead of allocating the announced length.
        let mut state = Vec::new();
        let read = (&mut input).take(length).read_to_end(&mut state)?;
        let is_whole = read as u64 == length;
        if !is_whole || digest::digest(&digest::SHA256, &state).as_ref() != claimed {
            return Err(ArchiveError::Group(group));
        }
        let state = Bytes::from(state);
        groups.push(SavedGroup {
            group,
            index,
            state,
        });
    }
    let count = u32::from_le_bytes(take(&mut input)?);
    let claimed: [u8; SUM] = take(&mut input)?;
    if count as usize != groups.len() || sum.finish().as_ref() != claimed {
        return Err(ArchiveError::Damaged(
            "its manifest does not match its content",
        ));
    }
    groups.sort_by_key(|saved| saved.group);
    groups.dedup_by_key(|saved| saved.group);
    let wanted = facts.group_count as usize + 1;
    if groups.len() != wanted {
        let found = groups.len();
        return Err(ArchiveError::Missing { found, wanted });
    }
    Ok(Archive {
        facts,
        cluster,
        groups,
    })
}

fn read_head(head: &[u8]) -> Result<(ClusterConfig, Option<u64>), tenure_core::codec::DecodeError> {
    let mut input = Reader::new(head);
    let facts = ClusterConfig {
        group_count: input.small()?,
        prefix_segments: input.small()? as usize,
        default_algorithm: Algorithm::take(&mut input)?,
    };
    let cluster = if input.remaining() > 0 {
        input.number()?
    } else {
        0
    };
    Ok((facts, Some(cluster).filter(|id| *id != 0)))
}

fn take<const N: usize>(input: &mut impl Read) -> Result<[u8; N], ArchiveError> {
    let mut bytes = [0; N];
    match input.read_exact(&mut bytes) {
        Ok(()) => Ok(bytes),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            Err(ArchiveError::Damaged("it is truncated"))
        }
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> ClusterConfig {
        ClusterConfig {
            group_count: 1,
            prefix_segments: 1,
            default_algorithm: Algorithm::RecursiveRw,
        }
    }

    fn archive(groups: u32) -> Vec<u8> {
        let mut writer = ArchiveWriter::new(Vec::new(), &facts(), Some(7)).unwrap();
        for group in 0..groups {
            writer.group(group, 7, &[group as u8; 100]).unwrap();
        }
        writer.finish().unwrap()
    }

    #[test]
    fn what_was_saved_comes_back_or_is_refused() {
        let bytes = archive(2);
        let found = read_archive(&bytes[..]).unwrap();
        assert_eq!((found.facts, found.cluster), (facts(), Some(7)));
        let groups = found.groups;
        assert_eq!(groups.len(), 2);
        assert_eq!((groups[1].index, &groups[1].state[..]), (7, &[1; 100][..]));
        for end in 0..bytes.len() {
            assert!(read_archive(&bytes[..end]).is_err(), "cut at {end}");
        }
        let mut damaged = bytes;
        for at in 0..damaged.len() {
            damaged[at] ^= 0x40;
            assert!(read_archive(&damaged[..]).is_err(), "byte {at}");
            damaged[at] ^= 0x40;
        }
        assert!(matches!(
            read_archive(&archive(1)[..]),
            Err(ArchiveError::Missing {
                found: 1,
                wanted: 2
            })
        ));
    }
}
