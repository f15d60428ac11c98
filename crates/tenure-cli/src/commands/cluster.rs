//! `tenure cluster`: status and administration of a cluster.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::json;
use tenure_wire::auth::auth_client::AuthClient;
use tenure_wire::cluster::cluster_client::ClusterClient;
use tenure_wire::cluster::{DrainRequest, Node, RemoveRequest, StatusRequest, StatusResponse};
use tenure_wire::tls::{ClientTls, ClientTlsOptions};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};

use crate::output::{self, CommandFailure, OutputFormat};
use crate::progress::Ticker;

mod backup;
mod offline;
mod status_view;

/// Show and manage a cluster.
#[derive(Subcommand)]
pub(crate) enum ClusterCommand {
    Status(StatusCommand),
    Drain(DrainCommand),
    Remove(RemoveCommand),
    Backup(backup::Backup),
    Restore(offline::Restore),
    Recover(offline::Recover),
    Rejoin(offline::Rejoin),
    Init(offline::Init),
    Keep(offline::Keep),
}

/// The daemon to ask.
#[derive(Args)]
pub(super) struct DaemonAddress {
    /// Any node of the cluster.
    #[arg(long, env = "TENURE_URL", default_value = "http://127.0.0.1:50051")]
    url: String,
    /// An API key, or the daemon's client_auth_token. Every user of this machine can see it in the
    /// list of processes: use --token-file or the variable instead.
    #[arg(
        long,
        env = "TENURE_CLIENT_AUTH_TOKEN",
        hide_env_values = true,
        value_name = "TOKEN"
    )]
    token: Option<String>,
    /// A file with the token.
    #[arg(
        long,
        env = "TENURE_CLIENT_AUTH_TOKEN_FILE",
        value_name = "FILE",
        conflicts_with = "token"
    )]
    token_file: Option<PathBuf>,
}

/// Show nodes, groups, leaders and lag.
///
/// Exits with 0 if the cluster is healthy, with 1 if it is degraded (a node is down, a group has no
/// leader, or there is an error) or rebalancing (replicas are being moved).
#[derive(Args)]
pub(crate) struct StatusCommand {
    #[command(flatten)]
    daemon: DaemonAddress,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Show every group, not only those that need attention.
    #[arg(long)]
    groups: bool,
}

/// Move leaderships and replicas off a node while it is up.
///
/// The node still serves clients: it forwards their requests. Drain a node before you remove it.
#[derive(Args)]
pub(crate) struct DrainCommand {
    /// The node's name (`node_id`), such as tenure-2.
    node: String,
    #[command(flatten)]
    daemon: DaemonAddress,
    /// End the drain: the node may have replicas again.
    #[arg(long)]
    undo: bool,
    /// Wait until the node has no replica.
    #[arg(long)]
    wait: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Remove a stopped or drained node from the cluster permanently.
///
/// Other nodes get new replicas in its place. The node can join again only with an empty data directory.
#[derive(Args)]
pub(crate) struct RemoveCommand {
    /// The node's name (`node_id`), such as tenure-2.
    node: String,
    #[command(flatten)]
    daemon: DaemonAddress,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// What a command did, for people and for programs.
struct ClusterReport {
    text: String,
    json: serde_json::Value,
    /// The exit code: 0, or 1 for a cluster that needs attention.
    code: u8,
}

impl ClusterReport {
    fn done(text: impl Into<String>, json: serde_json::Value) -> ClusterReport {
        ClusterReport {
            text: text.into(),
            json,
            code: 0,
        }
    }
}

impl ClusterCommand {
    pub(crate) fn run(self) -> ExitCode {
        let (json, done) = match self {
            ClusterCommand::Status(verb) => (verb.json, verb.run()),
            ClusterCommand::Drain(verb) => (verb.json, verb.run()),
            ClusterCommand::Remove(verb) => (verb.json, verb.run()),
            ClusterCommand::Backup(verb) => (verb.json, verb.run()),
            ClusterCommand::Restore(verb) => (verb.json, verb.run()),
            ClusterCommand::Recover(verb) => (verb.json, verb.run()),
            ClusterCommand::Rejoin(verb) => (verb.json, verb.run()),
            ClusterCommand::Init(verb) => (verb.json, verb.run()),
            ClusterCommand::Keep(verb) => (verb.json, verb.run()),
        };
        let form = OutputFormat::of(json);
        let printed = done.map_err(CommandFailure::own).and_then(|report| {
            form.answer(report.text, &report.json)?;
            Ok(report.code)
        });
        form.end(printed)
    }
}

impl StatusCommand {
    fn run(self) -> Result<ClusterReport, String> {
        let status = block_on(async { self.daemon.client().await?.status().await })?;
        let words = status_view::words(&status, self.groups);
        Ok(ClusterReport {
            text: words.trim_end_matches('\n').to_owned(),
            json: status_view::json(&status),
            code: if status.healthy { 0 } else { 1 },
        })
    }
}

impl DrainCommand {
    fn run(self) -> Result<ClusterReport, String> {
        block_on(async {
            let mut client = self.daemon.client().await?;
            let node = client.find(&self.node).await?;
            let request = DrainRequest {
                node: node.number,
                undo: self.undo,
            };
            let drained = client.inner.drain(request).await;
            drained.map_err(|status| client.named(&said(status)))?;
            if self.wait && !self.undo {
                client.until_empty(&self.node).await?;
            }
            let name = &self.node;
            let text = match (self.undo, self.wait) {
                (true, _) => format!("{name} may have replicas again"),
                (false, true) => format!("{name} has no replica any more"),
                (false, false) => {
                    format!("{name} is being drained; tenure cluster status shows the progress")
                }
            };
            let json =
                json!({ "node": name, "draining": !self.undo, "empty": self.wait && !self.undo });
            Ok(ClusterReport::done(text, json))
        })
    }
}

impl RemoveCommand {
    fn run(self) -> Result<ClusterReport, String> {
        block_on(async {
            let mut client = self.daemon.client().await?;
            let node = client.find(&self.node).await?.number;
            let request = RemoveRequest { node };
            let removed = client.inner.remove(request).await;
            removed.map_err(|status| client.named(&said(status)))?;
            let text = format!("removed {}", self.node);
            Ok(ClusterReport::done(text, json!({ "removed": self.node })))
        })
    }
}

pub(super) fn block_on<T>(future: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| error.to_string())?;
    runtime.block_on(future)
}

pub(super) fn said(status: tonic::Status) -> String {
    // What the transport library says itself is translated; a daemon's own words stay.
    let (what, next) = tenure::connection_trouble(status.message());
    match next {
        Some(next) => format!("{what}; {next}"),
        None => status.message().to_owned(),
    }
}

/// Replaces numbers of nodes by their names: users know nodes by their names.
fn with_names(text: &str, nodes: &[Node]) -> String {
    let mut named = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("node ") {
        named.push_str(before);
        let digits = after.len() - after.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let number = after[..digits].parse::<u32>().ok();
        let node = nodes
            .iter()
            .find(|node| Some(node.number) == number && !node.name.is_empty());
        match node {
            Some(node) => named.push_str(&node.name),
            None => {
                named.push_str("node ");
                named.push_str(&after[..digits]);
            }
        }
        rest = &after[digits..];
    }
    named.push_str(rest);
    named
}

/// A connected client of the admin service.
struct AdminClient {
    inner: ClusterClient<InterceptedService<Channel, Credentials>>,
    /// The nodes of the last status.
    nodes: Vec<Node>,
}

#[derive(Clone)]
pub(super) struct Credentials(Option<MetadataValue<Ascii>>);

impl Interceptor for Credentials {
    fn call(
        &mut self,
        mut request: tonic::Request<()>,
    ) -> Result<tonic::Request<()>, tonic::Status> {
        if let Some(token) = &self.0 {
            request
                .metadata_mut()
                .insert("authorization", token.clone());
        }
        Ok(request)
    }
}

impl DaemonAddress {
    async fn client(&self) -> Result<AdminClient, String> {
        self.client_at(&self.url).await
    }

    /// Connects to another node of the same cluster.
    async fn client_at(&self, url: &str) -> Result<AdminClient, String> {
        let (channel, credentials) = self.connect(url).await?;
        let inner = ClusterClient::with_interceptor(channel, credentials);
        let nodes = Vec::new();
        Ok(AdminClient { inner, nodes })
    }

    /// Connects to the daemon for its permissions.
    pub(super) async fn auth_client(
        &self,
    ) -> Result<AuthClient<InterceptedService<Channel, Credentials>>, String> {
        let (channel, credentials) = self.connect(&self.url).await?;
        Ok(AuthClient::with_interceptor(channel, credentials))
    }

    async fn connect(&self, url: &str) -> Result<(Channel, Credentials), String> {
        let unreachable = |error: tonic::transport::Error| {
            let (what, next) = tenure::connection_trouble(&output::with_causes(&error));
            let next = next.unwrap_or("check that a daemon runs there, or set TENURE_URL");
            format!("cannot connect to {url}: {what}; {next}")
        };
        // The kernel identifies the user of a Unix socket: it needs neither TLS nor a token.
        if url.starts_with("unix://") {
            let endpoint = Endpoint::from_shared(url.to_owned()).map_err(unreachable)?;
            let channel = endpoint.connect().await.map_err(unreachable)?;
            return Ok((channel, Credentials(None)));
        }
        let nodes = tenure::Endpoint::list(url).map_err(|error| error.to_string())?;
        let Some(node) = nodes.first() else {
            return Err(format!("{url} names no node"));
        };
        let read_file = |file: &PathBuf| {
            let text = std::fs::read_to_string(file);
            text.map(|text| text.trim_end().to_owned())
                .map_err(|error| format!("cannot read {}: {error}", file.display()))
        };
        let token = match &self.token_file {
            Some(file) => Some(read_file(file)?),
            None => self.token.clone(),
        };
        let environment = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let tls = ClientTlsOptions {
            authority: environment("TENURE_CA_FILE").map(PathBuf::from),
            identity: environment("TENURE_CLIENT_CERT_FILE")
                .zip(environment("TENURE_CLIENT_KEY_FILE"))
                .map(|(certificate, key)| (certificate.into(), key.into())),
            pin: match environment("TENURE_PIN") {
                Some(pin) => Some(pin.parse().map_err(|why| format!("TENURE_PIN {why}"))?),
                None => None,
            },
        };
        let is_tls = node.is_tls() || tls.authority.is_some() || tls.pin.is_some();
        let in_clear = environment("TENURE_ALLOW_PLAINTEXT").as_deref() == Some("true");
        if token.is_some() && !is_tls && !node.is_loopback() && !in_clear {
            return Err(format!(
                "the token would be sent to {node} without encryption: use tenure+tls://{node}, or set \
                 TENURE_ALLOW_PLAINTEXT=true"
            ));
        }
        let token = match &token {
            None => None,
            Some(token) => {
                let mut value: MetadataValue<Ascii> = format!("Bearer {token}")
                    .parse()
                    .map_err(|_| "the token has characters that an HTTP header cannot contain; check --token")?;
                value.set_sensitive(true);
                Some(value)
            }
        };
        let endpoint = Endpoint::from_shared(format!("http://{node}"))
            .map_err(|_| {
                format!(
                    "{url} is not the address of a daemon: use a URL such as http://127.0.0.1:50051"
                )
            })?
            .connect_timeout(Duration::from_secs(5));
        let channel = if is_tls {
            ClientTls::new(&tls)?.connect(endpoint).await
        } else {
            endpoint.connect().await
        };
        let channel = channel.map_err(unreachable)?;
        Ok((channel, Credentials(token)))
    }
}

impl AdminClient {
    async fn status(&mut self) -> Result<StatusResponse, String> {
        let answer = self.inner.status(StatusRequest {}).await.map_err(said)?;
        let status = answer.into_inner();
        self.nodes.clone_from(&status.nodes);
        Ok(status)
    }

    fn named(&self, text: &str) -> String {
        with_names(text, &self.nodes)
    }

    /// Waits until a draining node has no replica.
    async fn until_empty(&mut self, name: &str) -> Result<(), String> {
        let line = Arc::new(Mutex::new(format!("draining {name}")));
        let shown = Arc::clone(&line);
        let _ticker = Ticker::start(move |spent| {
            let line = shown.lock().unwrap_or_else(PoisonError::into_inner);
            format!("tenure: {line}, {} s", spent.as_secs())
        });
        loop {
            let node = self.find(name).await?;
            if node.draining && node.reported && node.replicas == 0 {
                return Ok(());
            }
            let down = self.nodes.iter().filter(|node| !node.up);
            let down: Vec<&str> = down.map(|node| node.name.as_str()).collect();
            let reason = match down.as_slice() {
                [] => String::new(),
                down => format!("; waits for {}, which are down", down.join(", ")),
            };
            *line.lock().unwrap_or_else(PoisonError::into_inner) =
                format!("draining {name}: {} replicas left{reason}", node.replicas);
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Returns the node with this name.
    async fn find(&mut self, name: &str) -> Result<Node, String> {
        let status = self.status().await?;
        let known: Vec<String> = status.nodes.iter().map(|node| node.name.clone()).collect();
        let found = status.nodes.into_iter().find(|node| node.name == name);
        found.ok_or_else(|| format!("unknown node {name}; known nodes: {}", known.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_called_by_their_names() {
        let node = |number: u32, name: &str| Node {
            number,
            name: name.to_owned(),
            ..Node::default()
        };
        let nodes = [node(2, "tenure-1"), node(12, "tenure-11")];
        let named = with_names("node 12 is up, node 2 is not, node 7 is unknown", &nodes);
        assert_eq!(named, "tenure-11 is up, tenure-1 is not, node 7 is unknown");
    }
}
