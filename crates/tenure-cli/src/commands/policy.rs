//! `tenure policy`: sets, shows, removes and lists lock algorithms (rw, semaphore) of namespaces.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::json;
use tenure::{Algorithm, Policy as Row, Tenure};
use tenure_files::internal::block_on;

use crate::output::{self, CommandFailure, OutputFormat};

/// Show and change the policies of namespaces: how the locks of a namespace conflict.
///
/// Algorithms: recursive_rw (shared points, exclusive subtrees; the default), point_rw, recursive_write,
/// point_write, semaphore (permits).
///
/// Examples:
///   tenure policy set jobs:/pool semaphore
///   tenure policy get jobs:/pool
///   tenure policy ls
///   tenure policy rm jobs:/pool
#[derive(Subcommand)]
#[command(verbatim_doc_comment)]
pub(crate) enum PolicyCommand {
    Set(SetPolicy),
    Get(OnePolicy),
    Rm(OnePolicy),
    Ls(AllPolicies),
}

/// Set the policy of a namespace. No lock may be held in it.
#[derive(Args)]
pub(crate) struct SetPolicy {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// The namespace, such as jobs:/pool.
    namespace: String,
    /// The algorithm.
    #[arg(value_parser = |text: &str| text.parse::<Algorithm>())]
    algorithm: Algorithm,
}

/// Show or remove the policy of a namespace.
#[derive(Args)]
pub(crate) struct OnePolicy {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// The namespace, such as jobs:/pool.
    namespace: String,
}

/// List all policies that were set.
#[derive(Args)]
pub(crate) struct AllPolicies {
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl PolicyCommand {
    pub(crate) fn run(self) -> ExitCode {
        let form = OutputFormat::of(match &self {
            PolicyCommand::Set(set) => set.json,
            PolicyCommand::Get(one) | PolicyCommand::Rm(one) => one.json,
            PolicyCommand::Ls(all) => all.json,
        });
        form.end(self.act(form).map(|()| 0))
    }

    fn act(self, form: OutputFormat) -> Result<(), CommandFailure> {
        let tenure = Tenure::from_env()?;
        match self {
            PolicyCommand::Set(SetPolicy {
                namespace,
                algorithm,
                ..
            }) => {
                block_on(tenure.set_policy(&namespace, algorithm))?;
                let text = format!("the policy of {namespace} is now {algorithm}");
                form.answer(
                    text,
                    &json!({ "namespace": namespace, "algorithm": algorithm }),
                )
            }
            PolicyCommand::Get(OnePolicy { namespace, .. }) => {
                let row = block_on(tenure.policy(&namespace))?;
                form.answer(sentence(&row), &row)
            }
            PolicyCommand::Rm(OnePolicy { namespace, .. }) => {
                block_on(tenure.remove_policy(&namespace))?;
                let text = format!("removed the policy of {namespace}");
                form.answer(text, &json!({ "namespace": namespace, "removed": true }))
            }
            PolicyCommand::Ls(_) => {
                let rows = block_on(tenure.policies())?;
                match form {
                    OutputFormat::Json => output::line(&output::to_json(&rows)?),
                    OutputFormat::Text => {
                        rows.iter().try_for_each(|row| output::line(&sentence(row)))
                    }
                }
            }
        }
    }
}

fn sentence(row: &Row) -> String {
    let origin = if row.explicit { "" } else { " (the default)" };
    format!("{}  {}{origin}", row.namespace, row.algorithm)
}
