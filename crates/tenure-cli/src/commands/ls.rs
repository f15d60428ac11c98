//! `tenure ls`: lists locks.

use std::process::ExitCode;

use clap::Args;
use tenure::{Address, LockState, Tenure};
use tenure_files::internal::block_on;

use crate::lock_table;
use crate::lock_tree;
use crate::message;
use crate::options::InspectOptions;
use crate::output::{self, CommandFailure, OutputFormat};
use crate::terminal;

/// List the locks that are held at or below an address.
///
/// WHERE may be a directory, an upload directory, a repository or a path of the daemon. Without WHERE: the
/// lock files of this directory and, if TENURE_URL is set, every lock of the daemon.
///
/// Examples:
///   tenure ls
///   tenure ls /var/lib/jobs
///   tenure ls --tree tenant:/acme
///   tenure ls --json | jq -r '.[].place'
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Ls {
    /// Also list files named *.lock that are not lock records, such as Cargo.lock.
    #[arg(long)]
    all: bool,
    /// Show paths as a tree.
    #[arg(long, conflicts_with = "json")]
    tree: bool,
    /// Print JSON: a list of addresses with holders and waiters.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    inspect_options: InspectOptions,
    /// The address to list.
    #[arg(value_name = "WHERE")]
    place: Option<String>,
}

impl Ls {
    pub(crate) fn run(self) -> ExitCode {
        OutputFormat::of(self.json).end(self.list().map(|()| 0))
    }

    fn list(&self) -> Result<(), CommandFailure> {
        let scope = ListScope::new(self.place.as_deref(), &self.inspect_options)?;
        let mut states = scope.list_everything()?;
        if !self.all {
            states.retain(|state| !state.not_a_record);
        }
        match OutputFormat::of(self.json) {
            OutputFormat::Json | OutputFormat::JsonOnStderr => {
                output::line(&output::to_json(&states)?)
            }
            OutputFormat::Text if states.is_empty() => {
                message::say("no lock is held here");
                Ok(())
            }
            OutputFormat::Text => {
                let rows = lock_table::rows(&states);
                let rows = match self.tree {
                    true => lock_tree::rows(&states, rows),
                    false => rows,
                };
                let width = terminal::width(std::io::stdout());
                let colored = terminal::has_color(std::io::stdout());
                output::line(&lock_table::layout(&rows, width, colored))
            }
        }
    }
}

/// The scope of `ls` and `top`.
pub(crate) struct ListScope {
    place: Option<Address>,
    tenure: Tenure,
}

impl ListScope {
    pub(crate) fn new(
        place: Option<&str>,
        inspect_options: &InspectOptions,
    ) -> Result<ListScope, CommandFailure> {
        let place: Option<Address> = place.map(str::parse).transpose()?;
        let tenure = match &place {
            Some(place) => inspect_options.tenure(std::slice::from_ref(place))?,
            None => Tenure::from_env()?,
        };
        Ok(ListScope { place, tenure })
    }

    /// Returns the locks, without other files.
    pub(crate) fn list(&self) -> Result<Vec<LockState>, CommandFailure> {
        let mut states = self.list_everything()?;
        states.retain(|state| !state.not_a_record);
        Ok(states)
    }

    fn list_everything(&self) -> Result<Vec<LockState>, CommandFailure> {
        let mut states = self.read()?;
        lock_table::sort(&mut states);
        Ok(states)
    }

    fn read(&self) -> Result<Vec<LockState>, CommandFailure> {
        if let Some(place) = &self.place {
            return Ok(block_on(self.tenure.list(place))?);
        }
        let here = Address::Sidecar(".".into());
        let mut states = block_on(self.tenure.list(here))?;
        if std::env::var_os("TENURE_URL").is_some_and(|url| !url.is_empty()) {
            states.extend(block_on(self.tenure.list_all())?);
        }
        Ok(states)
    }

    pub(crate) fn tenure(&self) -> &Tenure {
        &self.tenure
    }
}
