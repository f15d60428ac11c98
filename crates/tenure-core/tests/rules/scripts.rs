//! Runs the test scripts under `tests/scripts`: plain text that needs no knowledge of Rust.
//!
//! A story is one test case: it starts with `story` and a sentence. A step may be followed by `->`
//! and its expected result: words of the answer, then after commas every event that it causes, and
//! no other.
//!
//! `TENURE_STORY=R68 (caller-supplied tokens) cargo test -p tenure-core --test rules fences` runs
//! only the stories of `fences.txt` whose sentence contains `R68`.

use std::fs;
use std::path::PathBuf;

use crate::scenario::Scenario;

fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/scripts")
}

#[allow(
    clippy::disallowed_methods,
    reason = "the developer chooses one story; what it shows does not depend on the choice"
)]
fn run(name: &str) {
    let file = directory().join(format!("{name}.txt"));
    let text = fs::read_to_string(&file).unwrap();
    let mut scenario = Scenario::new();
    let mut story = String::new();
    let mut wrong = Vec::new();
    let only = std::env::var("TENURE_STORY").unwrap_or_default();
    // Lines before the first story are comments. Lines of a story that is not selected are skipped.
    let mut skip = false;
    let mut stories = 0;
    for (number, line) in text.lines().enumerate() {
        if let Some(title) = line.strip_prefix("story ") {
            (scenario, story) = (Scenario::new(), title.into());
            skip = !title.contains(&only);
            stories += usize::from(!skip);
        } else if !skip && let Err(why) = scenario.try_line(line) {
            // Later lines of the story depend on the failed one.
            skip = true;
            let at = number + 1;
            wrong.push(format!(
                "{name}.txt:{at}: in the story {story}\n{line}\n{why}"
            ));
        }
    }
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n\n"));
    assert!(stories > 0, "{name}.txt has no story with `{only}`");
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
    quotas,
    reasons,
    release,
    semaphores,
    waits
);

/// Every script has a test that runs it.
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
