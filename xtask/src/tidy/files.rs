//! File lints: leftover markers, unreachable source files, missing module headers, broken links.

use super::Source;

/// Text that must not be in the repository, and why.
const LEFTOVERS: &[(&str, &str)] = &[
    (
        concat!("TO", "DO"),
        "finish it, or write down the limit as a fact",
    ),
    (concat!("FIX", "ME"), "fix it"),
    (concat!("X", "XX"), "fix it"),
    (concat!("/work", "/"), "a path of one machine"),
    (concat!("/ro", "ot/"), "a path of one machine"),
    (concat!("../sha", "red"), "not part of the repository"),
];

pub(super) fn check(sources: &[Source]) -> Vec<String> {
    let mut complaints = Vec::new();
    for source in sources {
        leftovers(source, &mut complaints);
        if source.path.ends_with(".rs") {
            opening(source, &mut complaints);
            reachable(source, sources, &mut complaints);
            pages(source, sources, &mut complaints);
        }
        if source.path.ends_with(".md") {
            links(source, sources, &mut complaints);
        }
    }
    complaints
}

fn leftovers(source: &Source, complaints: &mut Vec<String>) {
    if source.path == "Cargo.lock" || source.path.contains("/vectors/") {
        return;
    }
    for (number, line) in source.text.lines().enumerate() {
        for (word, why) in LEFTOVERS {
            if line.contains(word) {
                complaints.push(format!("{}:{}: `{word}`: {why}", source.path, number + 1));
            }
        }
    }
}

/// Every source file starts with a module header.
fn opening(source: &Source, complaints: &mut Vec<String>) {
    let first = source.text.lines().find(|line| !line.starts_with("#!["));
    if !first.is_some_and(|line| line.starts_with("//!")) {
        complaints.push(format!(
            "{}: start the file with `//!` and say what it contains",
            source.path
        ));
    }
}

/// Reports source files that no `mod` declares. Targets that cargo finds by itself are exempt.
fn reachable(source: &Source, sources: &[Source], complaints: &mut Vec<String>) {
    let Some((folder, file)) = source.path.rsplit_once('/') else {
        return;
    };
    let stem = file.trim_end_matches(".rs");
    let target_folder = ["/tests", "/benches", "/examples", "/src/bin"]
        .iter()
        .any(|kind| folder.ends_with(kind));
    if matches!(stem, "lib" | "main" | "build") || target_folder {
        return;
    }
    let (module, home) = if stem == "mod" {
        let Some((parent, name)) = folder.rsplit_once('/') else {
            return;
        };
        (name, parent)
    } else {
        (stem, folder)
    };
    let near = format!("{home}/");
    let beside = format!("{home}.rs");
    let wanted = format!("{module};");
    let declared = sources
        .iter()
        .filter(|other| other.path.starts_with(&near) || other.path == beside)
        .any(|other| {
            other.text.lines().any(|line| {
                let line = line.trim_start();
                let line = line.strip_prefix("pub(crate) ").unwrap_or(line);
                let line = line.strip_prefix("pub(super) ").unwrap_or(line);
                let line = line.strip_prefix("pub ").unwrap_or(line);
                line.strip_prefix("mod ")
                    .is_some_and(|rest| rest.trim_end() == wanted)
            })
        });
    if declared {
        return;
    }
    // `#[path = "…"]`, or the same behind a `cfg_attr`.
    let [plain, conditional] = [format!("/{file}\"]"), format!("/{file}\")]")];
    let by_path = sources
        .iter()
        .filter(|other| other.path.ends_with(".rs"))
        .any(|other| other.text.contains(&plain) || other.text.contains(&conditional));
    if !by_path {
        complaints.push(format!(
            "{}: no `mod {module};` declares it: delete the file or declare the module",
            source.path
        ));
    }
}

/// Reports relative links in pages that lead to no file of the repository.
fn links(source: &Source, sources: &[Source], complaints: &mut Vec<String>) {
    for piece in source.text.split("](").skip(1) {
        let Some(target) = piece.split(')').next() else {
            continue;
        };
        if target.contains("://") || target.starts_with("mailto:") {
            continue;
        }
        let (target, anchor) = target.split_once('#').unwrap_or((target, ""));
        if target.is_empty() {
            anchors(source, &source.text, anchor, complaints);
            continue;
        }
        let folder = source
            .path
            .rsplit_once('/')
            .map_or("", |(folder, _)| folder);
        let Some(resolved) = resolve(folder, target) else {
            complaints.push(format!(
                "{}: the link {target} leaves the repository",
                source.path
            ));
            continue;
        };
        let found = sources.iter().find(|other| {
            other.path == resolved || other.path.starts_with(&format!("{resolved}/"))
        });
        match found {
            None => complaints.push(format!(
                "{}: the link {target} leads to no file of the repository",
                source.path
            )),
            Some(page) if page.path.ends_with(".md") => {
                anchors(source, &page.text, anchor, complaints);
            }
            Some(_) => {}
        }
    }
}

/// Reports an anchor that is no heading and no `<a id>` of its page.
fn anchors(source: &Source, page: &str, anchor: &str, complaints: &mut Vec<String>) {
    let named = page.contains(&format!("<a id=\"{anchor}\">"));
    let mut headings = page.lines().filter(|line| line.starts_with('#'));
    if !anchor.is_empty() && !named && !headings.any(|line| slug(line) == anchor) {
        complaints.push(format!(
            "{}: the link #{anchor} leads to no heading of its page",
            source.path
        ));
    }
}

/// Returns the anchor that forges and mdBook make of a heading.
fn slug(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text
        .chars()
        .filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
    kept.map(|letter| if letter == ' ' { '-' } else { letter })
        .collect()
}

/// Reports pages that a comment names, by path or by name, and that do not exist.
fn pages(source: &Source, sources: &[Source], complaints: &mut Vec<String>) {
    for (number, line) in source.text.lines().enumerate() {
        let Some((_, comment)) = line.split_once("//") else {
            continue;
        };
        let words = comment.split(|c: char| !c.is_ascii_alphanumeric() && !"-_./".contains(c));
        for page in words
            .map(|word| word.trim_matches('.'))
            .filter(|word| word.ends_with(".md"))
        {
            let inner = format!("/{}", page.trim_start_matches("../"));
            let found = sources
                .iter()
                .any(|other| other.path == page || other.path.ends_with(&inner));
            if !found {
                let place = format!("{}:{}", source.path, number + 1);
                complaints.push(format!("{place}: there is no page {page}"));
            }
        }
    }
}

fn resolve(folder: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_to_a_missing_heading_is_a_complaint() {
        let page = |text: &str| Source {
            path: "docs/a.md".into(),
            text: text.into(),
        };
        let sources = [page(
            "# A page\n## When it's `broken`, then\n[good](a.md#when-its-broken-then) [own](#a-page) [bad](a.md#gone)\n",
        )];
        let mut complaints = Vec::new();
        links(&sources[0], &sources, &mut complaints);
        assert_eq!(
            complaints,
            ["docs/a.md: the link #gone leads to no heading of its page"]
        );
    }

    #[test]
    fn a_comment_that_names_a_missing_page_is_a_complaint() {
        let source = |path: &str, text: &str| Source {
            path: path.into(),
            text: text.into(),
        };
        let sources = [
            source(
                "crates/a/src/lib.rs",
                concat!("/", "/! See docs/log.md, leases.md and gone.md."),
            ),
            source("docs/log.md", ""),
            source("docs/design/leases.md", ""),
        ];
        let mut complaints = Vec::new();
        pages(&sources[0], &sources, &mut complaints);
        assert_eq!(
            complaints,
            ["crates/a/src/lib.rs:1: there is no page gone.md"]
        );
    }
}
