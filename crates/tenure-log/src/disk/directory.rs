//! Making a directory so that it survives a crash.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::Mode;

/// Makes a directory and what is missing above it, all of them only for their owner (0700), durably:
/// a name is there after a crash only if the directory that holds it was synced. That is done
/// for a directory that is already there as well, because an earlier process may have been stopped
/// between the two.
pub fn create_directory(path: &Path) -> io::Result<()> {
    create_with(path, &RealCalls)
}

/// What it asks of the operating system.
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
    // The directory that was found, if it is this one or the one above it: a data directory and its
    // `db` are made together.
    let known = path.ancestors().take(2).filter(|known| {
        let is_new = missing.iter().any(|made| made == known);
        !is_new && !known.as_os_str().is_empty()
    });
    for known in known {
        if let Some(above) = above(known) {
            // It may belong to somebody else and not be readable; then that one has made it.
            let _ = calls.sync(&above);
        }
    }
    Ok(())
}

/// The directory that holds the name.
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
            // Another process was faster.
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

    /// Each new name is durable before anything is made inside it.
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

    /// A process that was stopped after it made a directory has not synced it.
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
