//! Benchmark of lock files: acquire/release pairs per second and longest wait, with one process and
//! with eight.
//!
//! `cargo bench -p tenure-files --bench files` prints a table, with `-- --json` one JSON object per
//! line; `-- --seconds 9` measures longer than the default of three seconds per case. Other
//! arguments select contenders by name.
//!
//! Every case runs one kind of worker, as one or eight processes; each acquires and releases the
//! lock as often as it can. The contenders take turns in rounds, so that other load on the machine
//! affects all of them. The rate is the median of the rounds, the longest wait the maximum. npm and
//! PyPI packages are installed into `.cache` at the root of the repository; a package that cannot
//! be installed is skipped with a message.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a benchmark prints, and stops at the first thing that goes wrong"
)]

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use serde_json::{Value, json};
use tenure_files::Durability;
use tenure_files::sidecar::{Manager, Options};

const CROWD: usize = 8;
const ROUNDS: u32 = 3;

/// The contenders, in the order of the table.
const CONTENDERS: [&str; 9] = [
    "sidecar-durable",
    "create-write-fsync-unlink",
    "sidecar-fast",
    "bare-calls",
    "o-excl",
    "flock",
    "filelock",
    "fs-safe",
    "proper-lockfile",
];

/// Ratios to report: the rate of the first contender over that of the second.
const RATIOS: [(&str, &str); 7] = [
    ("sidecar-durable", "create-write-fsync-unlink"),
    ("sidecar-durable", "fs-safe"),
    ("sidecar-durable", "proper-lockfile"),
    ("sidecar-fast", "bare-calls"),
    ("sidecar-fast", "filelock"),
    ("sidecar-fast", "fs-safe"),
    ("sidecar-fast", "proper-lockfile"),
];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [role, name, directory] = arguments.as_slice()
        && role == "worker"
    {
        return work(name, Path::new(directory));
    }
    let as_json = arguments.iter().any(|word| word == "--json");
    let seconds = arguments
        .windows(2)
        .find(|pair| pair[0] == "--seconds")
        .map_or(3.0, |pair| pair[1].parse().expect("a number of seconds"));
    let wanted: Vec<&String> = arguments
        .iter()
        .filter(|word| word.starts_with(|first: char| first.is_ascii_alphabetic()))
        .collect();
    let contenders: Vec<(&str, Package)> = CONTENDERS
        .into_iter()
        .filter(|name| wanted.is_empty() || wanted.iter().any(|word| name.contains(word.as_str())))
        .filter_map(|name| Some((name, Package::of(name)?)))
        .collect();

    let round = Duration::from_secs_f64(seconds / f64::from(ROUNDS));
    let mut figures: Vec<Figures> = contenders.iter().map(|_| Figures::default()).collect();
    for _ in 0..ROUNDS {
        for ((name, package), figures) in contenders.iter().zip(&mut figures) {
            figures.alone.push(measure(name, package, 1, round).0);
            let (rate, wait) = measure(name, package, CROWD, round);
            figures.crowd.push(rate);
            figures.longest = figures.longest.max(wait);
        }
    }
    let names = contenders.iter().map(|(name, _)| *name);
    let results: Vec<(&str, Figures)> = names.zip(figures).collect();
    if as_json {
        print_json(&results);
    } else {
        print_table(&results);
    }
}

#[derive(Default)]
struct Figures {
    alone: Vec<f64>,
    crowd: Vec<f64>,
    longest: Duration,
}

impl Figures {
    fn alone(&self) -> f64 {
        median(&self.alone)
    }
    fn crowd(&self) -> f64 {
        median(&self.crowd)
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

fn print_json(results: &[(&str, Figures)]) {
    let line = |name: String, value: f64, unit: &str| {
        println!("{}", json!({"name": name, "value": value, "unit": unit}));
    };
    for (name, figures) in results {
        line(format!("{name}/alone"), figures.alone(), "pairs/s");
        line(format!("{name}/{CROWD}"), figures.crowd(), "handoffs/s");
        let wait = figures.longest.as_secs_f64() * 1e3;
        line(format!("{name}/{CROWD}/longest-wait"), wait, "ms");
    }
    for (ours, theirs, alone, crowd) in ratios(results) {
        line(format!("{ours}/{theirs}/alone"), alone, "ratio");
        line(format!("{ours}/{theirs}/{CROWD}"), crowd, "ratio");
    }
    line("load".into(), load(), "processes");
}

fn print_table(results: &[(&str, Figures)]) {
    println!(
        "{:<28}{:>14}{:>14}{:>16}",
        "", "alone", "8 processes", "longest wait"
    );
    for (name, figures) in results {
        println!(
            "{name:<28}{:>12.0}/s{:>12.0}/s{:>13.1} ms",
            figures.alone(),
            figures.crowd(),
            figures.longest.as_secs_f64() * 1e3
        );
    }
    println!();
    for (ours, theirs, alone, crowd) in ratios(results) {
        let pair = format!("{ours} / {theirs}");
        println!("{pair:<44}{alone:>8.2} ×{crowd:>10.2} ×");
    }
    println!("load average of the machine: {:.1}", load());
}

fn ratios<'a>(
    results: &'a [(&str, Figures)],
) -> impl Iterator<Item = (&'static str, &'static str, f64, f64)> + 'a {
    let of = |wanted: &str| results.iter().find(|(name, _)| *name == wanted);
    RATIOS.into_iter().filter_map(move |(ours, theirs)| {
        let ((_, a), (_, b)) = (of(ours)?, of(theirs)?);
        Some((ours, theirs, a.alone() / b.alone(), a.crowd() / b.crowd()))
    })
}

/// The load of the machine, which a figure needs as context.
fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let first = text.split_ascii_whitespace().next();
    first.and_then(|word| word.parse().ok()).unwrap_or(f64::NAN)
}

/// Runs `count` workers on one lock for that long. Returns pairs per second, and the longest wait
/// of any worker.
fn measure(name: &str, package: &Package, count: usize, time: Duration) -> (f64, Duration) {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut workers: Vec<Worker> = (0..count)
        .map(|_| Worker::start(package.command(name, directory.path())))
        .collect();
    workers.iter_mut().for_each(Worker::is_ready);
    for worker in &mut workers {
        worker.say(&time.as_millis().to_string());
    }
    let (mut rate, mut longest) = (0.0, Duration::ZERO);
    for worker in workers {
        let (pairs, took, wait) = worker.result();
        rate += pairs / took;
        longest = longest.max(wait);
    }
    (rate, longest)
}

/// A worker process: prints `ready`, reads the number of milliseconds to work, and prints one JSON
/// object.
struct Worker {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Worker {
    fn start(mut command: Command) -> Worker {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Worker { child, lines }
    }

    fn is_ready(&mut self) {
        assert_eq!(self.hear(), "ready");
    }

    fn say(&mut self, word: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{word}").unwrap();
    }

    fn hear(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    fn result(mut self) -> (f64, f64, Duration) {
        let result: Value = serde_json::from_str(&self.hear()).unwrap();
        assert!(self.child.wait().unwrap().success());
        let number = |member: &str| result[member].as_f64().unwrap();
        let wait = Duration::from_secs_f64(number("longest"));
        (number("pairs"), number("seconds"), wait)
    }
}

/// The program of a contender.
enum Package {
    /// This binary.
    Own,
    /// `node`, with a package in this directory.
    Npm(PathBuf),
    /// `python3`, with a package in this directory.
    PyPi(PathBuf),
}

impl Package {
    /// `None` if it is not available here.
    fn of(name: &str) -> Option<Package> {
        let home = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../.cache/bench")
            .join(name);
        match name {
            "proper-lockfile" => npm("proper-lockfile@4.1.2", &home).then_some(Package::Npm(home)),
            "fs-safe" => npm("@openclaw/fs-safe@0.21.0", &home).then_some(Package::Npm(home)),
            "filelock" => pip("filelock", &home).then_some(Package::PyPi(home)),
            _ => Some(Package::Own),
        }
    }

    fn command(&self, name: &str, directory: &Path) -> Command {
        let peers = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/peers");
        match self {
            Package::Own => {
                let mut command = Command::new(std::env::current_exe().unwrap());
                command.args(["worker", name]).arg(directory);
                command
            }
            Package::Npm(home) => {
                let mut command = Command::new("node");
                let worker = peers.join("worker.mjs");
                command.arg(worker).arg(home).arg(name).arg(directory);
                command
            }
            Package::PyPi(home) => {
                let mut command = Command::new("python3");
                let worker = peers.join("worker.py");
                command.arg(worker).arg(directory).env("PYTHONPATH", home);
                command
            }
        }
    }
}

fn npm(package: &str, home: &Path) -> bool {
    let options = ["--no-save", "--no-audit", "--no-fund", "--ignore-scripts"];
    let mut command = Command::new("npm");
    command.arg("install").args(options).arg("--prefix");
    install(package, home, command.arg(home))
}

fn pip(package: &str, home: &Path) -> bool {
    let mut command = Command::new("python3");
    command.args(["-m", "pip", "install", "--quiet", "--target"]);
    install(package, home, command.arg(home))
}

/// Installs a missing package. A marker file shows that the installation was completed.
fn install(package: &str, home: &Path, command: &mut Command) -> bool {
    let mark = home.join(".installed");
    if std::fs::read_to_string(&mark).is_ok_and(|what| what == package) {
        return true;
    }
    std::fs::create_dir_all(home).unwrap();
    let quiet = command.stdout(Stdio::null()).stderr(Stdio::null());
    let is_there = quiet.arg(package).status().is_ok_and(|it| it.success());
    if is_there {
        std::fs::write(&mark, package).unwrap();
    } else {
        eprintln!("{package} could not be installed and is not measured");
    }
    is_there
}

/// The worker of the contenders that need no other program.
fn work(name: &str, directory: &Path) {
    let lock = directory.join("lock");
    match name {
        "sidecar-durable" => sidecar(directory, Durability::Durable),
        "sidecar-fast" => sidecar(directory, Durability::Fast),
        "flock" => {
            let file = OpenOptions::new()
                .create(true)
                .append(true)
                .open(&lock)
                .unwrap();
            repeat(
                || flock(&file, FlockOperation::LockExclusive).unwrap(),
                |()| flock(&file, FlockOperation::Unlock).unwrap(),
            );
        }
        "o-excl" => repeat(
            || drop(create(&lock)),
            |()| std::fs::remove_file(&lock).unwrap(),
        ),
        "create-write-fsync-unlink" => repeat(
            || {
                let mut file = create(&lock);
                file.write_all(&[b'x'; 512]).unwrap();
                file.sync_all().unwrap();
            },
            |()| std::fs::remove_file(&lock).unwrap(),
        ),
        "bare-calls" => bare_calls(directory),
        other => panic!("{other} is not one of us"),
    }
}

fn sidecar(directory: &Path, durability: Durability) {
    let manager = Manager::new("bench");
    let options = Options::new(directory.join("target")).durability(durability);
    repeat(
        || manager.acquire(&options).unwrap(),
        |guard| guard.release().unwrap(),
    );
}

/// Only the system calls that K17.1 (publish in one step) and K26 (rename, compare, then unlink)
/// need: the lower bound for a lock that is published in one step and removed by rename.
fn bare_calls(directory: &Path) {
    use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, openat, renameat, unlinkat};
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let dir = File::open(directory).unwrap();
    let aside = format!(".lock.dead-{}", std::process::id());
    let publish = || {
        let file = File::from(openat(&dir, ".", flags, Mode::from_raw_mode(0o600)).unwrap());
        (&file).write_all(&[b'x'; 512]).unwrap();
        flock(&file, FlockOperation::LockExclusive).unwrap();
        let nameless = format!("/proc/self/fd/{}", file.as_raw_fd());
        while linkat(CWD, &nameless, &dir, "lock", AtFlags::SYMLINK_FOLLOW).is_err() {
            std::thread::yield_now();
        }
        file
    };
    repeat(publish, |file| {
        renameat(&dir, "lock", &dir, &aside).unwrap();
        unlinkat(&dir, &aside, AtFlags::empty()).unwrap();
        drop(file);
    });
}

/// The simplest lock file: the process that creates it has the lock, others retry.
fn create(path: &Path) -> File {
    loop {
        match OpenOptions::new().write(true).create_new(true).open(path) {
            Ok(file) => return file,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    }
}

fn repeat<T>(acquire: impl Fn() -> T, release: impl Fn(T)) {
    println!("ready");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let time = Duration::from_millis(line.trim().parse().unwrap());
    let (mut pairs, mut longest) = (0_u64, Duration::ZERO);
    let started = Instant::now();
    let mut asked = started;
    while asked - started < time {
        let guard = acquire();
        longest = longest.max(asked.elapsed());
        release(guard);
        pairs += 1;
        asked = Instant::now();
    }
    let seconds = (asked - started).as_secs_f64();
    let longest = longest.as_secs_f64();
    println!(
        "{}",
        json!({"pairs": pairs, "seconds": seconds, "longest": longest})
    );
}
