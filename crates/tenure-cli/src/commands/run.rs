//! `tenure run`: hold a lock while a command runs.

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use tenure_files::error::{Class, Error};
use tenure_files::publish::Durability;
use tenure_files::sidecar::{Guard, Manager, Options, Payload, Retry};

use crate::duration;
use crate::run::keeper::{self, Descriptor, OnAsk, OnDeath, OnLost, Task};
use crate::run::wrapper::{self, News, Outcome, Terminal};
use crate::run::{Cause, End};

/// How long to wait before saying for whom.
const SILENT: Duration = Duration::from_secs(1);

/// Hold a lock while a command runs.
///
/// WHERE is a file: the lock is `WHERE.lock` beside it, and only one holder has it at a time. It is
/// given back when the command and everything it started in its process group has ended; if tenure
/// is killed, the command is too.
///
/// Examples:
///   tenure run state.json -- ./compact state.json
///   tenure run -n ./nightly -- ./job            # do nothing (75) if another run is at it
///   tenure run -w 30s ./deploy -- ./deploy.sh   # give up (124) after 30 seconds
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Run {
    /// Do not wait: end with 75 if the lock is held.
    #[arg(short = 'n', long, conflicts_with = "wait")]
    no_wait: bool,
    /// Wait at most this long (500ms, 30s, 5m, 1h; a bare number is seconds), then end with 124.
    #[arg(short, long, value_name = "DUR", value_parser = duration::parse)]
    wait: Option<Duration>,
    /// End with this code instead of 75 or 124.
    #[arg(short = 'E', value_name = "CODE")]
    busy_code: Option<u8>,
    /// What the lock is for; shown to those who wait.
    #[arg(long, value_name = "TEXT")]
    purpose: Option<String>,
    /// What happens to the command when the lock is lost.
    #[arg(long, value_name = "WHAT", default_value = "term")]
    on_lost: Lost,
    /// Time between TERM and KILL.
    #[arg(long, value_name = "DUR", default_value = "10s", value_parser = duration::parse)]
    grace: Duration,
    /// When tenure is killed, wait for the command instead of killing it; the lock stays held.
    #[arg(long)]
    no_kill: bool,
    /// Do not hand the locked descriptor down to the command.
    #[arg(short = 'o', long)]
    close: bool,
    /// Take a fencing number (TENURE_FENCE), which grows with every holder.
    #[arg(long)]
    fence: bool,
    /// Do not wait for the disk: the lock may be forgotten in a power cut.
    #[arg(long)]
    not_durable: bool,
    /// What to lock.
    #[arg(value_name = "WHERE")]
    place: String,
    /// The command and its arguments.
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Lost {
    /// Terminate it, then kill it.
    Term,
    /// Kill it at once.
    Kill,
    /// Tell it, and nothing else.
    Notify,
}

impl Run {
    pub(crate) fn run(self) -> ExitCode {
        match self.hold() {
            Ok(code) => ExitCode::from(code),
            Err(Failed { code, text }) => {
                eprintln!("tenure: {text}");
                ExitCode::from(code)
            }
        }
    }

    fn hold(self) -> Result<u8, Failed> {
        let target = file(&self.place)?;
        let mut terminal = Terminal::find();
        let (program, arguments) = self
            .command
            .split_first()
            .ok_or_else(|| Failed::usage("no command was given"))?;
        // First thing, while there is one thread (C4).
        let (channel, _keeper) = keeper::fork(Task {
            program: program.clone(),
            arguments: arguments.to_vec(),
            on_lost: match self.on_lost {
                Lost::Term => OnLost::Term,
                Lost::Kill => OnLost::Kill,
                Lost::Notify => OnLost::Notify,
            },
            on_ask: OnAsk::Notify,
            grace: self.grace,
            on_death: if self.no_kill {
                OnDeath::Wait
            } else {
                OnDeath::EndTree
            },
            descriptor: if self.close {
                Descriptor::Kept
            } else {
                Descriptor::Inherited
            },
            terminal: terminal.foreground(),
        })?;
        terminal.manage();
        let guard = self.acquire(&target)?;
        let (mailbox, inbox) = wrapper::mailbox()?;
        guard.on_lost(move |loss| {
            mailbox.drop_in(News::Lost(format!("the lock is lost: {}", loss.cause)));
        });
        let outcome = wrapper::supervise(
            &channel,
            self.variables(&guard),
            Some(guard.as_fd()),
            &inbox,
            &mut terminal,
        )?;
        let lost = match guard.release() {
            Ok(()) => false,
            Err(error) if error.class() == Class::Compromised => true,
            Err(error) => {
                eprintln!("tenure: {error}");
                false
            }
        };
        wrapper::finish(&channel);
        Ok(code(&outcome, lost, program))
    }

    fn acquire(&self, target: &PathBuf) -> Result<Guard, Failed> {
        let manager = Manager::new("tenure");
        let mut options = Options::new(target);
        if self.fence {
            options = options.fence();
        }
        if self.not_durable {
            options = options.durability(Durability::Fast);
        }
        if let Some(purpose) = self.purpose.clone() {
            options = options.payload(move || {
                let mut payload = Payload::new();
                payload.insert("purpose".into(), purpose.clone().into());
                payload
            });
        }
        if self.no_wait {
            return manager
                .acquire(&options.retry(Retry::none()))
                .map_err(|e| self.busy(e, 75));
        }
        let quiet = self.wait.map_or(SILENT, |wait| wait.min(SILENT));
        let error = match manager.acquire(&options.clone().timeout(quiet)) {
            Ok(guard) => return Ok(guard),
            Err(error) if error.class() == Class::Timeout => error,
            Err(error) => return Err(self.busy(error, 124)),
        };
        let rest = self.wait.map(|wait| wait.saturating_sub(quiet));
        if rest == Some(Duration::ZERO) {
            return Err(self.busy(error, 124));
        }
        eprintln!("tenure: waiting: {error}");
        manager
            .acquire(&options.timeout(rest))
            .map_err(|error| self.busy(error, 124))
    }

    /// The code of a lock that was not had: `-E` replaces 75 and 124 (C16).
    fn busy(&self, error: Error, when_held: u8) -> Failed {
        let code = match error.exit_code() {
            75 | 124 => self.busy_code.unwrap_or(when_held),
            other => other,
        };
        Failed {
            code,
            text: error.to_string(),
        }
    }

    /// What the child finds in its environment (C3).
    fn variables(&self, guard: &Guard) -> Vec<(OsString, Option<OsString>)> {
        let token = guard.token().to_string();
        [
            ("TENURE_HELD", Some("1".into())),
            ("TENURE_WHERE", Some(self.place.clone().into())),
            ("TENURE_MODE", Some("exclusive".into())),
            (
                "TENURE_FENCE",
                guard.fence().map(|fence| fence.to_string().into()),
            ),
            ("TENURE_OWNER", Some(token.clone().into())),
            ("TENURE_TOKEN", Some(token.into())),
            (
                "TENURE_LOCK_PATH",
                Some(guard.lock_path().as_os_str().to_owned()),
            ),
        ]
        .map(|(name, value): (&str, Option<OsString>)| (name.into(), value))
        .into()
    }
}

/// The exit code for how it ended (C2, C14).
fn code(outcome: &Outcome, lost: bool, program: &OsString) -> u8 {
    match outcome {
        Outcome::Ran(_, Cause::Lost) => 120,
        Outcome::Ran(..) if lost => 120,
        Outcome::Ran(_, Cause::GaveWay) => 121,
        Outcome::Ran(end, Cause::Itself) => end.exit_code(),
        Outcome::NotStarted(errno) => {
            let error = std::io::Error::from_raw_os_error(*errno);
            eprintln!("tenure: cannot run {}: {error}", program.display());
            if error.kind() == std::io::ErrorKind::NotFound {
                127
            } else {
                126
            }
        }
        Outcome::KeeperGone => {
            eprintln!("tenure: the keeper was killed; the command was ended");
            End::Killed(libc::SIGKILL).exit_code()
        }
    }
}

/// A file, by C18; other addresses have no lock here.
fn file(place: &str) -> Result<PathBuf, Failed> {
    if let Some(file) = place.strip_prefix("sidecar:") {
        return Ok(file.into());
    }
    let schemes = ["exclusive:", "upload:", "repo:", "mem:"];
    let other = place.contains("://") || schemes.iter().any(|scheme| place.starts_with(scheme));
    let daemon = tenure_core::path::Path::parse(place).is_ok();
    if other || daemon {
        return Err(Failed::usage(format!(
            "{place}: `tenure run` takes lock files only in this release; put ./ in front of a file's name"
        )));
    }
    Ok(place.into())
}

/// Why nothing was run.
struct Failed {
    code: u8,
    text: String,
}

impl Failed {
    fn usage(text: impl Into<String>) -> Failed {
        Failed {
            code: 2,
            text: text.into(),
        }
    }
}

impl From<std::io::Error> for Failed {
    fn from(error: std::io::Error) -> Failed {
        Failed {
            code: 125,
            text: error.to_string(),
        }
    }
}
