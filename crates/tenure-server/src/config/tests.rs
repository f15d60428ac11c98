//! R180–R182: every key in both forms, all mistakes at once, loopback by default.

use super::*;

fn machine() -> MachineDefaults {
    MachineDefaults {
        system_directory: Writable::Yes,
        user_state: None,
    }
}

fn read(file: Option<&str>, environment: &[(&str, &str)]) -> Result<Config, ConfigError> {
    let environment = environment
        .iter()
        .map(|(key, value)| ((*key).into(), (*value).into()));
    Config::from_settings(RawSettings::new(file, environment)?, &machine())
}

fn mistakes(file: Option<&str>, environment: &[(&str, &str)]) -> Vec<String> {
    read(file, environment)
        .unwrap_err()
        .mistakes
        .iter()
        .map(|m| m.key.clone())
        .collect()
}

/// R182 (zero configuration): without settings the daemon listens on loopback and creates a
/// one-node cluster.
#[test]
fn nothing_configured_is_loopback() {
    let config = read(None, &[]).unwrap();
    assert_eq!(config.transports.listen.to_string(), "127.0.0.1:50051");
    assert_eq!(
        config.transports.web_listen.unwrap().to_string(),
        "127.0.0.1:8443"
    );
    assert_eq!(
        config.transports.h3_listen.unwrap().to_string(),
        "127.0.0.1:8443"
    );
    assert_eq!(config.cluster.start, BootstrapConfig::Bootstrap);
    assert_eq!(config.disk.data_dir, PathBuf::from("/var/lib/tenure"));
    assert_eq!(config.node.id, 1);
}

/// R182: a default does not depend on which other keys are set.
#[test]
fn defaults_stay_where_they_are() {
    let bare = read(None, &[]).unwrap().transports;
    for (key, value) in [
        ("TENURE_NODE_ID", "tenure-3"),
        ("TENURE_DATA_DIR", "/x"),
        ("TENURE_PUBLIC_ADDR", "http://a:1"),
        ("TENURE_LISTEN", "127.0.0.1:7"),
    ] {
        let config = read(Some("event_buffer = 7"), &[(key, value)]).unwrap();
        assert_eq!(config.transports.web_listen, bare.web_listen, "{key}");
        assert_eq!(config.transports.h3_listen, bare.h3_listen, "{key}");
        let is_default = key == "TENURE_LISTEN" || config.transports.listen == bare.listen;
        assert!(is_default, "{key}");
    }
    let off = read(None, &[("TENURE_WEB_LISTEN", "off")])
        .unwrap()
        .transports;
    assert_eq!((off.web_listen, off.h3_listen), (None, None));
}

/// A misspelled variable has no effect, so it is reported; variables of clients are not.
#[test]
fn unknown_variables_are_named() {
    let environment = [
        ("TENURE_LISTENN", "1"),
        ("TENURE_URL", "x"),
        ("TENURE_FENCE_2", "7"),
        ("TENURE_CLIENT_AUTH_TOKEN_FILE", "x"),
        ("OTHER", "x"),
    ];
    let unknown = read(None, &environment).unwrap().unknown;
    assert_eq!(
        unknown,
        ["TENURE_LISTENN is not a setting; did you mean TENURE_LISTEN?"]
    );
    assert_eq!(mistakes(Some("log_level = 'loud'"), &[]), ["log_level"]);
    assert!(read(Some("log_level = 'tenure=debug,info'"), &[]).is_ok());
}

/// R182: without permission for `/var/lib`, data goes to the user's state directory.
#[test]
fn a_user_without_rights_gets_the_state_directory() {
    let machine = MachineDefaults {
        system_directory: Writable::No,
        user_state: Some("/home/amy/.local/state".into()),
    };
    let config = Config::from_settings(RawSettings::default(), &machine).unwrap();
    assert_eq!(
        config.disk.data_dir,
        PathBuf::from("/home/amy/.local/state/tenure")
    );
}

/// R182: `TENURE_` wins over `PATHLOCKD_`, both win over the file, an empty variable counts as
/// unset.
#[test]
fn the_environment_wins_over_the_file() {
    let file = "listen = '127.0.0.1:1'\ngroup_count = 4\nevent_buffer = 7\n";
    let config = read(
        Some(file),
        &[
            ("TENURE_GROUP_COUNT", "8"),
            ("PATHLOCKD_GROUP_COUNT", "9"),
            ("PATHLOCKD_EVENT_BUFFER", "11"),
            ("TENURE_LISTEN", ""),
        ],
    )
    .unwrap();
    assert_eq!(config.node.fixed.group_count, 8);
    assert_eq!(config.transports.event_buffer, 11);
    assert_eq!(config.transports.listen.to_string(), "127.0.0.1:1");
}

/// R182: listening beyond loopback needs a client token or `allow_anonymous`.
#[test]
fn exposure_needs_a_word() {
    assert!(read(Some(""), &[]).is_ok(), "the default is loopback");
    assert_eq!(mistakes(Some("listen = '0.0.0.0:1'"), &[]), ["listen"]);
    let error = read(
        Some("web_listen = '0.0.0.0:8443'\nlisten = '127.0.0.1:5'"),
        &[],
    )
    .unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("client_auth_token") && text.contains("allow_anonymous"),
        "{text}"
    );
    assert!(read(Some("allow_anonymous = true"), &[]).is_ok());
    let token = "0123456789abcdef0123456789abcdef";
    assert!(read(Some(""), &[("TENURE_CLIENT_AUTH_TOKEN", token)]).is_ok());
}

/// R182: no port is left out of the check. Every key that names an address for clients is in the
/// list of sockets, and each of them alone is refused beyond loopback.
#[test]
fn every_port_for_clients_is_checked() {
    let config = read(None, &[]).unwrap();
    let keys = config.effective.iter().map(|entry| entry.key);
    let mut keys: Vec<_> = keys.filter(|key| key.ends_with("listen")).collect();
    let mut sockets: Vec<_> = config.transports.sockets().map(|(key, _)| key).collect();
    keys.sort_unstable();
    sockets.sort_unstable();
    assert_eq!(sockets, keys);
    for exposed in keys {
        let mut file = String::new();
        for key in ["listen", "web_listen", "h3_listen"] {
            let ip = if key == exposed {
                "0.0.0.0"
            } else {
                "127.0.0.1"
            };
            file.push_str(&format!("{key} = '{ip}:8443'\n"));
        }
        let mistakes = mistakes(Some(&file), &[]);
        assert!(
            mistakes.contains(&exposed.to_owned()),
            "{exposed}: {mistakes:?}"
        );
    }
}

/// HTTP/3 serves what the web port serves: on the same address, or not at all.
#[test]
fn http3_is_where_the_web_port_is() {
    let other = "listen = '127.0.0.1:1'\nweb_listen = '127.0.0.1:2'\nh3_listen = '127.0.0.2:2'\n";
    assert_eq!(mistakes(Some(other), &[]), ["h3_listen"]);
    let alone = "listen = '127.0.0.1:1'\nweb_listen = 'off'\nh3_listen = '127.0.0.1:2'\n";
    assert_eq!(read(Some(alone), &[]).unwrap().transports.h3_listen, None);
    assert!(read(Some(&other.replace(".2:2", ".1:3")), &[]).is_ok());
}

/// A token that other machines can try has 128 bits or more. On loopback any token is accepted.
#[test]
fn a_short_token_stays_on_loopback() {
    for (token, accepted) in [
        ("x", false),
        ("0123456789abcdef0123456789abcde", false),
        ("0123456789abcdef0123456789abcdef", true),
        (&"a".repeat(64), false),
        ("Zk3rXo9-vQ_w1LmN8sTyUa", true),
    ] {
        let token = ("TENURE_CLIENT_AUTH_TOKEN", token);
        let open = read(Some("listen = '0.0.0.0:1'"), &[token]);
        assert_eq!(open.is_ok(), accepted, "{token:?}");
        assert!(read(Some("listen = '127.0.0.1:1'"), &[token]).is_ok());
    }
    let same = ("TENURE_INTERNAL_AUTH_TOKEN", "a".repeat(64));
    let refused = mistakes(None, &[(same.0, &same.1)]);
    assert_eq!(refused, ["internal_auth_token"]);
}

/// A syntax error names the place, never the line: the line may contain a secret.
#[test]
fn a_syntax_error_does_not_print_the_line() {
    let file = "listen = '127.0.0.1:1'\nclient_auth_token = \"super-secret-value-123\n";
    let error = read(Some(file), &[]).unwrap_err().to_string();
    assert!(!error.contains("super-secret"), "{error}");
    assert!(error.contains("line 2"), "{error}");
}

/// R167 (bootstrap decision): an explicit `bootstrap = false` needs seeds; without seeds the
/// default is true.
#[test]
fn a_node_that_may_not_found_needs_seeds() {
    let file = "allow_anonymous = true\nbootstrap = false\n";
    assert_eq!(mistakes(Some(file), &[]), ["bootstrap"]);
    let keys = mistakes(None, &[("TENURE_BOOTSTRAP", "false")]);
    assert!(keys.contains(&"bootstrap".to_owned()), "{keys:?}");
    let token = (
        "TENURE_INTERNAL_AUTH_TOKEN",
        "0123456789abcdef0123456789abcdef",
    );
    let seeded = [token, ("TENURE_SEED_NODES", "10.0.0.1:7946")];
    let config = read(Some(file), &seeded).unwrap();
    assert_eq!(config.cluster.start, BootstrapConfig::Join);
    let config = read(Some("allow_anonymous = true"), &[token]).unwrap();
    assert_eq!(config.cluster.start, BootstrapConfig::Bootstrap);
}

/// A cluster id is 16 hexadecimal digits, and needs a cluster token.
#[test]
fn the_expected_cluster_is_a_number() {
    let token = (
        "TENURE_INTERNAL_AUTH_TOKEN",
        "0123456789abcdef0123456789abcdef",
    );
    let reading = |text: &str| {
        let file = format!("allow_anonymous = true\nexpected_cluster_id = '{text}'");
        read(Some(&file), &[token]).map(|config| config.cluster.expected_cluster)
    };
    assert_eq!(reading("00000000000000ff").unwrap(), Some(255));
    assert_eq!(reading("").unwrap(), None);
    for bad in [
        "ff",
        "000000000000000g",
        "0000000000000000",
        "+00000000000000f",
    ] {
        assert!(reading(bad).is_err(), "{bad}");
    }
    let file = "allow_anonymous = true\nexpected_cluster_id = '00000000000000ff'";
    assert_eq!(mistakes(Some(file), &[]), ["expected_cluster_id"]);
}

/// R180 (every key is accepted): every mistake is reported with its key.
#[test]
fn all_mistakes_are_reported_at_once() {
    let file = "listen = 'here'\ngroup_count = 0\nreplication_factor = 2\nlistenn = 'x'\n\
                tls_cert_path = 'a.pem'\npeer_tls_key_path = 'b.pem'\nallow_anonymous = 3\n";
    let keys = mistakes(
        Some(file),
        &[("TENURE_NODE_ID", "alpha"), ("TENURE_BOOTSTRAP", "maybe")],
    );
    for key in [
        "listen",
        "group_count",
        "replication_factor",
        "listenn",
        "tls_key_path",
        "peer_tls_ca_path",
        "peer_tls_cert_path",
        "allow_anonymous",
        "node_id",
        "bootstrap",
    ] {
        assert!(
            keys.contains(&key.to_owned()),
            "{key} is missing in {keys:?}"
        );
    }
    let error = read(Some("listenn = 'x'\nallow_anonymous = true"), &[]).unwrap_err();
    assert!(
        error.to_string().contains("did you mean listen?"),
        "{error}"
    );
}

/// R180: keys of the other storage engine, and of timing that is fixed here, are accepted and
/// listed.
#[test]
fn keys_without_meaning_are_accepted() {
    let file = "allow_anonymous = true\nrocksdb_block_cache_mb = 64\npeers = []\n\
                raft_heartbeat_interval_ms = 500\n";
    let config = read(Some(file), &[("PATHLOCKD_ROCKSDB_WRITE_BUFFER_MB", "16")]).unwrap();
    assert_eq!(
        config.ignored,
        [
            "peers",
            "raft_heartbeat_interval_ms",
            "rocksdb_block_cache_mb",
            "rocksdb_write_buffer_mb"
        ]
    );
    let unknown = [("PATHLOCKD_BOGUS", "1"), ("PATHLOCKD_CONFIG", "/x")];
    let unknown = read(None, &unknown).unwrap().unknown;
    assert_eq!(unknown, ["PATHLOCKD_BOGUS is not a setting"]);
}

/// Secrets appear neither in `Debug` output nor in errors. (R181 OpenTelemetry variables: telemetry
/// reads standard variables only, none of these.)
#[test]
fn secrets_are_never_printed() {
    let token = "0123456789abcdef0123456789abcdef";
    let config = read(None, &[("TENURE_INTERNAL_AUTH_TOKEN", token)]).unwrap();
    assert_eq!(config.cluster.token.as_ref().unwrap().reveal(), token);
    assert!(!format!("{config:?}").contains(token));
    let error = read(None, &[("TENURE_INTERNAL_AUTH_TOKEN", "short-secret")]).unwrap_err();
    assert!(!error.to_string().contains("short-secret"));
}

#[test]
fn algorithms_are_read_generously() {
    for name in ["Point-RW", "point rw", "point_rw"] {
        let config = read(None, &[("TENURE_DEFAULT_LOCK_ALGORITHM", name)]).unwrap();
        assert_eq!(config.node.fixed.default_algorithm, Algorithm::PointRw);
    }
    assert_eq!(
        mistakes(None, &[("TENURE_DEFAULT_LOCK_ALGORITHM", "best")]),
        ["default_lock_algorithm"]
    );
}

/// The printed configuration can be read back.
#[test]
fn what_is_printed_can_be_read() {
    let config = read(None, &[]).unwrap();
    let text: String = config
        .effective
        .iter()
        .map(|e| format!("{} = {}\n", e.key, e.value))
        .collect();
    let again = read(Some(&text), &[]).unwrap();
    assert_eq!(again.node, config.node);
    assert_eq!(again.transports, config.transports);
    assert_eq!(again.cluster, config.cluster);
}

/// A health check reads only the address and the token.
#[test]
fn a_health_check_does_not_mind_other_mistakes() {
    let file = "listen = '127.0.0.1:9'\nseed_nodes = ['x:1']\nreplication_factor = 2\nno_key = 1\n";
    assert!(read(Some(file), &[]).is_err());
    let settings = RawSettings::new(Some(file), []).unwrap();
    let listen_endpoint = LocalEndpoint::from_settings(settings, &machine()).unwrap();
    assert_eq!(listen_endpoint.listen.to_string(), "127.0.0.1:9");
    let settings = RawSettings::new(Some("listen = 'here'"), []).unwrap();
    assert!(LocalEndpoint::from_settings(settings, &machine()).is_err());
}
