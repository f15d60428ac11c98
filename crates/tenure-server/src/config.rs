//! Configuration: what was written, then what is meant.
//!
//!   defaults < TOML file < environment ──▶ `Written` ──▶ [`Config`], or all mistakes at once
//!
//! Every key of the wire-compatible daemon is accepted, as TOML key, as `TENURE_<KEY>` and as
//! `PATHLOCKD_<KEY>` (R180, R182). Keys that mean nothing to this daemon are one list of names; they
//! are accepted, and named once in the log.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use tenure_core::policy::Algorithm;

mod raw;

pub use raw::{ConfigError, ConfigMistake, Effective, RawSettings, ValueOrigin};

/// Keys of the wire-compatible daemon that have no meaning here (R180): those of its storage and gossip,
/// and the timing of elections, which is that of the node's own protocol and the same on all nodes. What has ended
/// is found when it is due, not by looking around (R95).
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

/// What the daemon runs with: complete and valid, grouped by who needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Who this node is, and what it must agree on with the others.
    pub node: NodeConfig,
    /// What it keeps on disk, and how.
    pub disk: DiskConfig,
    /// How nodes find each other and share the work.
    pub cluster: ClusterConfig,
    /// What clients meet.
    pub transports: TransportConfig,
    /// Where logs go.
    pub log: LogConfig,
    /// Accepted keys that have no effect here, as they were written.
    pub ignored: Vec<String>,
    /// Every key with its value and where that came from, for `--print-config`.
    pub effective: Vec<Effective>,
}

/// Who this node is, and what it must agree on with the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeConfig {
    /// The name; ends in the node's number.
    pub name: String,
    /// Trailing digits of the name plus one (R162).
    pub id: u64,
    /// Fixed for the cluster's life, checked at start and against peers (R161).
    pub fixed: FixedConfig,
    /// Commands that may wait per group (R151).
    pub max_inflight_per_group: u64,
}

/// What is fixed at a cluster's birth (R161).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FixedConfig {
    /// How many lock groups there are.
    pub group_count: u64,
    /// How many segments make the fallback namespace (R22).
    pub routing_prefix_segments: usize,
    /// The algorithm of namespaces without a row (R24).
    pub default_algorithm: Algorithm,
}

/// What the node keeps on disk, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskConfig {
    /// The data directory.
    pub data_dir: PathBuf,
    /// Whether an answer waits for the disk (R152).
    pub sync: SyncConfig,
    /// Entries of a group between snapshots.
    pub snapshot_entries: u64,
    /// Entries kept behind a snapshot for slow followers.
    pub kept_entries: u64,
}

/// Whether an answer waits for the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncConfig {
    /// It does: nothing acknowledged is lost.
    Always,
    /// It does not, by the operator's word: a power cut may lose answers.
    Never,
}

/// How nodes find each other and share the work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterConfig {
    /// Whether this node begins a cluster (R167).
    pub start: BootstrapConfig,
    /// Gossip addresses of others, `host:port`.
    pub seeds: Vec<String>,
    /// The only cluster that this node may belong to.
    pub expected_cluster: Option<u64>,
    /// The URL that peers use.
    pub raft_addr: String,
    /// Where gossip listens.
    pub gossip_addr: SocketAddr,
    /// The gossip address that others use, if it is not the one above.
    pub gossip_advertise: Option<String>,
    /// Expected number of nodes.
    pub gossip_cluster_size: u64,
    /// Longest gossip packet.
    pub gossip_max_packet_size: u64,
    /// Time between announcements to the seeds.
    pub gossip_seed_announce_ms: u64,
    /// Packets that may wait to be sent.
    pub gossip_send_queue: u64,
    /// Voters per group; odd.
    pub replication_factor: u64,
    /// What peers prove to each other (R168).
    pub token: Option<Secret>,
    /// How connections between peers are encrypted; `None` leaves them readable on the way.
    pub peer_tls: Option<PeerTlsFiles>,
    /// When a node counts as stable.
    pub stability_window_secs: u64,
    /// When a dead voter may be replaced.
    pub eviction_window_secs: u64,
    /// Time between moves of leadership to the preferred voter.
    pub leader_balance_secs: u64,
    /// Membership changes at once.
    pub max_concurrent_reconciles: u64,
}

/// Whether this node begins a cluster (R167).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BootstrapConfig {
    /// It joins the cluster that its seeds know.
    Join,
    /// It begins one, unless it has state or its seeds know one.
    Bootstrap,
    /// It begins one even if no seed answers.
    ForceBootstrap,
}

/// A secret: never printed, never logged.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// The secret itself, for the one place that needs it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(secret)")
    }
}

/// What clients meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransportConfig {
    /// Where gRPC listens.
    pub listen: SocketAddr,
    /// The URL that clients are told.
    pub public_addr: String,
    /// Where JSON, SSE and the console listen; `None` is off.
    pub web_listen: Option<SocketAddr>,
    /// Where HTTP/3 listens; `None` is off.
    pub h3_listen: Option<SocketAddr>,
    /// Certificate and key; `None` makes a self-signed one at start.
    pub tls: Option<TlsFiles>,
    /// Whether HTTP/3 takes early data.
    pub zero_rtt: ZeroRtt,
    /// Events kept per owner for clients that come back.
    pub web_event_log_capacity: u64,
    /// Events that a subscriber may be behind (R123).
    pub event_buffer: u64,
    /// The longest that a call may take.
    pub request_timeout_ms: u64,
    /// Unary calls of one connection that are handled at once.
    pub max_concurrent_requests_per_connection: u64,
    /// What every client must show; `None`: clients are not asked.
    pub client_token: Option<Secret>,
}

/// Whether HTTP/3 takes early data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZeroRtt {
    /// Reads may come early.
    ReadsOnly,
    /// Nothing may.
    Off,
}

/// Where certificate and key are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// PEM chain.
    pub certificate: PathBuf,
    /// PEM key.
    pub key: PathBuf,
}

/// Where peers' certificates are. All nodes have them, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerTlsFiles {
    /// PEM of the authority that signs all nodes' certificates.
    pub authority: PathBuf,
    /// PEM chain of this node.
    pub certificate: PathBuf,
    /// PEM key of this node.
    pub key: PathBuf,
}

/// Where logs go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// A filter such as `info` or `tenure=debug`.
    pub level: String,
    /// Appended to, in addition to standard output.
    pub file: Option<PathBuf>,
    /// How a line looks.
    pub format: LogFormat,
}

/// How a line of the log looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// JSON, but text on a terminal.
    Auto,
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// What the machine offers where nothing is configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineDefaults {
    /// Whether `/var/lib/tenure` can be written or made.
    pub system_directory: Writable,
    /// The user's state directory.
    pub user_state: Option<PathBuf>,
}

/// Whether a place can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writable {
    /// It can.
    Yes,
    /// It cannot.
    No,
}

/// How a daemon is reached from its own machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalEndpoint {
    /// Where gRPC listens.
    pub listen: SocketAddr,
    /// What clients must show.
    pub client_token: Option<Secret>,
}

impl LocalEndpoint {
    /// Reads only what a health check needs: whatever else is wrong is the daemon's business.
    pub fn from_settings(settings: RawSettings) -> Result<LocalEndpoint, ConfigError> {
        let mut w = raw::SettingsReader::new(settings);
        let bare = w.is_bare();
        let address = SocketAddr::new(unless(bare, Ipv4Addr::UNSPECIFIED), 50051);
        let listen_endpoint = LocalEndpoint {
            listen: w.address("listen", address),
            client_token: w.secret("client_auth_token"),
        };
        w.so_far()?;
        Ok(listen_endpoint)
    }
}

impl Config {
    /// Turns what was written into what is meant, or reports every mistake.
    pub fn from_settings(
        settings: RawSettings,
        machine: &MachineDefaults,
    ) -> Result<Config, ConfigError> {
        let mut w = raw::SettingsReader::new(settings);
        let bare = w.is_bare();
        let bind = |port: u16| SocketAddr::new(unless(bare, Ipv4Addr::UNSPECIFIED), port);
        let web_default = if bare { "127.0.0.1:8443" } else { "" };

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
            id: id.unwrap_or(1),
            fixed,
            max_inflight_per_group: w.number("max_inflight_per_group", 1024, 1..=u64::MAX),
        };

        let data_dir = w.text("data_dir", &default_data_dir(bare, machine));
        let disk = DiskConfig {
            data_dir: PathBuf::from(data_dir),
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
                    "name another node's gossip port",
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
                "an even one adds no safety",
            );
        }
        let bootstrap = bootstrap(&mut w, &seeds);
        let start = match (w.flag("force_bootstrap", false), bootstrap) {
            (true, _) => BootstrapConfig::ForceBootstrap,
            (false, true) => BootstrapConfig::Bootstrap,
            (false, false) => BootstrapConfig::Join,
        };
        let token = w.secret("internal_auth_token");
        if let Some(token) = &token
            && (token.reveal().len() < 32
                || !token.reveal().bytes().all(|b| (0x21..0x7f).contains(&b)))
        {
            let hint = "make one with: openssl rand -hex 32";
            w.mistake(
                "internal_auth_token",
                "(secret)",
                "must be 32 visible ASCII characters or more",
                hint,
            );
        }
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
                "a node without one is a cluster of its own",
            );
        }
        let cluster = ClusterConfig {
            start,
            seeds,
            expected_cluster,
            raft_addr: w.text("raft_addr", "http://localhost:50052"),
            gossip_addr: w.address("gossip_addr", bind(7946)),
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
            peer_tls,
            stability_window_secs: w.number("stability_window_secs", 30, 0..=86_400),
            eviction_window_secs: w.number("eviction_window_secs", 60, 0..=86_400),
            leader_balance_secs: w.number("leader_balance_interval_secs", 60, 0..=86_400),
            max_concurrent_reconciles: w.number("max_concurrent_reconciles", 4, 1..=1024),
        };

        let tls = match (
            w.optional_text("tls_cert_path"),
            w.optional_text("tls_key_path"),
        ) {
            (Some(certificate), Some(key)) => Some(TlsFiles {
                certificate: certificate.into(),
                key: key.into(),
            }),
            (None, None) => None,
            (certificate, _) => {
                let lonely = if certificate.is_some() {
                    "tls_key_path"
                } else {
                    "tls_cert_path"
                };
                w.mistake(
                    lonely,
                    "",
                    "is missing",
                    "certificate and key: both or none",
                );
                None
            }
        };
        let transports = TransportConfig {
            listen: w.address("listen", bind(50051)),
            public_addr: w.text("public_addr", "http://localhost:50051"),
            web_listen: w.optional_address("web_listen", web_default),
            h3_listen: w.optional_address("h3_listen", web_default),
            tls,
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
            client_token: w.secret("client_auth_token"),
        };
        let anonymous = w.flag("allow_anonymous", false);
        for (key, address) in [
            ("listen", Some(transports.listen)),
            ("web_listen", transports.web_listen),
        ] {
            let exposed = address.filter(|address| !address.ip().is_loopback());
            if let Some(address) = exposed
                && transports.client_token.is_none()
                && !anonymous
            {
                w.mistake(
                    key,
                    &address.to_string(),
                    "reaches beyond this machine, and clients are not asked who they are",
                    "set client_auth_token (with TLS), or say allow_anonymous = true",
                );
            }
        }
        let log = LogConfig {
            level: w.text("log_level", "info"),
            file: w.optional_text("log_file").map(PathBuf::from),
            format: log_format(&mut w),
        };
        let read = w.finish(WITHOUT_MEANING)?;
        let (ignored, effective) = (read.ignored, read.effective);
        Ok(Config {
            node,
            disk,
            cluster,
            transports,
            log,
            ignored,
            effective,
        })
    }
}

const NO_NUMBER: &str = "the digits, plus one, are the node's number in its cluster (R162)";

fn unless(bare: bool, address: Ipv4Addr) -> IpAddr {
    IpAddr::V4(if bare { Ipv4Addr::LOCALHOST } else { address })
}

fn default_data_dir(bare: bool, machine: &MachineDefaults) -> String {
    let system = "/var/lib/tenure";
    match &machine.user_state {
        Some(state) if bare && machine.system_directory == Writable::No => {
            state.join("tenure").display().to_string()
        }
        _ => system.to_owned(),
    }
}

/// Trailing digits of a node's name, plus one (R162).
pub(crate) fn node_number(name: &str) -> Option<u64> {
    let digits = name.len() - name.bytes().rev().take_while(u8::is_ascii_digit).count();
    name[digits..].parse::<u64>().ok()?.checked_add(1)
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
                let hint = "authority, certificate and key: all three or none";
                w.mistake(key, "", "is missing", hint);
            }
        }
    }
    None
}

/// R167, R182: a node without seeds founds a cluster, unless `bootstrap` is written out as false.
fn bootstrap(w: &mut raw::SettingsReader, seeds: &[String]) -> bool {
    let bootstrap = w.flag("bootstrap", false);
    if bootstrap || !seeds.is_empty() {
        return bootstrap;
    }
    if w.is_written("bootstrap") {
        let hint = "name other nodes in seed_nodes, or leave bootstrap out";
        w.mistake("bootstrap", "false", "needs seed_nodes", hint);
    }
    // What is printed is what is in force, and can be read back.
    w.show("bootstrap", "true");
    true
}

/// The number of a cluster as `tenure cluster status` prints it.
fn expected_cluster(w: &mut raw::SettingsReader) -> Option<u64> {
    let text = w.optional_text("expected_cluster_id")?;
    let number = u64::from_str_radix(&text, 16).ok();
    let digits = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = number.filter(|number| *number != 0 && digits);
    if number.is_none() {
        let hint = "tenure cluster status prints it";
        w.mistake(
            "expected_cluster_id",
            &text,
            "must be 16 hexadecimal digits",
            hint,
        );
    }
    number
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
mod tests;
