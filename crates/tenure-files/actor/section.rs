//! The critical section that every lock here must protect, and the evidence it leaves behind.
//!
//!   enter: is the one before me still running?  ──yes──▶ "double"
//!          did it finish its section before it died?  ──yes──▶ count it for it
//!   work:  inside := me, n     counter := n + 1     tally := mine + 1, n + 1     inside := nobody
//!
//! Everything is a plain file that is read and rewritten without any locking of its own, so that two
//! at once lose an update. At the end the counter must equal the tallies plus the sections that were
//! counted for the dead.

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

    /// One pass through the section; `false` if somebody else was inside.
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

    /// Whoever was inside before must be gone; what it finished but could not tally is counted.
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

    /// One line, appended in one write, so that it survives the death of the writer whole.
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

/// Field 22 of the process's stat, `None` if it does not run any more. A killed process gives up its
/// kernel locks while it is on its way out, a moment before it is a zombie: it runs no more code of its
/// own then, and its flags (field 9) say so.
fn start_time(pid: u32) -> Option<u64> {
    const EXITING: u64 = 0x4;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let is_over = matches!(fields[0], "Z" | "X") || fields[6].parse::<u64>().ok()? & EXITING != 0;
    (!is_over).then(|| fields[19].parse().ok())?
}
