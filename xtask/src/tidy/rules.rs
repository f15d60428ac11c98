//! Rule ids: each rule of the specification has a heading, a crate that owns it, and a test; no
//! other id is cited.
//!
//! `docs/spec/` has one heading per rule (`### R45: short name`). `docs/rules.txt` assigns each
//! rule to a crate. A citation is the id as a word (`R45`); a range cites its ends only. A rule
//! counts as tested if its crate or `tenure-testkit` cites it in test code: in a file under
//! `tests/`, or after `#[cfg(test)]`.

use std::collections::{BTreeMap, BTreeSet};

use super::Source;

const LIST: &str = "docs/rules.txt";
/// The crate with the tests that need processes, of all crates.
const KIT: &str = "tenure-testkit";
const SPECIFICATION: &str = "docs/spec/";

pub(super) fn check(sources: &[Source]) -> Vec<String> {
    let Some(list) = sources.iter().find(|source| source.path == LIST) else {
        return vec![format!("{LIST} is missing")];
    };
    let (assigned, mut complaints) = parse(&list.text);
    let owned: BTreeSet<&str> = assigned.values().flatten().map(String::as_str).collect();
    let headings = headings(sources, &mut complaints);
    for id in headings.keys().filter(|id| !owned.contains(**id)) {
        complaints.push(format!("{}: no crate owns {id} in {LIST}", headings[id]));
    }
    for id in owned.iter().filter(|id| !headings.contains_key(**id)) {
        complaints.push(format!("{LIST}: {id} has no heading in {SPECIFICATION}"));
    }
    for source in sources.iter().filter(|source| may_cite(&source.path)) {
        for id in ids(&source.text) {
            if !headings.contains_key(id.as_str()) {
                complaints.push(format!(
                    "{}: cites {id}, which has no heading in {SPECIFICATION}",
                    source.path
                ));
            }
        }
    }

    let mut cited: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for source in sources {
        let Some(name) = crate_of(&source.path) else {
            continue;
        };
        cited
            .entry(name)
            .or_default()
            .extend(ids(test_part(source)));
    }
    let in_kit = cited.remove(KIT).unwrap_or_default();
    for (name, rules) in &assigned {
        // A crate without files has nothing to cite yet.
        let Some(cited) = cited.get(name.as_str()) else {
            continue;
        };
        let missing: Vec<&str> = rules
            .iter()
            .filter(|id| !cited.contains(*id) && !in_kit.contains(*id))
            .map(String::as_str)
            .collect();
        if !missing.is_empty() {
            complaints.push(format!("{name}: no test cites {}", missing.join(" ")));
        }
    }
    complaints
}

/// Returns every rule of the specification with the page that has its heading.
fn headings<'a>(sources: &'a [Source], complaints: &mut Vec<String>) -> BTreeMap<&'a str, &'a str> {
    let mut headings = BTreeMap::new();
    for page in sources
        .iter()
        .filter(|source| source.path.starts_with(SPECIFICATION))
    {
        for line in page.text.lines().filter(|line| line.starts_with('#')) {
            let Some((id, _)) = line.trim_start_matches('#').trim().split_once(':') else {
                continue;
            };
            if is_id(id) && headings.insert(id, page.path.as_str()).is_some() {
                complaints.push(format!("{}: a second heading for {id}", page.path));
            }
        }
    }
    headings
}

/// Whether a file may cite rules: code, scripts and pages, but not recorded data, which may contain
/// such words by chance.
fn may_cite(path: &str) -> bool {
    let text = [".rs", ".md", ".proto", ".sh", ".py"]
        .iter()
        .any(|ending| path.ends_with(ending));
    text && !path.contains("/vectors/")
}

/// Parses lines of the form `crate: R1-R4 R7 (owner ids)`.
fn parse(text: &str) -> (BTreeMap<String, BTreeSet<String>>, Vec<String>) {
    let mut assigned: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut complaints = Vec::new();
    for line in text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.trim().is_empty())
    {
        let Some((name, rules)) = line.split_once(':') else {
            complaints.push(format!("{LIST}: `{line}` is not `crate: ids`"));
            continue;
        };
        let entry = assigned.entry(name.trim().to_owned()).or_default();
        for word in rules.split_whitespace() {
            if is_id(word) {
                entry.insert(word.to_owned());
                continue;
            }
            let (first, last) = word.split_once('-').unwrap_or((word, word));
            match (number(first), number(last)) {
                (Some((letter, from)), Some((same, to))) if letter == same && from <= to => {
                    entry.extend((from..=to).map(|n| format!("{letter}{n}")));
                }
                _ => complaints.push(format!("{LIST}: `{word}` is neither an id nor a range")),
            }
        }
    }
    (assigned, complaints)
}

fn number(id: &str) -> Option<(char, u32)> {
    let letter = id.chars().next()?;
    Some((letter, id.get(1..)?.parse().ok()?))
}

fn crate_of(path: &str) -> Option<&str> {
    path.strip_prefix("crates/")?.split('/').next()
}

/// Returns the part of a file that is test code; empty for product code.
fn test_part(source: &Source) -> &str {
    if source.path.contains("/tests/") && !source.path.contains("/vectors/") {
        return &source.text;
    }
    if !source.path.ends_with(".rs") {
        return "";
    }
    let is_test_file = source.path.ends_with("/tests.rs") || source.path.ends_with("_tests.rs");
    if is_test_file {
        return &source.text;
    }
    source
        .text
        .find("#[cfg(test)]")
        .map_or("", |at| &source.text[at..])
}

/// Returns the words of a text that are rule ids.
fn ids(text: &str) -> BTreeSet<String> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| is_id(word))
        .map(str::to_owned)
        .collect()
}

/// Whether a word is a rule id: a letter, a number without leading zero, and `a` for a rule that
/// was inserted later.
fn is_id(word: &str) -> bool {
    let Some(number) = word.strip_prefix(['R', 'E', 'K', 'S', 'X', 'U', 'P', 'C']) else {
        return false;
    };
    let number = number.strip_suffix('a').unwrap_or(number);
    matches!(number.len(), 1..=3)
        && number.bytes().all(|byte| byte.is_ascii_digit())
        && (number == "0" || !number.starts_with('0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_and_single_ids_are_read() {
        let (assigned, complaints) = parse("# words\ntenure-core: R1-R3 E9\ntenure-core: R7\n");
        assert!(complaints.is_empty());
        let rules: Vec<&str> = assigned["tenure-core"].iter().map(String::as_str).collect();
        assert_eq!(rules, ["E9", "R1", "R2", "R3", "R7"]);
    }

    #[test]
    fn only_whole_words_are_citations() {
        let found = ids("/// R45: a_R7 R07 R1234 XR2 U13a K8s (K22–K27)");
        let found: Vec<&str> = found.iter().map(String::as_str).collect();
        assert_eq!(found, ["K22", "K27", "R45", "U13a"]);
    }

    fn source(path: &str, text: &str) -> Source {
        Source {
            path: path.into(),
            text: text.into(),
        }
    }

    #[test]
    fn a_rule_that_no_test_cites_is_a_complaint() {
        let sources = [
            source(LIST, "tenure-core: R1-R2\n"),
            source("docs/spec/all.md", "### R1: one\n### R2: two\n"),
            source(
                "crates/tenure-core/src/lib.rs",
                "// R2\n#[cfg(test)]\nmod tests { /* R1 */ }",
            ),
        ];
        assert_eq!(check(&sources), ["tenure-core: no test cites R2"]);
    }

    #[test]
    fn a_rule_needs_a_heading_and_an_owner() {
        let sources = [
            source(LIST, "tenure-core: R1\n"),
            source("docs/spec/all.md", "### R2: two\n### R2: again\n"),
            source("crates/tenure-core/src/lib.rs", "// R3"),
        ];
        let complaints = check(&sources).join("\n");
        for complaint in [
            "docs/spec/all.md: a second heading for R2",
            "docs/spec/all.md: no crate owns R2 in docs/rules.txt",
            "docs/rules.txt: R1 has no heading in docs/spec/",
            "crates/tenure-core/src/lib.rs: cites R3, which has no heading in docs/spec/",
        ] {
            assert!(complaints.contains(complaint), "{complaints}");
        }
    }
}
