//! The museum: faults that were planted, each of which a judge must find.
//!
//! Two kinds: contracts that a driver or a client breaks ([`Breach`](crate::Breach)), and wrong
//! lines in the product, listed in `museum.toml` like the mutants of other crates. For those the
//! repository is copied, the line is changed, the simulator is built anew and searches. `seed` is
//! the one that found it last, and is tried first.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// One wrong line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exhibit {
    /// What it is called.
    pub name: String,
    /// Which file, from the root of the repository.
    pub file: String,
    /// The right line.
    pub find: String,
    /// The wrong one.
    pub replace: String,
    /// What is wrong with it.
    pub breaks: String,
    /// The seed that found it last; empty if none did.
    pub seed: String,
}

/// Reads the list: TOML, of which `[[exhibit]]` and `key = 'literal string'` are all that it needs.
pub fn parse(text: &str) -> Result<Vec<Exhibit>, String> {
    let mut exhibits: Vec<Exhibit> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        let complain = |what: &str| format!("museum.toml, line {}: {what}", number + 1);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if line == "[[exhibit]]" {
            exhibits.push(Exhibit::default());
            continue;
        }
        let (key, value) = line
            .split_once(" = ")
            .ok_or_else(|| complain("expected `key = 'text'`"))?;
        let value = value
            .strip_prefix('\'')
            .and_then(|value| value.strip_suffix('\''))
            .ok_or_else(|| complain("expected a text in single quotes"))?;
        let exhibit = exhibits
            .last_mut()
            .ok_or_else(|| complain("expected [[exhibit]] first"))?;
        let field = match key {
            "name" => &mut exhibit.name,
            "file" => &mut exhibit.file,
            "find" => &mut exhibit.find,
            "replace" => &mut exhibit.replace,
            "breaks" => &mut exhibit.breaks,
            "seed" => &mut exhibit.seed,
            _ => return Err(complain("unknown key")),
        };
        *field = value.to_owned();
    }
    let incomplete = |one: &&Exhibit| {
        one.name.is_empty() || one.file.is_empty() || one.find.is_empty() || one.find == one.replace
    };
    match exhibits.iter().find(incomplete) {
        Some(bad) => Err(format!("museum.toml: `{}` is incomplete", bad.name)),
        None => Ok(exhibits),
    }
}

/// A copy of the repository in which one line at a time is wrong.
pub struct Workshop {
    copy: PathBuf,
    build: PathBuf,
}

impl Workshop {
    /// Copies what git knows of.
    pub fn open(root: &Path) -> Result<Workshop, String> {
        let copy = root.join("target/museum/copy");
        let build = root.join("target/museum/build");
        let listed = Command::new("git")
            .args(["ls-files", "-co", "--exclude-standard", "-z"])
            .current_dir(root)
            .output()
            .map_err(|error| format!("cannot start git: {error}"))?;
        let names = String::from_utf8(listed.stdout).map_err(|_| "a file name is not UTF-8")?;
        for name in names.split_terminator('\0') {
            let (from, to) = (root.join(name), copy.join(name));
            if !from.is_file() {
                continue;
            }
            // Files that are the same keep their time, so that cargo does not build them again.
            if fs::read(&from).ok() == fs::read(&to).ok() {
                continue;
            }
            if let Some(parent) = to.parent() {
                fs::create_dir_all(parent)
                    .map_err(|error| format!("{}: {error}", parent.display()))?;
            }
            fs::copy(&from, &to).map_err(|error| format!("{name}: {error}"))?;
        }
        Ok(Workshop { copy, build })
    }

    /// Builds the simulator with an exhibit's line in it, and lets it search for so many seconds.
    /// Returns what it said, its last line being the verdict.
    pub fn show(&self, exhibit: &Exhibit, seconds: u64) -> Result<String, String> {
        let file = self.copy.join(&exhibit.file);
        let original =
            fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        let count = original.matches(&exhibit.find).count();
        if count != 1 {
            return Err(format!(
                "{}: its line occurs {count} times in {}",
                exhibit.name, exhibit.file
            ));
        }
        let write = |text: &str| {
            fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))
        };
        write(&original.replacen(&exhibit.find, &exhibit.replace, 1))?;
        let said = self.build_and_search(exhibit, seconds);
        write(&original)?;
        said
    }

    fn build_and_search(&self, exhibit: &Exhibit, seconds: u64) -> Result<String, String> {
        let built = Command::new("cargo")
            .args(["build", "--quiet", "--package", "tenure-sim"])
            .env("CARGO_TARGET_DIR", &self.build)
            .current_dir(&self.copy)
            .output()
            .map_err(|error| format!("cannot start cargo: {error}"))?;
        if !built.status.success() {
            return Err(format!(
                "{} does not compile: {}",
                exhibit.name,
                String::from_utf8_lossy(&built.stderr)
            ));
        }
        let mut search = Command::new(self.build.join("debug/tenure-sim"));
        search.args(["--search", &seconds.to_string()]);
        if !exhibit.seed.is_empty() {
            search.args(["--first", &exhibit.seed]);
        }
        let found = search
            .output()
            .map_err(|error| format!("cannot start the simulator: {error}"))?;
        if found.stdout.is_empty() {
            return Ok(format!(
                "caught by a crash of the simulator ({})",
                found.status
            ));
        }
        Ok(String::from_utf8_lossy(&found.stdout).trim().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_complete_and_every_line_is_there_once() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let exhibits = parse(include_str!("../museum.toml")).unwrap();
        for exhibit in &exhibits {
            let text = fs::read_to_string(root.join(&exhibit.file)).unwrap();
            let count = text.matches(&exhibit.find).count();
            assert_eq!(
                count, 1,
                "{}: {:?} in {}",
                exhibit.name, exhibit.find, exhibit.file
            );
        }
    }
}
