//! The book in `docs`: its commands run, its options exist, and it names every page, verb, option,
//! variable, reason and class of errors.

#![allow(
    clippy::unwrap_used,
    reason = "a test fails where something is not as it must be"
)]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use support::Daemon;

const TENURE: &str = env!("CARGO_BIN_EXE_tenure");

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(name: &str) -> String {
    let path = root().join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// All pages below a directory of the repository, by their paths relative to it, sorted.
fn pages(directory: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut open = vec![directory.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(root().join(&directory)).unwrap() {
            let entry = entry.unwrap();
            let name = format!("{directory}/{}", entry.file_name().to_str().unwrap());
            if entry.file_type().unwrap().is_dir() {
                open.push(name);
            } else if name.ends_with(".md") {
                found.push(name);
            }
        }
    }
    found.sort();
    found
}

/// A fenced block of code: the words after its fence, and its lines.
struct Block {
    kind: String,
    text: String,
}

fn blocks(page: &str) -> Vec<Block> {
    let mut found: Vec<Block> = Vec::new();
    let mut inside = false;
    for line in page.lines() {
        match line.strip_prefix("```") {
            Some(kind) if !inside => {
                inside = true;
                found.push(Block {
                    kind: kind.to_owned(),
                    text: String::new(),
                });
            }
            Some(_) => inside = false,
            None if inside => {
                let block = found.last_mut().unwrap();
                block.text.push_str(line);
                block.text.push('\n');
            }
            None => {}
        }
    }
    found
}

/// Runs the blocks `sh` of a page in one shell, in an empty directory.
fn run(page: &str, script: &str, daemon: &Daemon, data: &Path) {
    let path = format!(
        "{}:{}",
        Path::new(TENURE).parent().unwrap().display(),
        std::env::var("PATH").unwrap()
    );
    // The daemon of the test stands for the one of the page. The tests are the administrator.
    let script = script
        .replace("127.0.0.1:8443", &daemon.web.to_string())
        .replace("127.0.0.1:50051", &daemon.grpc.to_string())
        .replace("/var/lib/tenure", &data.display().to_string())
        .replace("sudo ", "");
    let dir = tempfile::tempdir().unwrap();
    let output = Command::new("sh")
        // `set -e`: the first command that fails ends the page.
        .args(["-c", &format!("set -e\n{script}")])
        .current_dir(dir.path())
        .env("PATH", path)
        .env("TENURE_URL", format!("tenure://{}", daemon.grpc))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{page}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Runs all pages of a directory, one after the other, with one daemon.
fn run_all(directory: &str, at_least: usize) {
    let data = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(data.path());
    let mut ran = 0;
    for page in pages(directory) {
        let text = read(&page);
        let scripts: Vec<String> = blocks(&text)
            .into_iter()
            .filter(|block| block.kind == "sh")
            .map(|block| block.text)
            .collect();
        if !scripts.is_empty() {
            run(&page, &scripts.concat(), &daemon, data.path());
            ran += 1;
        }
    }
    assert!(ran >= at_least, "{directory}: {ran} pages have commands");
}

#[test]
fn the_commands_of_the_guides_run() {
    run_all("docs/guides", 15);
}

#[test]
fn the_commands_of_the_first_pages_and_the_concepts_run() {
    run_all("docs/start", 2);
    run_all("docs/concepts", 1);
}

#[test]
fn the_commands_for_users_of_other_locks_run() {
    run_all("docs/from", 10);
}

#[test]
fn the_commands_for_operators_run() {
    run_all("docs/operate", 3);
    run_all("docs/reference", 1);
}

/// A block of commands is run, or says that it is not.
#[test]
fn no_block_of_commands_is_overlooked() {
    for page in book() {
        for block in blocks(&read(&page)) {
            let kind = block.kind.as_str();
            let is_command = ["bash", "shell", "console"].contains(&kind)
                || (kind.starts_with("sh") && kind != "sh" && kind != "sh not-run");
            assert!(
                !is_command,
                "{page}: write `sh` or `sh not-run`: {}",
                block.text
            );
        }
    }
}

/// The pages for users: not the specification, not what commands printed.
fn book() -> Vec<String> {
    let inner = ["docs/spec/", "docs/verification/"];
    let mut found = pages("docs");
    found.retain(|page| !inner.iter().any(|prefix| page.starts_with(prefix)));
    found
}

/// Runs `tenure` without variables that its help would show.
fn help(verb: &[String]) -> String {
    let output = Command::new(TENURE)
        .args(verb)
        .arg("--help")
        .env_clear()
        .output()
        .unwrap();
    assert!(output.status.success(), "{verb:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// All verbs with their help texts: `[]`, `[run]`, `[cluster]`, `[cluster, init]`, …
fn verbs() -> BTreeMap<Vec<String>, String> {
    let mut found = BTreeMap::new();
    let mut open = vec![Vec::new()];
    while let Some(verb) = open.pop() {
        let text = help(&verb);
        let inner = text
            .lines()
            .skip_while(|line| *line != "Commands:")
            .skip(1)
            .take_while(|line| !line.is_empty())
            .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
            .filter_map(|line| line.split_whitespace().next())
            .filter(|name| *name != "help");
        for name in inner {
            let mut inner = verb.clone();
            inner.push(name.to_owned());
            open.push(inner);
        }
        found.insert(verb, text);
    }
    assert!(found.len() > 30, "{}", found.len());
    found
}

fn options(help: &str) -> BTreeSet<String> {
    help.lines()
        .map(str::trim_start)
        .filter(|line| line.starts_with('-'))
        .flat_map(|line| line.split([' ', ',']))
        .filter(|word| word.starts_with('-'))
        .map(str::to_owned)
        .collect()
}

/// Every verb and option, as `--help` prints them.
fn commands_page() -> String {
    let mut text = String::from(
        "# Every verb and option\n\n\
         Generated from the command's own help; a test compares. [The command line](cli.md) explains.\n",
    );
    for (verb, help) in verbs() {
        let name = std::iter::once("tenure").chain(verb.iter().map(String::as_str));
        let name = name.collect::<Vec<_>>().join(" ");
        let help: Vec<&str> = help.lines().map(str::trim_end).collect();
        let help = help.join("\n");
        write!(text, "\n## `{name}`\n\n```text\n{}\n```\n", help.trim_end()).unwrap();
    }
    text
}

#[test]
fn the_page_of_all_options_is_current() {
    let path = root().join("docs/reference/commands.md");
    if std::env::var_os("TENURE_WRITE_REFERENCE").is_some() {
        fs::write(&path, commands_page()).unwrap();
    }
    assert!(
        fs::read_to_string(&path).unwrap_or_default() == commands_page(),
        "docs/reference/commands.md is old: run this test with TENURE_WRITE_REFERENCE=1"
    );
}

/// Returns what is wrong with the words after `tenure` in a piece of code.
fn mistake(words: &[&str], verbs: &BTreeMap<Vec<String>, String>) -> Option<String> {
    let mut verb: Vec<String> = Vec::new();
    let mut rest = words;
    while let [word, more @ ..] = rest {
        verb.push((*word).to_owned());
        if !verbs.contains_key(&verb) {
            verb.pop();
            break;
        }
        rest = more;
    }
    let first = words.first()?;
    if verb.is_empty() && !first.starts_with('-') {
        let is_verb = first.len() > 1 && first.bytes().all(|byte| byte.is_ascii_lowercase());
        return is_verb.then(|| format!("there is no verb {first}"));
    }
    let mut known = options(&verbs[&verb]);
    if verb.is_empty() {
        // As `tenure serve`, for deployments that were written for a daemon alone.
        known.extend(options(&verbs[&vec!["serve".to_owned()]]));
    }
    for word in rest {
        if ["--", "|", "||", "&&", "&", ";", "#", ">"].contains(word) {
            break;
        }
        let name = word.split(['=', '\'', '"', ')', ';', '`']).next().unwrap();
        let is_option = name.starts_with('-') && name.len() > 1;
        if is_option && !known.contains(name) {
            return Some(format!("tenure {} has no option {name}", verb.join(" ")));
        }
    }
    None
}

#[test]
fn the_pages_name_only_verbs_and_options_that_exist() {
    let verbs = verbs();
    assert!(mistake(&["run", "--no-such-option", "x"], &verbs).is_some());
    assert!(mistake(&["cluster", "destroy"], &verbs).is_none());
    assert!(mistake(&["destroy"], &verbs).is_some());
    let mut checked = 0;
    let mut complaints = Vec::new();
    let mut pages = book();
    pages.push("README.md".to_owned());
    for page in pages {
        let text = read(&page);
        let code: Vec<String> = blocks(&text)
            .into_iter()
            .filter(|block| block.kind.starts_with("sh"))
            .flat_map(|block| {
                let text = block.text.replace("\\\n", " ");
                text.lines().map(str::to_owned).collect::<Vec<_>>()
            })
            .chain(
                text.split('`')
                    .filter(|span| span.starts_with("tenure ") && !span.contains('\n'))
                    .map(str::to_owned),
            )
            .collect();
        for line in code {
            for (at, _) in line.match_indices("tenure ") {
                let before = line[..at].chars().next_back();
                if !before.is_none_or(|letter| " ('\"$;".contains(letter)) {
                    continue;
                }
                let words: Vec<&str> = line[at + "tenure ".len()..].split_whitespace().collect();
                // `exec tenure tenure …`, `--name tenure`: the name of something else.
                let other = [
                    "exec ", "--tag ", "--name ", "image: ", "generic ", "install ",
                ];
                if other.iter().any(|word| line[..at].ends_with(word)) {
                    continue;
                }
                checked += 1;
                if let Some(mistake) = mistake(&words, &verbs) {
                    complaints.push(format!("{page}: {mistake}: {line}"));
                }
            }
        }
    }
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
    assert!(checked > 250, "{checked}");
}

/// The list of pages has all of them, so that the built book has them, too.
#[test]
fn the_summary_has_every_page() {
    let summary = read("docs/SUMMARY.md");
    for page in pages("docs") {
        let name = page.strip_prefix("docs/").unwrap();
        if name == "SUMMARY.md" {
            continue;
        }
        assert!(summary.contains(&format!("]({name})")), "{name} is missing");
    }
}

#[test]
fn the_page_of_errors_has_every_reason_and_class() {
    let page = read("docs/reference/errors.md");
    let proto = read("crates/tenure-wire/proto/pathlockd/v1/pathlock.proto");
    let mut reasons = 0;
    for line in proto.lines().map(str::trim) {
        let Some(rest) = line.strip_prefix("REASON_CODE_") else {
            continue;
        };
        let (name, number) = rest.trim_end_matches(';').split_once(" = ").unwrap();
        assert!(page.contains(&format!("| `{name}` | {number} |")), "{name}");
        reasons += 1;
    }
    assert!(reasons > 15, "{reasons}");
    let mut classes = 0;
    for line in read("crates/tenure-base/src/error.rs").lines() {
        if let Some((_, name)) = line.trim().split_once("=> \"") {
            let name = name.trim_end_matches("\",");
            assert!(page.contains(&format!("| `{name}` |")), "{name}");
            classes += 1;
        }
    }
    assert!(classes > 10, "{classes}");
}

/// Every variable in the code of clients and of the daemon is in the page of variables or is a key of the
/// configuration.
#[test]
fn the_page_of_variables_has_every_variable() {
    let page = read("docs/reference/environment.md");
    let configuration = read("docs/reference/configuration.md");
    let mut seen = BTreeSet::new();
    let mut open: Vec<PathBuf> = [
        "tenure",
        "tenure-cli",
        "tenure-server",
        "tenure-store",
        "tenure-files",
    ]
    .iter()
    .map(|name| root().join("crates").join(name).join("src"))
    .collect();
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(
                fs::read_dir(&path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
            continue;
        }
        // Tests have variables of their own.
        if path.file_stem().is_some_and(|stem| stem == "tests") {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let product = text.split("\n#[cfg(test)]").next().unwrap();
        for piece in product.split('"') {
            let is_name = ["TENURE_", "OTEL_"].iter().any(|prefix| {
                piece.strip_prefix(prefix).is_some_and(|rest| {
                    !rest.is_empty()
                        && rest
                            .bytes()
                            .all(|byte| byte.is_ascii_uppercase() || byte == b'_')
                })
            });
            if is_name {
                seen.insert(piece.to_owned());
            }
        }
    }
    assert!(seen.len() > 20, "{seen:?}");
    for name in seen {
        let key = name.trim_start_matches("TENURE_").to_lowercase();
        let known = page.contains(&format!("`{name}`"))
            || configuration.contains(&format!("| `{key}` |"))
            // Of the tests: one makes them write the generated pages, one makes them longer.
            || ["TENURE_WRITE_REFERENCE", "TENURE_FUZZ_SECONDS"].contains(&name.as_str())
            // A common start of names.
            || name.ends_with('_');
        assert!(known, "{name} is not in docs/reference/environment.md");
    }
}
