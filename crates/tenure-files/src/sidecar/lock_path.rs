//! Paths of a sidecar lock: beside its target, with one name for all spellings of the target (S1
//! (normalized target)–S4 (aliases of a target)).

use std::ffi::{OsStr, OsString};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use super::options::Options;
use crate::dir::Dir;
use crate::error::{Class, Error, Result};

/// Target, lock and reclaim guard, with their open directory.
#[derive(Clone, Debug)]
pub(super) struct LockPaths {
    pub(super) target: PathBuf,
    pub(super) lock_path: PathBuf,
    pub(super) dir: Arc<Dir>,
    pub(super) lock_name: OsString,
    pub(super) guard_name: OsString,
}

/// Whether to create the target's directory if it is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ParentDirectory {
    /// Create it, as `acquire` does (S1).
    Create,
    /// Do not create it, as for inspection.
    Leave,
}

impl LockPaths {
    pub(super) fn of(options: &Options, parent: ParentDirectory) -> Result<LockPaths> {
        let target = normalize(&options.target, parent)?;
        let lock_path = match &options.lock_path {
            Some(path) => std::path::absolute(path)
                .map_err(|error| Error::io(path, "cannot make the path absolute", error))?,
            None => with_suffix(&target, ".lock"),
        };
        let (dir, lock_name) = crate::dir::open_parent(&lock_path)?;
        let guard_name = with_suffix(Path::new(&lock_name), ".reclaim").into_os_string();
        Ok(LockPaths {
            target,
            lock_path,
            dir: Arc::new(dir),
            lock_name,
            guard_name,
        })
    }

    /// Returns the address that a user types.
    pub(super) fn address(&self) -> String {
        format!("sidecar:{}", self.target.display())
    }
}

/// Returns `realpath(dirname(target)) + "/" + basename(target)`, or the absolute path if the
/// directory cannot be resolved (S1).
pub(super) fn normalize(target: &Path, parent: ParentDirectory) -> Result<PathBuf> {
    if target.as_os_str().is_empty() || target.as_os_str().as_encoded_bytes().contains(&0) {
        return Err(Error::new(
            Class::BadInput,
            target,
            "is not a path to a file",
        ));
    }
    let absolute = std::path::absolute(target)
        .map_err(|error| Error::io(target, "cannot make the path absolute", error))?;
    let absolute = without_dots(&absolute);
    let (Some(directory), Some(name)) = (absolute.parent(), absolute.file_name()) else {
        return Err(Error::new(
            Class::BadInput,
            target,
            "is not a path to a file",
        ));
    };
    let mut real = directory.canonicalize();
    if real.is_err() && parent == ParentDirectory::Create {
        std::fs::create_dir_all(directory)
            .map_err(|error| Error::io(directory, "cannot create the directory", error))?;
        real = directory.canonicalize();
    }
    Ok(real.map_or_else(|_| absolute.clone(), |real| real.join(name)))
}

/// Removes `.` and `..` textually, as the original does before it accesses the disk.
fn without_dots(path: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                clean.pop();
            }
            Component::RootDir | Component::Prefix(_) | Component::Normal(_) => {
                clean.push(component);
            }
        }
    }
    clean
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut text = path.as_os_str().to_owned();
    text.push(OsStr::new(suffix));
    PathBuf::from(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S1, S4: symlinked parent directories give one lock; the last component is not resolved.
    #[test]
    fn two_names_of_a_parent_are_one_target() {
        let temp = tempfile::tempdir().unwrap();
        let real = temp.path().canonicalize().unwrap().join("real");
        std::fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, temp.path().join("alias")).unwrap();
        let by_alias = normalize(
            &temp.path().join("alias/state.json"),
            ParentDirectory::Leave,
        )
        .unwrap();
        assert_eq!(by_alias, real.join("state.json"));
        let dotted = normalize(&real.join("x/../state.json"), ParentDirectory::Leave).unwrap();
        assert_eq!(dotted, real.join("state.json"));

        std::fs::write(real.join("file"), b"").unwrap();
        std::os::unix::fs::symlink("file", real.join("link")).unwrap();
        assert_eq!(
            normalize(&real.join("link"), ParentDirectory::Leave).unwrap(),
            real.join("link")
        );
    }

    /// S1: the parent is created on request; otherwise a path with a missing parent is used as it
    /// is.
    #[test]
    fn the_parent_is_created_only_by_acquire() {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path().canonicalize().unwrap();
        let target = root.join("a/b/state.json");
        assert_eq!(normalize(&target, ParentDirectory::Leave).unwrap(), target);
        assert!(!root.join("a").exists());
        assert_eq!(normalize(&target, ParentDirectory::Create).unwrap(), target);
        assert!(root.join("a/b").is_dir());
    }

    /// S2 (lock path), S3: lock and guard names, and a lock path chosen by the caller.
    #[test]
    fn lock_and_guard_stand_beside_the_target() {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path().canonicalize().unwrap();
        let options = Options::new(root.join("state.json"));
        let paths = LockPaths::of(&options, ParentDirectory::Create).unwrap();
        assert_eq!(paths.lock_path, root.join("state.json.lock"));
        assert_eq!(paths.guard_name, "state.json.lock.reclaim");
        let own = options.lock_path(root.join("own.lck"));
        let paths = LockPaths::of(&own, ParentDirectory::Create).unwrap();
        assert_eq!(paths.lock_path, root.join("own.lck"));
        assert_eq!(paths.guard_name, "own.lck.reclaim");
    }

    #[test]
    fn a_target_without_a_name_is_bad_input() {
        for target in ["", "/", "/..", "a\0b"] {
            let error = normalize(Path::new(target), ParentDirectory::Leave).unwrap_err();
            assert_eq!(error.class(), Class::BadInput, "{target:?}");
        }
    }
}
