//! Output and exit codes of the commands: C2 (exit codes). The same facts for people (text) and
//! programs (JSON).

use std::io::{self, Write};
use std::process::ExitCode;

use serde::Serialize;
use tenure_files::{Class, Decision};

use crate::message;

/// Invalid arguments; nothing was changed.
pub(crate) const USAGE: u8 = 2;
/// Another owner holds the lock.
pub(crate) const HELD: u8 = 75;
/// The lock is lost.
pub(crate) const LOST: u8 = 120;
/// The wait for the lock timed out.
pub(crate) const TIMED_OUT: u8 = 124;
/// Tenure itself failed.
pub(crate) const FAILED: u8 = 125;

/// A command that failed, with its exit code.
#[derive(Debug)]
pub(crate) struct CommandFailure {
    pub(crate) code: u8,
    pub(crate) text: String,
    /// The fields for `--json`, if there are more than the message.
    json: Option<serde_json::Value>,
}

impl CommandFailure {
    pub(crate) fn new(code: u8, text: impl Into<String>) -> CommandFailure {
        CommandFailure {
            code,
            text: text.into(),
            json: None,
        }
    }

    /// Invalid arguments of the caller.
    pub(crate) fn usage(text: impl Into<String>) -> CommandFailure {
        CommandFailure::new(USAGE, text)
    }

    /// A failure of Tenure itself.
    pub(crate) fn own(text: impl Into<String>) -> CommandFailure {
        CommandFailure::new(FAILED, text)
    }

    fn json(&self) -> serde_json::Value {
        let class = match self.code {
            USAGE => "BadInput",
            HELD => "Held",
            TIMED_OUT => "Timeout",
            LOST => "Compromised",
            _ => "Io",
        };
        let fields = self
            .json
            .clone()
            .unwrap_or_else(|| serde_json::json!({ "class": class, "message": self.text }));
        serde_json::json!({ "error": fields, "code": self.code })
    }
}

/// Returns the exit code of a command that fails with this error: C2, C15 (exit code follows the
/// decision), C16 (details of codes and break).
fn exit_code(error: &tenure::Error) -> u8 {
    match error {
        tenure::Error::Busy(_) => HELD,
        tenure::Error::TimedOut(_) => TIMED_OUT,
        tenure::Error::Lost(_) => LOST,
        tenure::Error::Input(_) | tenure::Error::Unsupported(_) => USAGE,
        _ => FAILED,
    }
}

impl From<tenure::Error> for CommandFailure {
    fn from(error: tenure::Error) -> CommandFailure {
        CommandFailure {
            code: exit_code(&error),
            text: error.to_string(),
            json: Some(error.to_json()),
        }
    }
}

impl From<tenure_files::Error> for CommandFailure {
    fn from(error: tenure_files::Error) -> CommandFailure {
        let code = match (error.decision(), error.class()) {
            (_, Class::Timeout) => TIMED_OUT,
            (Decision::Wait | Decision::Skip, _) => HELD,
            (_, Class::Compromised) => LOST,
            (_, Class::BadInput) => USAGE,
            _ => FAILED,
        };
        CommandFailure::new(code, error.to_string())
    }
}

impl From<io::Error> for CommandFailure {
    fn from(error: io::Error) -> CommandFailure {
        CommandFailure::own(error.to_string())
    }
}

/// Whether a command prints text or JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutputFormat {
    Text,
    Json,
    /// Failures as JSON on standard error, because a command owns standard output.
    JsonOnStderr,
}

impl OutputFormat {
    pub(crate) fn of(json: bool) -> OutputFormat {
        if json {
            OutputFormat::Json
        } else {
            OutputFormat::Text
        }
    }

    /// Prints one result.
    pub(crate) fn answer(
        self,
        text: impl std::fmt::Display,
        json: &impl Serialize,
    ) -> Result<(), CommandFailure> {
        match self {
            OutputFormat::Text => line(&text.to_string()),
            OutputFormat::Json | OutputFormat::JsonOnStderr => line(&to_json(json)?),
        }
    }

    /// Returns the exit code; prints an error in this format.
    pub(crate) fn end(self, result: Result<u8, CommandFailure>) -> ExitCode {
        let code = match result {
            Ok(code) => code,
            Err(failed) => {
                match self {
                    OutputFormat::Text => message::say(without_numbers(&failed.text)),
                    OutputFormat::Json => {
                        let _ = line(&failed.json().to_string());
                    }
                    OutputFormat::JsonOnStderr => {
                        message::print(failed.json().to_string() + "\n");
                    }
                }
                failed.code
            }
        };
        message::flush();
        ExitCode::from(code)
    }
}

/// Removes the numbers of errors of the operating system: ` (os error 2)`.
fn without_numbers(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(" (os error ") {
        shown.push_str(before);
        rest = after.split_once(')').map_or("", |(_, rest)| rest);
    }
    shown.push_str(rest);
    shown
}

/// Returns an error with its causes in one line.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

/// Returns the exit code of a command without JSON output.
pub(crate) fn end(result: Result<(), CommandFailure>) -> ExitCode {
    OutputFormat::Text.end(result.map(|()| 0))
}

/// Prints one line and flushes it. A closed pipe ends the process with 0, as in `tenure ls | head`.
pub(crate) fn line(text: &str) -> Result<(), CommandFailure> {
    let mut out = io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        other => Ok(other?),
    }
}

pub(crate) fn to_json(value: &impl Serialize) -> Result<String, CommandFailure> {
    serde_json::to_string(value).map_err(|error| CommandFailure::own(error.to_string()))
}

/// Asks a question on standard error. Any answer but yes is a failure with the text `no`.
pub(crate) fn ask(question: &str, no: &str) -> Result<(), CommandFailure> {
    message::print(question);
    message::flush();
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(CommandFailure::own(no)),
    }
}

/// Returns whether the stream is a terminal.
pub(crate) fn is_terminal(stream: impl std::io::IsTerminal) -> bool {
    stream.is_terminal()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_the_operating_system_are_not_shown() {
        let text = "f: no such file (os error 2); and g (os error 13)";
        assert_eq!(without_numbers(text), "f: no such file; and g");
    }

    /// K2 (error classes), C15: a lock that counts as held ends with 75, whatever its class.
    #[test]
    fn the_exit_code_of_a_lock_file_follows_the_decision() {
        let code = |class, decision| {
            let error = tenure_files::Error::new(class, "x", "not acquired").decided(decision);
            CommandFailure::from(error).code
        };
        assert_eq!(code(Class::Unreadable, Decision::Refuse), 125);
        assert_eq!(code(Class::Unreadable, Decision::Wait), 75);
        assert_eq!(code(Class::Held, Decision::Wait), 75);
        assert_eq!(code(Class::Timeout, Decision::Wait), 124);
        assert_eq!(code(Class::Compromised, Decision::Refuse), 120);
        assert_eq!(code(Class::BadInput, Decision::Refuse), 2);
    }
}
