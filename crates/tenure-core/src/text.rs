//! Text of others in text for people: escaped for a terminal, quoted for a shell.

use alloc::borrow::Cow;
use alloc::string::String;

/// Whether a character changes how a terminal shows the rest of the line: control characters, line
/// and paragraph separators, and the characters that reorder text.
fn is_unprintable(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// Returns the text with every character escaped that a terminal would not print as itself.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unprintable) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if is_unprintable(c) {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    Cow::Owned(shown)
}

/// Returns the text as one word of a shell command that a person may copy and paste.
///
/// A word without special characters stays as it is. Others are quoted; unprintable characters are
/// written as escapes, so that the command is safe to print, too.
pub fn shell_quoted(text: &str) -> Cow<'_, str> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_@%+=:,./-".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return Cow::Borrowed(text);
    }
    let escapes = text.contains(is_unprintable);
    let mut word = String::with_capacity(text.len() + 4);
    // `$'…'` knows escapes; `'…'` takes everything but a quote as it is.
    word.push_str(if escapes { "$'" } else { "'" });
    for c in text.chars() {
        match c {
            '\'' if escapes => word.push_str("\\'"),
            '\'' => word.push_str("'\\''"),
            '\\' if escapes => word.push_str("\\\\"),
            c if is_unprintable(c) => {
                // Bytes in octal with three digits: a following digit cannot be taken for a part.
                for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                    word.push('\\');
                    for shift in [6, 3, 0] {
                        word.push(char::from(b'0' + (byte >> shift & 7)));
                    }
                }
            }
            c => word.push(c),
        }
    }
    word.push('\'');
    Cow::Owned(word)
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::string::String;

    use super::*;

    const ODD: [&str; 9] = [
        "",
        "vol:/a/b",
        "own; touch pwned #@1",
        "it's $HOME `id` \"x\" \\ !",
        "~root",
        "a\nb",
        "esc\u{1b}[2J\u{1b}]52;c;cHduZWQ=\u{7}",
        "quote ' and \\ and \u{1b}7",
        "right\u{202e}left\u{2028}",
    ];

    /// A shell sees exactly the text, as one word, and a terminal sees no control character.
    #[test]
    fn a_quoted_word_is_the_text_again() {
        for text in ODD {
            let word = shell_quoted(text);
            assert!(!word.contains(is_unprintable), "{word:?}");
            let mut command = String::from("printf '%s' ");
            command.push_str(&word);
            let output = Command::new("bash")
                .arg("-c")
                .arg(&command)
                .output()
                .unwrap();
            assert_eq!(output.stdout, text.as_bytes(), "{command}");
        }
        assert_eq!(shell_quoted("vol:/a/b"), "vol:/a/b");
        assert_eq!(shell_quoted("a b"), "'a b'");
    }

    #[test]
    fn what_a_terminal_would_obey_is_escaped() {
        for text in ODD {
            assert!(!printable(text).contains(is_unprintable));
        }
        assert_eq!(printable("a\u{1b}[2Jb"), "a\\u{1b}[2Jb");
        assert_eq!(printable("plain ü"), "plain ü");
    }
}
