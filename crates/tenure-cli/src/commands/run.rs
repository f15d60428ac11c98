//! `tenure run`: hold locks while a command runs.

use std::ffi::{OsStr, OsString};
use std::io;
use std::num::NonZeroU32;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use tenure::{Address, Error, Guard, HoldEvent, LockAll, Mode, Tenure, blocking};
use tenure_files::internal as files;
use tenure_files::internal::block_on;

use crate::duration;
use crate::interrupt;
use crate::message;
use crate::nesting;
use crate::options::{self, ProtocolOptions};
use crate::output::{CommandFailure, FAILED, HELD, LOST, OutputFormat};
use crate::progress::WaitProgress;
use crate::run::wrapper::{self, ChildStart, LockNotice, RunOutcome, Terminal};
use crate::run::{
    Channel, ChildEndCause, ChildLease, Descriptor, MOST_DESCRIPTORS, OnAsk, OnDeath, OnLost,
    ProcessEnd, SignalQueue, SupervisorTask, VariableValue, Variables,
};

/// Hold a lock while a command runs.
///
/// The lock is released when all processes of the command's process group have ended. If tenure is
/// killed, the command is killed, too. If the lock is lost, the command and every process that it started
/// are stopped before another client can get the lock. Several WHEREs are acquired in a fixed order, all
/// or none.
///
/// The environment of the command has TENURE_HELD, TENURE_WHERE, TENURE_MODE, TENURE_FENCE, TENURE_OWNER
/// and, for lock files, TENURE_LOCK_PATH, TENURE_TOKEN and TENURE_FD (TENURE_WHERE_2, … for the second
/// WHERE). It can read {"event":"ask"|"at-risk"|"lost"} as JSON lines from TENURE_NOTICE_FD.
///
/// Examples:
///   tenure run state.json -- ./compact state.json
///   tenure run -n ./nightly -- ./job            # exit with 75 if another run holds the lock
///   tenure run -w 30s ./deploy -- ./deploy.sh   # exit with 124 after 30 seconds
///   tenure run -s s3://bucket/backup -- restic check
///   tenure run --ttl 10s --ask tenant:/acme/42 -- ./reindex
///   tenure run ./old.lock --also tenant:/jobs/nightly -- ./job    # during a move to another lock
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct RunCommand {
    /// Share the lock with other shared holders.
    #[arg(short, long, conflicts_with_all = ["exclusive", "permits"])]
    shared: bool,
    /// Hold the lock alone. This is the default.
    #[arg(short = 'x', long)]
    exclusive: bool,
    /// With -s: lock the path and everything below it (daemon).
    #[arg(long, requires = "shared")]
    tree: bool,
    /// Take one of N permits; all clients must give the same N (daemon, semaphore namespaces).
    #[arg(long, value_name = "N", conflicts_with = "exclusive")]
    permits: Option<NonZeroU32>,
    #[command(flatten)]
    waiting: options::WaitOptions,
    /// Exit with this code instead of 75 or 124.
    #[arg(short = 'E', value_name = "CODE")]
    busy_code: Option<u8>,
    /// Print the reason why the command was not run as JSON on standard error, and no progress.
    #[arg(long)]
    json: bool,
    /// Print no message about a held lock, neither while waiting nor at the end; only set the exit code.
    #[arg(short, long)]
    quiet: bool,
    /// Length of the lease, which tenure renews [default: daemon 30s, repositories 60s].
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    ttl: Option<Duration>,
    /// Purpose of the lock; shown to waiters.
    #[arg(long, value_name = "TEXT")]
    purpose: Option<String>,
    /// Ask the holder to release the lock while waiting.
    #[arg(long)]
    ask: bool,
    /// Action when the lock is lost.
    #[arg(long, value_name = "WHAT", default_value = "term")]
    on_lost: OnLostOption,
    /// Action on a release request [default: term on upload locks, else notify].
    #[arg(long, value_name = "WHAT")]
    on_ask: Option<OnAskOption>,
    /// Time between TERM and KILL.
    #[arg(long, value_name = "DUR", default_value = "10s", value_parser = duration::parse)]
    grace: Duration,
    /// If tenure is killed, let the command run to its end; the lock stays held until then.
    #[arg(long)]
    no_kill: bool,
    /// Do not pass the locked file descriptor to the command.
    #[arg(short = 'o', long)]
    close: bool,
    /// Take a fencing number (TENURE_FENCE), which grows with every holder.
    #[arg(long)]
    fence: bool,
    /// One more lock, for example during a move to another address.
    #[arg(long, value_name = "WHERE")]
    also: Vec<String>,
    #[command(flatten)]
    protocol: ProtocolOptions,
    /// The address of the lock.
    #[arg(value_name = "WHERE", required = true)]
    places: Vec<String>,
    /// The command and its arguments.
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, ValueEnum)]
enum OnLostOption {
    /// Send TERM to the command, then KILL.
    Term,
    /// Send KILL to the command at once.
    Kill,
    /// Only notify the command.
    Notify,
}

#[derive(Clone, Copy, ValueEnum)]
enum OnAskOption {
    /// Send TERM to the command, then KILL; tenure exits with 121.
    Term,
    /// Only notify the command.
    Notify,
    /// Do nothing.
    Ignore,
}

impl RunCommand {
    pub(crate) fn run(self, supervisor: io::Result<Channel>) -> ExitCode {
        // The command owns standard output.
        let form = match self.json {
            true => OutputFormat::JsonOnStderr,
            false => OutputFormat::Text,
        };
        let held = supervisor.map_err(CommandFailure::from);
        form.end(held.and_then(|supervisor| self.hold(&supervisor)))
    }

    fn hold(&self, supervisor: &Channel) -> Result<u8, CommandFailure> {
        let texts: Vec<&String> = self.places.iter().chain(&self.also).collect();
        let places: Vec<Address> = texts
            .iter()
            .map(|text| text.parse())
            .collect::<Result<_, _>>()?;
        let tenure = self.protocol.tenure_for(&places, self.default_name())?;
        if places.len() > MOST_DESCRIPTORS {
            return Err(CommandFailure::usage(format!(
                "at most {MOST_DESCRIPTORS} locks at once"
            )));
        }
        self.refuse_own(&places)?;
        let mut terminal = Terminal::find();
        let program = self
            .command
            .first()
            .ok_or_else(|| CommandFailure::usage("no command was given"))?;
        let task = self.task(&terminal)?;
        terminal.manage();
        let signals = Arc::new(SignalQueue::open()?);
        // A short command needs no heartbeat thread. With several locks, the first may be held for
        // long before the last is acquired, so its heartbeat must run.
        let mut rest = (places.len() == 1).then(files::rest);
        let waiting = Arc::new(WaitProgress::new());
        let wanted = self.wanted(&tenure, &places, &waiting)?;
        // Not for lock files: C7 (fast start).
        if !self.quiet && !self.json && !places.iter().all(Address::is_file) {
            waiting.tick(
                texts
                    .iter()
                    .map(|text| text.as_str())
                    .collect::<Vec<_>>()
                    .join(" "),
            );
        }
        let taken = take(wanted, &places, &signals)?;
        waiting.over();
        let guards = match taken {
            Ok(Ok(guards)) => guards,
            Ok(Err(error)) => return self.not_had(error),
            Err(signal) => interrupt::die_of(signal, &tenure, &places),
        };
        let (mailbox, inbox) = wrapper::mailbox()?;
        for (number, guard) in guards.iter().enumerate() {
            let (mailbox, on_ask) = (mailbox.clone(), self.on_ask(guard.place()));
            guard.listen(move |event| {
                if let Some(notice) = notice(number, event, on_ask) {
                    mailbox.drop_in(notice);
                }
            });
        }
        let start = ChildStart {
            task,
            variables: variables(&guards, &named(&texts, &places)),
            descriptors: guards
                .iter()
                .filter_map(|guard| guard.file().map(AsFd::as_fd))
                .collect(),
        };
        let outcome = wrapper::supervise(
            supervisor,
            start,
            &signals,
            &inbox,
            &mut terminal,
            &mut rest,
        )?;
        let lost = give_back(guards, &outcome);
        wrapper::finish(supervisor);
        // Ends the pause only now, after the release: otherwise the heartbeat thread would start
        // for nothing.
        drop(rest);
        let code = code(&outcome, lost, program)?;
        // A key that killed the command was meant for the whole job. A shell script stops only if
        // the process that it waits for dies of the signal, too.
        if let RunOutcome::Ran(ProcessEnd::Killed(signal), ChildEndCause::Itself) = outcome
            && terminal.sent(signal)
            && !lost
        {
            interrupt::die(signal);
        }
        Ok(code)
    }

    /// Returns the name of the work for records that need one: the purpose, or the base name of the
    /// command.
    fn default_name(&self) -> Option<String> {
        let base = || {
            let program = Path::new(self.command.first()?);
            Some(program.file_name()?.to_string_lossy().into_owned())
        };
        let purpose = self.purpose.clone().filter(|purpose| !purpose.is_empty());
        purpose.or_else(base)
    }

    /// Refuses a lock that an outer run holds: the wait would end only with this process.
    fn refuse_own(&self, places: &[Address]) -> Result<(), CommandFailure> {
        let outer = nesting::outer_holds();
        for place in places {
            let own = outer.iter().find(|hold| hold.blocks(place, self.mode()));
            if let Some(own) = own {
                let code = self.busy_code.unwrap_or(HELD);
                return Err(CommandFailure::new(
                    code,
                    format!(
                        "{place}: this command already runs under that lock (tenure run, pid {}), so it would wait for \
                         itself; run the command without tenure, or use another lock",
                        own.pid
                    ),
                ));
            }
        }
        Ok(())
    }

    /// Returns the task for the supervisor.
    fn task(&self, terminal: &Terminal) -> Result<SupervisorTask, CommandFailure> {
        let words = u32::try_from(self.command.len());
        Ok(SupervisorTask {
            words: words
                .map_err(|_| CommandFailure::usage("the command has too many arguments"))?,
            on_lost: match self.on_lost {
                OnLostOption::Term => OnLost::Term,
                OnLostOption::Kill => OnLost::Kill,
                OnLostOption::Notify => OnLost::Notify,
            },
            grace: self.grace,
            on_death: match self.no_kill {
                true => OnDeath::Wait,
                false => OnDeath::EndTree,
            },
            descriptor: match self.close {
                true => Descriptor::Kept,
                false => Descriptor::Inherited,
            },
            terminal: terminal.foreground(),
            tells_child: terminal.is_lent(),
            joins: terminal.group_to_join(),
            heartbeat: self.protocol.heartbeat(),
        })
    }

    /// Returns a builder for all locks with the options.
    fn wanted(
        &self,
        tenure: &Tenure,
        places: &[Address],
        waiting: &Arc<WaitProgress>,
    ) -> Result<LockAll, CommandFailure> {
        let mut lock = tenure
            .lock_all(places)?
            .mode(self.mode())
            .wait_limit(self.waiting.wait_limit());
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
        if !self.quiet && !self.json && !matches!(self.waiting.wait_limit(), tenure::Wait::No) {
            let waiting = Arc::clone(waiting);
            lock = lock.on_wait(move |busy| waiting.tell(busy));
        }
        Ok(lock)
    }

    fn mode(&self) -> Mode {
        match (self.shared, self.tree, self.permits) {
            (_, _, Some(of)) => Mode::Permit(of),
            (true, true, None) => Mode::SharedTree,
            (true, false, None) => Mode::Shared,
            (false, _, None) => Mode::Exclusive,
        }
    }

    /// Upload locks end the command by default, because release requests are part of their
    /// protocol. For other locks the command decides.
    fn on_ask(&self, place: &Address) -> OnAsk {
        match (self.on_ask, place) {
            (Some(OnAskOption::Term), _) | (None, Address::Upload { .. }) => OnAsk::Term,
            (Some(OnAskOption::Notify), _) | (None, _) => OnAsk::Notify,
            (Some(OnAskOption::Ignore), _) => OnAsk::Ignore,
        }
    }

    /// Returns the exit code of a lock that was not acquired. `-E` replaces 75 and 124, C16
    /// (details of codes and break); with `-q` there is no message.
    fn not_had(&self, error: Error) -> Result<u8, CommandFailure> {
        let is_busy = error.is_busy();
        let mut failed = CommandFailure::from(error);
        if let (true, Some(code)) = (is_busy, self.busy_code) {
            failed.code = code;
        }
        match is_busy && self.quiet {
            true => Ok(failed.code),
            false => Err(failed),
        }
    }
}

/// Acquires the locks on this thread. If a signal arrives first, withdraws the request, releases
/// what is held, and returns the signal.
fn take(
    lock: LockAll,
    places: &[Address],
    signals: &Arc<SignalQueue>,
) -> io::Result<Result<Result<Vec<Guard>, Error>, i32>> {
    let taken = if places.iter().all(Address::is_file) {
        // No thread: C7 (fast start).
        let guards = lock.cancelled_by(signals.cancel()).blocking().acquire();
        guards.map(|guards| {
            guards
                .into_iter()
                .map(blocking::Guard::into_async)
                .collect()
        })
    } else {
        match interrupt::unless(signals, lock.acquire())? {
            Ok(guards) => guards.map(tenure::Guards::into_vec),
            Err(signal) => return Ok(Err(signal)),
        }
    };
    // A signal may have arrived together with the lock. The command is not started then.
    let Some(signal) = signals.next() else {
        return Ok(Ok(taken));
    };
    for guard in taken.into_iter().flatten().rev() {
        let _ = block_on(guard.release());
    }
    Ok(Err(signal.number))
}

fn notice(number: usize, event: &HoldEvent, on_ask: OnAsk) -> Option<LockNotice> {
    match event {
        HoldEvent::Renewed(lease) => Some(LockNotice::Renewed(
            number,
            ChildLease {
                safe_until: lease.safe_until(),
                ttl: lease.ttl,
            },
        )),
        HoldEvent::Asked(request) => Some(LockNotice::Asked(on_ask, request.to_string())),
        HoldEvent::Lost(lost) => Some(LockNotice::Lost(format!("the lock is lost: {}", lost.what))),
        _ => None,
    }
}

/// Releases the locks. Returns whether one of them was lost.
///
/// After a known loss, leases are dropped without waiting: their backend may be unreachable.
fn give_back(guards: Vec<Guard>, outcome: &RunOutcome) -> bool {
    let known = matches!(
        outcome,
        RunOutcome::Ran(_, ChildEndCause::Lost) | RunOutcome::LostBefore(_)
    );
    let mut lost = known;
    for guard in guards.into_iter().rev() {
        if known && guard.lease().is_some() {
            continue;
        }
        match block_on(guard.release()) {
            Ok(()) => {}
            Err(Error::Lost(_)) => lost = true,
            Err(error) => message::say(error),
        }
    }
    lost
}

/// Returns the addresses with the texts that the user typed for them.
fn named<'a>(texts: &[&'a String], places: &[Address]) -> Vec<(&'a str, Address)> {
    let texts = texts.iter().map(|text| text.as_str());
    texts.zip(places.iter().map(Address::normalized)).collect()
}

/// Returns the environment of the child, C3 (environment of the child): plain names for the first
/// lock, numbered names for the others. Removes the variables of an outer run.
fn variables(guards: &[Guard], named: &[(&str, Address)]) -> Variables {
    let (name, holds) = nesting::variable(guards.iter().map(|guard| (guard.place(), guard.mode())));
    let mut variables: Variables = vec![
        ("TENURE_HELD".into(), VariableValue::Text("1".into())),
        (name, VariableValue::Text(holds)),
    ];
    for (number, guard) in guards.iter().enumerate() {
        let suffix = if number == 0 {
            String::new()
        } else {
            format!("_{}", number + 1)
        };
        let mut set = |name: &str, value: VariableValue| {
            variables.push((format!("TENURE_{name}{suffix}").into(), value));
        };
        // The child gets the address as the user typed it. Guards carry normalized addresses, so
        // compare in that form.
        let place = guard.place().normalized();
        let typed = named.iter().find(|(_, known)| *known == place);
        let typed = typed.map_or_else(|| place.to_string(), |(text, _)| (*text).to_owned());
        let mode = match guard.mode() {
            Mode::Exclusive => "exclusive",
            Mode::Shared | Mode::SharedTree => "shared",
            Mode::Permit(_) => "permit",
        };
        let fence = guard.fence().map(|fence| fence.to_string());
        set("WHERE", VariableValue::Text(typed.into()));
        set("MODE", VariableValue::Text(mode.into()));
        set(
            "FENCE",
            fence.map_or(VariableValue::Removed, |fence| {
                VariableValue::Text(fence.into())
            }),
        );
        set("OWNER", VariableValue::Text(guard.owner().into()));
        if let Address::Daemon { nodes, .. } = guard.place()
            && !nodes.is_empty()
        {
            let nodes: Vec<String> = nodes.iter().map(ToString::to_string).collect();
            set(
                "URL",
                VariableValue::Text(format!("tenure://{}", nodes.join(",")).into()),
            );
        }
        match guard.file() {
            Some(file) => {
                set(
                    "TOKEN",
                    VariableValue::Text(file.token().to_string().into()),
                );
                set("LOCK_PATH", VariableValue::Text(file.path().into()));
                set("FD", VariableValue::Descriptor);
            }
            None => {
                for name in ["TOKEN", "LOCK_PATH", "FD"] {
                    set(name, VariableValue::Removed);
                }
            }
        }
    }
    variables.extend(left_over(guards.len()));
    variables
}

/// Returns the numbered variables of an outer run with more locks.
fn left_over(locks: usize) -> Vec<(OsString, VariableValue)> {
    let ours = |name: &str| {
        let (rest, number) = name.strip_prefix("TENURE_")?.rsplit_once('_')?;
        let known = [
            "WHERE",
            "MODE",
            "FENCE",
            "OWNER",
            "URL",
            "TOKEN",
            "LOCK_PATH",
            "FD",
        ];
        let number: usize = number.parse().ok()?;
        (known.contains(&rest) && number > locks).then_some(())
    };
    std::env::vars_os()
        .filter(|(name, _)| name.to_str().and_then(ours).is_some())
        .map(|(name, _)| (name, VariableValue::Removed))
        .collect()
}

/// Returns the exit code: C2 (exit codes), C14 (lost before the end).
pub(super) fn code(
    outcome: &RunOutcome,
    lost: bool,
    program: &OsStr,
) -> Result<u8, CommandFailure> {
    match outcome {
        RunOutcome::LostBefore(how) => Err(CommandFailure::new(
            LOST,
            format!("{how}; the command was not started"),
        )),
        RunOutcome::Ran(_, ChildEndCause::Lost) => Ok(LOST),
        RunOutcome::Ran(..) if lost => Ok(LOST),
        RunOutcome::Ran(_, ChildEndCause::GaveWay) => Ok(121),
        RunOutcome::Ran(end, ChildEndCause::Itself) => Ok(end.exit_code()),
        RunOutcome::NotStarted(errno) => Err(not_started(*errno, program)),
        RunOutcome::SupervisorGone => Err(CommandFailure::new(
            ProcessEnd::Killed(libc::SIGKILL).exit_code(),
            "the supervisor process was killed, so the command was killed, too",
        )),
    }
}

/// Returns the failure of a command that could not be started (C2).
fn not_started(errno: i32, program: &OsStr) -> CommandFailure {
    let error = io::Error::from_raw_os_error(errno);
    let code = match error.kind() {
        io::ErrorKind::NotFound => 127,
        io::ErrorKind::OutOfMemory => FAILED,
        _ => 126,
    };
    CommandFailure::new(code, format!("cannot run {}: {error}", program.display()))
}
