//! What must not be seen outside its place.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::Path;

fn sources(dir: &Path, found: &mut Vec<(String, String)>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            found.push((path.display().to_string(), text));
        }
    }
}

/// Only `consensus` names the Raft library, its wire types or its logger: another one must fit
/// behind the same door.
#[test]
fn only_consensus_names_the_raft_library() {
    let mut found = Vec::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    sources(&root, &mut found);
    assert!(found.len() > 20);
    for (path, text) in found {
        if path.contains("consensus") {
            continue;
        }
        for name in ["raft::", "protobuf::", "eraftpb", "slog::"] {
            assert!(!text.contains(name), "{path} names {name}");
        }
    }
}
