//! `tenure policy`: sets, shows, removes and lists lock algorithms (rw, semaphore) of namespaces.

use std::collections::BTreeSet;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::json;
use tenure::{Address, Algorithm, Policy as Row, Tenure};
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
    Rm(RemovePolicy),
    Ls(AllPolicies),
}

/// Set the policy of a namespace. This ends every hold and every wait in it.
///
/// Shows what would end and asks. Without a terminal --force is required if something would end.
#[derive(Args)]
pub(crate) struct SetPolicy {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Do not ask, although holds and waits end.
    #[arg(long)]
    force: bool,
    /// The namespace, such as jobs:/pool.
    namespace: String,
    /// The algorithm.
    #[arg(value_parser = |text: &str| text.parse::<Algorithm>())]
    algorithm: Algorithm,
}

/// Remove the policy of a namespace. This ends every hold and every wait in it.
///
/// Shows what would end and asks. Without a terminal --force is required if something would end.
#[derive(Args)]
pub(crate) struct RemovePolicy {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Do not ask, although holds and waits end.
    #[arg(long)]
    force: bool,
    /// The namespace, such as jobs:/pool.
    namespace: String,
}

/// Show the policy of a namespace.
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
            PolicyCommand::Get(one) => one.json,
            PolicyCommand::Rm(remove) => remove.json,
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
                force,
                ..
            }) => {
                let users = NamespaceUsers::of(&tenure, &namespace)?;
                users.confirm(&namespace, force)?;
                block_on(tenure.set_policy(&namespace, algorithm))?;
                let text = format!(
                    "the policy of {namespace} is now {algorithm}{}",
                    users.ended()
                );
                form.answer(
                    text,
                    &json!({
                        "namespace": namespace,
                        "algorithm": algorithm,
                        "ended_holds": users.holds.len(),
                        "ended_waiters": users.waiters,
                    }),
                )
            }
            PolicyCommand::Get(OnePolicy { namespace, .. }) => {
                let row = block_on(tenure.policy(&namespace))?;
                form.answer(sentence(&row), &row)
            }
            PolicyCommand::Rm(RemovePolicy {
                namespace, force, ..
            }) => {
                let users = NamespaceUsers::of(&tenure, &namespace)?;
                users.confirm(&namespace, force)?;
                block_on(tenure.remove_policy(&namespace))?;
                let text = format!("removed the policy of {namespace}{}", users.ended());
                form.answer(
                    text,
                    &json!({
                        "namespace": namespace,
                        "removed": true,
                        "ended_holds": users.holds.len(),
                        "ended_waiters": users.waiters,
                    }),
                )
            }
            PolicyCommand::Ls(_) => {
                let rows = block_on(tenure.policies())?;
                match form {
                    OutputFormat::Json | OutputFormat::JsonOnStderr => {
                        output::line(&output::to_json(&rows)?)
                    }
                    OutputFormat::Text => {
                        rows.iter().try_for_each(|row| output::line(&sentence(row)))
                    }
                }
            }
        }
    }
}

/// The holds and waits in a namespace, which end with a change of its policy.
struct NamespaceUsers {
    holds: Vec<String>,
    waiters: usize,
}

/// The most holds that are named in a question.
const SHOWN: usize = 5;

impl NamespaceUsers {
    fn of(tenure: &Tenure, namespace: &str) -> Result<NamespaceUsers, CommandFailure> {
        let root = match namespace.contains(":/") {
            true => namespace.to_owned(),
            false => format!("{namespace}:/"),
        };
        let root: Address = format!("tenure:///{root}").parse()?;
        let states = block_on(tenure.list(&root))?;
        let mut waiting = BTreeSet::new();
        for state in &states {
            waiting.extend(state.known_waiters().iter().map(|waiter| &waiter.owner));
        }
        let holders = states.iter().flat_map(|state| &state.holders);
        Ok(NamespaceUsers {
            holds: holders
                .map(|hold| format!("{}: {hold}", hold.place))
                .collect(),
            waiters: waiting.len(),
        })
    }

    /// Asks before holds end: C10 (a command that changes the lock of another).
    fn confirm(&self, namespace: &str, force: bool) -> Result<(), CommandFailure> {
        if force || self.holds.is_empty() {
            return Ok(());
        }
        let mut shown: Vec<&str> = self.holds.iter().map(String::as_str).take(SHOWN).collect();
        let more = format!("and {} more", self.holds.len().saturating_sub(SHOWN));
        if self.holds.len() > SHOWN {
            shown.push(&more);
        }
        let what = format!("{} in {namespace}:\n  {}", self.count(), shown.join("\n  "));
        if !output::is_terminal(std::io::stdin()) {
            return Err(CommandFailure::usage(format!(
                "not changed: this would end {what}\nto change the policy anyway, add --force"
            )));
        }
        let question = format!("this ends {what}\nchange the policy? [y/N] ");
        output::ask(&question, "the policy was not changed")
    }

    fn count(&self) -> String {
        let plural = |count: usize, one: &str| match count {
            1 => format!("1 {one}"),
            count => format!("{count} {one}s"),
        };
        let holds = plural(self.holds.len(), "hold");
        format!("{holds} and {}", plural(self.waiters, "waiter"))
    }

    fn ended(&self) -> String {
        match self.holds.is_empty() {
            true => String::new(),
            false => format!("; ended {}", self.count()),
        }
    }
}

fn sentence(row: &Row) -> String {
    let origin = if row.explicit { "" } else { " (the default)" };
    format!("{}  {}{origin}", row.namespace, row.algorithm)
}
