//! Every rule of the specification that a crate implements is cited by one of its tests.
//!
//! `docs/rules.txt` says which crate answers for which rule. A citation is the id as a word (`R45`)
//! in test code: in a file under `tests/`, or behind `#[cfg(test)]`. A range cites its ends only.

use std::collections::{BTreeMap, BTreeSet};

use super::Source;

const LIST: &str = "docs/rules.txt";

pub(super) fn check(sources: &[Source]) -> Vec<String> {
    let Some(list) = sources.iter().find(|source| source.path == LIST) else {
        return vec![format!("{LIST} is missing")];
    };
    let (assigned, mut complaints) = parse(&list.text);
    let known: BTreeSet<&String> = assigned.values().flatten().collect();

    let mut cited: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for source in sources {
        let Some(name) = crate_of(&source.path) else {
            continue;
        };
        let ids = ids(test_part(source));
        for id in &ids {
            if !known.contains(id) {
                complaints.push(format!("{}: cites {id}, which is no rule", source.path));
            }
        }
        cited.entry(name).or_default().extend(ids);
    }
    for (name, rules) in &assigned {
        // A crate that is not there yet has nothing to show.
        let Some(cited) = cited.get(name.as_str()) else {
            continue;
        };
        let missing: Vec<&str> = rules.difference(cited).map(String::as_str).collect();
        if !missing.is_empty() {
            complaints.push(format!("{name}: no test cites {}", missing.join(" ")));
        }
    }
    complaints
}

/// Reads lines of `crate: R1-R4 R7`.
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

/// The part of a file that is test code; empty for product code.
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

/// Words that are a rule's letter and a number without leading zero.
fn ids(text: &str) -> BTreeSet<String> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| {
            word.len() <= 4 && word.starts_with(['R', 'E', 'K', 'S', 'X', 'U', 'P', 'C'])
        })
        .filter(|word| {
            let digits = &word[1..];
            !digits.is_empty()
                && digits.bytes().all(|byte| byte.is_ascii_digit())
                && (digits == "0" || !digits.starts_with('0'))
        })
        .map(str::to_owned)
        .collect()
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
        let found = ids("/// R45: a_R7 R07 R1234 XR2 (K22–K27)");
        let found: Vec<&str> = found.iter().map(String::as_str).collect();
        assert_eq!(found, ["K22", "K27", "R45"]);
    }

    #[test]
    fn a_rule_that_no_test_cites_is_a_complaint() {
        let sources = [
            Source {
                path: LIST.into(),
                text: "tenure-core: R1-R2\n".into(),
            },
            Source {
                path: "crates/tenure-core/src/lib.rs".into(),
                text: "// R2\n#[cfg(test)]\nmod tests { /* R1 */ }".into(),
            },
        ];
        assert_eq!(check(&sources), ["tenure-core: no test cites R2"]);
    }
}
