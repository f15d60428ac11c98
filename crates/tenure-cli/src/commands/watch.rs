//! `tenure watch`: prints lock changes as they happen.

use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use tenure::{Address, ChangeEvent, ChangeKind, Holder};
use tenure_files::internal::block_on;

use crate::options::InspectOptions;
use crate::output::{self, CommandFailure, OutputFormat};

/// Print every change of the locks at or below an address, starting with the held ones.
///
/// The daemon and memory report every change in order. Lock files and repositories are polled, so a lock
/// that is acquired and released between two polls is not reported.
///
/// Examples:
///   tenure watch tenant:/acme
///   tenure watch .
///   tenure watch --json tenant:/ | jq -c 'select(.kind == "granted")'
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct WatchCommand {
    /// Print JSON, one change per line.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    inspect_options: InspectOptions,
    /// The address to watch [default: this directory].
    #[arg(value_name = "WHERE", default_value = ".")]
    place: String,
}

impl WatchCommand {
    pub(crate) fn run(self) -> ExitCode {
        OutputFormat::of(self.json).end(self.watch().map(|()| 0))
    }

    fn watch(&self) -> Result<(), CommandFailure> {
        let place: Address = self.place.parse()?;
        let tenure = self.inspect_options.tenure(std::slice::from_ref(&place))?;
        let mut changes = block_on(tenure.watch(&place))?;
        while let Some(change) = block_on(changes.next()) {
            let change = change?;
            match OutputFormat::of(self.json) {
                OutputFormat::Json | OutputFormat::JsonOnStderr => {
                    output::line(&output::to_json(&change)?)?
                }
                OutputFormat::Text => output::line(&sentence(&change))?,
            }
        }
        Ok(())
    }
}

fn sentence(change: &ChangeEvent) -> String {
    let ChangeEvent {
        kind,
        place,
        owner,
        holder,
        mode,
        fence,
    } = change;
    if *kind == ChangeKind::PresentEnd {
        return format!("{}  now", clock());
    }
    let who = match *holder == Holder::default() {
        true => owner.clone(),
        false => holder.to_string(),
    };
    let fence = fence.map_or_else(String::new, |fence| format!(", fence {fence}"));
    format!(
        "{}  {:<9} {place}  {who} ({mode}{fence})",
        clock(),
        kind.name()
    )
}

/// Returns the time of day in UTC: `10:04:05Z`.
fn clock() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let seconds = now.map_or(0, |now| now.as_secs()) % 86_400;
    format!(
        "{:02}:{:02}:{:02}Z",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60
    )
}
