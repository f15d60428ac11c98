//! Mutation testing with hand-written mutants: the tests must fail for every listed wrong line.
//!
//! A crate keeps its list in `mutants.toml` beside its `Cargo.toml`. The repository is copied once.
//! Each mutant is applied to the copy, built, tested and reverted. A mutant that does not compile,
//! or whose line does not occur exactly once, is an error in the list and never a success.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A test program that runs longer than this counts as failed.
const TEST_TIMEOUT: Duration = Duration::from_secs(300);

/// One wrong line.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Mutant {
    name: String,
    file: String,
    find: String,
    replace: String,
    breaks: String,
}

/// Runs the list of one package, or of every package that has one. `only` selects one mutant by
/// name.
///
/// # Errors
///
/// Returns the names of the mutants that no test found, or the error in a list.
pub(crate) fn run(root: &Path, package: Option<&str>, only: Option<&str>) -> Result<(), String> {
    let mut lists = Vec::new();
    for entry in read_dir(&root.join("crates"))? {
        let list = entry.join("mutants.toml");
        let name = entry
            .file_name()
            .map(|name| name.to_string_lossy().into_owned());
        if list.is_file() && package.is_none_or(|wanted| name.as_deref() == Some(wanted)) {
            lists.push((name.unwrap_or_default(), list));
        }
    }
    if lists.is_empty() {
        return Err("no crate has such a mutants.toml".into());
    }
    lists.sort();
    let copy = root.join("target/mutants/copy");
    copy_repository(root, &copy)?;
    let mut survivors = Vec::new();
    for (package, list) in lists {
        survivors.extend(run_list(&copy, &package, &list, only)?);
    }
    if survivors.is_empty() {
        Ok(())
    } else {
        Err(format!("no test noticed: {}", survivors.join(", ")))
    }
}

fn run_list(
    copy: &Path,
    package: &str,
    list: &Path,
    only: Option<&str>,
) -> Result<Vec<String>, String> {
    let home = copy.join("crates").join(package);
    let mutants = parse(&read(list)?)?;
    // Without this check, a test that always fails would count as finding every mutant.
    if only.is_none()
        && let Some(test) = first_failure(&home, &build(copy, package)?)?
    {
        return Err(format!("{package}: {test} fails without any mutant"));
    }
    let mut survivors = Vec::new();
    for mutant in &mutants {
        if only.is_some_and(|name| name != mutant.name) {
            continue;
        }
        let file = home.join(&mutant.file);
        let original = read(&file)?;
        let count = original.matches(&mutant.find).count();
        if count != 1 {
            return Err(format!(
                "{}: its line occurs {count} times in {}",
                mutant.name, mutant.file
            ));
        }
        write(&file, &original.replacen(&mutant.find, &mutant.replace, 1))?;
        let noticed = build(copy, package)
            .map_err(|why| format!("{} does not compile: {why}", mutant.name))
            .and_then(|programs| first_failure(&home, &programs));
        // Revert before any error is returned, so that the copy stays usable.
        write(&file, &original)?;
        match noticed? {
            Some(test) => eprintln!("caught    {:<28} by {test}", mutant.name),
            None => {
                eprintln!("SURVIVED  {:<28} {}", mutant.name, mutant.breaks);
                survivors.push(mutant.name.clone());
            }
        }
    }
    Ok(survivors)
}

/// Copies the tracked files and the untracked ones that are not ignored. The build directory of
/// earlier runs is kept.
fn copy_repository(root: &Path, copy: &Path) -> Result<(), String> {
    let output = Command::new("git")
        .args(["ls-files", "-co", "--exclude-standard", "-z"])
        .current_dir(root)
        .output()
        .map_err(|error| format!("cannot start git: {error}"))?;
    let names = String::from_utf8(output.stdout).map_err(|_| "a file name is not UTF-8")?;
    let _ = fs::remove_dir_all(copy);
    for name in names.split_terminator('\0') {
        let (from, to) = (root.join(name), copy.join(name));
        if !from.is_file() {
            continue;
        }
        if let Some(parent) = to.parent() {
            fs::create_dir_all(parent).map_err(|error| format!("{}: {error}", parent.display()))?;
        }
        fs::copy(&from, &to).map_err(|error| format!("{name}: {error}"))?;
    }
    Ok(())
}

/// Builds the tests of a package and returns the paths of the test programs.
fn build(copy: &Path, package: &str) -> Result<Vec<PathBuf>, String> {
    let target = copy.with_file_name("build");
    let output = Command::new(env!("CARGO"))
        .args(["test", "--no-run", "--locked", "--package", package])
        .env("CARGO_TARGET_DIR", &target)
        .current_dir(copy)
        .output()
        .map_err(|error| format!("cannot start cargo: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if !output.status.success() {
        return Err(said);
    }
    let mut programs: Vec<PathBuf> = said
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Executable "))
        .filter_map(|line| line.rsplit_once('('))
        .map(|(_, program)| copy.join(program.trim_end_matches(')')))
        .collect();
    programs.sort();
    if programs.is_empty() {
        return Err(format!("{package} has no test programs"));
    }
    Ok(programs)
}

/// Runs the test programs. Returns the first failed test, or the program that hung or crashed;
/// `None` if all pass.
fn first_failure(home: &Path, programs: &[PathBuf]) -> Result<Option<String>, String> {
    let log = home.join("mutants.log");
    for program in programs {
        let file = fs::File::create(&log).map_err(|error| format!("{}: {error}", log.display()))?;
        let child = Command::new(program)
            // Parallel, so that fast tests do not wait for slow ones.
            .args(["--test-threads", "4"])
            .current_dir(home)
            .env("CARGO_MANIFEST_DIR", home)
            .stdout(file)
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("cannot start {}: {error}", program.display()))?;
        let noticed = watch(child, &log, program)?;
        if noticed.is_some() {
            return Ok(noticed);
        }
    }
    Ok(None)
}

/// Waits until a program ends or its first test fails. Kills it in the second case, and after the
/// timeout.
fn watch(mut child: Child, log: &Path, program: &Path) -> Result<Option<String>, String> {
    let start = Instant::now();
    loop {
        let ended = child.try_wait().map_err(|error| error.to_string())?;
        let said = fs::read(log).map_err(|error| format!("{}: {error}", log.display()))?;
        let said = String::from_utf8_lossy(&said);
        let failed = said
            .lines()
            .find_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"));
        let hangs = start.elapsed() > TEST_TIMEOUT;
        if ended.is_none() && (failed.is_some() || hangs) {
            child.kill().map_err(|error| error.to_string())?;
            child.wait().map_err(|error| error.to_string())?;
        }
        match (ended, failed) {
            (_, Some(test)) => return Ok(Some(test.to_string())),
            (Some(status), None) if status.success() => return Ok(None),
            (Some(_), None) => {
                return Ok(Some(format!(
                    "{} failed without the name of a test",
                    program.display()
                )));
            }
            (None, None) if hangs => {
                return Ok(Some(format!("{} did not end in time", program.display())));
            }
            (None, None) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

/// Parses a list. The format is a subset of TOML: `[[mutant]]` and lines `key = 'literal string'`.
fn parse(text: &str) -> Result<Vec<Mutant>, String> {
    let mut mutants: Vec<Mutant> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        let complain = |what: &str| format!("mutants.toml, line {}: {what}", number + 1);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if line == "[[mutant]]" {
            mutants.push(Mutant::default());
            continue;
        }
        let (key, value) = line
            .split_once(" = ")
            .ok_or_else(|| complain("expected `key = 'text'`"))?;
        let value = value
            .strip_prefix('\'')
            .and_then(|value| value.strip_suffix('\''))
            .filter(|value| !value.contains('\''))
            .ok_or_else(|| complain("expected a string in single quotes"))?;
        let mutant = mutants
            .last_mut()
            .ok_or_else(|| complain("expected [[mutant]] first"))?;
        let field = match key {
            "name" => &mut mutant.name,
            "file" => &mut mutant.file,
            "find" => &mut mutant.find,
            "replace" => &mut mutant.replace,
            "breaks" => &mut mutant.breaks,
            _ => return Err(complain("unknown key")),
        };
        *field = value.to_string();
    }
    match mutants.iter().find(|m| {
        m.name.is_empty() || m.file.is_empty() || m.find.is_empty() || m.find == m.replace
    }) {
        Some(bad) => Err(format!("mutants.toml: `{}` is incomplete", bad.name)),
        None => Ok(mutants),
    }
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

fn read_dir(path: &Path) -> Result<Vec<PathBuf>, String> {
    fs::read_dir(path)
        .and_then(|entries| {
            entries
                .map(|entry| entry.map(|entry| entry.path()))
                .collect()
        })
        .map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_and_a_broken_one_refused() {
        let list = "# why\n[[mutant]]\nname = 'a'\nfile = 'src/x.rs'\nfind = 'x < y'\nreplace = 'x <= y'\nbreaks = 'order'\n";
        let mutants = parse(list).unwrap();
        assert_eq!(mutants.len(), 1);
        assert_eq!(mutants[0].find, "x < y");
        assert!(parse("name = 'a'").is_err(), "a key before any mutant");
        assert!(parse("[[mutant]]\nname = \"a\"").is_err(), "other quotes");
        assert!(parse("[[mutant]]\nname = 'a'").is_err(), "no file, no line");
    }
}
