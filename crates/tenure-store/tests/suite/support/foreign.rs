//! Third-party servers: moto (S3), Azurite (Azure) and gcp-storage-emulator (GCS), each pinned to
//! one version and installed below the target directory at the first use.
//!
//! They check a condition and write later, without a lock in between: sufficient for the protocol,
//! useless for races. [`s3_server`](super::s3_server) is for races.

use std::fs::{self, File};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A third-party server program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Foreign {
    Moto,
    Azurite,
    GcpStorageEmulator,
}

impl Foreign {
    /// The name and version in the package index. The version is part of the directory name, so a
    /// new version is a new installation.
    fn package(self) -> &'static str {
        match self {
            Foreign::Moto => "moto[s3,server]==5.2.0",
            Foreign::Azurite => "azurite@3.35.0",
            Foreign::GcpStorageEmulator => "gcp-storage-emulator==2026.7.19",
        }
    }

    fn install(self, at: &Path) {
        match self {
            Foreign::Moto | Foreign::GcpStorageEmulator => {
                run(Command::new("python3").args(["-m", "venv"]).arg(at));
                run(Command::new(at.join("bin/pip")).args(["install", "--quiet", self.package()]));
            }
            Foreign::Azurite => {
                let npm = ["install", "--silent", "--no-fund", "--no-audit", "--prefix"];
                run(Command::new("npm").args(npm).arg(at).arg(self.package()));
            }
        }
    }

    fn command(self, at: &Path, port: u16) -> Command {
        let port = port.to_string();
        match self {
            Foreign::Moto => {
                let mut command = Command::new(at.join("bin/moto_server"));
                command.args(["-H", "127.0.0.1", "-p", &port]);
                command
            }
            Foreign::Azurite => {
                let mut command = Command::new(at.join("node_modules/.bin/azurite-blob"));
                command.args(["--silent", "--inMemoryPersistence", "--disableTelemetry"]);
                command.args(["--skipApiVersionCheck", "--blobHost", "127.0.0.1"]);
                command.args(["--blobPort", &port]);
                command
            }
            Foreign::GcpStorageEmulator => {
                let mut command = Command::new(at.join("bin/gcp-storage-emulator"));
                command.args([
                    "start",
                    "--host",
                    "127.0.0.1",
                    "--port",
                    &port,
                    "--in-memory",
                ]);
                command.args(["--default-bucket", super::s3_server::BUCKET]);
                command
            }
        }
    }

    /// Returns the installation directory; installs the server if necessary.
    fn home(self) -> PathBuf {
        let all = Path::new(env!("CARGO_TARGET_TMPDIR")).join("foreign-servers");
        fs::create_dir_all(&all).expect("a directory for foreign servers");
        let home = all.join(self.package().replace(['[', ']', ',', '@', '='], "-"));
        let guard = File::create(home.with_extension("lock")).expect("a lock file");
        guard
            .lock()
            .expect("a file lock: two test runs may want to install at once");
        let complete = home.join("complete");
        if !complete.exists() {
            // An incomplete installation may exist; both installers start again.
            let _ = fs::remove_dir_all(&home);
            self.install(&home);
            fs::write(complete, self.package()).expect("a note that it is complete");
        }
        home
    }
}

/// A running third-party server. It is stopped at the end of the test.
pub(crate) struct Running {
    child: Child,
    port: u16,
}

impl Running {
    /// Starts the server on a free port and waits until it answers.
    pub(crate) fn start(what: Foreign) -> Running {
        let home = what.home();
        let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = free
            .local_addr()
            .expect("a bound port has an address")
            .port();
        drop(free);
        let child = what
            .command(&home, port)
            .current_dir(&home)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("an installed server starts");
        let mut running = Running { child, port };
        let wait_limit = Instant::now() + Duration::from_secs(60);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            let ended = running.child.try_wait().expect("a child can be asked");
            assert_eq!(ended, None, "{what:?} ended before it answered");
            assert!(Instant::now() < wait_limit, "{what:?} does not answer");
            std::thread::sleep(Duration::from_millis(50));
        }
        running
    }

    /// `http://127.0.0.1:port`.
    pub(crate) fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only if it has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn run(command: &mut Command) {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} failed: {told}");
}
