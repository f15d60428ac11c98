//! Phrase lint: phrases that hide the actor or the meaning must not be in comments, messages and
//! pages.
//!
//! A phrase is compared word by word, so a line break inside it does not hide it. A word alone in
//! quotes (`"nobody"` as an owner id) is data and allowed.

use super::Source;

/// The phrases, and what to write instead.
const BANNED: &[(&str, &str)] = &[
    ("whoever", "name the actor"),
    ("somebody", "name the actor"),
    ("nobody", "name the actor, or say `no client`, `not held`"),
    ("anybody", "name the actor"),
    ("those who", "name the actor"),
    ("is told", "say who sends what to whom"),
    ("are told", "say who sends what to whom"),
    ("was told", "say who sends what to whom"),
    ("were told", "say who sends what to whom"),
    ("be told", "say `distinguish` or `notify`"),
    ("is looked at", "say who reads what"),
    ("are looked at", "say who reads what"),
    ("what was left", "name what remains"),
    ("for ever", "say `without limit`"),
    ("in vain", "say `timed out` or `failed`"),
    ("give way", "say `stop` or `release on request`"),
    ("gives way", "say `stops` or `releases on request`"),
    ("gave way", "say `stopped` or `released on request`"),
    ("giving way", "say `stop` or `release on request`"),
    ("without a word", "say `without an error` or `by default`"),
    ("comes along", "say what happens"),
    ("that is all", "leave it out"),
];

/// Folders that still have such phrases. Remove a line when its folder has none; a line without
/// need is a complaint.
const EXEMPT: &[&str] = &["crates/tenure-core/", "crates/tenure-sim/"];

/// This file, because it lists the phrases, and output of commands that is kept as it was.
const UNCHECKED: &[&str] = &["xtask/src/tidy/phrases.rs", "docs/verification/"];

pub(super) fn check(sources: &[Source]) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut needed = vec![false; EXEMPT.len()];
    for source in sources.iter().filter(|source| is_prose(&source.path)) {
        let found = find(source);
        match EXEMPT.iter().position(|at| source.path.starts_with(at)) {
            Some(exemption) => needed[exemption] |= !found.is_empty(),
            None => complaints.extend(found),
        }
    }
    let unneeded = EXEMPT.iter().zip(needed).filter(|(_, needed)| !needed);
    complaints.extend(unneeded.map(|(path, _)| {
        format!("{path} has no banned phrase: remove it from EXEMPT in xtask/src/tidy/phrases.rs")
    }));
    complaints
}

/// Whether people read the text of this file.
fn is_prose(path: &str) -> bool {
    let is_text = [".rs", ".md", ".proto"]
        .iter()
        .any(|ending| path.ends_with(ending));
    is_text && !UNCHECKED.iter().any(|at| path.starts_with(at))
}

/// Returns a complaint for each banned phrase of a file.
fn find(source: &Source) -> Vec<String> {
    // Most files have none of the rare words, and are not split.
    let text = source.text.to_ascii_lowercase();
    let has_words = |phrase: &str| phrase.split(' ').all(|word| text.contains(word));
    let possible: Vec<_> = BANNED
        .iter()
        .filter(|(phrase, _)| has_words(phrase))
        .collect();
    if possible.is_empty() {
        return Vec::new();
    }
    let words: Vec<(usize, &str)> = source
        .text
        .lines()
        .enumerate()
        .flat_map(|(number, line)| words_of(line).map(move |word| (number + 1, word)))
        .collect();
    let mut complaints = Vec::new();
    for (at, (line, first)) in words.iter().enumerate() {
        for (phrase, advice) in &possible {
            let length = phrase.split(' ').count();
            let candidate = words.get(at..at + length).unwrap_or_default();
            if is_phrase(candidate, phrase)
                && first.trim_end_matches(',') != format!("\"{phrase}\"")
            {
                complaints.push(format!("{}:{line}: \"{phrase}\": {advice}", source.path));
            }
        }
    }
    complaints
}

/// Returns the words of a line, without the markers of comments and of continued strings.
fn words_of(line: &str) -> impl Iterator<Item = &str> {
    line.split(|letter: char| letter.is_whitespace() || "(){}[]|".contains(letter))
        .filter(|word| !matches!(*word, "" | "//" | "///" | "//!" | "\\"))
}

/// Whether these words are the phrase, whatever punctuation is around it.
fn is_phrase(words: &[(usize, &str)], phrase: &str) -> bool {
    let is_mark = |letter: char| !letter.is_alphanumeric() && letter != '_';
    let last = words.len().saturating_sub(1);
    let mut wanted = phrase.split(' ');
    words.iter().enumerate().all(|(at, (_, word))| {
        let word = if at == 0 {
            word.trim_start_matches(is_mark)
        } else {
            word
        };
        let word = if at == last {
            word.trim_end_matches(is_mark)
        } else {
            word
        };
        wanted
            .next()
            .is_some_and(|wanted| word.eq_ignore_ascii_case(wanted))
    }) && wanted.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        let source = Source {
            path: path.to_owned(),
            text: text.to_owned(),
        };
        find(&source)
    }

    #[test]
    fn a_phrase_is_found_in_comments_messages_and_pages() {
        for text in [
            "/// Whoever waits is first.",
            "    // It waits for\n    // ever.",
            "let text = \"it was \\\n    told\";",
            "panic!(\"nobody holds {path}\")",
            "It works (in vain).",
        ] {
            assert_eq!(found("crates/a/src/lib.rs", text).len(), 1, "{text}");
        }
        let complaints = found("README.md", "One\n\nwaits *for ever*.");
        assert_eq!(
            complaints,
            ["README.md:3: \"for ever\": say `without limit`"]
        );
    }

    #[test]
    fn data_and_other_words_are_allowed() {
        for text in [
            "owner(\"nobody\")",
            "It is, told briefly, a list.",
            "waits forever",
            "let nobody_waits = true;",
        ] {
            assert_eq!(found("crates/a/src/lib.rs", text), [""; 0], "{text}");
        }
    }

    #[test]
    fn an_exemption_without_need_is_a_complaint() {
        let mut sources: Vec<Source> = EXEMPT
            .iter()
            .map(|path| Source {
                path: format!("{path}.md"),
                text: "Nobody waits.".to_owned(),
            })
            .collect();
        assert_eq!(check(&sources), [""; 0]);
        sources[0].text.clear();
        let complaints = check(&sources);
        assert_eq!(complaints.len(), 1, "{complaints:?}");
        assert!(complaints[0].starts_with(EXEMPT[0]), "{complaints:?}");
    }
}
