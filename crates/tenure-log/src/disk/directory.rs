//! Crash-safe creation of directories.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::Mode;

/// Creates a directory and its missing parents durably, with mode 0700.
///
/// A name survives a crash only if its parent directory was synced. The parents of existing
/// directories are synced too, because an earlier process may have crashed between the creation and
/// the sync.
pub fn create_directory(path: &Path) -> io::Result<()> {
    create_with(path, &RealCalls)
}

/// The system calls it needs, to be replaced in tests.
trait DirectoryCalls {
    fn is_there(&self, path: &Path) -> bool;
    fn make(&self, path: &Path) -> io::Result<()>;
    fn sync(&self, path: &Path) -> io::Result<()>;
}

fn create_with(path: &Path, calls: &impl DirectoryCalls) -> io::Result<()> {
    let mut missing = Vec::new();
    let mut at = path;
    while !calls.is_there(at) {
        missing.push(at.to_path_buf());
        match above(at) {
            Some(above) if above != Path::new(".") => at = at.parent().unwrap_or(at),
            _ => break,
        }
    }
    for made in missing.iter().rev() {
        calls.make(made)?;
        if let Some(above) = above(made) {
            calls.sync(&above)?;
        }
    }
    // Sync the parents of an existing `path` and of its existing parent: a data directory and its
    // `db` are created together.
    let known = path.ancestors().take(2).filter(|known| {
        let is_new = missing.iter().any(|made| made == known);
        !is_new && !known.as_os_str().is_empty()
    });
    for known in known {
        if let Some(above) = above(known) {
            // The parent may belong to another user and be unreadable. Then that user created it.
            let _ = calls.sync(&above);
        }
    }
    Ok(())
}

/// Returns the parent directory of a path.
fn above(path: &Path) -> Option<PathBuf> {
    let above = path.parent()?;
    if above.as_os_str().is_empty() {
        return Some(PathBuf::from("."));
    }
    Some(above.to_path_buf())
}

struct RealCalls;

impl DirectoryCalls for RealCalls {
    fn is_there(&self, path: &Path) -> bool {
        path.is_dir()
    }

    fn make(&self, path: &Path) -> io::Result<()> {
        match rustix::fs::mkdir(path, Mode::RWXU) {
            // Another process has created it in the meantime.
            Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn sync(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeSet;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[derive(Default)]
    struct Recorded {
        there: BTreeSet<PathBuf>,
        calls: RefCell<Vec<String>>,
    }

    impl DirectoryCalls for Recorded {
        fn is_there(&self, path: &Path) -> bool {
            self.there.contains(path)
        }

        fn make(&self, path: &Path) -> io::Result<()> {
            let call = format!("make {}", path.display());
            self.calls.borrow_mut().push(call);
            Ok(())
        }

        fn sync(&self, path: &Path) -> io::Result<()> {
            let call = format!("sync {}", path.display());
            self.calls.borrow_mut().push(call);
            Ok(())
        }
    }

    fn calls(there: &[&str], path: &str) -> Vec<String> {
        let recorded = Recorded {
            there: there.iter().map(PathBuf::from).collect(),
            calls: RefCell::default(),
        };
        create_with(Path::new(path), &recorded).unwrap();
        recorded.calls.into_inner()
    }

    /// Each new name is durable before anything is created inside it.
    #[test]
    fn every_new_directory_is_synced_into_the_one_above_it() {
        assert_eq!(
            calls(&["/", "/var"], "/var/lib/tenure/db"),
            [
                "make /var/lib",
                "sync /var",
                "make /var/lib/tenure",
                "sync /var/lib",
                "make /var/lib/tenure/db",
                "sync /var/lib/tenure",
            ]
        );
        assert_eq!(calls(&[], "db"), ["make db", "sync ."]);
        assert_eq!(
            calls(&[], "data/db"),
            ["make data", "sync .", "make data/db", "sync data"]
        );
    }

    /// A process that crashed after it created a directory may not have synced the parent.
    #[test]
    fn a_directory_that_is_there_is_synced_as_well() {
        let there = ["/", "/var", "/var/tenure", "/var/tenure/db"];
        assert_eq!(
            calls(&there, "/var/tenure/db"),
            ["sync /var/tenure", "sync /var"]
        );
        assert_eq!(
            calls(&there[..3], "/var/tenure/db"),
            ["make /var/tenure/db", "sync /var/tenure", "sync /var"]
        );
    }

    #[test]
    fn new_directories_belong_to_their_owner_alone() {
        let outer = tempfile::tempdir().unwrap();
        let path = outer.path().join("a/b/db");
        create_directory(&path).unwrap();
        create_directory(&path).unwrap();
        for made in path.ancestors().take(3) {
            let mode = made.metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o7777, 0o700, "{}", made.display());
        }
    }
}
