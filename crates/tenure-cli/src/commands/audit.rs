//! `tenure audit`: checks the audit log of a daemon.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::json;
use tenure_server::audit_log;

use crate::output::{CommandFailure, OutputFormat};

/// Check the audit log of a daemon.
#[derive(Subcommand)]
pub(crate) enum AuditCommand {
    Verify(Verify),
}

/// Check that no line of audit.jsonl was changed, added or removed.
///
/// Prints the hash of the last line: kept elsewhere, it also shows whether lines at the end were removed. Exits with
/// 0 if the chain is intact, with 1 if it is broken.
#[derive(Args)]
pub(crate) struct Verify {
    /// The data directory of the daemon.
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl AuditCommand {
    pub(crate) fn run(self) -> ExitCode {
        let AuditCommand::Verify(verify) = self;
        let format = OutputFormat::of(verify.json);
        format.end(verify.act(format))
    }
}

impl Verify {
    fn act(self, format: OutputFormat) -> Result<u8, CommandFailure> {
        match audit_log::verify(&self.data_dir) {
            Ok(verified) => {
                let text = format!("{} lines, last hash {}", verified.lines, verified.last);
                let json = json!({ "lines": verified.lines, "last": verified.last });
                format.answer(text, &json)?;
                Ok(0)
            }
            Err(why) => Err(CommandFailure::new(1, why)),
        }
    }
}
