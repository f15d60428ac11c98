//! `tenure lock`, `renew`, `unlock`: locks that stay held after the command exits, for scripts that
//! cannot wrap their work in `tenure run`. C13 (holds for scripts).

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use tenure::{Address, Hold, Mode, Tenure, blocking};
use tenure_files::internal::block_on;

use crate::duration;
use crate::interrupt;
use crate::options::{InspectOptions, ProtocolOptions, WaitOptions};
use crate::output::{self, CommandFailure, OutputFormat};
use crate::parent_shell;
use crate::run::SignalQueue;

/// Acquire a lock that stays held when this command ends.
///
/// Prints the hold: one word for `tenure renew` and `tenure unlock`. A lock file is held as long as the
/// calling shell runs. On the daemon and in repositories the lease expires after its ttl unless it is
/// renewed.
///
/// Examples:
///   hold=$(tenure lock -w 1m state.json) || exit
///   ./step-one && ./step-two
///   tenure unlock "$hold"
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct LockCommand {
    /// Share the lock with other shared holders.
    #[arg(short, long, conflicts_with = "exclusive")]
    shared: bool,
    /// Hold the lock alone. This is the default.
    #[arg(short = 'x', long)]
    exclusive: bool,
    #[command(flatten)]
    waiting: WaitOptions,
    /// Exit with this code instead of 75 or 124.
    #[arg(short = 'E', value_name = "CODE")]
    busy_code: Option<u8>,
    /// Length of the lease [default: daemon 30s, repositories 60s].
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    ttl: Option<Duration>,
    /// Purpose of the lock; shown to waiters.
    #[arg(long, value_name = "TEXT")]
    purpose: Option<String>,
    /// Ask the holder to release the lock while waiting.
    #[arg(long)]
    ask: bool,
    /// Take a fencing number, which grows with every holder.
    #[arg(long)]
    fence: bool,
    /// Lock files: the lock ends with this process [default: the calling shell].
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// Print JSON: hold, where, fence, ttl_ms.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    protocol: ProtocolOptions,
    /// The address of the lock.
    #[arg(value_name = "WHERE")]
    place: String,
}

impl LockCommand {
    pub(crate) fn run(self) -> ExitCode {
        OutputFormat::of(self.json).end(self.take().map(|()| 0))
    }

    fn take(&self) -> Result<(), CommandFailure> {
        // The hold may be used from another directory, so it needs an absolute address.
        let place = self.place.parse::<Address>()?.normalized();
        let tenure = self.protocol.tenure(std::slice::from_ref(&place))?;
        let shown = Arc::new(crate::progress::WaitProgress::new());
        let teller = Arc::clone(&shown);
        let mut lock = tenure
            .lock(&place)?
            .mode(if self.shared {
                Mode::Shared
            } else {
                Mode::Exclusive
            })
            .wait_limit(self.waiting.wait_limit())
            .follows(self.pid.unwrap_or_else(parent_shell::shell))
            .on_wait(move |busy| teller.tell(busy));
        if let Some(ttl) = self.ttl {
            lock = lock.ttl(ttl);
        }
        if let Some(purpose) = &self.purpose {
            lock = lock.purpose(purpose);
        }
        if self.ask {
            lock = lock.ask();
        }
        if self.fence {
            lock = lock.fenced();
        }
        let signals = Arc::new(SignalQueue::open()?);
        let guard = match place.is_file() {
            true => {
                let guard = lock.cancelled_by(signals.cancel()).blocking().acquire();
                Ok(guard.map(blocking::Guard::into_async))
            }
            false => interrupt::unless(&signals, lock.acquire())?,
        };
        shown.over();
        let places = std::slice::from_ref(&place);
        let guard = match (guard, signals.next()) {
            (Ok(guard), None) => guard.map_err(|error| self.not_had(error))?,
            // Dropping the guard releases the lock.
            (Ok(guard), Some(signal)) => {
                drop(guard);
                interrupt::die_of(signal.number, &tenure, places)
            }
            (Err(signal), _) => interrupt::die_of(signal, &tenure, places),
        };
        let hold = block_on(guard.into_hold())?;
        let json = json!({
            "hold": hold.to_string(),
            "where": hold.place().to_string(),
            "fence": hold.fence(),
            "ttl_ms": hold.ttl().map(|ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)),
        });
        OutputFormat::of(self.json).answer(&hold, &json)
    }

    fn not_had(&self, error: tenure::Error) -> CommandFailure {
        let is_busy = error.is_busy();
        let mut failed = CommandFailure::from(error);
        if let (true, Some(code)) = (is_busy, self.busy_code) {
            failed.code = code;
        }
        failed
    }
}

/// Renew the lease of a lock taken with `tenure lock`.
///
/// On the daemon and in repositories this renews the lease. A lock file is held as long as its process
/// runs; there the command writes a heartbeat, which only programs need that judge a lock by its age.
///
/// Examples:
///   tenure renew "$hold"
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct RenewCommand {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    inspect_options: InspectOptions,
    /// The hold that `tenure lock` printed.
    #[arg(value_name = "HOLD")]
    hold: String,
}

impl RenewCommand {
    pub(crate) fn run(self) -> ExitCode {
        let form = OutputFormat::of(self.json);
        form.end(self.renew().map(|()| 0))
    }

    fn renew(&self) -> Result<(), CommandFailure> {
        let (hold, tenure) = adopt(&self.hold, &self.inspect_options)?;
        let fence = block_on(tenure.renew_hold(&hold))?;
        match (OutputFormat::of(self.json), fence) {
            // In a repository the fence rises if another client has taken one in between.
            (OutputFormat::Text, Some(number)) if fence != hold.fence() => {
                output::line(&format!("the fence is now {number}"))
            }
            (OutputFormat::Text, _) => Ok(()),
            (OutputFormat::Json | OutputFormat::JsonOnStderr, _) => {
                let json = json!({ "renewed": hold.place().to_string(), "fence": fence });
                output::line(&json.to_string())
            }
        }
    }
}

/// Release a lock taken with `tenure lock`.
///
/// Examples:
///   tenure unlock "$hold"
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct UnlockCommand {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    inspect_options: InspectOptions,
    /// The hold that `tenure lock` printed.
    #[arg(value_name = "HOLD")]
    hold: String,
}

impl UnlockCommand {
    pub(crate) fn run(self) -> ExitCode {
        let form = OutputFormat::of(self.json);
        form.end(self.unlock().map(|()| 0))
    }

    fn unlock(&self) -> Result<(), CommandFailure> {
        let (hold, tenure) = adopt(&self.hold, &self.inspect_options)?;
        block_on(tenure.release_hold(&hold))?;
        match OutputFormat::of(self.json) {
            OutputFormat::Text => Ok(()),
            OutputFormat::Json | OutputFormat::JsonOnStderr => {
                output::line(&json!({ "released": hold.place().to_string() }).to_string())
            }
        }
    }
}

fn adopt(word: &str, inspect_options: &InspectOptions) -> Result<(Hold, Tenure), CommandFailure> {
    let hold: Hold = word.parse()?;
    let tenure = inspect_options.tenure(std::slice::from_ref(hold.place()))?;
    Ok((hold, tenure))
}
