//! Object keys of the protocol (P1 (exclusive lock key), P2 (shared lock keys), P6 (keys of
//! Tenure)).

use std::fmt;

/// The key of an object of the lock protocol, relative to the repository.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectKey {
    /// The exclusive lock.
    Exclusive,
    /// A shared lock. The name below the prefix is opaque (P2).
    Shared(String),
    /// The fencing counter (P38 (repository fence counter)).
    Fence,
    /// A scratch object that probes the abilities of the store (P26 (levels of conditional
    /// writes)).
    Probe(u64),
}

impl ObjectKey {
    /// Prefix of all shared locks.
    pub(crate) const SHARED_PREFIX: &str = "index/lock.shared/";

    const EXCLUSIVE: &str = "index/lock.exclusive";
    const FENCE: &str = "index/lock.tenure/fence";

    /// Creates the key of a shared lock acquired at `acquired_at` (P30.2 acquire a shared lock).
    /// `suffix` separates two processes whose clocks show the same time.
    pub(crate) fn shared(acquired_at: &str, suffix: u64) -> ObjectKey {
        ObjectKey::Shared(format!("{acquired_at}-{suffix:016x}"))
    }

    /// Returns the key below the repository, without the prefix of the store (P3 (store key
    /// prefix)).
    pub fn path(&self) -> String {
        match self {
            ObjectKey::Exclusive => Self::EXCLUSIVE.into(),
            ObjectKey::Shared(name) => format!("{}{name}", Self::SHARED_PREFIX),
            ObjectKey::Fence => Self::FENCE.into(),
            ObjectKey::Probe(number) => format!("index/lock.tenure/probe-{number:016x}"),
        }
    }

    /// Parses the key of a lock. Returns `None` if `path` does not name one. The inverse of
    /// [`ObjectKey::path`] for locks.
    pub fn lock(path: &str) -> Option<ObjectKey> {
        if path == Self::EXCLUSIVE {
            return Some(ObjectKey::Exclusive);
        }
        match path.strip_prefix(Self::SHARED_PREFIX) {
            None | Some("") => None,
            Some(name) => Some(ObjectKey::Shared(name.into())),
        }
    }

    /// Returns `true` for a half-written file of an original in a directory store (P4 (directory
    /// stores)). If it does not parse, it is not a lock (P24 (unparsable repository records)).
    pub(crate) fn is_scratch(&self) -> bool {
        matches!(self, ObjectKey::Shared(name) if name.ends_with(".tmp"))
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// P1, P2, P6: the keys, character by character.
    #[test]
    fn keys_are_spelled_as_the_originals_spell_them() {
        assert_eq!(ObjectKey::Exclusive.path(), "index/lock.exclusive");
        assert_eq!(
            ObjectKey::shared("2026-03-07T09:00:00.482913000Z", 0x1f).path(),
            "index/lock.shared/2026-03-07T09:00:00.482913000Z-000000000000001f"
        );
        assert_eq!(ObjectKey::Fence.path(), "index/lock.tenure/fence");
        assert_eq!(
            ObjectKey::Probe(7).path(),
            "index/lock.tenure/probe-0000000000000007"
        );
    }

    /// P2: every object under the prefix is a candidate, whatever its name.
    #[test]
    fn any_name_under_the_prefix_is_a_shared_lock() {
        for name in ["2026-03-07T14:30:00.5+05:30", "x", "a/b", "x.tmp"] {
            let key = ObjectKey::Shared(name.into());
            assert_eq!(ObjectKey::lock(&key.path()), Some(key));
        }
        assert_eq!(
            ObjectKey::lock("index/lock.exclusive"),
            Some(ObjectKey::Exclusive)
        );
        assert_eq!(ObjectKey::lock("index/lock.shared/"), None);
        assert_eq!(ObjectKey::lock("index/lock.tenure/fence"), None);
    }
}
