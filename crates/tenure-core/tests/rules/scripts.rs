//! Runs the stories under `tests/scripts`: text that can be read without knowing Rust.
//!
//! A story starts with `story` and a sentence. A step may name what must come of it behind `->`:
//! words of the answer, then after commas every event that it causes, and no other.

use std::fs;
use std::path::PathBuf;

use crate::scenario::Scenario;

fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/scripts")
}

fn run(name: &str) {
    let file = directory().join(format!("{name}.txt"));
    let text = fs::read_to_string(&file).unwrap();
    let mut scenario = Scenario::new();
    let mut story = String::new();
    let mut wrong = Vec::new();
    let mut broken = false;
    for (number, line) in text.lines().enumerate() {
        if let Some(title) = line.strip_prefix("story ") {
            (scenario, story, broken) = (Scenario::new(), title.into(), false);
        } else if !broken && let Err(why) = scenario.try_line(line) {
            // What follows in this story rests on what went wrong.
            broken = true;
            let at = number + 1;
            wrong.push(format!(
                "{name}.txt:{at}: in the story {story}\n{line}\n{why}"
            ));
        }
    }
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n\n"));
}

macro_rules! scripts {
    ($($name:ident),+ $(,)?) => {
        $(#[test]
        fn $name() {
            run(stringify!($name));
        })+

        const NAMES: &[&str] = &[$(stringify!($name)),+];
    };
}

scripts!(
    algorithms,
    fences,
    idempotency,
    leases,
    policies,
    queue,
    reasons,
    release,
    semaphores,
    waits
);

/// A script that nobody runs would be no test.
#[test]
fn every_script_is_run() {
    let mut found: Vec<String> = fs::read_dir(directory())
        .unwrap()
        .map(|entry| {
            entry
                .unwrap()
                .path()
                .file_stem()
                .unwrap()
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    found.sort();
    assert_eq!(found, NAMES);
}
