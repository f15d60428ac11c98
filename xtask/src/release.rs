//! `cargo xtask release VERSION [--dry-run]`: checks that everything is ready, builds and tries the files of
//! the release, and tags the commit.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::dist::{self, call};

/// Checks and tags a release. A dry run shows the checks and the steps, and changes nothing.
pub(crate) fn run(root: &Path, version: &str, dry: bool) -> Result<(), String> {
    let notes = notes(root, version);
    let found = dist::version(&dist::metadata(root)?)?;
    let checks = [
        (
            format!("the version in Cargo.toml is {version}"),
            (found != version).then(|| format!("it is {found}: change workspace.package.version")),
        ),
        (
            format!("CHANGELOG.md has a section {version}"),
            notes
                .is_none()
                .then(|| "rename the section Unreleased".to_owned()),
        ),
        (
            format!("the tag v{version} is free"),
            git(root, &["tag", "--list", &format!("v{version}")])?
                .is_some()
                .then(|| "the tag exists".to_owned()),
        ),
        (
            "the work tree has no changes".to_owned(),
            git(root, &["status", "--porcelain"])?,
        ),
    ];
    let mut open = 0;
    for (what, problem) in &checks {
        match problem {
            None => eprintln!("ok       {what}"),
            Some(problem) => {
                open += 1;
                eprintln!("missing  {what}: {problem}");
            }
        }
    }
    let steps = [
        "cargo xtask dist --check",
        &format!("git tag --annotate v{version}, with the section of CHANGELOG.md"),
    ];
    if dry {
        for step in steps {
            eprintln!("would    {step}");
        }
        if let Some(notes) = &notes {
            eprintln!("\nrelease notes:\n{notes}");
        }
        return Ok(());
    }
    if open > 0 {
        return Err(format!(
            "{open} of {} checks fail: nothing was done",
            checks.len()
        ));
    }
    dist::run(root, &["--check"])?;
    let notes = notes.unwrap_or_default();
    let message = format!("Tenure {version}\n\n{notes}");
    let tag = format!("v{version}");
    call(
        Command::new("git")
            .args([
                "tag",
                "--annotate",
                "--cleanup=verbatim",
                &tag,
                "--message",
                &message,
            ])
            .current_dir(root),
    )
}

/// Returns the section of a version in the changelog.
fn notes(root: &Path, version: &str) -> Option<String> {
    let text = fs::read_to_string(root.join("CHANGELOG.md")).ok()?;
    section(&text, version)
}

fn section(changelog: &str, version: &str) -> Option<String> {
    let mut lines = changelog
        .lines()
        .skip_while(|line| !is_heading(line, version));
    lines.next()?;
    let body: Vec<&str> = lines.take_while(|line| !line.starts_with("## ")).collect();
    Some(body.join("\n").trim().to_owned()).filter(|text| !text.is_empty())
}

fn is_heading(line: &str, version: &str) -> bool {
    let name = line.strip_prefix("## ").unwrap_or_default();
    name.split([' ', ',']).next() == Some(version)
}

/// Runs git. Returns what it printed, or `None` if that is empty.
fn git(root: &Path, words: &[&str]) -> Result<Option<String>, String> {
    let output = Command::new("git")
        .args(words)
        .current_dir(root)
        .output()
        .map_err(|error| format!("cannot start git: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    Ok(Some(text).filter(|text| !text.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_notes_are_the_section_of_the_version() {
        let text = "# Changelog\n\n## 0.2.0, 2026-12-01\n\n- New.\n\n## 0.1.0\n\n- First.\n";
        assert_eq!(section(text, "0.2.0").as_deref(), Some("- New."));
        assert_eq!(section(text, "0.1.0").as_deref(), Some("- First."));
        assert_eq!(section(text, "0.2"), None);
        assert_eq!(section("## 0.3.0\n## 0.2.0\n", "0.3.0"), None);
    }
}
