//! Plays a transcript and compares it with the kept one.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use super::support::Daemon;

/// Shell functions for the sections.
const FUNCTIONS: &str = r#"
# Holds a lock until the section ends; returns when it is held.
hold() {
    hold_count=$((${hold_count:-0} + 1)); hold_at=hold.$$.$hold_count; mkfifo "$hold_at"
    tenure run "$@" -- sh -c 'echo held > "$0"; exec sleep 1000' "$hold_at" > /dev/null 2>&1 &
    read hold_word < "$hold_at"; rm "$hold_at"
}
# Waits for a lock until the section ends; returns when the waiter is in the queue of the path.
queue() {
    queue_at=$1; shift
    queue_before=$(queued "$queue_at")
    tenure run -q "$@" -- true > /dev/null 2>&1 &
    until [ "$(queued "$queue_at")" -gt "$queue_before" ]; do :; done
}
# Acquires or queues for an owner, over HTTP.
acquire() {
    curl -sf "http://$WEB/v1/acquire" -H 'content-type: application/json' -d "
        {\"ownerId\":\"$1\",\"ttlMs\":600000,\"queueTtlMs\":600000,\"requests\":[{\"path\":\"$2\"}]}"
}
queued() { tenure ls --json "$1" | grep -o '"waited_ms"' | wc -l; }
"#;

pub(crate) struct Stage {
    variables: BTreeMap<String, String>,
    /// What differs between runs, and how it is shown.
    names: Vec<(String, &'static str)>,
}

pub(crate) struct Played {
    pub(crate) text: String,
    pub(crate) commands: usize,
}

/// An empty directory, and the processes that run for it.
pub(crate) struct Section<'a> {
    stage: &'a Stage,
    dir: tempfile::TempDir,
    groups: RefCell<Vec<Group>>,
}

impl Section<'_> {
    /// Runs a script that may leave processes in the background; they end with the section.
    pub(crate) fn prepare(&self, script: &str) {
        // The shell ends and its background processes stay, so no pipe is kept open.
        let mut child = self
            .stage
            .shell(script, self.dir.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        self.groups.borrow_mut().push(Group(child.id()));
        let status = child.wait().unwrap();
        assert!(status.success(), "{script}: {status}");
    }

    fn output(&self, script: &str) -> Output {
        self.stage.shell(script, self.dir.path()).output().unwrap()
    }

    /// Runs a script and returns its standard output.
    pub(crate) fn run(&self, script: &str) -> String {
        String::from_utf8(self.output(script).stdout).unwrap()
    }
}

/// Ends the processes of a section.
struct Group(u32);

impl Drop for Group {
    fn drop(&mut self) {
        let pid = i32::try_from(self.0)
            .ok()
            .and_then(rustix::process::Pid::from_raw);
        if let Some(pid) = pid {
            let _ = rustix::process::kill_process_group(pid, rustix::process::Signal::KILL);
        }
    }
}

impl Stage {
    pub(crate) fn new(daemon: &Daemon) -> Stage {
        let binary = Path::new(env!("CARGO_BIN_EXE_tenure"));
        let path = std::env::var("PATH").unwrap();
        let path = format!("{}:{path}", binary.parent().unwrap().display());
        let dead = std::net::TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let mut stage = Stage {
            variables: BTreeMap::new(),
            names: vec![
                (daemon.grpc.to_string(), "GRPC"),
                (daemon.web.to_string(), "WEB"),
                (dead.to_string(), "DEAD"),
                (tenure::Holder::here().host, "HOST"),
            ],
        };
        stage.set("PATH", &path);
        stage.set("HOME", "/nonexistent");
        stage.set("TENURE_URL", &format!("tenure://{}", daemon.grpc));
        stage.set("GRPC", &daemon.grpc.to_string());
        stage.set("WEB", &daemon.web.to_string());
        stage.set("DEAD", &dead.to_string());
        stage.set("LC_ALL", "C.UTF-8");
        stage
    }

    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.variables.insert(name.to_owned(), value.to_owned());
    }

    fn shell(&self, script: &str, dir: &Path) -> Command {
        let mut command = Command::new("sh");
        command
            .arg("-c")
            .arg(format!("{FUNCTIONS}\n{script}"))
            .current_dir(dir)
            .env_clear()
            .envs(&self.variables)
            .stdin(Stdio::null())
            .process_group(0);
        command
    }

    /// Returns an empty directory to run commands in.
    pub(crate) fn section(&self) -> Section<'_> {
        Section {
            stage: self,
            dir: tempfile::tempdir().unwrap(),
            groups: RefCell::default(),
        }
    }

    /// Plays the commands of a file and compares their output with the file.
    pub(crate) fn play(&self, file: &Path) -> Played {
        let kept = fs::read_to_string(file).unwrap();
        let mut text = String::new();
        let mut commands = 0;
        let mut section = self.section();
        for line in kept.lines() {
            if line.starts_with("# ") {
                section = self.section();
                if !text.is_empty() {
                    text.push('\n');
                }
                text.push_str(&format!("{line}\n"));
            } else if let Some(script) = line.strip_prefix("% ") {
                section.prepare(script);
                text.push_str(&format!("{line}\n"));
            } else if let Some(script) = line.strip_prefix("$ ") {
                commands += 1;
                let output = section.output(&format!("exec 2>&1; {script}"));
                let shown = String::from_utf8_lossy(&output.stdout);
                let code = output
                    .status
                    .code()
                    .map_or_else(|| "killed".to_owned(), |code| code.to_string());
                text.push_str(&format!("{line}\n"));
                for line in self.steady(&shown, section.dir.path()).lines() {
                    text.push_str(format!("  {line}").trim_end());
                    text.push('\n');
                }
                text.push_str(&format!("  [{code}]\n"));
            }
        }
        if std::env::var_os("TENURE_UPDATE_GOLDEN").is_some() {
            fs::write(file, &text).unwrap();
        }
        for (at, (new, old)) in text.lines().zip(kept.lines()).enumerate() {
            assert_eq!(new, old, "{}:{}", file.display(), at + 1);
        }
        assert_eq!(
            text.lines().count(),
            kept.lines().count(),
            "{}",
            file.display()
        );
        Played { text, commands }
    }

    /// Replaces what differs between runs: addresses, directories, processes, times, ids.
    fn steady(&self, text: &str, dir: &Path) -> String {
        let mut text = text.replace(&dir.canonicalize().unwrap().display().to_string(), "DIR");
        text = text.replace(&dir.display().to_string(), "DIR");
        for (found, shown) in &self.names {
            text = text.replace(found, shown);
        }
        for before in ["pid ", "uid ", "process "] {
            text = numbers_after(&text, before, "N");
        }
        for before in [
            ", for ",
            "held for ",
            "lease left ",
            "waiting for ",
            "waits ",
            "expires in ",
            "written ",
            "waiting: ",
        ] {
            text = times_after(&text, before);
        }
        stamps(&hex(&text))
    }
}

/// Replaces the digits after each `before`.
fn numbers_after(text: &str, before: &str, shown: &str) -> String {
    let mut parts = text.split(before);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let rest = part.trim_start_matches(|c: char| c.is_ascii_digit());
        out.push_str(before);
        if rest.len() < part.len() {
            out.push_str(shown);
        }
        out.push_str(rest);
    }
    out
}

/// Replaces a duration after each `before`: `12 s` becomes `TIME`.
fn times_after(text: &str, before: &str) -> String {
    let mut parts = text.split(before);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        out.push_str(before);
        let rest = part.trim_start_matches(|c: char| c.is_ascii_digit());
        let units = [" ms", " min", " days", " s", " h"];
        let unit = units
            .iter()
            .find(|unit| rest.len() < part.len() && rest.starts_with(**unit));
        match unit {
            Some(unit) => {
                out.push_str("TIME");
                out.push_str(&rest[unit.len()..]);
            }
            None => out.push_str(part),
        }
    }
    out
}

/// Replaces long hexadecimal numbers.
fn hex(text: &str) -> String {
    let mut out = String::new();
    let mut word = String::new();
    for c in text.chars().chain(['\0']) {
        if c.is_ascii_hexdigit() {
            word.push(c);
            continue;
        }
        match word.len() >= 16 && word.bytes().any(|byte| byte.is_ascii_digit()) {
            true => out.push_str("HEX"),
            false => out.push_str(&word),
        }
        word.clear();
        out.push(c);
    }
    out.trim_end_matches('\0').to_owned()
}

/// Replaces dates such as `2026-11-18T10:04:05.123Z`.
fn stamps(text: &str) -> String {
    let is_part = |c: char| c.is_ascii_digit() || "-:.TZ+".contains(c);
    let mut out = String::new();
    let mut word = String::new();
    for c in text.chars().chain(['\0']) {
        if is_part(c) {
            word.push(c);
            continue;
        }
        match word.len() >= 20 && word.contains('T') && word.starts_with("20") {
            true => out.push_str("DATE"),
            false => out.push_str(&word),
        }
        word.clear();
        out.push(c);
    }
    out.trim_end_matches('\0').to_owned()
}
