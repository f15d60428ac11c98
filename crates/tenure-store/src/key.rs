//! The names of everything this protocol touches in a store (P1, P2, P6).

use std::fmt;

/// One object of the lock protocol, named relative to the repository.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectKey {
    /// The one exclusive lock.
    Exclusive,
    /// One shared lock; the rest of its name is opaque (P2).
    Shared(String),
    /// The counter of fencing numbers (P38).
    Fence,
    /// A scratch object that shows what the store can do (P26).
    Probe(u64),
}

impl ObjectKey {
    /// Where the shared locks lie.
    pub const SHARED_PREFIX: &str = "index/lock.shared/";

    const EXCLUSIVE: &str = "index/lock.exclusive";
    const FENCE: &str = "index/lock.tenure/fence";

    /// The key of a shared lock taken at `acquired_at` (P30.2): the suffix keeps two processes
    /// with the same clock reading apart.
    pub fn shared(acquired_at: &str, suffix: u64) -> ObjectKey {
        ObjectKey::Shared(format!("{acquired_at}-{suffix:016x}"))
    }

    /// The key below the repository, without the store's own prefix (P3).
    pub fn path(&self) -> String {
        match self {
            ObjectKey::Exclusive => Self::EXCLUSIVE.into(),
            ObjectKey::Shared(name) => format!("{}{name}", Self::SHARED_PREFIX),
            ObjectKey::Fence => Self::FENCE.into(),
            ObjectKey::Probe(number) => format!("index/lock.tenure/probe-{number:016x}"),
        }
    }

    /// The lock that `path` names, if it names one. The inverse of [`ObjectKey::path`] for locks.
    pub fn lock(path: &str) -> Option<ObjectKey> {
        if path == Self::EXCLUSIVE {
            return Some(ObjectKey::Exclusive);
        }
        match path.strip_prefix(Self::SHARED_PREFIX) {
            None | Some("") => None,
            Some(name) => Some(ObjectKey::Shared(name.into())),
        }
    }

    /// A half-written file of an original on a directory store (P4). One that does not parse is
    /// no lock (P24).
    pub fn is_scratch(&self) -> bool {
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

    /// P1, P2, P6: the keys, to the letter.
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
