//! Configuration: merges file and environment, validates all keys, reports all mistakes at once.
//!
//! ```text
//!   defaults < TOML file < environment ──▶ RawSettings ──▶ Config, or all mistakes
//! ```
//!
//! Every key of pathlockd, the daemon with the same wire protocol, is accepted, as TOML key, as
//! `TENURE_<KEY>` and as `PATHLOCKD_<KEY>` (R180 (every key is accepted), R182 (zero
//! configuration)). Keys without a meaning for this daemon are ignored and logged once.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use tenure_core::policy::Algorithm;

mod raw;

pub use raw::{ConfigError, ConfigMistake, Effective, RawSettings, ValueOrigin};

/// Keys of the wire-compatible daemon without a meaning here (R180): its storage engine and gossip;
/// election timing, which is fixed by the node's protocol and equal on all nodes; garbage
/// collection, because expiry here is driven by deadlines, not by scans (R95 expiry is noticed in
/// time).
const WITHOUT_MEANING: &[&str] = &[
    "gossip_foca_periodic",
    "gossip_manual_gossip_interval_ms",
    "gc_compact_interval_secs",
    "group_gc_batch",
    "group_gc_interval_secs",
    "peers",
    "raft_election_timeout_max_ms",
    "raft_election_timeout_min_ms",
    "raft_heartbeat_interval_ms",
    "raft_max_inflight",
    "raft_snapshot_max_bytes",
    "rocksdb_block_cache_mb",
    "rocksdb_enable_pipelined_write",
    "rocksdb_max_background_jobs",
    "rocksdb_max_open_files",
    "rocksdb_max_total_wal_size_mb",
    "rocksdb_max_write_buffers",
    "rocksdb_write_buffer_manager_mb",
    "rocksdb_write_buffer_mb",
];

/// The complete and valid configuration of a daemon, grouped by component.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Identity of this node, and settings that all nodes share.
    pub node: NodeConfig,
    /// Storage.
    pub disk: DiskConfig,
    /// Cluster membership and placement.
    pub cluster: ClusterConfig,
    /// Client transports.
    pub transports: TransportConfig,
    /// Logging.
    pub log: LogConfig,
    /// Accepted keys without effect, as written.
    pub ignored: Vec<String>,
    /// Variables of the environment that look like settings and are none, with the nearest one.
    pub unknown: Vec<String>,
    /// Every key with its value and origin, for `--print-config`.
    pub effective: Vec<Effective>,
}

/// Identity of this node, and settings that all nodes share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeConfig {
    /// The name; it ends in the node's number.
    pub name: String,
    /// Trailing digits of the name plus one (R162 node ids).
    pub id: u64,
    /// Fixed for the lifetime of the cluster, checked at start and against peers (R161 settings
    /// fixed per cluster).
    pub fixed: FixedConfig,
    /// Maximum number of waiting commands per group (R151 backpressure per group).
    pub max_inflight_per_group: u64,
    /// Memory that lock state may occupy on this node, in MiB; 0 for no limit.
    pub max_state_mb: u64,
    /// Memory for the history of holds and waits, in MiB; 0 switches it off.
    pub history_mb: u64,
}

/// Settings that are fixed when a cluster is created (R161).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FixedConfig {
    /// Number of lock groups.
    pub group_count: u64,
    /// Number of path segments of the fallback namespace (R22: fallback namespace).
    pub routing_prefix_segments: usize,
    /// Algorithm of namespaces without a policy row (R24: algorithm of a namespace).
    pub default_algorithm: Algorithm,
}

/// Storage settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskConfig {
    /// The data directory.
    pub data_dir: PathBuf,
    /// Whether an answer waits for fsync (R152 acknowledged means durable).
    pub sync: SyncConfig,
    /// Log entries of a group between two snapshots.
    pub snapshot_entries: u64,
    /// Log entries kept behind a snapshot for slow followers.
    pub kept_entries: u64,
}

/// Whether an answer waits for fsync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncConfig {
    /// It waits: nothing acknowledged is lost.
    Always,
    /// It does not wait, by explicit setting: a power failure may lose acknowledged writes.
    Never,
}

/// Cluster membership and placement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterConfig {
    /// Whether this node creates a cluster (R167 bootstrap decision).
    pub start: BootstrapConfig,
    /// Gossip addresses of other nodes, `host:port`.
    pub seeds: Vec<String>,
    /// The only cluster that this node may join.
    pub expected_cluster: Option<u64>,
    /// The URL that peers use to connect to this node.
    pub raft_addr: String,
    /// Address that gossip listens on.
    pub gossip_addr: SocketAddr,
    /// Gossip address that peers use, if it differs from the one above.
    pub gossip_advertise: Option<String>,
    /// Expected number of nodes.
    pub gossip_cluster_size: u64,
    /// Maximum size of a gossip packet, in bytes.
    pub gossip_max_packet_size: u64,
    /// Interval of announcements to the seeds.
    pub gossip_seed_announce_ms: u64,
    /// Accepted and validated (R180), but not used.
    pub gossip_send_queue: u64,
    /// Voters per group; odd.
    pub replication_factor: u64,
    /// Shared secret with which peers authenticate each other (R168 internal authentication).
    pub token: Option<Secret>,
    /// A second secret that is accepted from peers, for a change of the token without downtime.
    pub other_token: Option<Secret>,
    /// TLS for connections between peers; `None` leaves them unencrypted.
    pub peer_tls: Option<PeerTlsFiles>,
    /// Uptime after which a node counts as stable.
    pub stability_window_secs: u64,
    /// Downtime after which a voter may be replaced.
    pub eviction_window_secs: u64,
    /// Interval of leadership transfers to the preferred voters.
    pub leader_balance_secs: u64,
    /// Maximum number of concurrent membership changes.
    pub max_concurrent_reconciles: u64,
}

/// Whether this node creates a cluster (R167).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BootstrapConfig {
    /// Joins the cluster of its seeds.
    Join,
    /// Creates a cluster, unless the node has data or its seeds have a cluster.
    Bootstrap,
    /// Creates a cluster even if no seed answers.
    ForceBootstrap,
}

/// A secret. `Debug` does not print it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Returns the secret. Only for the code that sends or compares it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(secret)")
    }
}

/// Client transports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransportConfig {
    /// Address of the gRPC port.
    pub listen: SocketAddr,
    /// The URL that clients use, as told to other nodes.
    pub public_addr: String,
    /// Address for JSON, SSE and metrics; `None` disables them.
    pub web_listen: Option<SocketAddr>,
    /// Address for HTTP/3; `None` disables it.
    pub h3_listen: Option<SocketAddr>,
    /// Certificates of the client transports.
    pub tls: TlsConfig,
    /// Whether connections without TLS are served beyond loopback, by explicit setting.
    pub plaintext: PlaintextConsent,
    /// Host names, besides those of loopback, under which browsers may use the web port.
    pub web_hosts: Vec<String>,
    /// Whether HTTP/3 accepts early data.
    pub zero_rtt: ZeroRtt,
    /// Events kept per owner for clients that reconnect.
    pub web_event_log_capacity: u64,
    /// Events that a subscriber may lag behind (R123 slow subscribers are closed).
    pub event_buffer: u64,
    /// Time limit of one call.
    pub request_timeout_ms: u64,
    /// Maximum number of concurrent calls per gRPC connection.
    pub max_concurrent_requests_per_connection: u64,
    /// Memory that all clients may occupy, in MiB.
    pub client_memory_mb: u64,
    /// A token that makes every client that sends it an administrator.
    pub client_token: Option<Secret>,
    /// What clients on this machine may do without credentials.
    pub loopback: LoopbackAccess,
    /// What clients on other machines may do without credentials.
    pub remote_anonymous: RemoteAnonymous,
    /// The identity provider whose tokens are accepted.
    pub jwt: Option<JwtConfig>,
    /// Maximum number of open connections of one address beyond loopback.
    pub connections_per_address: u64,
}

/// An identity provider whose tokens prove principals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JwtConfig {
    /// The claim `iss` of its tokens.
    pub issuer: String,
    /// The claim `aud` of its tokens.
    pub audience: String,
    /// Where its public keys are.
    pub keys: JwksSource,
}

/// Where the public keys of an identity provider are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JwksSource {
    /// A file with a key set.
    File(PathBuf),
    /// An https URL of a key set.
    Url(String),
}

/// What a client on a loopback address may do without credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoopbackAccess {
    /// Everything.
    Anonymous,
    /// What is granted to `anonymous`.
    Authenticated,
}

/// What a client beyond loopback may do without credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteAnonymous {
    /// Everything on paths, but nothing about the cluster or permissions (`allow_anonymous`).
    Allowed,
    /// What is granted to `anonymous`.
    Granted,
}

impl TransportConfig {
    /// Returns every address on which clients are served, with its key. The exposure check and the
    /// listeners both use this list, so no port can be opened without the check.
    pub fn sockets(&self) -> impl Iterator<Item = (&'static str, SocketAddr)> {
        [
            ("listen", Some(self.listen)),
            ("web_listen", self.web_listen),
            ("h3_listen", self.h3_listen),
        ]
        .into_iter()
        .filter_map(|(key, address)| Some((key, address?)))
    }
}

/// Whether connections without TLS are served beyond loopback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaintextConsent {
    /// They are served: `allow_plaintext = true`.
    Given,
    /// They are refused.
    No,
}

/// Certificates of the client transports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsConfig {
    /// Certificate and key; with `None` a self-signed certificate is kept in the data directory.
    pub files: Option<TlsFiles>,
    /// PEM of the authorities whose client certificates are accepted; `None` asks for none.
    pub client_authority: Option<PathBuf>,
    /// The oldest version of TLS that is served.
    pub min_version: TlsVersion,
}

/// A version of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsVersion {
    /// TLS 1.2.
    V12,
    /// TLS 1.3.
    V13,
}

/// Whether HTTP/3 accepts early data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZeroRtt {
    /// For reads only.
    ReadsOnly,
    /// Not at all.
    Off,
}

/// Certificate and key of the client transports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// PEM chain.
    pub certificate: PathBuf,
    /// PEM key.
    pub key: PathBuf,
}

/// Certificates for connections between peers. Either all nodes have them or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerTlsFiles {
    /// PEM of the authority that signs the certificates of all nodes.
    pub authority: PathBuf,
    /// PEM chain of this node.
    pub certificate: PathBuf,
    /// PEM key of this node.
    pub key: PathBuf,
}

/// Logging.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// A filter such as `info` or `tenure=debug`.
    pub level: String,
    /// File to append to, in addition to standard output.
    pub file: Option<PathBuf>,
    /// Format of a line.
    pub format: LogFormat,
}

/// Format of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// JSON, but text on a terminal.
    Auto,
    /// Text, for people.
    Text,
    /// JSON, for programs.
    Json,
}

/// Properties of the machine that determine defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineDefaults {
    /// Whether `/var/lib/tenure` can be written or created.
    pub system_directory: Writable,
    /// The user's state directory.
    pub user_state: Option<PathBuf>,
}

/// Whether a directory can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writable {
    /// Writable.
    Yes,
    /// Not writable.
    No,
}

/// How to connect to a daemon from its own machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalEndpoint {
    /// Address that gRPC listens on.
    pub listen: SocketAddr,
    /// The token that clients must send.
    pub client_token: Option<Secret>,
    /// The certificate to expect, if the port serves no plaintext: its file, or `None` for the
    /// self-signed one in the data directory.
    pub tls: Option<Option<PathBuf>>,
    /// The data directory.
    pub data_dir: PathBuf,
}

impl LocalEndpoint {
    /// Reads only the keys that a health check needs. Mistakes in other keys are ignored: the
    /// daemon reports them.
    pub fn from_settings(
        settings: RawSettings,
        machine: &MachineDefaults,
    ) -> Result<LocalEndpoint, ConfigError> {
        let mut w = raw::SettingsReader::new(settings);
        let listen = w.address("listen", LISTEN);
        let client_token = w.secret("client_auth_token");
        let certificate = w.optional_text("tls_cert_path").map(PathBuf::from);
        let in_clear = listen.ip().is_loopback()
            || w.flag("allow_plaintext", false)
            || (client_token.is_none() && w.optional_text("tls_client_ca_path").is_none());
        let listen_endpoint = LocalEndpoint {
            listen,
            client_token,
            tls: (!in_clear).then_some(certificate),
            data_dir: w.text("data_dir", &default_data_dir(machine)).into(),
        };
        w.so_far()?;
        Ok(listen_endpoint)
    }
}

impl Config {
    /// Validates settings. Returns the configuration, or all mistakes.
    pub fn from_settings(
        settings: RawSettings,
        machine: &MachineDefaults,
    ) -> Result<Config, ConfigError> {
        let mut w = raw::SettingsReader::new(settings);
        let name = w.text("node_id", "tenure-0");
        let id = node_number(&name);
        if id.is_none() {
            w.mistake(
                "node_id",
                &name,
                "must end in digits, such as tenure-0",
                NO_NUMBER,
            );
        }
        let fixed = FixedConfig {
            group_count: w.number("group_count", 256, 1..=65_536),
            routing_prefix_segments: usize::try_from(w.number(
                "routing_prefix_segments",
                1,
                0..=256,
            ))
            .unwrap_or(1),
            default_algorithm: w.algorithm("default_lock_algorithm"),
        };
        let node = NodeConfig {
            name,
            // A mistake is recorded already, so this value is never used.
            id: id.unwrap_or(1),
            fixed,
            history_mb: w.number("history_mb", 32, 0..=65_536),
            max_inflight_per_group: w.number("max_inflight_per_group", 1024, 1..=u64::MAX),
            max_state_mb: w.number("max_state_mb", 0, 0..=1_048_576),
        };

        let data_dir = w.text("data_dir", &default_data_dir(machine));
        let disk = DiskConfig {
            data_dir: PathBuf::from(data_dir),
            // Named after the wire-compatible daemon's storage engine (R180).
            sync: if w.flag("rocksdb_wal_sync", true) {
                SyncConfig::Always
            } else {
                SyncConfig::Never
            },
            snapshot_entries: w.number("raft_snapshot_interval_entries", 10_000, 1..=u64::MAX),
            kept_entries: w.number("raft_snapshot_min_log_entries", 5_000, 0..=u64::MAX),
        };

        let seeds = w.list("seed_nodes");
        for seed in &seeds {
            if !is_host_port(seed) {
                w.mistake(
                    "seed_nodes",
                    seed,
                    "must be host:port",
                    "write the gossip address of another node, such as 10.0.0.2:7946",
                );
            }
        }
        let replication_factor = w.number("replication_factor", 3, 1..=99);
        if replication_factor.is_multiple_of(2) {
            let text = replication_factor.to_string();
            w.mistake(
                "replication_factor",
                &text,
                "must be odd",
                "an even number tolerates no more failures than the odd number below it",
            );
        }
        let bootstrap = bootstrap(&mut w, &seeds);
        // `force_bootstrap` wins over `bootstrap`.
        let start = match (w.flag("force_bootstrap", false), bootstrap) {
            (true, _) => BootstrapConfig::ForceBootstrap,
            (false, true) => BootstrapConfig::Bootstrap,
            (false, false) => BootstrapConfig::Join,
        };
        let token = w.secret("internal_auth_token");
        check_internal_token(&mut w, "internal_auth_token", token.as_ref());
        let other_token = w.secret("internal_auth_token_also");
        check_internal_token(&mut w, "internal_auth_token_also", other_token.as_ref());
        if other_token.is_some() && token.is_none() {
            w.mistake(
                "internal_auth_token_also",
                "",
                "needs internal_auth_token",
                "it is a second token that peers may use while the token is changed",
            );
        }
        // R168 (internal authentication): without a token a node cannot meet others.
        if token.is_none() && !seeds.is_empty() {
            let hint = "set the same internal_auth_token on all nodes";
            w.mistake(
                "internal_auth_token",
                "",
                "is required when there are seeds",
                hint,
            );
        }
        let peer_tls = peer_tls(&mut w);
        let expected_cluster = expected_cluster(&mut w);
        if expected_cluster.is_some() && token.is_none() {
            w.mistake(
                "expected_cluster_id",
                "",
                "needs internal_auth_token",
                "a node without a token never joins other nodes",
            );
        }
        let cluster = ClusterConfig {
            start,
            seeds,
            expected_cluster,
            raft_addr: w.text("raft_addr", "http://localhost:50052"),
            gossip_addr: w.address("gossip_addr", GOSSIP),
            gossip_advertise: w.optional_text("gossip_advertise_addr"),
            gossip_cluster_size: w.number("gossip_cluster_size", 32, 1..=65_536),
            gossip_max_packet_size: w.number("gossip_max_packet_size", 1400, 256..=65_507),
            gossip_seed_announce_ms: w.number(
                "gossip_seed_announce_interval_ms",
                5000,
                1..=86_400_000,
            ),
            gossip_send_queue: w.number("gossip_send_queue_depth", 1024, 1..=1_000_000),
            replication_factor,
            token,
            other_token,
            peer_tls,
            stability_window_secs: w.number("stability_window_secs", 30, 0..=86_400),
            eviction_window_secs: w.number("eviction_window_secs", 60, 0..=86_400),
            leader_balance_secs: w.number("leader_balance_interval_secs", 60, 0..=86_400),
            max_concurrent_reconciles: w.number("max_concurrent_reconciles", 4, 1..=1024),
        };

        let tls = TlsConfig {
            files: tls_files(&mut w),
            client_authority: w.optional_text("tls_client_ca_path").map(PathBuf::from),
            min_version: tls_version(&mut w),
        };
        let client_token = w.secret("client_auth_token");
        let has_token = client_token.is_some();
        let jwt = jwt(&mut w);
        let has_credentials = has_token || tls.client_authority.is_some() || jwt.is_some();
        let loopback = loopback(&mut w, has_credentials);
        let anonymous = w.flag("allow_anonymous", false);
        let web_listen = w.optional_address("web_listen", WEB_LISTEN);
        // HTTP/3 serves what the web port serves, so it has no effect alone.
        let same = web_listen.map_or_else(String::new, |address| address.to_string());
        let h3_listen = w.optional_address("h3_listen", &same);
        let h3_listen = h3_listen.filter(|_| web_listen.is_some());
        let transports = TransportConfig {
            listen: w.address("listen", LISTEN),
            public_addr: w.text("public_addr", "http://localhost:50051"),
            web_listen,
            h3_listen,
            tls,
            plaintext: if w.flag("allow_plaintext", false) {
                PlaintextConsent::Given
            } else {
                PlaintextConsent::No
            },
            web_hosts: w.list("web_hosts"),
            zero_rtt: if w.flag("web_zero_rtt", true) {
                ZeroRtt::ReadsOnly
            } else {
                ZeroRtt::Off
            },
            web_event_log_capacity: w.number("web_event_log_capacity", 1024, 1..=1_000_000),
            event_buffer: w.number("event_buffer", 8192, 1..=1_000_000),
            request_timeout_ms: w.number("request_timeout_ms", 30_000, 1..=86_400_000),
            max_concurrent_requests_per_connection: w.number(
                "max_concurrent_requests_per_connection",
                256,
                1..=1_000_000,
            ),
            client_memory_mb: w.number("client_memory_mb", 1024, 16..=1_048_576),
            client_token,
            loopback,
            // As in release 0.1.0: with a shared token every client needs it.
            remote_anonymous: if anonymous && !has_token {
                RemoteAnonymous::Allowed
            } else {
                RemoteAnonymous::Granted
            },
            jwt,
            connections_per_address: w.number("max_connections_per_address", 1024, 1..=1_000_000),
        };
        check_exposure(&mut w, &transports);
        let log = LogConfig {
            level: log_level(&mut w),
            file: w.optional_text("log_file").map(PathBuf::from),
            format: log_format(&mut w),
        };
        // Every key must be read before this line: `finish` reports keys that were not.
        let read = w.finish(WITHOUT_MEANING)?;
        let (ignored, unknown, effective) = (read.ignored, read.unknown, read.effective);
        Ok(Config {
            node,
            disk,
            cluster,
            transports,
            log,
            ignored,
            unknown,
            effective,
        })
    }
}

const NO_NUMBER: &str = "the digits plus one are the number of the node in its cluster";

// The defaults do not depend on other keys (R182 zero configuration): a port for clients is opened
// beyond loopback only if its address says so.
const LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 50051);
const WEB_LISTEN: &str = "127.0.0.1:8443";
/// Peers authenticate each other, and the port is opened only for a node with a token.
const GOSSIP: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 7946);

fn default_data_dir(machine: &MachineDefaults) -> String {
    let system = "/var/lib/tenure";
    match &machine.user_state {
        Some(state) if machine.system_directory == Writable::No => {
            state.join("tenure").display().to_string()
        }
        _ => system.to_owned(),
    }
}

/// Returns the trailing digits of a node's name, plus one (R162).
pub(crate) fn node_number(name: &str) -> Option<u64> {
    let digits = name.len() - name.bytes().rev().take_while(u8::is_ascii_digit).count();
    name[digits..].parse::<u64>().ok()?.checked_add(1)
}

fn tls_files(w: &mut raw::SettingsReader) -> Option<TlsFiles> {
    let paths = ["tls_cert_path", "tls_key_path"].map(|key| w.optional_text(key));
    let missing = match paths {
        [Some(certificate), Some(key)] => {
            return Some(TlsFiles {
                certificate: certificate.into(),
                key: key.into(),
            });
        }
        [None, None] => return None,
        [Some(_), None] => "tls_key_path",
        [None, Some(_)] => "tls_cert_path",
    };
    let hint = "set both certificate and key, or neither";
    w.mistake(missing, "", "is missing", hint);
    None
}

/// A single word must be a level: the filter would take another word for the name of a module.
fn log_level(w: &mut raw::SettingsReader) -> String {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    let level = w.text("log_level", "info");
    let is_word = level.bytes().all(|byte| byte.is_ascii_alphabetic());
    if is_word && !LEVELS.contains(&level.to_lowercase().as_str()) {
        let problem =
            "must be off, error, warn, info, debug or trace, or a filter such as tenure=debug";
        w.mistake("log_level", &level, problem, "");
    }
    level
}

fn tls_version(w: &mut raw::SettingsReader) -> TlsVersion {
    match w.text("tls_min_version", "1.2").as_str() {
        "1.2" => TlsVersion::V12,
        "1.3" => TlsVersion::V13,
        other => {
            w.mistake("tls_min_version", other, "must be 1.2 or 1.3", "");
            TlsVersion::V13
        }
    }
}

/// R182: a port beyond loopback needs client credentials, or the explicit consent to anonymous
/// clients.
fn check_exposure(w: &mut raw::SettingsReader, transports: &TransportConfig) {
    if let (Some(web), Some(h3)) = (transports.web_listen, transports.h3_listen)
        && web.ip() != h3.ip()
    {
        let problem = format!("must have the IP address of web_listen, {}", web.ip());
        let hint = "HTTP/3 serves what the web port serves";
        w.mistake("h3_listen", &h3.to_string(), &problem, hint);
    }
    for (key, address) in transports.sockets() {
        if address.ip().is_loopback() {
            continue;
        }
        match &transports.client_token {
            Some(token) if is_guessable(token.reveal()) => w.mistake(
                "client_auth_token",
                "(secret)",
                &format!("is too short for {key} = {address}, which other machines can reach"),
                MAKE_TOKEN,
            ),
            // With `loopback = "authenticated"` every client needs a key.
            None if transports.remote_anonymous == RemoteAnonymous::Granted
                && transports.loopback == LoopbackAccess::Anonymous
                && transports.tls.client_authority.is_none() =>
            {
                w.mistake(
                    key,
                    &address.to_string(),
                    "is reachable from other machines, and clients need no token",
                    "set client_auth_token, or set allow_anonymous = true",
                )
            }
            _ => {}
        }
    }
}

const MAKE_TOKEN: &str = "make one with: openssl rand -hex 32";

fn check_internal_token(w: &mut raw::SettingsReader, key: &str, token: Option<&Secret>) {
    let Some(token) = token.map(Secret::reveal) else {
        return;
    };
    if token.len() < 32 || !token.bytes().all(|b| (0x21..0x7f).contains(&b)) {
        let problem = "must be 32 visible ASCII characters or more";
        w.mistake(key, "(secret)", problem, MAKE_TOKEN);
    } else if is_guessable(token) {
        w.mistake(key, "(secret)", "can be guessed", MAKE_TOKEN);
    }
}

/// Whether a secret has less than 128 bits: counted by its length and its alphabet, 4 bits for a
/// hexadecimal digit and at most 6 for another character. A random secret of that length has ten
/// different characters or more; `aaaa…` has not.
fn is_guessable(secret: &str) -> bool {
    let bits = if secret.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        4
    } else {
        6
    };
    let different: std::collections::BTreeSet<char> = secret.chars().collect();
    secret.chars().count() * bits < 128 || different.len() < 10
}

fn peer_tls(w: &mut raw::SettingsReader) -> Option<PeerTlsFiles> {
    let keys = [
        "peer_tls_ca_path",
        "peer_tls_cert_path",
        "peer_tls_key_path",
    ];
    let paths = keys.map(|key| w.optional_text(key));
    if let [Some(authority), Some(certificate), Some(key)] = &paths {
        return Some(PeerTlsFiles {
            authority: authority.into(),
            certificate: certificate.into(),
            key: key.into(),
        });
    }
    if paths.iter().any(Option::is_some) {
        for (key, path) in keys.iter().zip(&paths) {
            if path.is_none() {
                let hint = "set all three of authority, certificate and key, or none";
                w.mistake(key, "", "is missing", hint);
            }
        }
    }
    None
}

/// R167, R182: a node without seeds creates a cluster, unless `bootstrap` is explicitly false.
fn bootstrap(w: &mut raw::SettingsReader, seeds: &[String]) -> bool {
    let bootstrap = w.flag("bootstrap", false);
    if bootstrap || !seeds.is_empty() {
        return bootstrap;
    }
    if w.is_written("bootstrap") {
        let hint = "list other nodes in seed_nodes, or remove bootstrap";
        w.mistake("bootstrap", "false", "needs seed_nodes", hint);
    }
    // `--print-config` shows the value in effect, so that its output can be used as a file.
    w.show("bootstrap", "true");
    true
}

/// Parses a cluster id as `tenure cluster status` prints it.
fn expected_cluster(w: &mut raw::SettingsReader) -> Option<u64> {
    let text = w.optional_text("expected_cluster_id")?;
    let number = u64::from_str_radix(&text, 16).ok();
    let digits = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = number.filter(|number| *number != 0 && digits);
    if number.is_none() {
        let hint = "to see it, run: tenure cluster status";
        w.mistake(
            "expected_cluster_id",
            &text,
            "must be 16 hexadecimal digits",
            hint,
        );
    }
    number
}

/// What clients on this machine may do without credentials. With a shared token they need it, as in
/// release 0.1.0.
fn loopback(w: &mut raw::SettingsReader, has_credentials: bool) -> LoopbackAccess {
    let default = if has_credentials {
        "authenticated"
    } else {
        "anonymous"
    };
    match w.text("loopback", default).as_str() {
        "anonymous" => LoopbackAccess::Anonymous,
        "authenticated" => LoopbackAccess::Authenticated,
        other => {
            w.mistake("loopback", other, "must be anonymous or authenticated", "");
            LoopbackAccess::Authenticated
        }
    }
}

/// Reads the settings of the identity provider: all of them, or none.
fn jwt(w: &mut raw::SettingsReader) -> Option<JwtConfig> {
    let issuer = w.optional_text("jwt_issuer");
    let audience = w.optional_text("jwt_audience");
    let path = w.optional_text("jwt_jwks_path");
    let url = w.optional_text("jwt_jwks_url");
    if [&issuer, &audience, &path, &url]
        .iter()
        .all(|value| value.is_none())
    {
        return None;
    }
    let hint = "set jwt_issuer, jwt_audience, and one of jwt_jwks_path and jwt_jwks_url";
    if issuer.is_none() {
        w.mistake("jwt_issuer", "", "is missing", hint);
    }
    if audience.is_none() {
        w.mistake("jwt_audience", "", "is missing", hint);
    }
    let keys = match (path, url) {
        (Some(path), None) => Some(JwksSource::File(path.into())),
        (None, Some(url)) if url.starts_with("https://") => Some(JwksSource::Url(url)),
        (None, Some(url)) => {
            let problem = "must start with https://";
            w.mistake(
                "jwt_jwks_url",
                &url,
                problem,
                "the keys decide who is let in",
            );
            None
        }
        (Some(_), Some(url)) => {
            w.mistake("jwt_jwks_url", &url, "excludes jwt_jwks_path", hint);
            None
        }
        (None, None) => {
            w.mistake("jwt_jwks_path", "", "is missing", hint);
            None
        }
    };
    Some(JwtConfig {
        issuer: issuer?,
        audience: audience?,
        keys: keys?,
    })
}

fn log_format(w: &mut raw::SettingsReader) -> LogFormat {
    match w.text("log_format", "auto").as_str() {
        "auto" => LogFormat::Auto,
        "text" => LogFormat::Text,
        "json" => LogFormat::Json,
        other => {
            w.mistake("log_format", other, "must be auto, text or json", "");
            LogFormat::Auto
        }
    }
}

fn is_host_port(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port != 0)
    })
}

#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;
