//! The museum: faults that were planted, each of which somebody must find.
//!
//! Three kinds, all listed in `museum.toml`: contracts that a driver or a client breaks
//! ([`Breach`]), wrong lines in the product, and those wrong lines of the log that are in its own
//! list. For a wrong line the repository is copied, the line is changed, and the simulator is built
//! anew and searches; for one of the log, its crash tests run. `seed` is the one that found it last,
//! and is tried first.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::Breach;

/// One planted fault.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exhibit {
    /// What it is called. The name of a [`Breach`] is enough for one.
    pub name: String,
    /// Which file, from the root of the repository.
    pub file: String,
    /// The right line.
    pub find: String,
    /// The wrong one.
    pub replace: String,
    /// What is wrong with it.
    pub breaks: String,
    /// The seed that found it last, if one did.
    pub seed: Option<u64>,
    /// The crate whose own list has the line, and whose crash tests must notice it.
    pub list: String,
}

/// The tests of a crate that know crashes and damage.
const CRASH_TESTS: [&str; 3] = ["crash", "damage", "rules"];

/// Reads the museum's list, and what it takes from the lists of others.
pub fn read(root: &Path) -> Result<Vec<Exhibit>, String> {
    let mut exhibits = parse(include_str!("../museum.toml"), "[[exhibit]]")?;
    for exhibit in &mut exhibits {
        if !exhibit.list.is_empty() {
            let home = format!("crates/{}", exhibit.list);
            let text = text_of(&root.join(&home).join("mutants.toml"))?;
            let mutants = parse(&text, "[[mutant]]")?;
            let mutant = mutants.into_iter().find(|one| one.name == exhibit.name);
            let mutant =
                mutant.ok_or_else(|| format!("{} has no {}", exhibit.list, exhibit.name))?;
            exhibit.file = format!("{home}/{}", mutant.file);
            exhibit.find = mutant.find;
            exhibit.replace = mutant.replace;
            exhibit.breaks = mutant.breaks;
        }
        let edit = !exhibit.file.is_empty() && !exhibit.find.is_empty();
        if edit == Breach::called(&exhibit.name).is_some() || exhibit.breaks.is_empty() {
            return Err(format!("museum.toml: `{}` is incomplete", exhibit.name));
        }
    }
    Ok(exhibits)
}

/// Reads a list: TOML, of which a heading and `key = 'literal string'` are all that it needs.
fn parse(text: &str, heading: &str) -> Result<Vec<Exhibit>, String> {
    let mut exhibits: Vec<Exhibit> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        let complain = |what: &str| format!("{heading}, line {}: {what}", number + 1);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if line == heading {
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
            .ok_or_else(|| complain("expected a heading first"))?;
        let field = match key {
            "name" => &mut exhibit.name,
            "file" => &mut exhibit.file,
            "find" => &mut exhibit.find,
            "replace" => &mut exhibit.replace,
            "breaks" => &mut exhibit.breaks,
            "list" => &mut exhibit.list,
            "seed" => {
                let seed = value.parse().map_err(|_| complain("not a seed"))?;
                exhibit.seed = Some(seed);
                continue;
            }
            _ => return Err(complain("unknown key")),
        };
        *field = value.to_owned();
    }
    Ok(exhibits)
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

    /// Plants an exhibit's line and lets somebody search for it, the simulator for so many seconds.
    /// Returns the verdict.
    pub fn show(&self, exhibit: &Exhibit, seconds: u64) -> Result<String, String> {
        let file = self.copy.join(&exhibit.file);
        let original = text_of(&file)?;
        let count = original.matches(&exhibit.find).count();
        if count != 1 {
            return Err(format!("its line occurs {count} times in {}", exhibit.file));
        }
        let write = |text: &str| {
            fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))
        };
        write(&original.replacen(&exhibit.find, &exhibit.replace, 1))?;
        let said = if exhibit.list.is_empty() {
            self.search(exhibit, seconds)
        } else {
            self.crash(&exhibit.list)
        };
        write(&original)?;
        said
    }

    fn cargo(&self, words: &[&str]) -> Result<Output, String> {
        Command::new("cargo")
            .args(words)
            .env("CARGO_TARGET_DIR", &self.build)
            .current_dir(&self.copy)
            .output()
            .map_err(|error| format!("cannot start cargo: {error}"))
    }

    /// The simulator's judges.
    fn search(&self, exhibit: &Exhibit, seconds: u64) -> Result<String, String> {
        let built = self.cargo(&["build", "--quiet", "--package", "tenure-sim"])?;
        if !built.status.success() {
            let why = String::from_utf8_lossy(&built.stderr).into_owned();
            return Err(format!("it does not compile: {why}"));
        }
        let mut search = Command::new(self.build.join("debug/tenure-sim"));
        search.args(["--search", &seconds.to_string()]);
        if let Some(seed) = exhibit.seed {
            search.args(["--first", &seed.to_string()]);
        }
        let found = search
            .output()
            .map_err(|error| format!("cannot start the simulator: {error}"))?;
        if found.stdout.is_empty() {
            let status = found.status;
            return Ok(format!("caught by a crash of the simulator ({status})"));
        }
        Ok(String::from_utf8_lossy(&found.stdout).trim().to_owned())
    }

    /// A crate's own crash tests.
    fn crash(&self, package: &str) -> Result<String, String> {
        for test in CRASH_TESTS {
            let run = self.cargo(&["test", "--package", package, "--test", test])?;
            let said = String::from_utf8_lossy(&run.stdout);
            let failed = said
                .lines()
                .find_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"));
            match failed {
                Some(name) => return Ok(format!("caught by {package}: {test}::{name}")),
                None if run.status.success() => {}
                None => {
                    let why = String::from_utf8_lossy(&run.stderr).into_owned();
                    return Err(format!("its tests do not run: {why}"));
                }
            }
        }
        Ok(format!("NOT CAUGHT by the tests of {package}"))
    }
}

fn text_of(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_complete_and_every_line_is_there_once() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let exhibits = read(&root).unwrap();
        for exhibit in exhibits.iter().filter(|one| !one.file.is_empty()) {
            let text = text_of(&root.join(&exhibit.file)).unwrap();
            let count = text.matches(&exhibit.find).count();
            assert_eq!(
                count, 1,
                "{}: {:?} in {}",
                exhibit.name, exhibit.find, exhibit.file
            );
            assert_ne!(exhibit.find, exhibit.replace, "{}", exhibit.name);
        }
        for breach in Breach::ALL {
            let shown = exhibits.iter().any(|one| one.name == breach.name());
            assert!(shown, "{} is not on show", breach.name());
        }
    }
}
