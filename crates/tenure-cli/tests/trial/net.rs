//! The network: a bridge, and a namespace with an address for each node.
//!
//! The clients stay outside, at the bridge's own address. Where namespaces are not permitted the nodes
//! get loopback addresses, and nothing can be cut off; [`Net::describe`] says so.

use std::process::Command;

/// See the module. Taken down when dropped.
pub(crate) struct Net {
    tag: String,
    subnet: u8,
    size: u32,
    real: bool,
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
        };
        net.real = net.build();
        if !net.real {
            net.take_down();
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

    /// Can packets be lost at random here?
    pub(crate) fn can_lose(&self) -> bool {
        self.real && run("nft", "--version")
    }

    /// Can a line be made thin here?
    pub(crate) fn can_slow(&self) -> bool {
        self.real && run("tc", "-V")
    }

    /// Can nodes be cut off?
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

    /// What `from` sends does not reach `to` any more; the other direction does.
    pub(crate) fn cut(&self, from: u32, to: u32) {
        let (space, address) = (self.space(from), self.address(to));
        assert!(ip(&format!("-n {space} route add blackhole {address}/32")));
    }

    /// A share of all packets that reach the node is lost.
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

    /// The node's line becomes thin, so that what it sends waits.
    pub(crate) fn slow(&self, node: u32) {
        let (space, line) = (self.space(node), format!("{}i{node}", self.tag));
        assert!(run(
            "ip",
            &format!(
                "netns exec {space} tc qdisc add dev {line} root tbf rate 800kbit burst 8kb latency 300ms"
            )
        ));
    }

    /// Everything passes again.
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
            run(
                "ip",
                &format!("netns exec {space} nft delete table inet loss"),
            );
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
