//! Messages about mistakes on the command line: the parser's words under our prefix, with the advice
//! that a user of `flock`, `timeout` or `consul lock` needs.

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::message;
use crate::output::USAGE;

/// Options of other tools, and what they are called here.
const OTHER_NAMES: &[(&str, &str)] = &[
    ("--timeout", "the time to wait is -w DUR (--wait DUR)"),
    (
        "--nonblock",
        "to exit at once if the lock is held, use -n (--no-wait)",
    ),
    (
        "--nb",
        "to exit at once if the lock is held, use -n (--no-wait)",
    ),
    (
        "--conflict-exit-code",
        "the exit code for a held lock is -E CODE",
    ),
    (
        "--command",
        "write the command after --: tenure run WHERE -- sh -c 'COMMAND'",
    ),
    (
        "-c",
        "write the command after --: tenure run WHERE -- sh -c 'COMMAND'",
    ),
    (
        "--unlock",
        "a lock taken with `tenure lock` is released with: tenure unlock HOLD",
    ),
    ("--ttl-ms", "leases are set with --ttl DUR, such as 30s"),
    ("--yes", "to do it without a question, use --force"),
    ("-y", "to do it without a question, use --force"),
    ("-f", "to do it without a question, use --force"),
    (
        "--host",
        "the daemon is named by TENURE_URL or the address: tenure://host:50051/tenant:/a",
    ),
    ("--server", "the daemon is named by TENURE_URL"),
    ("--port", "use --listen HOST:PORT"),
    ("--data", "use --data-dir DIR"),
];

/// Prints the parser's message, and returns the exit code. Help and version are no mistakes.
pub(crate) fn end(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        // A closed pipe is no failure: `tenure help | head`.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let text = error.render().to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    // Bare `tenure` prints its help.
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        message::print(text.to_owned());
    } else {
        message::say(with_advice(error, text).trim_end());
    }
    message::flush();
    ExitCode::from(USAGE)
}

fn with_advice(error: &clap::Error, text: &str) -> String {
    let Some(advice) = advice(error) else {
        return text.to_owned();
    };
    // The parser's own guess is about another mistake.
    let lines = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("tip: to pass"));
    let mut lines: Vec<String> = lines.map(str::to_owned).collect();
    let at = lines
        .iter()
        .position(|line| line.starts_with("Usage:"))
        .unwrap_or(lines.len());
    lines.insert(at, format!("  next: {advice}\n"));
    // The removed line leaves two empty ones.
    lines.dedup_by(|one, two| one.is_empty() && two.is_empty());
    lines.join("\n")
}

fn advice(error: &clap::Error) -> Option<String> {
    let value = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => vec![text.clone()],
        Some(ContextValue::Strings(texts)) => texts.clone(),
        _ => Vec::new(),
    };
    match error.kind() {
        ErrorKind::MissingRequiredArgument => {
            let missing = value(ContextKind::InvalidArg);
            let is_missing = |name: &str| missing.iter().any(|one| one.contains(name));
            if is_missing("<CMD>") {
                return Some("put -- before the command: tenure run WHERE -- COMMAND".to_owned());
            }
            if is_missing("--owner") {
                return Some("run it under `tenure run`, which names the hold: tenure run WHERE -- tenure fence check".to_owned());
            }
            if is_missing("<WHERE>") {
                return Some(
                    "name the lock: a file, or a path of the daemon such as tenant:/a".to_owned(),
                );
            }
            None
        }
        ErrorKind::UnknownArgument => {
            let given = value(ContextKind::InvalidArg).into_iter().next()?;
            let known = OTHER_NAMES.iter().find(|(name, _)| *name == given);
            if let Some((_, advice)) = known {
                return Some((*advice).to_owned());
            }
            let digits = given.trim_start_matches('-');
            let is_number = digits.starts_with(|c: char| c.is_ascii_digit());
            is_number.then(|| "a duration has no sign: 500ms, 30s, 5m, 1h".to_owned())
        }
        ErrorKind::InvalidUtf8 => Some(
            "an address must be UTF-8; change to the directory and use another name".to_owned(),
        ),
        _ => None,
    }
}
