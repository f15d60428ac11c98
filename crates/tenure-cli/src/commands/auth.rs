//! `tenure auth`: who am I, keys, grants, and a file that describes all grants.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use tenure_wire::auth::{
    ChangeTableRequest, ChangeTableResponse, CheckRequest, CreateKeyRequest, Grant, Group, Key,
    Limit, Limits, ReadTableRequest, ReadTableResponse, WhoAmIRequest,
};

use super::cluster::{DaemonAddress, block_on, said};
use crate::duration;
use crate::output::{self, CommandFailure, OutputFormat};

mod file;

/// Show and change who may do what: API keys and grants.
///
/// PRINCIPAL is anonymous, key:NAME, cert:NAME, jwt:ISSUER/SUBJECT, unix:UID or group:NAME.
/// Verbs on paths: observe, share, lock, ask, break, policy, fence, impersonate.
/// Verbs of the cluster: metrics, status, operate, backup, auth.
///
/// Examples:
///   tenure auth key create ci
///   tenure auth grant key:ci lock,observe ci:/
///   tenure auth check key:ci lock ci:/build
///   tenure auth limit key:ci paths=1000,requests=200
///   tenure auth apply auth.toml
#[derive(Subcommand)]
#[command(verbatim_doc_comment)]
pub(crate) enum AuthCommand {
    Whoami(Plain),
    #[command(subcommand)]
    Key(KeyCommand),
    Grant(GrantArguments),
    Revoke(RevokeArguments),
    Limit(LimitArguments),
    Ls(List),
    Check(CheckArguments),
    Plan(FileArguments),
    Apply(FileArguments),
    Reset(Reset),
}

/// Create, list, rotate and revoke API keys.
#[derive(Subcommand)]
pub(crate) enum KeyCommand {
    Create(NewKey),
    Ls(ListKeys),
    Rotate(RotateKey),
    Revoke(RevokeKey),
}

/// Options of every command here.
#[derive(Args)]
struct Common {
    #[command(flatten)]
    daemon: DaemonAddress,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Show the principal that the daemon takes the caller for, and its grants.
#[derive(Args)]
pub(crate) struct Plain {
    #[command(flatten)]
    common: Common,
}

/// List all grants, groups and limits.
#[derive(Args)]
pub(crate) struct List {
    #[command(flatten)]
    common: Common,
}

/// List all keys, without their secrets.
#[derive(Args)]
pub(crate) struct ListKeys {
    #[command(flatten)]
    common: Common,
}

/// Create a key and print it. It cannot be read again.
///
/// A new key may do nothing: grant it verbs with `tenure auth grant key:NAME VERBS AT`.
#[derive(Args)]
pub(crate) struct NewKey {
    /// The name; the key's principal is key:NAME.
    name: String,
    /// How long it is valid (30m, 12h, 24h; a bare number is seconds). Default: no limit.
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    valid: Option<Duration>,
    #[command(flatten)]
    common: Common,
}

/// Create the next key of a name. The present one stays valid until it is revoked.
#[derive(Args)]
pub(crate) struct RotateKey {
    /// The name.
    name: String,
    /// How long the new key is valid. Default: no limit.
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    valid: Option<Duration>,
    #[command(flatten)]
    common: Common,
}

/// Revoke keys. Open streams of their bearers end within a second.
#[derive(Args)]
pub(crate) struct RevokeKey {
    /// The id of one key, or the name of all keys that have it.
    key: String,
    #[command(flatten)]
    common: Common,
}

/// Allow a principal to use verbs at and below a place.
#[derive(Args)]
pub(crate) struct GrantArguments {
    #[command(flatten)]
    row: GrantRow,
}

/// Remove verbs from a grant.
#[derive(Args)]
pub(crate) struct RevokeArguments {
    #[command(flatten)]
    row: GrantRow,
}

#[derive(Args)]
struct GrantRow {
    /// The principal or group.
    principal: String,
    /// Verbs, separated by commas; `*` for all.
    verbs: String,
    /// A namespace or path; `*` for everything.
    #[arg(default_value = "*")]
    at: String,
    /// Owner ids that the principal may use under this grant, separated by commas: ids, or beginnings
    /// of ids followed by `*`. Default: every id.
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    owners: Vec<String>,
    #[command(flatten)]
    common: Common,
}

/// Limit what a principal may keep and do.
///
/// SUBJECT is a principal, group:NAME (each member), everyone (each principal), or total (all together). The row of a
/// principal counts before those of its groups, and those before everyone's.
/// In each namespace: paths (held and waiting), waiting (paths), owners.
/// On each node: requests (a second), burst, connections, streams, watches, subscriptions.
/// Renewals and releases are never refused for requests.
///
/// Examples:
///   tenure auth limit everyone paths=10000,requests=500
///   tenure auth limit key:ci paths=100 ci:/
///   tenure auth limit key:ci requests=none
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct LimitArguments {
    /// Whom to limit.
    subject: String,
    /// NAME=NUMBER or NAME=none, separated by commas.
    values: String,
    /// A namespace; `*` for everything.
    #[arg(default_value = "*")]
    at: String,
    #[command(flatten)]
    common: Common,
}

/// Explain whether a principal may use a verb at a place, and which grant allows it.
///
/// Exits with 0 if it may, with 1 if not.
#[derive(Args)]
pub(crate) struct CheckArguments {
    /// The principal.
    principal: String,
    /// The verb.
    verb: String,
    /// A path or namespace; `*` for everything.
    #[arg(default_value = "*")]
    at: String,
    #[command(flatten)]
    common: Common,
}

/// Compare a file with the grants and groups of the cluster.
///
/// `plan` prints the difference and exits with 0 if there is none, with 1 otherwise. `apply` makes it.
#[derive(Args)]
pub(crate) struct FileArguments {
    /// The file, such as auth.toml.
    file: PathBuf,
    #[command(flatten)]
    common: Common,
}

/// Order a daemon to create a new administrator's key at its next start.
///
/// For the case that no key with the verb auth is left. Run it on the machine of one node, as the user of the
/// daemon, then restart that daemon: it writes root.key to its data directory.
#[derive(Args)]
pub(crate) struct Reset {
    /// The data directory of the daemon.
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl AuthCommand {
    pub(crate) fn run(self) -> ExitCode {
        let format = OutputFormat::of(match &self {
            AuthCommand::Whoami(verb) => verb.common.json,
            AuthCommand::Key(KeyCommand::Create(verb)) => verb.common.json,
            AuthCommand::Key(KeyCommand::Ls(verb)) => verb.common.json,
            AuthCommand::Key(KeyCommand::Rotate(verb)) => verb.common.json,
            AuthCommand::Key(KeyCommand::Revoke(verb)) => verb.common.json,
            AuthCommand::Grant(verb) => verb.row.common.json,
            AuthCommand::Revoke(verb) => verb.row.common.json,
            AuthCommand::Limit(verb) => verb.common.json,
            AuthCommand::Ls(verb) => verb.common.json,
            AuthCommand::Check(verb) => verb.common.json,
            AuthCommand::Plan(verb) | AuthCommand::Apply(verb) => verb.common.json,
            AuthCommand::Reset(verb) => verb.json,
        });
        format.end(self.act(format))
    }

    fn act(self, format: OutputFormat) -> Result<u8, CommandFailure> {
        match self {
            AuthCommand::Whoami(verb) => verb.act(format),
            AuthCommand::Key(verb) => verb.act(format),
            AuthCommand::Grant(verb) => {
                let (common, row) = verb.row.read();
                let request = ChangeTableRequest {
                    grant: vec![row],
                    ..Default::default()
                };
                changed(format, "granted", &common.change(request)?)
            }
            AuthCommand::Revoke(verb) => {
                let (common, row) = verb.row.read();
                let request = ChangeTableRequest {
                    revoke: vec![row],
                    ..Default::default()
                };
                changed(format, "revoked", &common.change(request)?)
            }
            AuthCommand::Limit(verb) => verb.act(format),
            AuthCommand::Ls(verb) => verb.act(format),
            AuthCommand::Check(verb) => verb.act(format),
            AuthCommand::Plan(verb) => verb.plan(format),
            AuthCommand::Apply(verb) => verb.apply(format),
            AuthCommand::Reset(verb) => verb.act(format),
        }
    }
}

impl Common {
    fn table(&self) -> Result<ReadTableResponse, CommandFailure> {
        ask(async {
            let mut client = self.daemon.auth_client().await?;
            let answer = client.read_table(ReadTableRequest {}).await.map_err(said)?;
            Ok(answer.into_inner())
        })
    }

    fn change(&self, request: ChangeTableRequest) -> Result<ChangeTableResponse, CommandFailure> {
        ask(async {
            let mut client = self.daemon.auth_client().await?;
            let answer = client.change_table(request).await.map_err(said)?;
            Ok(answer.into_inner())
        })
    }
}

fn ask<T>(future: impl Future<Output = Result<T, String>>) -> Result<T, CommandFailure> {
    block_on(future).map_err(CommandFailure::own)
}

/// Prints the result of a change, and the nodes that have not confirmed it.
fn changed(
    format: OutputFormat,
    what: &str,
    answer: &ChangeTableResponse,
) -> Result<u8, CommandFailure> {
    format.answer(
        what,
        &json!({
            "version": answer.version,
            "unconfirmedNodes": answer.unconfirmed_nodes,
        }),
    )?;
    warn_unconfirmed(&answer.unconfirmed_nodes);
    Ok(0)
}

fn warn_unconfirmed(nodes: &[u32]) {
    if !nodes.is_empty() {
        let nodes: Vec<String> = nodes.iter().map(u32::to_string).collect();
        eprintln!(
            "tenure: the change is made, but these nodes have not confirmed it: {}. Until they hear from the cluster they \
             judge by the older permissions.",
            nodes.join(", ")
        );
    }
}

impl Plain {
    fn act(self, format: OutputFormat) -> Result<u8, CommandFailure> {
        let me = ask(async {
            let mut client = self.common.daemon.auth_client().await?;
            let answer = client.who_am_i(WhoAmIRequest {}).await.map_err(said)?;
            Ok(answer.into_inner())
        })?;
        let grants: Vec<Value> = me.grants.iter().map(grant_json).collect();
        let json = json!({
            "principal": me.principal,
            "administrator": me.administrator,
            "groups": me.groups,
            "grants": grants,
        });
        let mut text = me.principal.clone();
        if me.administrator {
            text.push_str("  (administrator)");
        }
        if !me.groups.is_empty() {
            text.push_str("  ");
            text.push_str(&me.groups.join(", "));
        }
        for grant in &me.grants {
            let (verbs, at) = (verbs(grant), shown(&grant.at));
            text.push_str(&format!("\n  {verbs}  at {at}{}", owners(grant)));
        }
        format.answer(text, &json)?;
        Ok(0)
    }
}

impl KeyCommand {
    fn act(self, format: OutputFormat) -> Result<u8, CommandFailure> {
        match self {
            KeyCommand::Create(verb) => {
                let taken = verb.common.table()?;
                if taken.keys.iter().any(|key| key.name == verb.name) {
                    let name = &verb.name;
                    return Err(CommandFailure::usage(format!(
                        "a key {name} exists: to replace it use `tenure auth key rotate {name}`"
                    )));
                }
                create(&verb.common, format, verb.name, verb.valid, &[])
            }
            KeyCommand::Rotate(verb) => {
                let table = verb.common.table()?;
                let keys = table.keys.iter().filter(|key| key.name == verb.name);
                let older: Vec<String> = keys.map(|key| key.id.clone()).collect();
                if older.is_empty() {
                    let name = &verb.name;
                    return Err(CommandFailure::usage(format!(
                        "there is no key {name}: create it with `tenure auth key create {name}`"
                    )));
                }
                create(&verb.common, format, verb.name, verb.valid, &older)
            }
            KeyCommand::Ls(verb) => {
                let table = verb.common.table()?;
                let json: Vec<Value> = table.keys.iter().map(key_json).collect();
                match format {
                    OutputFormat::Json | OutputFormat::JsonOnStderr => {
                        output::line(&output::to_json(&json)?)?
                    }
                    OutputFormat::Text => {
                        for key in &table.keys {
                            output::line(&key_text(key))?;
                        }
                    }
                }
                Ok(0)
            }
            KeyCommand::Revoke(verb) => {
                let table = verb.common.table()?;
                let keys = table.keys.iter();
                let keys = keys.filter(|key| key.id == verb.key || key.name == verb.key);
                let remove_keys: Vec<String> = keys.map(|key| key.id.clone()).collect();
                if remove_keys.is_empty() {
                    return Err(CommandFailure::usage(format!(
                        "there is no key {}: `tenure auth key ls` lists all",
                        shown(&verb.key)
                    )));
                }
                let request = ChangeTableRequest {
                    remove_keys,
                    ..Default::default()
                };
                changed(format, "revoked", &verb.common.change(request)?)
            }
        }
    }
}

fn create(
    common: &Common,
    format: OutputFormat,
    name: String,
    valid: Option<Duration>,
    older: &[String],
) -> Result<u8, CommandFailure> {
    let valid_ms = valid.map_or(0, |valid| {
        u64::try_from(valid.as_millis()).unwrap_or(u64::MAX)
    });
    let created = ask(async {
        let mut client = common.daemon.auth_client().await?;
        let request = CreateKeyRequest { name, valid_ms };
        let answer = client.create_key(request).await.map_err(said)?;
        Ok(answer.into_inner())
    })?;
    let key = created.key.unwrap_or_default();
    let json = json!({
        "key": key_json(&key),
        "secret": created.secret,
        "older": older,
        "version": created.version,
        "unconfirmedNodes": created.unconfirmed_nodes,
    });
    // Only the secret goes to standard output, so that it can be redirected.
    format.answer(&created.secret, &json)?;
    if format == OutputFormat::Text {
        eprintln!("tenure: this key is shown once; set it as TENURE_CLIENT_AUTH_TOKEN");
        for id in older {
            eprintln!("tenure: when all clients use it: tenure auth key revoke {id}");
        }
    }
    warn_unconfirmed(&created.unconfirmed_nodes);
    Ok(0)
}

impl GrantRow {
    fn read(self) -> (Common, Grant) {
        let verbs = self.verbs.split(',').map(|verb| verb.trim().to_owned());
        let grant = Grant {
            to: self.principal,
            verbs: verbs.collect(),
            at: self.at,
            owners: self.owners,
        };
        (self.common, grant)
    }
}

impl LimitArguments {
    fn act(self, format: OutputFormat) -> Result<u8, CommandFailure> {
        let (mut set, mut clear) = (Vec::new(), Vec::new());
        for value in self.values.split(',') {
            let (name, value) = value.split_once('=').ok_or_else(|| {
                CommandFailure::usage(format!(
                    "{value:?} is not a limit: write NAME=NUMBER or NAME=none, such as paths=100"
                ))
            })?;
            let limit = |value| Limit {
                name: name.trim().to_owned(),
                value,
            };
            match value.trim() {
                "none" => clear.push(limit(0)),
                number => set.push(limit(number.parse().map_err(|_| {
                    CommandFailure::usage(format!("{number:?} is not a number, nor none"))
                })?)),
            }
        }
        let row = |values: Vec<Limit>| Limits {
            of: self.subject.clone(),
            at: self.at.clone(),
            values,
        };
        let rows = |values: Vec<Limit>| match values.is_empty() {
            true => Vec::new(),
            false => vec![row(values)],
        };
        let request = ChangeTableRequest {
            set_limits: rows(set),
            clear_limits: rows(clear),
            ..Default::default()
        };
        changed(format, "limited", &self.common.change(request)?)
    }
}

impl List {
    fn act(self, format: OutputFormat) -> Result<u8, CommandFailure> {
        let table = self.common.table()?;
        let grants: Vec<Value> = table.grants.iter().map(grant_json).collect();
        let groups: Vec<Value> = table.groups.iter().map(group_json).collect();
        let limits: Vec<Value> = table.limits.iter().map(limits_json).collect();
        match format {
            OutputFormat::Json | OutputFormat::JsonOnStderr => {
                output::line(&output::to_json(&json!({
                    "version": table.version,
                    "grants": grants,
                    "groups": groups,
                    "limits": limits,
                }))?)?
            }
            OutputFormat::Text => {
                for grant in &table.grants {
                    output::line(&grant_text(grant))?;
                }
                for group in &table.groups {
                    let members: Vec<_> = group.members.iter().map(|one| shown(one)).collect();
                    output::line(&format!("{} = {}", shown(&group.name), members.join(", ")))?;
                }
                for row in &table.limits {
                    output::line(&limits_text(row))?;
                }
            }
        }
        Ok(0)
    }
}

impl CheckArguments {
    fn act(self, format: OutputFormat) -> Result<u8, CommandFailure> {
        let answer = ask(async {
            let mut client = self.common.daemon.auth_client().await?;
            let request = CheckRequest {
                principal: self.principal,
                verb: self.verb,
                at: self.at,
            };
            let answer = client.check(request).await.map_err(said)?;
            Ok(answer.into_inner())
        })?;
        let word = if answer.allowed { "yes" } else { "no" };
        format.answer(
            format!("{word}: {}", answer.reason),
            &json!({
                "allowed": answer.allowed,
                "by": answer.by.as_ref().map(grant_json),
                "reason": answer.reason,
            }),
        )?;
        Ok(u8::from(!answer.allowed))
    }
}

impl FileArguments {
    fn difference(&self) -> Result<file::Difference, CommandFailure> {
        let text = std::fs::read_to_string(&self.file).map_err(|error| {
            CommandFailure::usage(format!("cannot read {}: {error}", self.file.display()))
        })?;
        let wanted = file::Wanted::parse(&text)
            .map_err(|error| CommandFailure::usage(format!("{}: {error}", self.file.display())))?;
        Ok(wanted.difference(&self.common.table()?))
    }

    fn plan(self, format: OutputFormat) -> Result<u8, CommandFailure> {
        let difference = self.difference()?;
        show(format, &difference)?;
        Ok(u8::from(!difference.is_empty()))
    }

    fn apply(self, format: OutputFormat) -> Result<u8, CommandFailure> {
        let difference = self.difference()?;
        show(format, &difference)?;
        if difference.is_empty() {
            return Ok(0);
        }
        let answer = self.common.change(difference.request())?;
        warn_unconfirmed(&answer.unconfirmed_nodes);
        Ok(0)
    }
}

fn show(format: OutputFormat, difference: &file::Difference) -> Result<(), CommandFailure> {
    let lines = difference.lines();
    match format {
        OutputFormat::Json | OutputFormat::JsonOnStderr => {
            output::line(&output::to_json(&json!({
                "version": difference.version,
                "grant": difference.grant.iter().map(grant_json).collect::<Vec<_>>(),
                "revoke": difference.revoke.iter().map(grant_json).collect::<Vec<_>>(),
                "groups": difference.groups.iter().map(group_json).collect::<Vec<_>>(),
                "setLimits": difference.set_limits.iter().map(limits_json).collect::<Vec<_>>(),
                "clearLimits": difference.clear_limits.iter().map(limits_json).collect::<Vec<_>>(),
            }))?)
        }
        OutputFormat::Text if lines.is_empty() => output::line("no difference"),
        OutputFormat::Text => lines.iter().try_for_each(|line| output::line(line)),
    }
}

impl Reset {
    fn act(self, format: OutputFormat) -> Result<u8, CommandFailure> {
        let order = self.data_dir.join("auth-reset");
        if !self.data_dir.is_dir() {
            return Err(CommandFailure::usage(format!(
                "{} is not a directory: name the data directory of the daemon",
                self.data_dir.display()
            )));
        }
        let mut file = std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&order)?;
        file.write_all(b"create a new administrator's key\n")?;
        file.sync_all()?;
        let text = format!(
            "restart the daemon of {}: it writes a new root.key there",
            self.data_dir.display()
        );
        format.answer(text, &json!({ "order": order.display().to_string() }))?;
        Ok(0)
    }
}

/// Escapes what comes from the cluster for a terminal.
fn shown(text: &str) -> String {
    text.escape_debug().to_string()
}

fn verbs(grant: &Grant) -> String {
    grant.verbs.join(",")
}

fn grant_text(grant: &Grant) -> String {
    let (to, at) = (shown(&grant.to), shown(&grant.at));
    format!("{to}  {}  at {at}{}", verbs(grant), owners(grant))
}

fn owners(grant: &Grant) -> String {
    match grant.owners.is_empty() {
        true => String::new(),
        false => format!("  as {}", shown(&grant.owners.join(","))),
    }
}

fn limits_text(row: &Limits) -> String {
    let (of, at) = (shown(&row.of), shown(&row.at));
    let values = row.values.iter();
    let values: Vec<String> = values
        .map(|limit| format!("{}={}", shown(&limit.name), limit.value))
        .collect();
    format!("{of}  limit {}  at {at}", values.join(","))
}

fn limits_json(row: &Limits) -> Value {
    let values = row.values.iter();
    let values: serde_json::Map<String, Value> = values
        .map(|limit| (limit.name.clone(), json!(limit.value)))
        .collect();
    json!({ "of": row.of, "at": row.at, "limits": values })
}

fn grant_json(grant: &Grant) -> Value {
    json!({ "to": grant.to, "verbs": grant.verbs, "at": grant.at, "owners": grant.owners })
}

fn group_json(group: &Group) -> Value {
    json!({ "name": group.name, "members": group.members })
}

fn key_json(key: &Key) -> Value {
    json!({
        "id": key.id,
        "name": key.name,
        "createdMs": key.created_ms,
        "expiresMs": (key.expires_ms > 0).then_some(key.expires_ms),
    })
}

fn key_text(key: &Key) -> String {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let now_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    let end = match key.expires_ms {
        0 => "no expiry".to_owned(),
        end if end <= now_ms => "expired".to_owned(),
        end => format!("expires in {} min", (end - now_ms) / 60_000),
    };
    format!("{}  key:{}  {end}", key.id, key.name)
}
