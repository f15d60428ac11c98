//! Repository lints, as a command (`cargo xtask tidy`) and as a test.
//!
//! Each check reads the tracked files and returns complaints: what is wrong, where, and what to do.
//! All complaints are shown at once.

use std::path::Path;
use std::process::Command;

mod dependencies;
mod files;
mod names;
mod phrases;
mod rules;

/// A tracked file.
pub(crate) struct Source {
    /// Its path relative to the root of the repository, with `/`.
    pub(crate) path: String,
    pub(crate) text: String,
}

/// Runs all checks.
///
/// # Errors
///
/// Returns all complaints as one text.
pub(crate) fn run(root: &Path) -> Result<(), String> {
    let sources = tracked(root)?;
    let mut complaints = dependencies::check(root)?;
    complaints.extend(files::check(&sources));
    complaints.extend(names::check(&sources));
    complaints.extend(phrases::check(&sources));
    complaints.extend(rules::check(&sources));
    if complaints.is_empty() {
        return Ok(());
    }
    Err(format!(
        "{} complaints\n{}",
        complaints.len(),
        complaints.join("\n")
    ))
}

/// Returns the tracked files and the untracked ones that are not ignored. Files that are not UTF-8
/// have no text here, but links may lead to them.
fn tracked(root: &Path) -> Result<Vec<Source>, String> {
    let output = Command::new("git")
        .args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ])
        .current_dir(root)
        .output()
        .map_err(|error| format!("cannot start git: {error}"))?;
    if !output.status.success() {
        return Err(format!(
            "git ls-files: {}",
            String::from_utf8_lossy(&output.stderr)
        ));
    }
    let names = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(names
        .split('\0')
        .filter(|name| !name.is_empty())
        .filter_map(|name| {
            let bytes = std::fs::read(root.join(name)).ok()?;
            Some(Source {
                path: name.to_owned(),
                text: String::from_utf8(bytes).unwrap_or_default(),
            })
        })
        .collect())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_repository_is_tidy() {
        if let Err(complaints) = super::run(&crate::root()) {
            panic!("{complaints}");
        }
    }
}
