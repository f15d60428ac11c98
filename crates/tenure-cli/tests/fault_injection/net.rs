//! Network of the test: a bridge, and a network namespace with an address for each node.
//!
//! Few kernels can delay packets (`netem`). So a delay redirects the sender's connections to a
//! relay at the bridge, which forwards everything later.
//!
//! The clients stay outside, at the address of the bridge. Without permission for namespaces the
//! nodes use loopback addresses and cannot be disconnected; [`Net::describe`] says so.

use std::process::Command;

use crate::relay::Relay;

/// Port for connections between nodes.
pub(crate) const PEER_PORT: u16 = 50_052;

/// The network. Dropping it removes it.
pub(crate) struct Net {
    tag: String,
    subnet: u8,
    size: u32,
    real: bool,
    /// One to each node.
    relays: Vec<Relay>,
}

fn ip(words: &str) -> bool {
    run("ip", words)
}

fn run(program: &str, words: &str) -> bool {
    let output = Command::new(program).args(words.split(' ')).output();
    output.is_ok_and(|output| output.status.success())
}

impl Net {
    pub(crate) fn new(size: u32) -> Net {
        let tag = format!("t{:x}", std::process::id() & 0xf_ffff);
        let subnet = u8::try_from(std::process::id() % 200).unwrap() + 20;
        let mut net = Net {
            tag,
            subnet,
            size,
            real: true,
            relays: Vec::new(),
        };
        net.real = net.build();
        if !net.real {
            net.take_down();
        } else if run("nft", "--version") {
            let bridge = format!("10.87.{subnet}.254");
            let to = |node| Relay::between(&bridge, &format!("{}:{PEER_PORT}", net.address(node)));
            net.relays = (0..size).map(to).collect();
        }
        net
    }

    fn build(&self) -> bool {
        let bridge = format!("{}b", self.tag);
        if !ip(&format!("link add {bridge} type bridge"))
            || !ip(&format!(
                "addr add 10.87.{}.254/24 dev {bridge}",
                self.subnet
            ))
            || !ip(&format!("link set {bridge} up"))
        {
            return false;
        }
        (0..self.size).all(|node| {
            let space = self.space(node);
            let (outer, inner) = (
                format!("{}o{node}", self.tag),
                format!("{}i{node}", self.tag),
            );
            let address = self.address(node);
            ip(&format!("netns add {space}"))
                && ip(&format!("link add {outer} type veth peer name {inner}"))
                && ip(&format!("link set {outer} master {bridge} up"))
                && ip(&format!("link set {inner} netns {space}"))
                && ip(&format!("-n {space} addr add {address}/24 dev {inner}"))
                && ip(&format!("-n {space} link set {inner} up"))
                && ip(&format!("-n {space} link set lo up"))
                && ip(&format!(
                    "-n {space} route add default via 10.87.{}.254",
                    self.subnet
                ))
        })
    }

    fn take_down(&self) {
        for node in 0..self.size {
            ip(&format!("netns del {}", self.space(node)));
            ip(&format!("link del {}o{node}", self.tag));
        }
        ip(&format!("link del {}b", self.tag));
    }

    fn space(&self, node: u32) -> String {
        format!("{}n{node}", self.tag)
    }

    /// The network in words, for the record of the run.
    pub(crate) fn describe(&self) -> &'static str {
        if self.real {
            "each in a network namespace"
        } else {
            "on loopback addresses (namespaces are not permitted here: nothing was cut off)"
        }
    }

    /// Returns whether packets can be dropped at random.
    pub(crate) fn can_lose(&self) -> bool {
        self.real && run("nft", "--version")
    }

    /// Returns whether bandwidth can be limited.
    pub(crate) fn can_slow(&self) -> bool {
        self.real && run("tc", "-V")
    }

    /// Returns whether traffic between nodes can be delayed.
    pub(crate) fn can_delay(&self) -> bool {
        !self.relays.is_empty()
    }

    /// Returns the number of delayed bytes.
    pub(crate) fn delayed(&self) -> u64 {
        self.relays.iter().map(Relay::passed).sum()
    }

    /// Returns whether nodes can be disconnected.
    pub(crate) fn is_real(&self) -> bool {
        self.real
    }

    pub(crate) fn address(&self, node: u32) -> String {
        if self.real {
            format!("10.87.{}.{}", self.subnet, node + 1)
        } else {
            format!("127.0.87.{}", node + 1)
        }
    }

    /// The command that runs a program on a node's machine.
    pub(crate) fn command(&self, node: u32, program: &str) -> Command {
        if !self.real {
            return Command::new(program);
        }
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.space(node), program]);
        command
    }

    /// Drops packets from `from` to `to`; the other direction passes.
    pub(crate) fn cut(&self, from: u32, to: u32) {
        let (space, address) = (self.space(from), self.address(to));
        assert!(ip(&format!("-n {space} route add blackhole {address}/32")));
    }

    /// Delays the traffic from `from` to `to`, and the answers. Existing connections break: their
    /// packets are redirected, too, and the relay does not know them.
    pub(crate) fn delay(&self, from: u32, to: u32) {
        let (space, address) = (self.space(from), self.address(to));
        let relay = self.relays[to as usize].address;
        let nft = |words: &str| {
            assert!(
                run("ip", &format!("netns exec {space} nft {words}")),
                "{words}"
            )
        };
        nft("add table ip detour");
        nft("add chain ip detour out { type nat hook output priority -100 ; }");
        nft(&format!(
            "add rule ip detour out ip daddr {address} tcp dport {PEER_PORT} dnat to {relay}"
        ));
    }

    /// Drops a share of all packets to the node.
    pub(crate) fn lose(&self, node: u32, percent: u32) {
        let space = self.space(node);
        let nft = |words: &str| {
            assert!(
                run("ip", &format!("netns exec {space} nft {words}")),
                "{words}"
            )
        };
        nft("add table inet loss");
        nft("add chain inet loss in { type filter hook input priority 0 ; }");
        nft(&format!(
            "add rule inet loss in numgen random mod 100 < {percent} drop"
        ));
    }

    /// Limits the node's bandwidth, so that its traffic queues.
    pub(crate) fn slow(&self, node: u32) {
        let (space, line) = (self.space(node), format!("{}i{node}", self.tag));
        assert!(run(
            "ip",
            &format!(
                "netns exec {space} tc qdisc add dev {line} root tbf rate 800kbit burst 8kb latency 300ms"
            )
        ));
    }

    /// Removes all faults.
    pub(crate) fn heal(&self) {
        if !self.real {
            return;
        }
        for node in 0..self.size {
            let space = self.space(node);
            for other in 0..self.size {
                let address = self.address(other);
                ip(&format!("-n {space} route del blackhole {address}/32"));
            }
            for table in ["inet loss", "ip detour"] {
                run(
                    "ip",
                    &format!("netns exec {space} nft delete table {table}"),
                );
            }
            let line = format!("{}i{node}", self.tag);
            run(
                "ip",
                &format!("netns exec {space} tc qdisc del dev {line} root"),
            );
        }
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        if self.real {
            self.take_down();
        }
    }
}
