//! Planted bugs: deliberate faults that verify the checkers. Each must be found by a checker or a
//! test.
//!
//! `planted_bugs.toml` lists three kinds:
//!
//! - A contract violation of a driver or a client ([`ContractViolation`]): an option of a normal
//!   run.
//! - A wrong line in the product. The repository is copied and all wrong lines are inserted at
//!   once, each disabled until an environment variable names its bug. The copy is built once; then
//!   the simulator searches for one bug after the other.
//! - A wrong line from a crate's own `mutants.toml`. The line is changed in the copy and the crash
//!   tests of that crate run.
//!
//! A search tries the seeds 1, 2, 3 and so on, up to the number that the entry states (`within`).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::{ContractViolation, FaultProfile};

/// One planted bug.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlantedBug {
    /// Its name. An entry with the name of a [`ContractViolation`] needs no edits.
    pub name: String,
    /// What the bug breaks, in one sentence.
    pub breaks: String,
    /// The changed lines.
    pub edits: Vec<Edit>,
    /// It must be found within this number of seeds. Default: [`SEEDS`].
    pub within: Option<u64>,
    /// The fault profile in which the bug shows. Default: the seed's own.
    pub fault_profile: Option<FaultProfile>,
    /// The crate whose `mutants.toml` has the line and whose crash tests must find the bug. Empty
    /// for other kinds.
    pub list: String,
}

/// Number of seeds within which a bug must be found, unless its entry states another one.
pub const SEEDS: u64 = 10;

impl PlantedBug {
    /// Returns the number of seeds within which it must be found.
    pub fn within(&self) -> u64 {
        self.within.unwrap_or(SEEDS)
    }
}

/// One changed line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edit {
    /// The file, relative to the root of the repository.
    pub file: String,
    /// The correct line.
    pub find: String,
    /// The wrong line. In it, `SHOWN` stands for an expression that is true while this bug is
    /// enabled.
    pub replace: String,
}

/// The environment variable that names the enabled bug.
const SHOWS: &str = "TENURE_PLANTED_BUG";

/// The crash and corruption tests of a crate.
const CRASH_TESTS: [&str; 4] = ["crash", "damage", "rules", "open_outcomes"];

/// Reads `planted_bugs.toml`, and the entries that it refers to in the `mutants.toml` of other
/// crates.
///
/// # Errors
///
/// Returns a message if a list cannot be read or parsed, or if an entry is incomplete.
pub fn read(root: &Path) -> Result<Vec<PlantedBug>, String> {
    let mut bugs = parse(include_str!("../planted_bugs.toml"), "[[bug]]")?;
    for bug in &mut bugs {
        if !bug.list.is_empty() {
            let home = format!("crates/{}", bug.list);
            let text = text_of(&root.join(&home).join("mutants.toml"))?;
            let mutants = parse(&text, "[[mutant]]")?;
            let mutant = mutants.into_iter().find(|one| one.name == bug.name);
            let mutant = mutant.ok_or_else(|| format!("{} has no {}", bug.list, bug.name))?;
            for edit in &mutant.edits {
                bug.edits.push(Edit {
                    file: format!("{home}/{}", edit.file),
                    ..edit.clone()
                });
            }
            bug.breaks = mutant.breaks;
        }
        let edit = !bug.edits.is_empty();
        if edit == ContractViolation::called(&bug.name).is_some() || bug.breaks.is_empty() {
            return Err(format!("planted_bugs.toml: `{}` is incomplete", bug.name));
        }
    }
    Ok(bugs)
}

/// Parses a list. The format is a subset of TOML: a heading, and lines `key = 'literal string'`.
fn parse(text: &str, heading: &str) -> Result<Vec<PlantedBug>, String> {
    let mut bugs: Vec<PlantedBug> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        let complain = |what: &str| format!("{heading}, line {}: {what}", number + 1);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if line == heading {
            bugs.push(PlantedBug::default());
            continue;
        }
        let (key, value) = line
            .split_once(" = ")
            .ok_or_else(|| complain("expected `key = 'text'`"))?;
        let value = value
            .strip_prefix('\'')
            .and_then(|value| value.strip_suffix('\''))
            .ok_or_else(|| complain("expected a text in single quotes"))?;
        let bug = bugs
            .last_mut()
            .ok_or_else(|| complain("expected a heading first"))?;
        if key == "file" {
            bug.edits.push(Edit::default());
        }
        let edit = bug.edits.last_mut();
        let field = match (key, edit) {
            ("name", _) => &mut bug.name,
            ("breaks", _) => &mut bug.breaks,
            ("list", _) => &mut bug.list,
            ("within", _) => {
                let seeds = value.parse().map_err(|_| complain("not a number"))?;
                bug.within = Some(seeds);
                continue;
            }
            ("fault_profile", _) => {
                let fault_profile =
                    FaultProfile::called(value).ok_or_else(|| complain("not a fault profile"))?;
                bug.fault_profile = Some(fault_profile);
                continue;
            }
            ("file", Some(edit)) => &mut edit.file,
            ("find", Some(edit)) => &mut edit.find,
            ("replace", Some(edit)) => &mut edit.replace,
            ("find" | "replace", None) => return Err(complain("expected a file first")),
            _ => return Err(complain("unknown key")),
        };
        // Without its heading an entry would change the one before it.
        if !field.is_empty() {
            return Err(complain("the key is there already: is a heading missing?"));
        }
        *field = value.to_owned();
    }
    Ok(bugs)
}

/// A copy of the repository with the wrong lines in it, and its build directory.
pub struct BuildCopy {
    copy: PathBuf,
    build: PathBuf,
}

impl BuildCopy {
    /// Copies the files that git lists, inserts the disabled lines of all bugs that the simulator
    /// searches for, and builds the simulator.
    ///
    /// # Errors
    ///
    /// Returns a message if git or cargo fails, or if a line is not found exactly once.
    pub fn open(root: &Path, bugs: &[PlantedBug]) -> Result<BuildCopy, String> {
        let workshop = BuildCopy {
            copy: root.join("target/planted-bugs/copy"),
            build: root.join("target/planted-bugs/build"),
        };
        let listed = Command::new("git")
            .args(["ls-files", "-co", "--exclude-standard", "-z"])
            .current_dir(root)
            .output()
            .map_err(|error| format!("cannot start git: {error}"))?;
        let names = String::from_utf8(listed.stdout).map_err(|_| "a file name is not UTF-8")?;
        for name in names.split_terminator('\0') {
            let (from, to) = (root.join(name), workshop.copy.join(name));
            let Ok(bytes) = fs::read(&from) else {
                continue;
            };
            let bytes = planted(name, bytes, bugs)?;
            // Unchanged files keep their modification time, so that cargo does not rebuild them.
            if fs::read(&to).is_ok_and(|present| present == bytes) {
                continue;
            }
            if let Some(parent) = to.parent() {
                fs::create_dir_all(parent)
                    .map_err(|error| format!("{}: {error}", parent.display()))?;
            }
            fs::write(&to, bytes).map_err(|error| format!("{name}: {error}"))?;
        }
        let built = workshop.cargo(&["build", "--locked", "--package", "tenure-sim"])?;
        if built.status.success() {
            return Ok(workshop);
        }
        let why = String::from_utf8_lossy(&built.stderr).into_owned();
        Err(format!("the planted simulator does not compile: {why}"))
    }

    /// Searches for one planted bug: with the simulator, or with the crash
    /// tests of the crate that lists it. Returns the result as text.
    ///
    /// # Errors
    ///
    /// Returns a message if a line is not found exactly once or if a program cannot be started.
    pub fn show(&self, bug: &PlantedBug) -> Result<String, String> {
        if bug.list.is_empty() {
            return self.search(bug);
        }
        for edit in &bug.edits {
            self.change(edit, &edit.find, &edit.replace)?;
        }
        let said = self.crash(&bug.list);
        for edit in &bug.edits {
            self.change(edit, &edit.replace, &edit.find)?;
        }
        said
    }

    fn change(&self, edit: &Edit, old: &str, new: &str) -> Result<(), String> {
        let file = self.copy.join(&edit.file);
        let text = replace_one(&text_of(&file)?, old, new)?;
        fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))
    }

    fn cargo(&self, words: &[&str]) -> Result<Output, String> {
        Command::new("cargo")
            .args(words)
            .env("CARGO_TARGET_DIR", &self.build)
            .current_dir(&self.copy)
            .output()
            .map_err(|error| format!("cannot start cargo: {error}"))
    }

    /// Runs the simulator of the copy with this bug enabled.
    fn search(&self, bug: &PlantedBug) -> Result<String, String> {
        let mut search = Command::new(self.build.join("debug/tenure-sim"));
        search.env(SHOWS, &bug.name);
        search.args(["--search", &bug.within().to_string()]);
        if let Some(fault_profile) = bug.fault_profile {
            search.args(["--fault-profile", fault_profile.name()]);
        }
        let found = search
            .output()
            .map_err(|error| format!("cannot start the simulator: {error}"))?;
        // A search always prints a line. Without one the process crashed, for example by an abort.
        if found.stdout.is_empty() {
            let status = found.status;
            return Ok(format!("caught by a crash of the simulator ({status})"));
        }
        Ok(String::from_utf8_lossy(&found.stdout).trim().to_owned())
    }

    /// Runs a crate's own crash tests.
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

/// Returns the contents of a file with the wrong lines of the simulator's bugs in it, each disabled
/// until the environment variable names its bug.
fn planted(name: &str, bytes: Vec<u8>, bugs: &[PlantedBug]) -> Result<Vec<u8>, String> {
    let here = |edit: &&Edit| edit.file == name;
    let mut file = bytes;
    for bug in bugs.iter().filter(|one| one.list.is_empty()) {
        for edit in bug.edits.iter().filter(here) {
            let shown = format!(
                "({{ extern crate std; static SHOWN: std::sync::OnceLock<bool> = \
                 std::sync::OnceLock::new(); *SHOWN.get_or_init(|| \
                 std::env::var({SHOWS:?}).as_deref() == Ok({:?})) }})",
                bug.name
            );
            let line = edit.replace.replace("SHOWN", &shown);
            let text = String::from_utf8(file).map_err(|_| format!("{name} is no text"))?;
            file = replace_one(&text, &edit.find, &line)
                .map_err(|why| format!("{}: {name}: {why}", bug.name))?
                .into_bytes();
        }
    }
    Ok(file)
}

/// Replaces text that occurs exactly once.
fn replace_one(text: &str, old: &str, new: &str) -> Result<String, String> {
    match text.matches(old).count() {
        1 => Ok(text.replacen(old, new, 1)),
        count => Err(format!("its line occurs {count} times")),
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
        let bugs = read(&root).unwrap();
        for bug in &bugs {
            for edit in &bug.edits {
                let text = text_of(&root.join(&edit.file)).unwrap();
                let count = text.matches(&edit.find).count();
                let name = &bug.name;
                assert_eq!(count, 1, "{name}: {:?} in {}", edit.find, edit.file);
                assert_ne!(edit.find, edit.replace, "{name}");
                let asleep = bug.list.is_empty();
                assert_eq!(edit.replace.contains("SHOWN"), asleep, "{name}");
            }
        }
        // The table of results has a row for each bug, and no other rows.
        let table = text_of(&root.join("docs/verification/planted-bugs.txt")).unwrap();
        let caught = |line: &str| {
            let (name, result) = line.split_once(' ')?;
            let result = result.trim_start();
            result.starts_with("caught by ").then(|| name.to_owned())
        };
        let rows: Vec<String> = table.lines().filter_map(caught).collect();
        let names: Vec<&String> = bugs.iter().map(|bug| &bug.name).collect();
        assert_eq!(rows.iter().collect::<Vec<_>>(), names);
        for contract_violation in ContractViolation::ALL {
            let shown = bugs.iter().any(|one| one.name == contract_violation.name());
            assert!(shown, "{} is not on show", contract_violation.name());
        }
    }
}
