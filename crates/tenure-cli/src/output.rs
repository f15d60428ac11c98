//! How a verb ends: an exit code by convention (C2), and the same facts for people or for programs.

use std::io::{self, Write};
use std::process::ExitCode;

use serde::Serialize;

/// The caller's own mistake; nothing was started.
pub(crate) const USAGE: u8 = 2;
/// Held by somebody else.
pub(crate) const HELD: u8 = 75;
/// Not held any more.
pub(crate) const LOST: u8 = 120;
/// Tenure itself could not do it.
pub(crate) const FAILED: u8 = 125;

/// Why a verb did not do what it was asked.
#[derive(Debug)]
pub(crate) struct CommandFailure {
    pub(crate) code: u8,
    pub(crate) text: String,
    /// The fields for `--json`, where there are more than the text.
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

    /// The caller's mistake.
    pub(crate) fn usage(text: impl Into<String>) -> CommandFailure {
        CommandFailure::new(USAGE, text)
    }

    /// Our own failure.
    pub(crate) fn own(text: impl Into<String>) -> CommandFailure {
        CommandFailure::new(FAILED, text)
    }

    fn json(&self) -> serde_json::Value {
        let fields = self
            .json
            .clone()
            .unwrap_or_else(|| serde_json::json!({ "message": self.text }));
        serde_json::json!({ "error": fields, "code": self.code })
    }
}

impl From<tenure::Error> for CommandFailure {
    fn from(error: tenure::Error) -> CommandFailure {
        CommandFailure {
            code: error.exit_code(),
            text: error.to_string(),
            json: Some(error.to_json()),
        }
    }
}

impl From<tenure_files::Error> for CommandFailure {
    fn from(error: tenure_files::Error) -> CommandFailure {
        CommandFailure::new(error.exit_code(), error.to_string())
    }
}

impl From<io::Error> for CommandFailure {
    fn from(error: io::Error) -> CommandFailure {
        CommandFailure::own(error.to_string())
    }
}

/// Whether a verb prints for people or for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutputFormat {
    Text,
    Json,
}

impl OutputFormat {
    pub(crate) fn of(json: bool) -> OutputFormat {
        if json {
            OutputFormat::Json
        } else {
            OutputFormat::Text
        }
    }

    /// Prints one answer in this form.
    pub(crate) fn answer(
        self,
        text: impl std::fmt::Display,
        json: &impl Serialize,
    ) -> Result<(), CommandFailure> {
        match self {
            OutputFormat::Text => line(&text.to_string()),
            OutputFormat::Json => line(&to_json(json)?),
        }
    }

    /// The exit code; what went wrong is said in this form, too.
    pub(crate) fn end(self, result: Result<u8, CommandFailure>) -> ExitCode {
        match result {
            Ok(code) => ExitCode::from(code),
            Err(failed) => {
                match self {
                    OutputFormat::Text => eprintln!("tenure: {}", failed.text),
                    OutputFormat::Json => {
                        let _ = line(&failed.json().to_string());
                    }
                }
                ExitCode::from(failed.code)
            }
        }
    }
}

/// The exit code of a verb that speaks to people only.
pub(crate) fn end(result: Result<(), CommandFailure>) -> ExitCode {
    OutputFormat::Text.end(result.map(|()| 0))
}

/// One line on standard output, out at once. A reader that has seen enough ends us quietly.
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

/// Whether a person sees what goes to this stream.
pub(crate) fn is_terminal(stream: impl std::io::IsTerminal) -> bool {
    stream.is_terminal()
}

/// The exit code for how a plain child ended (C2).
pub(crate) fn child_code(status: std::process::ExitStatus) -> u8 {
    use std::os::unix::process::ExitStatusExt;
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok())
        .unwrap_or(FAILED)
}
