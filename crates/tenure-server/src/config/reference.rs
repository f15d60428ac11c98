//! The example configuration `deploy/tenure.example.toml` has every key with its default, and
//! `docs/reference/configuration.md` is made from it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

use super::*;

/// One key of the example.
struct Documented {
    section: String,
    key: String,
    value: String,
    /// What the key does.
    text: String,
    range: Option<(u64, u64)>,
}

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(name)
}

fn example() -> String {
    std::fs::read_to_string(file("deploy/tenure.example.toml")).unwrap()
}

/// Returns `key = value` of a line, also of one that is a comment.
fn assignment(line: &str) -> Option<(&str, &str)> {
    let (key, value) = line.trim_start_matches("# ").split_once(" = ")?;
    let is_key = key
        .bytes()
        .all(|b| b.is_ascii_lowercase() || b"_0123456789".contains(&b));
    is_key.then_some((key, value))
}

fn documented(example: &str) -> Vec<Documented> {
    let mut section = String::new();
    let mut comment: Vec<&str> = Vec::new();
    let mut found = Vec::new();
    for line in example.lines() {
        if let Some(name) = line.strip_prefix("# ---- ") {
            section = name.trim_end_matches(" ----").to_owned();
            comment.clear();
        } else if let Some((key, value)) = assignment(line) {
            let range = comment.iter().find_map(|line| line.strip_prefix("Range: "));
            let text: Vec<&str> = comment
                .iter()
                .copied()
                .filter(|line| !line.starts_with("Range: "))
                .collect();
            found.push(Documented {
                section: section.clone(),
                key: key.to_owned(),
                value: value.to_owned(),
                text: text.join(" "),
                range: range.map(bounds),
            });
            comment.clear();
        } else if let Some(text) = line.strip_prefix("# ") {
            comment.push(text);
        } else {
            comment.clear();
        }
    }
    found
}

/// Parses `1 to 65536.` and `1 or more.`
fn bounds(text: &str) -> (u64, u64) {
    let text = text.trim_end_matches('.');
    match text.split_once(" to ") {
        Some((low, high)) => (low.parse().unwrap(), high.parse().unwrap()),
        None => {
            let low = text.strip_suffix(" or more").unwrap();
            (low.parse().unwrap(), u64::MAX)
        }
    }
}

fn settings(text: &str) -> Result<Config, ConfigError> {
    let machine = MachineDefaults {
        system_directory: Writable::Yes,
        user_state: None,
    };
    Config::from_settings(RawSettings::new(Some(text), [])?, &machine)
}

/// Every key of the code is in the example and the other way round; what the example shows as a
/// default is the default.
#[test]
fn the_example_has_every_key_with_its_default() {
    let example = example();
    let keys = documented(&example);
    let effective: BTreeMap<&str, String> = settings(&example)
        .unwrap()
        .effective
        .into_iter()
        .map(|entry| (entry.key, entry.value))
        .collect();
    let named: BTreeSet<&str> = keys.iter().map(|one| one.key.as_str()).collect();
    let known: BTreeSet<&str> = effective.keys().copied().collect();
    assert_eq!(named, known);
    assert_eq!(named.len(), keys.len(), "a key is there twice");
    for one in &keys {
        assert_eq!(one.value, effective[one.key.as_str()], "{}", one.key);
        assert!(!one.text.is_empty(), "{} is not explained", one.key);
        assert!(!one.section.is_empty(), "{} has no section", one.key);
    }
    // The example with all comments removed is a valid file, too.
    let all: Vec<String> = keys
        .iter()
        .map(|one| format!("{} = {}", one.key, one.value))
        .collect();
    settings(&all.join("\n")).unwrap();
}

/// The ranges that the example names are those that are enforced.
#[test]
fn the_example_names_the_allowed_ranges() {
    let example = example();
    let keys = documented(&example);
    let refused = |key: &str, value: u64| {
        let text = format!("listen = \"127.0.0.1:0\"\n{key} = {value}");
        match settings(&text) {
            Ok(_) => false,
            Err(error) => error.mistakes.iter().any(|mistake| mistake.key == key),
        }
    };
    let mut ranges = 0;
    for one in &keys {
        let Some((low, high)) = one.range else {
            let number = one.value.parse::<u64>();
            assert!(
                number.is_err() || !refused(&one.key, 0),
                "{} has a range",
                one.key
            );
            continue;
        };
        ranges += 1;
        let toml_max = u64::try_from(i64::MAX).unwrap();
        assert!(
            low == 0 || refused(&one.key, low - 1),
            "{}: {low} - 1",
            one.key
        );
        assert!(!refused(&one.key, low), "{}: {low}", one.key);
        if high < toml_max {
            assert!(!refused(&one.key, high), "{}: {high}", one.key);
            assert!(refused(&one.key, high + 1), "{}: {high} + 1", one.key);
        }
    }
    assert!(ranges > 15, "{ranges}");
}

/// Returns the text of docs/reference/configuration.md.
fn reference() -> String {
    let mut text = String::from(
        "# Configuration\n\n\
         Generated from `deploy/tenure.example.toml`; a test compares it with the code.\n\n\
         `tenure serve` reads a TOML file (`--config FILE` or `TENURE_CONFIG`) and environment variables. A variable\n\
         `TENURE_<KEY>` overrides its key; an empty variable counts as not set. `PATHLOCKD_<KEY>` is accepted as well.\n\
         `tenure serve --print-config` prints the values in effect and where each of them comes from.\n\n\
         Changes take effect at the next start, with two exceptions: certificates are read again when their files change,\n\
         and SIGHUP opens `log_file` again.\n",
    );
    let example = example();
    let mut section = String::new();
    for one in documented(&example) {
        if one.section != section {
            let head = "| key | default | what |\n|---|---|---|\n";
            write!(text, "\n## {}\n\n{head}", one.section).unwrap();
            section.clone_from(&one.section);
        }
        let range = match one.range {
            Some((low, u64::MAX)) => format!(" {low} or more."),
            Some((low, high)) => format!(" {low} to {high}."),
            None => String::new(),
        };
        let what = one.text.replace('|', "\\|");
        writeln!(text, "| `{}` | `{}` | {what}{range} |", one.key, one.value).unwrap();
    }
    text.push_str(
        "\n## Accepted without effect\n\n\
         Deployments of pathlockd set these keys. The daemon names them in its log at start and ignores them:\n\n",
    );
    for key in WITHOUT_MEANING {
        writeln!(text, "- `{key}`").unwrap();
    }
    text
}

#[test]
fn the_reference_of_the_configuration_is_current() {
    let path = file("docs/reference/configuration.md");
    if std::env::var_os("TENURE_WRITE_REFERENCE").is_some() {
        std::fs::write(&path, reference()).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == reference(),
        "docs/reference/configuration.md is old: run this test with TENURE_WRITE_REFERENCE=1"
    );
}
