//! Crash-safe changes of a data directory: each creation, rename and removal is one durable step.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Live data of a node.
pub(crate) const LIVE: &str = "db";
/// Data that a restore or a recovery is building, not yet live.
pub(crate) const STAGING: &str = "db.new";
/// Prefixes of data that is not live: `<prefix>.<number>`.
pub(crate) const DAMAGED: &str = "db.damaged";
pub(crate) const BEFORE_RECOVER: &str = "db.before-recover";
pub(crate) const UNFINISHED: &str = "db.unfinished";

/// Makes the entries of a directory durable.
pub(crate) fn sync(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// Writes a file in one durable step: a crash leaves either the old or the new content.
pub(crate) fn write(directory: &Path, name: &str, content: &[u8]) -> io::Result<()> {
    let partial = directory.join(format!("{name}.partial"));
    let mut file = File::create(&partial)?;
    file.write_all(content)?;
    file.sync_all()?;
    std::fs::rename(&partial, directory.join(name))?;
    sync(directory)
}

/// Like `write`, but returns `false` and changes nothing if the file exists.
pub(crate) fn write_new(directory: &Path, name: &str, content: &[u8]) -> io::Result<bool> {
    // A separate name, because another process may be writing the file under the usual one.
    let partial = directory.join(format!("{name}.partial.{}", std::process::id()));
    let mut file = File::create(&partial)?;
    file.write_all(content)?;
    file.sync_all()?;
    let linked = std::fs::hard_link(&partial, directory.join(name));
    std::fs::remove_file(&partial)?;
    match linked {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
        Ok(()) => sync(directory).map(|()| true),
    }
}

/// Removes a file durably. A missing file is not an error.
pub(crate) fn remove(directory: &Path, name: &str) -> io::Result<()> {
    match std::fs::remove_file(directory.join(name)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(()) => sync(directory),
    }
}

/// Renames an entry durably.
pub(crate) fn rename(directory: &Path, from: &str, to: &str) -> io::Result<()> {
    std::fs::rename(directory.join(from), directory.join(to))?;
    sync(directory)
}

/// Exchanges two entries atomically (`RENAME_EXCHANGE`). Returns `false`, with no effect, if the
/// file system does not support it.
pub(crate) fn exchange(directory: &Path, one: &str, other: &str) -> io::Result<bool> {
    #[cfg(target_os = "linux")]
    {
        use rustix::io::Errno;
        let flags = rustix::fs::RenameFlags::EXCHANGE;
        let cwd = rustix::fs::CWD;
        let swapped =
            rustix::fs::renameat_with(cwd, directory.join(one), cwd, directory.join(other), flags);
        match swapped {
            Ok(()) => sync(directory).map(|()| true),
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = (directory, one, other);
        Ok(false)
    }
}

/// Returns the first unused name of `<kind>.0`, `<kind>.1`, ….
pub(crate) fn free_name(directory: &Path, kind: &str) -> String {
    (0_u64..)
        .map(|number| format!("{kind}.{number}"))
        .find(|name| !directory.join(name).exists())
        .unwrap_or_else(|| kind.to_owned())
}

/// Returns data that was set aside, sorted by kind and number.
pub(crate) fn set_aside(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut found = Vec::new();
    for entry in entries {
        let name = entry?.file_name();
        let Some(name) = name.to_str() else { continue };
        if name == STAGING {
            found.push((STAGING, 0, directory.join(name)));
        }
        for kind in [DAMAGED, BEFORE_RECOVER] {
            let number = name
                .strip_prefix(kind)
                .and_then(|rest| rest.strip_prefix('.'))
                .and_then(|rest| rest.parse::<u64>().ok());
            if let Some(number) = number {
                found.push((kind, number, directory.join(name)));
            }
        }
    }
    found.sort();
    Ok(found.into_iter().map(|(_, _, path)| path).collect())
}

/// Returns the data of this kind with the highest number.
pub(crate) fn newest(directory: &Path, kind: &str) -> io::Result<Option<PathBuf>> {
    let of_kind = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| {
            name.strip_prefix(kind)
                .is_some_and(|rest| rest.starts_with('.'))
        })
    };
    Ok(set_aside(directory)?.into_iter().rfind(of_kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_directories_change_places_in_one_step() {
        let data = tempfile::tempdir().unwrap();
        let at = |name: &str| data.path().join(name);
        for name in ["a", "b"] {
            std::fs::create_dir(at(name)).unwrap();
            write(&at(name), "who", name.as_bytes()).unwrap();
        }
        assert!(exchange(data.path(), "a", "b").unwrap());
        assert_eq!(std::fs::read(at("a").join("who")).unwrap(), b"b");
        assert_eq!(std::fs::read(at("b").join("who")).unwrap(), b"a");
        assert!(exchange(data.path(), "a", "c").is_err());
    }

    #[test]
    fn the_newest_by_number_is_found() {
        let data = tempfile::tempdir().unwrap();
        for name in [
            "db",
            "db.damaged.2",
            "db.damaged.10",
            "db.before-recover.0",
            "db.unfinished.0",
            "db.new",
            "db.damaged.x",
        ] {
            std::fs::create_dir(data.path().join(name)).unwrap();
        }
        assert_eq!(set_aside(data.path()).unwrap().len(), 4);
        let newest = newest(data.path(), DAMAGED).unwrap().unwrap();
        assert!(newest.ends_with("db.damaged.10"));
        assert_eq!(free_name(data.path(), DAMAGED), "db.damaged.0");
        assert!(set_aside(&data.path().join("nowhere")).unwrap().is_empty());
    }
}
