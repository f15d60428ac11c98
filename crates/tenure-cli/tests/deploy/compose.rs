//! The image and the compose files, without a container engine: the same environment, each node in a
//! network namespace with the host names of the compose file.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::Daemon;
use crate::tools::{debian, file, succeeds, yaml};

const TENURE: &str = env!("CARGO_BIN_EXE_tenure");
const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// Each step must be done within this time, also on a busy machine.
const STEP: Duration = Duration::from_secs(120);

/// The instructions of the last stage of a Dockerfile, without its comments.
fn last_stage(name: &str) -> Vec<String> {
    let text = fs::read_to_string(file(name)).unwrap();
    let stage = text.rsplit_once("FROM scratch\n").unwrap().1;
    let stage = stage.replace("\\\n", "");
    let lines = stage.lines().filter(|line| !line.starts_with('#'));
    let lines = lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    lines.filter(|line| !line.is_empty()).collect()
}

/// The environment of the image.
fn image() -> BTreeMap<String, String> {
    let stage = last_stage("Dockerfile");
    let variables = stage.iter().find_map(|line| line.strip_prefix("ENV "));
    variables
        .unwrap()
        .split(' ')
        .map(|pair| pair.split_once('=').unwrap())
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

#[test]
fn both_images_are_set_up_alike() {
    let settings = |name: &str| {
        let mut lines = last_stage(name);
        lines.retain(|line| {
            let word = line.split(' ').next().unwrap();
            !["COPY", "LABEL", "ARG"].contains(&word)
        });
        lines
    };
    let built = settings("Dockerfile");
    assert_eq!(built, settings("deploy/Dockerfile.binary"));
    for needed in [
        "USER 65532:65532",
        "VOLUME /data",
        "ENTRYPOINT [\"tenure\"]",
    ] {
        assert!(built.iter().any(|line| line == needed), "{needed}");
    }
    assert!(built.iter().any(|line| line.starts_with("HEALTHCHECK ")));
}

/// A bridge, and a network namespace for each host. Removed on drop.
struct Hosts {
    tag: String,
    subnet: u8,
    names: Vec<String>,
}

impl Hosts {
    fn new(kind: u8, names: &[&str]) -> Hosts {
        let id = std::process::id();
        let hosts = Hosts {
            tag: format!("c{kind}{:x}", id & 0xf_ffff),
            subnet: u8::try_from((id + u32::from(kind)) % 200).unwrap() + 20,
            names: names.iter().map(|name| (*name).to_owned()).collect(),
        };
        let (tag, subnet) = (&hosts.tag, hosts.subnet);
        ip(&format!("link add {tag}b type bridge"));
        ip(&format!("addr add 10.89.{subnet}.254/24 dev {tag}b"));
        ip(&format!("link set {tag}b up"));
        let mut table = String::from("127.0.0.1 localhost\n");
        for (at, name) in hosts.names.iter().enumerate() {
            table += &format!("{} {name}\n", hosts.address(at));
        }
        for at in 0..hosts.names.len() {
            let (space, address) = (hosts.space(at), hosts.address(at));
            ip(&format!("netns add {space}"));
            ip(&format!(
                "link add {tag}o{at} type veth peer name {tag}i{at}"
            ));
            ip(&format!("link set {tag}o{at} master {tag}b up"));
            ip(&format!("link set {tag}i{at} netns {space}"));
            ip(&format!("-n {space} addr add {address}/24 dev {tag}i{at}"));
            ip(&format!("-n {space} link set {tag}i{at} up"));
            ip(&format!("-n {space} link set lo up"));
            // `ip netns exec` mounts this file over /etc/hosts.
            let etc = hosts.etc(at);
            fs::create_dir_all(&etc).unwrap();
            fs::write(etc.join("hosts"), &table).unwrap();
        }
        hosts
    }

    fn space(&self, at: usize) -> String {
        format!("{}n{at}", self.tag)
    }

    fn etc(&self, at: usize) -> PathBuf {
        Path::new("/etc/netns").join(self.space(at))
    }

    fn address(&self, at: usize) -> String {
        format!("10.89.{}.{}", self.subnet, at + 1)
    }

    /// `tenure` on a host, with only this environment.
    fn tenure(&self, at: usize, environment: &BTreeMap<String, String>) -> Command {
        let mut command = debian("ip", "iproute2");
        command
            .args(["netns", "exec", &self.space(at), TENURE])
            .env_clear()
            .envs(environment)
            .env("PATH", std::env::var("PATH").unwrap());
        command
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        let quietly = |words: String| Command::new("ip").args(words.split(' ')).output();
        for at in 0..self.names.len() {
            let _ = quietly(format!("netns del {}", self.space(at)));
            let _ = fs::remove_dir_all(self.etc(at));
        }
        let _ = quietly(format!("link del {}b", self.tag));
    }
}

fn ip(words: &str) {
    succeeds(debian("ip", "iproute2").args(words.split(' ')));
}

/// The environment of a service: that of the image, of the compose file, and a data directory.
fn environment(service: &serde_json::Value, data: &Path) -> BTreeMap<String, String> {
    let mut environment = image();
    for (name, value) in service["environment"].as_object().unwrap() {
        let value = value.as_str().unwrap();
        let value = if value.starts_with("${TENURE_INTERNAL_AUTH_TOKEN:?") {
            TOKEN
        } else {
            assert!(!value.contains('$'), "{name}: {value}");
            value
        };
        environment.insert(name.clone(), value.to_owned());
    }
    assert_eq!(environment["TENURE_DATA_DIR"], "/data");
    environment.insert("TENURE_DATA_DIR".into(), data.display().to_string());
    environment
}

/// Repeats a command until it succeeds.
fn until_it_succeeds(mut command: impl FnMut() -> Command) {
    let end = Instant::now() + STEP;
    loop {
        let output = command().output().unwrap();
        if output.status.success() {
            return;
        }
        assert!(
            Instant::now() < end,
            "{:?}: {}{}",
            command(),
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// A client on another host.
fn locks(addresses: &[String], path: &str) -> Command {
    let mut command = Command::new(TENURE);
    command
        .args(["run", "-w", "60s", path, "--", "true"])
        .env("TENURE_URL", format!("tenure://{}", addresses.join(",")));
    command
}

#[test]
fn the_compose_file_starts_one_node() {
    let hosts = Hosts::new(1, &["tenure"]);
    let data = tempfile::tempdir().unwrap();
    let service = yaml(&file("compose.yaml")).remove(0)["services"]["tenure"].take();
    let environment = environment(&service, data.path());
    let node = Daemon::spawn(hosts.tenure(0, &environment).arg("serve"));
    // As the image's HEALTHCHECK.
    succeeds(hosts.tenure(0, &environment).arg("--health-check"));
    succeeds(&mut locks(
        &[format!("{}:50051", hosts.address(0))],
        "vol:/a",
    ));
    assert_eq!(node.terminate(), Some(0));
}

/// `cluster init` on one node; a client uses all nodes; one node is killed and comes back.
#[test]
fn the_compose_file_of_three_nodes_makes_a_cluster() {
    let compose = yaml(&file("deploy/compose/cluster.yaml")).remove(0);
    let services = compose["services"].as_object().unwrap();
    let names: Vec<&str> = services.keys().map(String::as_str).collect();
    assert_eq!(names, ["tenure-0", "tenure-1", "tenure-2"]);
    let hosts = Hosts::new(2, &names);
    let data = tempfile::tempdir().unwrap();
    let directory = |at: usize| data.path().join(at.to_string());
    let environments: Vec<BTreeMap<String, String>> = (0..3)
        .map(|at| {
            let mut all = environment(&services[names[at]], &directory(at));
            // Only to be quicker: few groups, which move to new nodes at once.
            all.insert("TENURE_GROUP_COUNT".into(), "4".into());
            all.insert("TENURE_STABILITY_WINDOW_SECS".into(), "0".into());
            all
        })
        .collect();
    let start = |at: usize| {
        let mut command = hosts.tenure(at, &environments[at]);
        std::thread::spawn(move || Daemon::spawn(command.arg("serve")))
    };
    let starting: Vec<_> = (0..3).map(start).collect();
    succeeds(
        hosts
            .tenure(0, &environments[0])
            .args(["cluster", "init", "--data-dir"])
            .arg(directory(0)),
    );
    let mut nodes: Vec<Option<Daemon>> = starting
        .into_iter()
        .map(|node| Some(node.join().unwrap()))
        .collect();
    let healthy = || {
        let mut command = hosts.tenure(1, &environments[1]);
        command.args(["cluster", "status"]);
        command
    };
    until_it_succeeds(healthy);
    let addresses: Vec<String> = (0..3)
        .map(|at| format!("{}:50051", hosts.address(at)))
        .collect();
    for at in 0..3 {
        succeeds(&mut locks(&addresses[at..=at], "vol:/a"));
        succeeds(hosts.tenure(at, &environments[at]).arg("--health-check"));
    }
    nodes[0].take().unwrap().kill();
    succeeds(&mut locks(&addresses, "vol:/b"));
    nodes[0] = Some(start(0).join().unwrap());
    until_it_succeeds(healthy);
    for node in nodes.into_iter().flatten() {
        assert_eq!(node.terminate(), Some(0));
    }
}

/// The stack for Swarm differs from the compose file in its credentials only: every variable is a key of the
/// daemon, and each service keeps its name, its volume and its machine.
#[test]
fn the_stack_of_swarm_has_the_same_nodes() {
    let stack = yaml(&file("deploy/swarm/stack.yaml")).remove(0);
    let compose = yaml(&file("deploy/compose/cluster.yaml")).remove(0);
    let example = fs::read_to_string(file("deploy/tenure.example.toml")).unwrap();
    let services = stack["services"].as_object().unwrap();
    assert_eq!(services.len(), 3);
    for (at, (name, service)) in services.iter().enumerate() {
        let variables = service["environment"].as_object().unwrap();
        for variable in variables.keys() {
            let key = variable.strip_prefix("TENURE_").unwrap().to_lowercase();
            let known = key == "config" || example.contains(&format!("{key} = "));
            assert!(known, "{name}: {variable}");
        }
        for same in [
            "TENURE_NODE_ID",
            "TENURE_RAFT_ADDR",
            "TENURE_SEED_NODES",
            "TENURE_GOSSIP_ADVERTISE_ADDR",
        ] {
            assert_eq!(
                variables[same],
                compose["services"][name]["environment"][same]
            );
        }
        assert!(!variables.contains_key("TENURE_ALLOW_ANONYMOUS"));
        assert_eq!(service["volumes"][0], format!("data-{at}:/data"));
        assert_eq!(
            service["deploy"]["placement"]["constraints"][0],
            format!("node.labels.tenure == {at}")
        );
    }
}

/// The environment of pathlockd's published `docker run` needs one more line.
#[test]
fn the_environment_of_pathlockd_starts_with_one_more_line() {
    let hosts = Hosts::new(3, &["pathlockd"]);
    let data = tempfile::tempdir().unwrap();
    let mut environment: BTreeMap<String, String> = image();
    let published = [
        ("PATHLOCKD_BOOTSTRAP", "true"),
        (
            "PATHLOCKD_INTERNAL_AUTH_TOKEN",
            "kZ1x8m2Yw0dQJ5r7uV3pHc9sTbLqNfAeGoWiX4yRz6M=",
        ),
        ("PATHLOCKD_WEB_LISTEN", "0.0.0.0:8443"),
        ("PATHLOCKD_H3_LISTEN", "0.0.0.0:8443"),
    ];
    environment.extend(published.map(|(name, value)| (name.to_owned(), value.to_owned())));
    environment.insert("TENURE_DATA_DIR".into(), data.path().display().to_string());
    let refused = hosts.tenure(0, &environment).arg("serve").output().unwrap();
    assert!(!refused.status.success());
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("allow_anonymous = true"), "{said}");
    let page = fs::read_to_string(file("docs/from/pathlockd.md")).unwrap();
    assert!(
        page.contains("TENURE_ALLOW_ANONYMOUS=true"),
        "the page names the line"
    );
    environment.insert("TENURE_ALLOW_ANONYMOUS".into(), "true".into());
    let node = Daemon::spawn(hosts.tenure(0, &environment).arg("serve"));
    succeeds(&mut locks(
        &[format!("{}:50051", hosts.address(0))],
        "tenant:/acme/projects/42",
    ));
    assert_eq!(node.terminate(), Some(0));
}
