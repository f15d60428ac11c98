//! Naming lint: a type name is defined in at most two crates, and file names consist of known
//! words.

use std::collections::{BTreeMap, BTreeSet};

use super::Source;

/// Type names that every crate may define.
const COMMON: &[&str] = &["Config", "Error", "Inner", "Options"];

/// In how many crates a type name may be defined.
const MAX_CRATES: usize = 2;

/// The page with the words of the product.
const GLOSSARY: &str = "docs/glossary.md";

/// The list of general technical terms, one per line.
const TERMS: &str = "xtask/src/terms.txt";

pub(super) fn check(sources: &[Source]) -> Vec<String> {
    let mut complaints = repeated_types(sources);
    complaints.extend(unknown_stems(sources));
    complaints
}

/// Reports type names that are defined in more than two crates.
fn repeated_types(sources: &[Source]) -> Vec<String> {
    let mut defined: BTreeMap<&str, BTreeMap<&str, &str>> = BTreeMap::new();
    for source in sources {
        let Some(package) = package_of_product_code(&source.path) else {
            continue;
        };
        let product = source.text.split("\n#[cfg(test)]").next().unwrap_or("");
        for name in product.lines().filter_map(defined_type) {
            let crates = defined.entry(name).or_default();
            crates.entry(package).or_insert(&source.path);
        }
    }
    defined
        .iter()
        .filter(|(name, crates)| crates.len() > MAX_CRATES && !COMMON.contains(name))
        .map(|(name, crates)| {
            let files: Vec<&str> = crates.values().copied().collect();
            format!(
                "{}: the type name {name} is defined in {} crates ({}): say what it is here",
                files[0],
                crates.len(),
                files.join(", ")
            )
        })
        .collect()
}

/// Returns the crate of a source file, unless the file is only for tests.
fn package_of_product_code(path: &str) -> Option<&str> {
    let (package, file) = path.strip_prefix("crates/")?.split_once("/src/")?;
    let only_for_tests = file
        .split('/')
        .any(|part| matches!(part, "tests" | "tests.rs"));
    (file.ends_with(".rs") && !only_for_tests).then_some(package)
}

/// Returns the name of the type that a line of code defines at the top level of its module.
fn defined_type(line: &str) -> Option<&str> {
    let line = match line.strip_prefix("pub") {
        Some(rest) => match rest.strip_prefix('(') {
            Some(rest) => rest.split_once(") ")?.1,
            None => rest.strip_prefix(' ')?,
        },
        None => line,
    };
    let (keyword, rest) = line.split_once(' ')?;
    if !matches!(keyword, "struct" | "enum" | "trait" | "type") {
        return None;
    }
    rest.split(|letter: char| !letter.is_alphanumeric() && letter != '_')
        .next()
        .filter(|name| !name.is_empty())
}

/// Reports words in file names that are neither in the glossary nor in the list of terms.
fn unknown_stems(sources: &[Source]) -> Vec<String> {
    let text = |path: &str| {
        let found = sources.iter().find(|source| source.path == path);
        found.map(|source| source.text.as_str())
    };
    let (Some(glossary), Some(terms)) = (text(GLOSSARY), text(TERMS)) else {
        return vec![format!("{GLOSSARY} or {TERMS} is missing")];
    };
    let mut known: BTreeSet<String> = glossary.lines().flat_map(words_of_row).collect();
    known.extend(terms.split_whitespace().map(str::to_owned));
    let mut complaints = Vec::new();
    for source in sources {
        let Some(stem) = stem(&source.path) else {
            continue;
        };
        for word in stem.split('_').filter(|word| !known.contains(*word)) {
            complaints.push(format!(
                "{}: the word `{word}` is neither in {GLOSSARY} nor in {TERMS}: use the field's word",
                source.path
            ));
        }
    }
    complaints
}

/// Returns the words that a row of the glossary explains.
fn words_of_row(line: &str) -> Vec<String> {
    let first = line
        .strip_prefix("| ")
        .and_then(|row| row.split(" |").next());
    first
        .unwrap_or("")
        .to_lowercase()
        .split(|letter: char| !letter.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect()
}

/// Returns the name of a source file without its extension; for `mod.rs`, the name of the folder.
fn stem(path: &str) -> Option<&str> {
    let in_scope = path.starts_with("crates/") || path.starts_with("xtask/src/");
    let (folder, file) = path.rsplit_once('/')?;
    let stem = file.strip_suffix(".rs").filter(|_| in_scope)?;
    match stem {
        "mod" => folder.rsplit('/').next(),
        stem => Some(stem),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> Source {
        Source {
            path: path.to_owned(),
            text: text.to_owned(),
        }
    }

    #[test]
    fn a_type_name_in_three_crates_is_rejected() {
        let text = "pub(crate) struct Place {\n}\npub enum Error {}\n";
        let mut sources: Vec<Source> = ["a", "b"]
            .map(|name| source(&format!("crates/{name}/src/lib.rs"), text))
            .into();
        sources.push(source("crates/c/src/tests.rs", text));
        sources.push(source("crates/d/tests/all.rs", text));
        assert_eq!(repeated_types(&sources), Vec::<String>::new());
        sources.push(source("crates/e/src/deep/file.rs", text));
        let complaints = repeated_types(&sources);
        assert_eq!(complaints.len(), 1, "{complaints:?}");
        assert!(complaints[0].contains("Place is defined in 3 crates"));
    }

    #[test]
    fn a_type_that_only_tests_define_does_not_count() {
        let text = "#[cfg(test)]\nmod tests {}\nstruct Place;\n";
        let sources: Vec<Source> = ["a", "b", "c"]
            .map(|name| source(&format!("crates/{name}/src/lib.rs"), &format!("\n{text}")))
            .into();
        assert_eq!(repeated_types(&sources), Vec::<String>::new());
    }

    #[test]
    fn a_file_name_with_an_unknown_word_is_rejected() {
        let mut sources = vec![
            source(
                GLOSSARY,
                "| word | meaning |\n|---|---|\n| claim, hold | a right |\n",
            ),
            source(TERMS, "mac\nframe\n"),
            source("crates/a/src/claim.rs", ""),
            source("crates/a/src/frame_mac.rs", ""),
            source("crates/a/src/hold/mod.rs", ""),
        ];
        assert_eq!(unknown_stems(&sources), Vec::<String>::new());
        sources.push(source("crates/a/src/frame_onion.rs", ""));
        let complaints = unknown_stems(&sources);
        assert_eq!(complaints.len(), 1, "{complaints:?}");
        assert!(complaints[0].contains("`onion`"));
    }
}
