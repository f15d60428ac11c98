//! Nodes of the cluster: one process each, on its own disk if mounting is permitted.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::net::Net;

/// The token of the cluster.
const TOKEN: &str = "known-to-the-nodes-of-this-trial-only";
const FAKETIME: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";

/// All nodes and the network between them.
pub(crate) struct Cluster {
    pub(crate) net: Net,
    /// One machine more than the cluster has nodes, so that one can join while another leaves.
    pub(crate) nodes: Vec<Node>,
    /// The machine that no node runs on, if there is one.
    spare: Option<u32>,
    _root: tempfile::TempDir,
}

/// The machine of one node, whether its daemon runs or not.
pub(crate) struct Node {
    number: u32,
    child: Option<Child>,
    frozen: bool,
    home: PathBuf,
    /// The data directory is a small disk of its own.
    pub(crate) own_disk: bool,
    /// Its wall clock can be set.
    pub(crate) own_clock: bool,
    /// The last lines it wrote.
    said: Arc<Mutex<Vec<String>>>,
}

impl Cluster {
    /// Starts so many nodes and waits until every group has all its voters.
    pub(crate) async fn start(size: u32) -> Cluster {
        let net = Net::new(size + 1);
        let root = tempfile::tempdir().unwrap();
        let nodes = (0..=size).map(|number| Node::new(number, root.path()));
        let mut cluster = Cluster {
            nodes: nodes.collect(),
            spare: Some(size),
            net,
            _root: root,
        };
        for number in 0..size {
            cluster.launch(number).await;
        }
        cluster.settled().await;
        cluster
    }

    /// The machines that are part of the cluster, whether their daemon runs or not.
    pub(crate) fn members(&self) -> Vec<u32> {
        (0..self.nodes.len() as u32)
            .filter(|node| Some(*node) != self.spare)
            .collect()
    }

    /// The members but one, beginning with the one after it.
    pub(crate) fn others(&self, victim: u32) -> Vec<u32> {
        let mut members = self.members();
        let at = members.iter().position(|one| *one == victim).unwrap();
        members.rotate_left(at);
        members.split_off(1)
    }

    /// Returns the address of a node for clients.
    pub(crate) fn address(&self, node: u32) -> String {
        format!("http://{}:50051", self.net.address(node))
    }

    /// Returns the Unix socket of a node.
    fn socket(&self, node: u32) -> String {
        let data = self.nodes[node as usize].data().join("data");
        format!("unix://{}", data.join("tenure.sock").display())
    }

    /// Returns the addresses at which clients look for nodes.
    pub(crate) fn addresses(&self) -> Vec<String> {
        (0..self.nodes.len() as u32)
            .map(|node| self.address(node))
            .collect()
    }

    /// Starts the daemon of one node and waits until it says that it is ready.
    pub(crate) async fn launch(&mut self, number: u32) {
        let others: Vec<String> = (0..self.nodes.len() as u32)
            .filter(|other| *other != number)
            .map(|other| format!("{}:7946", self.net.address(other)))
            .collect();
        let address = self.net.address(number);
        let groups = std::env::var("TENURE_TRIAL_GROUPS").unwrap_or_else(|_| "16".to_owned());
        let node = &mut self.nodes[number as usize];
        assert!(node.child.is_none());
        let first = number == 0 && !node.data().join("began").exists();
        let mut command = self.net.command(number, env!("CARGO_BIN_EXE_tenure"));
        command
            .arg("serve")
            .env("TENURE_NODE_ID", format!("tenure-{number}"))
            .env("TENURE_DATA_DIR", node.data().join("data"))
            .env("TENURE_LISTEN", format!("{address}:50051"))
            .env("TENURE_PUBLIC_ADDR", format!("http://{address}:50051"))
            .env("TENURE_RAFT_ADDR", format!("http://{address}:50052"))
            .env("TENURE_GOSSIP_ADDR", format!("{address}:7946"))
            .env("TENURE_ALLOW_ANONYMOUS", "true")
            .env("TENURE_INTERNAL_AUTH_TOKEN", TOKEN)
            .env("TENURE_LOG_FILE", node.home.join("log"))
            .env("TENURE_LOG_LEVEL", "info,tenure_cluster=debug")
            .env("TENURE_GROUP_COUNT", groups)
            .env("TENURE_STABILITY_WINDOW_SECS", "1")
            .env("TENURE_EVICTION_WINDOW_SECS", "600")
            .env("TENURE_LEADER_BALANCE_INTERVAL_SECS", "5")
            .env("TENURE_MAX_CONCURRENT_RECONCILES", "64")
            .env("TENURE_RAFT_SNAPSHOT_INTERVAL_ENTRIES", "2000")
            .env("TENURE_RAFT_SNAPSHOT_MIN_LOG_ENTRIES", "500")
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        if first {
            command.env("TENURE_BOOTSTRAP", "true");
            File::create(node.data().join("began")).unwrap();
        } else {
            command.env("TENURE_SEED_NODES", others.join(","));
        }
        if node.own_clock {
            command
                .env("LD_PRELOAD", FAKETIME)
                .env("FAKETIME_TIMESTAMP_FILE", node.home.join("clock"))
                .env("FAKETIME_CACHE_DURATION", "1")
                .env("DONT_FAKE_MONOTONIC", "1");
        }
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap());
        let (ready, is_ready) = tokio::sync::oneshot::channel();
        let said = Arc::clone(&node.said);
        std::thread::spawn(move || listen(lines, &said, ready));
        node.child = Some(child);
        let waited = tokio::time::timeout(Duration::from_secs(60), is_ready).await;
        if !matches!(waited, Ok(Ok(()))) {
            panic!("node {number} did not get ready:\n{}", node.last_words());
        }
    }

    /// Ends all faults and waits until every group has all its voters.
    pub(crate) async fn heal(&mut self) {
        self.restart().await;
        self.settled().await;
    }

    /// Ends all faults without waiting for their effects to end.
    pub(crate) async fn restart(&mut self) {
        self.net.heal();
        for number in self.members() {
            let node = &mut self.nodes[number as usize];
            node.thaw();
            node.empty_disk();
            node.set_clock(0);
            if !node.is_running() {
                self.launch(number).await;
            }
        }
    }

    /// Waits until all groups have a leader and all nodes their replicas.
    pub(crate) async fn settled(&self) {
        let size = self.members().len();
        self.until("settled", |status| status.is_whole(size)).await;
    }

    async fn until(&self, what: &str, is_so: impl Fn(&Status) -> bool) {
        let begun = Instant::now();
        loop {
            let status = self.status();
            if status.as_ref().is_some_and(&is_so) {
                return;
            }
            if begun.elapsed() > Duration::from_secs(90) {
                let status = status.map_or_else(String::new, |status| status.0.to_string());
                panic!("the cluster was not {what}: {status}");
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Returns the number of replicas that are no longer needed and not yet deleted.
    pub(crate) fn leftovers(&self) -> u64 {
        let status = self.status().unwrap();
        let members = self.members().into_iter();
        let replicas = members.map(|node| status.replicas(&format!("tenure-{node}")));
        replicas.sum::<u64>().saturating_sub(3 * status.groups())
    }

    /// Returns the cluster status from the first node that answers.
    fn status(&self) -> Option<Status> {
        let node = self.nodes.iter().position(|node| node.child.is_some())?;
        let output = self.order(node as u32, &["status", "--json"]);
        serde_json::from_slice(&output.stdout).ok().map(Status)
    }

    /// Runs an operator command against a node.
    fn order(&self, node: u32, words: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_tenure"))
            .arg("cluster")
            .args(words)
            // Anonymous clients of other machines do not administrate; the daemon's own user does.
            .args(["--url", &self.socket(node)])
            .output()
            .unwrap()
    }

    /// Replaces a node by another; the machine of the first becomes the spare one. `trouble`
    /// strikes while the replicas move. Returns how long they took.
    pub(crate) async fn exchange(
        &mut self,
        leaving: u32,
        trouble: impl AsyncFnOnce(&mut Cluster, u32),
    ) -> Duration {
        let begun = Instant::now();
        self.drain(leaving);
        let joining = self.spare.unwrap();
        self.launch(joining).await;
        trouble(self, joining).await;
        self.spare = None;
        self.empty(leaving, begun).await
    }

    /// Adds a node. Returns the time until it had its share of the replicas.
    pub(crate) async fn join(&mut self) -> Duration {
        let begun = Instant::now();
        let joining = self.spare.take().unwrap();
        self.launch(joining).await;
        // Shares are even only on average: with as many nodes as this, each has more than a third.
        self.until("shared", |status| {
            status.is_whole(self.members().len())
                && status.replicas(&format!("tenure-{joining}")) * 3 > status.groups()
        })
        .await;
        begun.elapsed()
    }

    /// Wipes the disk of a node and restarts it. Returns the time until the cluster was whole
    /// again.
    pub(crate) async fn replace(&mut self, victim: u32) -> Duration {
        self.nodes[victim as usize].wipe();
        let begun = Instant::now();
        self.launch(victim).await;
        self.settled().await;
        begun.elapsed()
    }

    /// Removes a node. Returns the time until it had no replica.
    pub(crate) async fn leave(&mut self, leaving: u32) -> Duration {
        let begun = Instant::now();
        self.drain(leaving);
        self.empty(leaving, begun).await
    }

    fn drain(&self, leaving: u32) {
        let stays = self.others(leaving)[0];
        let said = self.order(stays, &["drain", &format!("tenure-{leaving}")]);
        assert!(said.status.success(), "{said:?}");
    }

    /// Waits until a draining node has no replica, and removes it.
    async fn empty(&mut self, leaving: u32, begun: Instant) -> Duration {
        let name = format!("tenure-{leaving}");
        let stays = self.others(leaving)[0];
        while !self
            .status()
            .is_some_and(|status| status.is_empty_node(&name))
        {
            assert!(
                begun.elapsed() < Duration::from_secs(90),
                "{name} was not emptied: {:?}",
                self.status()
            );
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        let took = begun.elapsed();
        self.nodes[leaving as usize].terminate().await;
        let said = self.order(stays, &["remove", &name]);
        assert!(said.status.success(), "{said:?}");
        self.nodes[leaving as usize].wipe();
        self.spare = Some(leaving);
        took
    }
}

/// What `tenure cluster status --json` says.
#[derive(Debug)]
struct Status(serde_json::Value);

impl Status {
    fn groups(&self) -> u64 {
        self.0["groups"].as_array().map_or(0, Vec::len) as u64
    }

    fn replicas(&self, name: &str) -> u64 {
        let nodes = self.0["nodes"].as_array().map_or(&[][..], Vec::as_slice);
        let node = nodes.iter().find(|node| node["name"] == name);
        node.and_then(|node| node["replicas"].as_u64()).unwrap_or(0)
    }

    /// The node wants to leave and has nothing left.
    fn is_empty_node(&self, name: &str) -> bool {
        let nodes = self.0["nodes"].as_array().map_or(&[][..], Vec::as_slice);
        nodes.iter().any(|node| {
            node["name"] == name
                && node["draining"] == true
                && node["reported"] == true
                && node["replicas"] == 0
        })
    }

    /// Every node is up, every group is led and at rest, and there are as many replicas as there
    /// should be.
    fn is_whole(&self, nodes: usize) -> bool {
        let known = self.0["nodes"].as_array().map_or(&[][..], Vec::as_slice);
        let groups = self.0["groups"].as_array().map_or(&[][..], Vec::as_slice);
        let replicas: u64 = known
            .iter()
            .filter_map(|one| one["replicas"].as_u64())
            .sum();
        self.0["healthy"] == true
            && known.len() == nodes
            // R166: a node that was removed while it was disconnected has learnt of it.
            && replicas == 3 * groups.len() as u64
            && groups
                .iter()
                .all(|group| group["voters"].as_array().is_some_and(|all| all.len() == 3))
    }
}

impl Node {
    fn new(number: u32, root: &Path) -> Node {
        let home = root.join(format!("node-{number}"));
        std::fs::create_dir_all(home.join("disk")).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=192m", "tmpfs"]);
        let mounted = mount.arg(home.join("disk")).output();
        let mut node = Node {
            number,
            child: None,
            frozen: false,
            own_disk: mounted.is_ok_and(|output| output.status.success()),
            own_clock: Path::new(FAKETIME).exists(),
            home,
            said: Arc::default(),
        };
        node.set_clock(0);
        node
    }

    fn data(&self) -> PathBuf {
        self.home.join("disk")
    }

    pub(crate) fn is_running(&mut self) -> bool {
        let running = self
            .child
            .as_mut()
            .is_some_and(|child| child.try_wait().unwrap().is_none());
        if !running {
            self.child = None;
        }
        running
    }

    fn signal(&self, signal: &str) {
        if let Some(child) = &self.child {
            // `ip netns exec` becomes the program that it runs, so this is the daemon.
            let pid = child.id().to_string();
            let sent = Command::new("kill").args([signal, &pid]).status();
            assert!(sent.unwrap().success());
        }
    }

    /// Kills the daemon as the kernel would.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        self.frozen = false;
    }

    /// Asks the daemon to end and waits until it has.
    pub(crate) async fn terminate(&mut self) {
        self.signal("-TERM");
        if let Some(mut child) = self.child.take() {
            let ended = tokio::task::spawn_blocking(move || child.wait());
            let ended = tokio::time::timeout(Duration::from_secs(15), ended).await;
            assert!(ended.is_ok(), "node {} did not end in 15 s", self.number);
        }
    }

    /// Stops the daemon with SIGSTOP; its connections stay open.
    pub(crate) fn freeze(&mut self) {
        self.signal("-STOP");
        self.frozen = true;
    }

    pub(crate) fn thaw(&mut self) {
        if std::mem::take(&mut self.frozen) {
            self.signal("-CONT");
        }
    }

    /// Leaves no byte free on the node's disk.
    pub(crate) fn fill_disk(&self) {
        let mut ballast = File::create(self.data().join("ballast")).unwrap();
        let block = vec![0u8; 1 << 16];
        while ballast.write_all(&block).is_ok() {}
        while ballast.write_all(&[0]).is_ok() {}
    }

    pub(crate) fn empty_disk(&self) {
        let _ = std::fs::remove_file(self.data().join("ballast"));
    }

    /// Replaces the disk by an empty one.
    pub(crate) fn wipe(&mut self) {
        self.kill();
        std::fs::remove_dir_all(self.data().join("data")).unwrap();
    }

    /// Sets the daemon's wall clock so many seconds ahead, or back.
    pub(crate) fn set_clock(&mut self, ahead: i64) {
        std::fs::write(self.home.join("clock"), format!("{ahead:+}\n")).unwrap();
    }

    fn last_words(&self) -> String {
        let said = self.said.lock().unwrap();
        let from = said.len().saturating_sub(20);
        format!("node {}:\n  {}", self.number, said[from..].join("\n  "))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let kept =
                Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("trial-{}.log", self.number));
            let _ = std::fs::copy(self.home.join("log"), &kept);
            println!(
                "the log of node {} is kept in {}",
                self.number,
                kept.display()
            );
        }
        self.kill();
        if self.own_disk {
            let _ = Command::new("umount").arg("-l").arg(self.data()).status();
        }
    }
}

fn listen(lines: impl BufRead, said: &Mutex<Vec<String>>, ready: tokio::sync::oneshot::Sender<()>) {
    let mut ready = Some(ready);
    for line in lines.lines() {
        let Ok(line) = line else { return };
        if line.contains("tenure: ready")
            && let Some(ready) = ready.take()
        {
            let _ = ready.send(());
        }
        let mut said = said.lock().unwrap();
        said.push(line);
        if said.len() > 200 {
            said.drain(..100);
        }
    }
}
