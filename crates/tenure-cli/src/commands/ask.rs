//! `tenure ask`: sends a release request to the holder.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use tenure::Address;
use tenure_files::internal::block_on;

use crate::options::InspectOptions;
use crate::output::{self, CommandFailure, OutputFormat};

/// Ask the holder of a lock to release it. The lock is not removed.
///
/// Upload locks and the daemon deliver the request to the holder. Lock files and repositories cannot.
/// Without a terminal --force is required, because the request affects another program.
///
/// Examples:
///   tenure ask tenant:/acme/42
///   tenure ask --force --reason 'release at noon' upload:/srv/uploads/7f3a
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct AskCommand {
    /// Send the request without a terminal.
    #[arg(long)]
    force: bool,
    /// The reason, shown to the holder.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    inspect_options: InspectOptions,
    /// The address of the lock.
    #[arg(value_name = "WHERE")]
    place: String,
}

impl AskCommand {
    pub(crate) fn run(self) -> ExitCode {
        OutputFormat::of(self.json).end(self.ask().map(|()| 0))
    }

    fn ask(&self) -> Result<(), CommandFailure> {
        let place: Address = self.place.parse()?;
        let tenure = self.inspect_options.tenure(std::slice::from_ref(&place))?;
        if !self.force && !output::is_terminal(std::io::stdin()) {
            return Err(CommandFailure::usage(format!(
                "not sent: standard input is not a terminal, and a release request for {place} affects another \
                 program; to send it anyway, add --force"
            )));
        }
        let asked = block_on(tenure.ask(&place, self.reason.as_deref()))?;
        let text = match asked.as_slice() {
            [] => format!("{place} is not held; no request was sent"),
            several => {
                let whom: Vec<String> =
                    several.iter().map(|hold| hold.holder.to_string()).collect();
                format!("asked to release {place}: {}", whom.join("; "))
            }
        };
        OutputFormat::of(self.json).answer(text, &json!({ "place": place, "asked": asked }))
    }
}
