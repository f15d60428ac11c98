//! Errors of the operating system in words for people: what happened, and what to do next.

use std::io;
use std::path::Path;

/// Returns what happened, without the number of the error.
pub(crate) fn what(error: &io::Error) -> String {
    use io::ErrorKind as Kind;
    let text = match error.kind() {
        Kind::StorageFull => "the disk is full",
        Kind::QuotaExceeded => "the disk quota is used up",
        Kind::ReadOnlyFilesystem => "the file system is read-only",
        Kind::PermissionDenied => "permission denied",
        Kind::NotFound => "no such file or directory",
        Kind::NotADirectory => "a part of the path is not a directory",
        Kind::IsADirectory => "a directory has this name",
        Kind::InvalidFilename => "the name is too long",
        _ => {
            let text = error.to_string();
            return match text.split_once(" (os error") {
                Some((words, _)) => words.to_lowercase(),
                None => text,
            };
        }
    };
    text.to_owned()
}

/// Returns what to do next about a file, if it is known.
pub(crate) fn next(error: &io::Error, file: &Path) -> Option<String> {
    use io::ErrorKind as Kind;
    let text = match error.kind() {
        Kind::StorageFull | Kind::QuotaExceeded => {
            "free space there, or put the lock on another disk"
        }
        Kind::ReadOnlyFilesystem => "choose an address on a file system that can be written",
        Kind::PermissionDenied => return Some(permissions(file)),
        Kind::InvalidFilename => "use a name of at most 200 bytes",
        Kind::NotFound => "create the directory, or correct the address",
        Kind::NotADirectory => "correct the address",
        _ => return None,
    };
    Some(text.to_owned())
}

/// Names the nearest directory that exists, its owner and its permission bits.
fn permissions(file: &Path) -> String {
    use std::os::unix::fs::MetadataExt;
    let absolute = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    let mut above = absolute.ancestors().skip(1);
    let found = above.find_map(|dir| Some((dir, dir.metadata().ok()?)));
    match found {
        Some((dir, facts)) => format!(
            "{} belongs to uid {} with mode {:o}: run as that user, or choose another directory",
            dir.display(),
            facts.uid(),
            facts.mode() & 0o7777
        ),
        None => "run as the user that owns the directory, or choose another one".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_an_error_is_not_shown() {
        let full = io::Error::from_raw_os_error(28);
        assert_eq!(what(&full), "the disk is full");
        let other = io::Error::from_raw_os_error(5);
        assert_eq!(what(&other), "input/output error");
        assert!(next(&full, Path::new("/x")).is_some());
        assert!(next(&other, Path::new("/x")).is_none());
    }
}
