//! The `tenure` block of a record: the identity of a holder, written by holders and read by
//! processes that judge the lock (K6 (the `tenure` block)).
//!
//! Every member is optional for a reader (K9 (missing identity members)); unknown members are
//! ignored (K4 (ignore extra fields)).

use std::fs;
use std::os::unix::fs::MetadataExt;

use serde_json::{Map, Value, json};

pub(crate) use tenure_base::random_bytes;
pub use tenure_base::{Token, host_name};

use crate::dir::Dir;
use crate::process::{PerProcess, own_pid, own_start_time, start_time, valid_pid};

/// Returns 16 random hex digits for names of private files (K17 publish in one step, K26 rename,
/// compare, then unlink).
pub(crate) fn random_suffix() -> String {
    format!("{:016x}", u64::from_be_bytes(random_bytes()))
}

/// The environment of this process: boot, PID namespace and host name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Here {
    /// The boot id of the kernel.
    pub boot: Option<String>,
    /// The inode number of the PID namespace.
    pub pidns: Option<u64>,
    /// The inode number of the time namespace, which shifts the start times of processes.
    pub timens: Option<u64>,
    /// The host name.
    pub host: String,
}

/// Inode number of the initial time namespace (`PROC_TIME_INIT_INO` in the Linux source).
const INITIAL_TIME_NAMESPACE: u64 = 4_026_531_834;

impl Here {
    /// Returns the environment of this process. Boot id and PID namespace are read once per
    /// process; the host name is read on every call because it can change.
    pub fn now() -> Here {
        static PLACE: PerProcess<PidNamespace> = PerProcess::new();
        let place = PLACE.get();
        Here {
            boot: place.boot.clone(),
            pidns: place.pidns,
            timens: place.timens,
            host: host_name(),
        }
    }

    /// Returns whether our clocks are those of the machine, not shifted by a time namespace. A
    /// kernel without time namespaces has no such file.
    pub(crate) fn has_machine_clocks(&self) -> bool {
        self.timens
            .is_none_or(|timens| timens == INITIAL_TIME_NAMESPACE)
    }

    /// Returns the start time in a record if it can be compared with those that we see (K12 (ask
    /// the kernel for the process)). Records of earlier releases do not name the time namespace;
    /// they are from the machine's own in all but rare cases.
    pub(crate) fn comparable_start(&self, identity: &Identity) -> Option<u64> {
        let same_clock = match identity.timens {
            Some(theirs) => Some(theirs) == self.timens,
            None => self.has_machine_clocks(),
        };
        identity.start.filter(|_| same_clock)
    }

    /// Returns whether `name` is this host's name: the whole name, ignoring ASCII case (K8 (compare
    /// host names)).
    pub(crate) fn is_host(&self, name: &str) -> bool {
        !self.host.is_empty() && self.host.eq_ignore_ascii_case(name)
    }
}

struct PidNamespace {
    boot: Option<String>,
    pidns: Option<u64>,
    timens: Option<u64>,
}

impl Default for PidNamespace {
    fn default() -> PidNamespace {
        PidNamespace {
            boot: fs::read_to_string("/proc/sys/kernel/random/boot_id")
                .ok()
                .map(|id| id.trim_end().to_owned()),
            pidns: fs::metadata("/proc/self/ns/pid")
                .ok()
                .map(|meta| meta.ino()),
            timens: fs::metadata("/proc/self/ns/time")
                .ok()
                .map(|meta| meta.ino()),
        }
    }
}

/// Returns the start time of this process in clock ticks since boot, read once per process.
fn own_start() -> Option<u64> {
    struct Start(Option<u64>);
    impl Default for Start {
        fn default() -> Start {
            Start(own_start_time())
        }
    }
    static START: PerProcess<Start> = PerProcess::new();
    START.get().0
}

/// Number of hex digits of `token`.
pub(crate) const TOKEN_DIGITS: usize = 32;

/// Number of decimal digits of `beat`.
pub(crate) const BEAT_DIGITS: usize = 10;

/// Number of bytes reserved for `fence` (K39 (fencing number per acquisition)).
pub const FENCE_ROOM: usize = 20;

/// The `tenure` block of a record (K6).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The holder's pid in its own PID namespace.
    pub pid: Option<u32>,
    /// The holder's start time in clock ticks since boot.
    pub start: Option<u64>,
    /// The boot id of the holder's kernel.
    pub boot: Option<String>,
    /// The holder's PID namespace.
    pub pidns: Option<u64>,
    /// The holder's time namespace.
    pub timens: Option<u64>,
    /// The device number of the lock's directory, as the holder sees it. The same directory has
    /// another number for a process that sees it through an overlay.
    pub dev: Option<u64>,
    /// The holder's host name.
    pub host: Option<String>,
    /// The token of the acquisition.
    pub token: Option<String>,
    /// The heartbeat counter, as written.
    pub beat: Option<String>,
    /// Whether the holder keeps a `flock` on the record, on a file system that is local to it.
    pub flock: Option<bool>,
    /// Whether the file system is local to the holder.
    pub local: Option<bool>,
    /// The fencing number, if one was taken.
    pub fence: Option<u64>,
    /// The lease time in seconds; repository protocol only.
    pub ttl: Option<u64>,
}

impl Identity {
    /// Returns the identity of this process as a holder. `local` says whether the file system is
    /// local; if so, the lock lives as long as the `flock` that this process keeps.
    pub fn own(token: Token, local: bool) -> Identity {
        Identity::own_at(&Here::now(), token, local)
    }

    /// Like [`own`](Identity::own), for a caller that already has a [`Here`].
    pub(crate) fn own_at(here: &Here, token: Token, local: bool) -> Identity {
        Identity {
            pid: Some(own_pid()),
            start: own_start(),
            boot: here.boot.clone(),
            pidns: here.pidns,
            timens: here.timens,
            dev: None,
            host: Some(here.host.clone()),
            token: Some(token.to_string()),
            beat: Some("0".repeat(BEAT_DIGITS)),
            flock: Some(local),
            local: Some(local),
            fence: None,
            ttl: None,
        }
    }

    /// Returns the identity of the holder of a record in `dir`: this process, or the process that
    /// the hold follows, in our PID namespace (C13 (holds for scripts)). A record that follows
    /// another process claims no `flock`, because this process may exit first.
    pub(crate) fn in_dir(dir: &Dir, here: &Here, token: Token, follows: Option<u32>) -> Identity {
        let own = Identity {
            dev: Some(dir.device()),
            ..Identity::own_at(here, token, dir.is_local())
        };
        match follows {
            None => own,
            Some(pid) => Identity {
                pid: Some(pid),
                start: start_time(pid),
                flock: Some(false),
                ..own
            },
        }
    }

    /// Parses a block. A member of the wrong type, or a pid out of range, counts as missing (K15
    /// (records without a block)).
    pub fn from_json(block: &Map<String, Value>) -> Identity {
        let text = |key: &str| block.get(key).and_then(Value::as_str).map(str::to_owned);
        let number = |key: &str| block.get(key).and_then(Value::as_u64);
        let flag = |key: &str| block.get(key).and_then(Value::as_bool);
        Identity {
            pid: block.get("pid").and_then(Value::as_i64).and_then(valid_pid),
            start: number("start"),
            boot: text("boot"),
            pidns: number("pidns"),
            timens: number("timens"),
            dev: number("dev"),
            host: text("host"),
            token: text("token"),
            beat: text("beat"),
            flock: flag("flock"),
            local: flag("local"),
            fence: number("fence"),
            ttl: number("ttl"),
        }
    }

    /// Returns the `tenure` member of a JSON record, if it has one.
    pub fn in_record(record: &Map<String, Value>) -> Option<Identity> {
        record
            .get("tenure")
            .and_then(Value::as_object)
            .map(Identity::from_json)
    }

    /// Returns the members in the order in which they are written.
    pub(crate) fn members(&self) -> Vec<(&'static str, Value)> {
        let mut members = vec![("v", json!(1))];
        let mut add = |name, value: Option<Value>| members.extend(value.map(|value| (name, value)));
        add("pid", self.pid.map(Value::from));
        add("start", self.start.map(Value::from));
        add("boot", self.boot.clone().map(Value::from));
        add("pidns", self.pidns.map(Value::from));
        add("timens", self.timens.map(Value::from));
        add("dev", self.dev.map(Value::from));
        add("host", self.host.clone().map(Value::from));
        add("token", self.token.clone().map(Value::from));
        add("beat", self.beat.clone().map(Value::from));
        add("flock", self.flock.map(Value::from));
        add("local", self.local.map(Value::from));
        add("fence", self.fence.map(Value::from));
        add("ttl", self.ttl.map(Value::from));
        members
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// K6: the block of this process matches `/proc`, and is read back unchanged.
    #[test]
    fn the_block_is_read_back_as_written() {
        let own = Identity::own(Token::random(), true);
        assert_eq!(own.pid, Some(std::process::id()));
        assert_eq!(own.start, start_time(std::process::id()));
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        assert_eq!(own.boot.as_deref(), Some(boot.trim()));
        let link = fs::read_link("/proc/self/ns/pid").unwrap();
        assert_eq!(
            format!("pid:[{}]", own.pidns.unwrap()),
            link.to_str().unwrap()
        );
        assert_eq!(own.beat.as_deref(), Some("0000000000"));

        let block: Map<String, Value> = own
            .members()
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect();
        assert_eq!(Identity::from_json(&block), own);
    }

    /// K4, K9, K15: unknown members are ignored, wrong types and impossible pids count as missing.
    #[test]
    fn a_reader_takes_what_it_can_use() {
        let block = json!({
            "v": 9, "pid": 4_294_967_297_u64, "start": "x", "boot": 7, "flock": "yes",
            "color": "blue", "host": "atlas-3"
        });
        let read = Identity::from_json(block.as_object().unwrap());
        let expected = Identity {
            host: Some("atlas-3".into()),
            ..Identity::default()
        };
        assert_eq!(read, expected);
    }

    /// K8: letter case is ignored; a longer name is another host.
    #[test]
    fn hosts_are_equal_as_whole_names() {
        let here = Here {
            boot: None,
            timens: None,
            pidns: None,
            host: "atlas-3".into(),
        };
        assert!(here.is_host("ATLAS-3"));
        assert!(!here.is_host("atlas-3.example.org"));
        assert!(!here.is_host("atlas"));
        assert!(
            !Here {
                host: String::new(),
                ..here
            }
            .is_host("")
        );
    }

    /// K6: 32 lower-case hex digits, different for every token.
    #[test]
    fn tokens_are_random_and_read_back() {
        let token = Token::random();
        assert_ne!(token, Token::random());
        assert_eq!(Token::parse(&token.to_string()), Some(token));
        assert_eq!(Token::parse("6F0C4F9D2D7F4A0FB1F6F6F1F0A9D3C2"), None);
        assert_eq!(Token::parse("+f0c4f9d2d7f4a0fb1f6f6f1f0a9d3c2"), None);
        assert_eq!(Token::parse("6f0c"), None);
    }
}
