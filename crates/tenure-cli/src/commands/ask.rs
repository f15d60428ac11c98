//! `tenure ask`: sends a release request to the holder.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use tenure::Address;
use tenure_files::internal::block_on;

use crate::options::InspectOptions;
use crate::output::{self, CommandFailure, OutputFormat};

/// Ask the holder of a lock to let go. Nothing is taken away.
///
/// Upload locks and the daemon pass requests on; lock files and repositories have no way to. Off a terminal
/// it needs --force, because it changes what somebody else's program does.
///
/// Examples:
///   tenure ask tenant:/acme/42
///   tenure ask --force --reason 'release at noon' upload:/srv/uploads/7f3a
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct AskCommand {
    /// Do it although nobody watches.
    #[arg(long)]
    force: bool,
    /// What for.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    inspect_options: InspectOptions,
    /// Which lock.
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
                "this asks somebody else's program to let go of {place}; off a terminal say so with --force"
            )));
        }
        let asked = block_on(tenure.ask(&place, self.reason.as_deref()))?;
        let text = match asked.as_slice() {
            [] => format!("nobody holds {place}; nobody was asked"),
            several => {
                let whom: Vec<String> =
                    several.iter().map(|hold| hold.holder.to_string()).collect();
                format!("asked for {place}: {}", whom.join("; "))
            }
        };
        OutputFormat::of(self.json).answer(text, &json!({ "place": place, "asked": asked }))
    }
}
