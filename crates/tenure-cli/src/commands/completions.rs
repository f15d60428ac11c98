//! `tenure completions` and `tenure manual`: shell completions and manual pages.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::Arguments;
use crate::output::{self, CommandFailure};

/// Print the completions of a shell.
///
/// Examples:
///   tenure completions bash > /etc/bash_completion.d/tenure
///   tenure completions zsh > ~/.zfunc/_tenure
///   tenure completions fish > ~/.config/fish/completions/tenure.fish
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Completions {
    /// Which shell.
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(self) -> ExitCode {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Arguments::command(), "tenure", &mut script);
        output::end(write(&script))
    }
}

/// Write the manual pages, one per command, to a directory.
///
/// Examples:
///   tenure manual /usr/local/share/man/man1
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Manual {
    /// The directory to write to. It must exist.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

impl Manual {
    pub(crate) fn run(self) -> ExitCode {
        let pages = clap_mangen::generate_to(Arguments::command(), &self.directory);
        output::end(pages.map_err(|error| {
            CommandFailure::own(format!(
                "cannot write manual pages to {}: {error}",
                self.directory.display()
            ))
        }))
    }
}

/// Writes to standard output. A closed pipe is no failure.
fn write(bytes: &[u8]) -> Result<(), CommandFailure> {
    match io::stdout().write_all(bytes) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}
