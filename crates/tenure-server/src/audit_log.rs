//! Audit log `audit.jsonl` in the data directory: one JSON object per line, readable by the daemon's
//! user only, chained by hashes, rotated by size.
//!
//! Every line has a number, the time, and in `prev` the SHA-256 of the line before it, so a line that
//! was changed or removed breaks the chain ([`verify`]). The chain goes on across files and restarts.
//! It does not show that lines at the very end were removed: copy the last hash elsewhere for that.
//!
//! When a line cannot be written, privileged calls are refused until one can be; locking goes on.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use aws_lc_rs::digest;
use serde_json::{Map, Value, json};

const NAME: &str = "audit.jsonl";
/// A file of this size is rotated.
const FULL: u64 = 64 << 20;
/// Rotated files that are kept: `audit.jsonl.1` is the newest.
const KEPT: usize = 9;
/// `prev` of the first line.
const START: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// Refused calls that are recorded in one second; the next recorded one says how many were left
/// out. A client that is refused all the time must not fill the log, nor wait for its syncs.
const DENIALS_PER_SECOND: u32 = 5;

/// Whether a line is on the disk before its call goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineSync {
    Now,
    /// With the next line that is synced.
    Later,
}

/// The audit log of a daemon.
#[derive(Debug)]
pub struct AuditLog {
    state: Mutex<State>,
    denials: Mutex<DenialSample>,
}

/// How many refused calls were recorded in the present second.
#[derive(Debug)]
struct DenialSample {
    since: Instant,
    recorded: u32,
    left_out: u64,
}

impl DenialSample {
    /// Returns whether a refused call is recorded now, and how many were left out before it.
    fn take(&mut self, now: Instant) -> Option<u64> {
        if now.saturating_duration_since(self.since) >= Duration::from_secs(1) {
            self.since = now;
            self.recorded = 0;
        }
        if self.recorded >= DENIALS_PER_SECOND {
            self.left_out += 1;
            return None;
        }
        self.recorded += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

#[derive(Debug)]
struct State {
    path: PathBuf,
    /// `None` after a failure: opened again for the next line.
    file: Option<File>,
    bytes: u64,
    number: u64,
    /// Hash of the last line.
    last: String,
    full: u64,
}

impl AuditLog {
    /// Opens the log of a data directory and continues its chain.
    pub fn open(data_dir: &Path) -> AuditLog {
        AuditLog::with_limit(data_dir, FULL)
    }

    fn with_limit(data_dir: &Path, full: u64) -> AuditLog {
        let path = data_dir.join(NAME);
        let mut state = State {
            path,
            file: None,
            bytes: 0,
            number: 0,
            last: START.to_owned(),
            full,
        };
        if let Err(error) = state.resume() {
            tracing::error!(%error, "the audit log cannot be written: privileged calls are refused");
        }
        AuditLog {
            state: Mutex::new(state),
            denials: Mutex::new(DenialSample {
                since: Instant::now(),
                recorded: 0,
                left_out: 0,
            }),
        }
    }

    /// Returns whether the last line could be written, or the file can be opened now.
    pub fn is_writable(&self) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.file.is_some() || state.resume().is_ok()
    }

    /// Appends a line about a refused call, or counts the call as left out.
    pub fn record_denied(&self, mut fields: Map<String, Value>) {
        let mut denials = self.denials.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(left_out) = denials.take(Instant::now()) else {
            return;
        };
        drop(denials);
        if left_out > 0 {
            fields.insert("leftOut".to_owned(), json!(left_out));
        }
        // A stranger must not make the daemon wait for the disk.
        self.append(fields, LineSync::Later);
    }

    /// Appends a line with these fields.
    pub fn record(&self, fields: Map<String, Value>) {
        self.append(fields, LineSync::Now);
    }

    fn append(&self, fields: Map<String, Value>, sync: LineSync) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = state.append(fields, sync) {
            state.file = None;
            tracing::error!(%error, "the audit log cannot be written: privileged calls are refused");
        }
    }
}

impl State {
    /// Opens the file, and takes number and hash of its last line, or of the file before it.
    fn resume(&mut self) -> io::Result<()> {
        let mut last = None;
        for path in [rotated(&self.path, 1), self.path.clone()] {
            match File::open(&path) {
                Ok(file) => {
                    for line in BufReader::new(file).lines() {
                        last = Some(line?);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        if let Some(line) = last {
            let fields: Value = serde_json::from_str(&line).unwrap_or(Value::Null);
            self.number = fields["seq"].as_u64().unwrap_or(self.number);
            self.last = hash(&line);
        }
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(&self.path)?;
        self.bytes = file.metadata()?.len();
        self.file = Some(file);
        Ok(())
    }

    fn append(&mut self, fields: Map<String, Value>, sync: LineSync) -> io::Result<()> {
        if self.file.is_none() {
            self.resume()?;
        }
        if self.bytes >= self.full {
            self.rotate()?;
        }
        let mut line = Map::new();
        line.insert("seq".to_owned(), json!(self.number + 1));
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.unwrap_or_default().as_millis();
        line.insert("timeMs".to_owned(), json!(u64::try_from(now).unwrap_or(0)));
        line.extend(fields);
        line.insert("prev".to_owned(), json!(self.last));
        let line = Value::Object(line).to_string();
        let file = self.file.as_mut();
        let file = file.ok_or_else(|| io::Error::other("the file is closed"))?;
        // One write per line: a crash leaves a whole line or a torn last one.
        file.write_all(format!("{line}\n").as_bytes())?;
        if sync == LineSync::Now {
            file.sync_data()?;
        }
        self.bytes += line.len() as u64 + 1;
        self.number += 1;
        self.last = hash(&line);
        Ok(())
    }

    fn rotate(&mut self) -> io::Result<()> {
        self.file = None;
        for at in (1..KEPT).rev() {
            let (from, to) = (rotated(&self.path, at), rotated(&self.path, at + 1));
            match std::fs::rename(from, to) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        std::fs::rename(&self.path, rotated(&self.path, 1))?;
        self.resume()
    }
}

fn rotated(path: &Path, at: usize) -> PathBuf {
    path.with_file_name(format!("{NAME}.{at}"))
}

fn hash(line: &str) -> String {
    use std::fmt::Write as _;
    let digest = digest::digest(&digest::SHA256, line.as_bytes());
    digest
        .as_ref()
        .iter()
        .fold(String::new(), |mut text, byte| {
            // Writing to a string cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
}

/// The result of [`verify`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// The number of lines.
    pub lines: u64,
    /// The hash of the last line, to be kept elsewhere.
    pub last: String,
}

/// Checks the chain of the log in a data directory, rotated files included. The oldest kept line may
/// follow on lines that were rotated away.
pub fn verify(data_dir: &Path) -> Result<Verified, String> {
    let path = data_dir.join(NAME);
    let mut files: Vec<PathBuf> = (1..=KEPT).rev().map(|at| rotated(&path, at)).collect();
    files.push(path);
    let mut known: Option<(u64, String)> = None;
    let mut lines = 0;
    for path in files {
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(format!("cannot read {}: {error}", path.display())),
        };
        for (line, at) in BufReader::new(file).lines().zip(1..) {
            let place = format!("{}:{at}", path.display());
            let line = line.map_err(|error| format!("{place}: {error}"))?;
            let fields: Value = serde_json::from_str(&line)
                .map_err(|error| format!("{place}: the line is not JSON: {error}"))?;
            let number = fields["seq"].as_u64();
            let number = number.ok_or_else(|| format!("{place}: the line has no number"))?;
            let prev = fields["prev"].as_str().unwrap_or_default();
            match &known {
                Some((last, hash)) if number != last + 1 || prev != hash => {
                    return Err(format!(
                        "{place}: the chain is broken: line {number} does not follow line {last}: a line was changed, added or removed"
                    ));
                }
                None if number == 1 && prev != START => {
                    return Err(format!("{place}: the chain is broken at its first line"));
                }
                _ => {}
            }
            lines += 1;
            known = Some((number, hash(&line)));
        }
    }
    let last = known.map_or_else(|| START.to_owned(), |(_, hash)| hash);
    Ok(Verified { lines, last })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn record(log: &AuditLog, action: &str) {
        let mut fields = Map::new();
        fields.insert("action".to_owned(), json!(action));
        log.record(fields);
    }

    #[test]
    fn the_chain_continues_over_files_and_restarts() {
        let data = tempfile::tempdir().unwrap();
        for run in 0..3 {
            let log = AuditLog::with_limit(data.path(), 400);
            for number in 0..4 {
                record(&log, &format!("{run}.{number}"));
            }
        }
        let verified = verify(data.path()).unwrap();
        assert_eq!(verified.lines, 12);
        assert!(data.path().join("audit.jsonl.2").exists(), "it was rotated");
        let mode = std::fs::metadata(data.path().join(NAME)).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_changed_and_a_removed_line_are_noticed() {
        let data = tempfile::tempdir().unwrap();
        let log = AuditLog::open(data.path());
        for action in ["one", "two", "three"] {
            record(&log, action);
        }
        let path = data.path().join(NAME);
        let text = std::fs::read_to_string(&path).unwrap();
        for forged in [
            text.replace("two", "2"),
            text.lines()
                .filter(|line| !line.contains("two"))
                .map(|line| format!("{line}\n"))
                .collect(),
            text.replace("one", "1"),
        ] {
            std::fs::write(&path, forged).unwrap();
            let error = verify(data.path()).unwrap_err();
            assert!(error.contains("chain is broken"), "{error}");
        }
        std::fs::write(&path, text).unwrap();
        assert_eq!(verify(data.path()).unwrap().lines, 3);
    }

    /// A flood of refused calls is sampled, and the log says how many it left out.
    #[test]
    fn refused_calls_are_sampled() {
        let start = Instant::now();
        let mut sample = DenialSample {
            since: start,
            recorded: 0,
            left_out: 0,
        };
        let taken: Vec<_> = (0..8).map(|_| sample.take(start)).collect();
        let recorded = taken.iter().flatten().count();
        assert_eq!(recorded, DENIALS_PER_SECOND as usize);
        let next = start + Duration::from_secs(1);
        assert_eq!(sample.take(next), Some(3));
        assert_eq!(sample.take(next), Some(0));
    }

    #[test]
    fn a_log_that_cannot_be_written_says_so_and_recovers() {
        let data = tempfile::tempdir().unwrap();
        let path = data.path().join(NAME);
        std::fs::create_dir(&path).unwrap();
        let log = AuditLog::open(data.path());
        assert!(!log.is_writable());
        record(&log, "lost");
        std::fs::remove_dir(&path).unwrap();
        assert!(log.is_writable());
        record(&log, "kept");
        assert_eq!(verify(data.path()).unwrap().lines, 1);
    }
}
