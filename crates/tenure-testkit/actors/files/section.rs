//! The critical section that the tested locks protect, and the files from which double holds are
//! found.
//!
//! ```text
//!   enter: does the previous process still run?  ──yes──▶ report "double"
//!          did it finish its section before it died?  ──yes──▶ report "recovered"
//!   work:  inside := me, n     counter := n + 1     tally := mine + 1, n + 1     inside := empty
//! ```
//!
//! All files are read and rewritten without locking, so that two processes inside at the same time
//! lose an update. At the end the counter must equal the tallies plus the recovered sections.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

/// One worker's view of the section.
pub(crate) struct Section {
    dir: PathBuf,
    tally: PathBuf,
    finished: u64,
    who: String,
}

impl Section {
    pub(crate) fn new(dir: &Path, who: &str) -> Section {
        let me = std::process::id();
        let tally = dir.join(format!("tally.{me}.{}", start_time(me).unwrap_or(0)));
        Section {
            dir: dir.to_owned(),
            tally,
            finished: 0,
            who: who.to_owned(),
        }
    }

    /// Passes through the section once; `false` if another process was inside.
    pub(crate) fn pass(&mut self, work: impl FnOnce()) -> bool {
        let alone = self.settle_predecessor();
        let before = self.counter();
        let me = std::process::id();
        let start = start_time(me).unwrap_or(0);
        write(&self.dir.join("inside"), &format!("{me} {start} {before}"));
        work();
        write(&self.dir.join("counter"), &format!("{}", before + 1));
        self.finished += 1;
        write(
            &self.tally,
            &format!("{} {} {}", self.finished, before + 1, self.who),
        );
        write(&self.dir.join("inside"), "");
        alone
    }

    /// Checks that the previous process is gone, and reports a section that it finished but could
    /// not tally.
    fn settle_predecessor(&self) -> bool {
        let inside = fs::read_to_string(self.dir.join("inside")).unwrap_or_default();
        let numbers = numbers(&inside);
        let [pid, start, before] = numbers[..] else {
            return true;
        };
        if pid == u64::from(std::process::id()) {
            self.report(&format!("double {pid}"));
            return false;
        }
        if u32::try_from(pid).ok().and_then(start_time) == Some(start) {
            self.report(&format!("double {pid}"));
            return false;
        }
        let tally =
            fs::read_to_string(self.dir.join(format!("tally.{pid}.{start}"))).unwrap_or_default();
        let tallied = self::numbers(&tally).get(1).copied().unwrap_or(0);
        if self.counter() == before + 1 && tallied < before + 1 {
            self.report("recovered");
        }
        true
    }

    fn counter(&self) -> u64 {
        let text = fs::read_to_string(self.dir.join("counter")).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    }

    /// Appends a line with one write, so that it is complete even if the writer is killed.
    pub(crate) fn report(&self, line: &str) {
        let mut log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.dir.join("report"))
            .expect("the report can be written");
        log.write_all(format!("{line}\n").as_bytes())
            .expect("the report can be written");
    }
}

/// Rewrites a small file in place and in one step: a killed writer leaves the old or the new text.
fn write(path: &Path, text: &str) {
    let file = fs::OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path);
    let padded = format!("{text:<63}\n");
    file.and_then(|mut file| file.write_all(padded.as_bytes()))
        .expect("the section can be written");
}

fn numbers(text: &str) -> Vec<u64> {
    text.split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect()
}

/// Returns field 22 of the process's stat, or `None` if it no longer runs. A killed process
/// releases its kernel locks while it exits, a moment before it is a zombie. It then runs no more
/// code of its own, and its flags (field 9) show it.
fn start_time(pid: u32) -> Option<u64> {
    const EXITING: u64 = 0x4;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let is_over = matches!(fields[0], "Z" | "X") || fields[6].parse::<u64>().ok()? & EXITING != 0;
    (!is_over).then(|| fields[19].parse().ok())?
}
