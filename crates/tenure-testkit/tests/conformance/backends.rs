//! The backends of the suite, and the table of cases that they do not support.

use std::sync::LazyLock;

use tempfile::TempDir;
use tenure::blocking::Lock;
use tenure::{Address, Tenure, Tuning};
use tenure::{
    Blocker, Broken, Capabilities, Error, Force, HoldId, LockState, Modes, RepositoryTuning,
};
use tenure_files::internal::block_on as wait;

use crate::support::daemon::Daemon;
use crate::support::postgres::Postgres;

/// The cases of the suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Case {
    Exclusive,
    Shared,
    Try,
    Wait,
    Timeout,
    Lost,
    Ask,
    Break,
    Fence,
    Crash,
    Look,
    Watch,
    Leave,
}

/// All unsupported cases. A case that is not listed must pass.
const EXCEPTIONS: &[(&str, Case, &str)] = &[
    ("mem", Case::Crash, "a holder cannot die without its lock"),
    (
        "mem",
        Case::Leave,
        "a lock in memory cannot outlive its process",
    ),
    ("sidecar", Case::Shared, "one holder at a time"),
    ("sidecar", Case::Ask, "a holder does not receive requests"),
    ("exclusive", Case::Shared, "one tool at a time"),
    ("exclusive", Case::Ask, "a holder does not receive requests"),
    ("upload", Case::Shared, "one request at a time"),
    (
        "repository",
        Case::Ask,
        "a holder does not receive requests",
    ),
];

/// Returns why a backend does not support a case, if it does not.
pub(crate) fn exception(backend: &str, case: Case) -> Option<&'static str> {
    let found = EXCEPTIONS
        .iter()
        .find(|(at, what, _)| *at == backend && *what == case);
    found.map(|(_, _, why)| *why)
}

/// One backend with a fresh address.
pub(crate) struct BackendAddress {
    pub(crate) backend: &'static str,
    pub(crate) tenure: Tenure,
    pub(crate) place: Address,
    temp: TempDir,
}

/// Returns a fresh address on every backend.
pub(crate) fn everywhere() -> Vec<BackendAddress> {
    let name = || tenure_files::Token::random().to_string();
    vec![
        backend_address("mem", |_| format!("mem:{}/lock", name())),
        backend_address("sidecar", |dir| format!("{dir}/state.json")),
        backend_address("exclusive", |dir| format!("exclusive:{dir}")),
        backend_address("upload", |dir| format!("upload:{dir}#7")),
        backend_address("repository", |dir| format!("repo:{dir}")),
        backend_address("daemon", |_| {
            format!("tenure://{}/t:/{}/lock", DAEMON.node, name())
        }),
        backend_address("postgres", |_| {
            format!("{}/t:/{}/lock", POSTGRES.address, name())
        }),
    ]
}

/// One daemon for the whole suite. It ends with this process.
static DAEMON: LazyLock<Daemon> = LazyLock::new(Daemon::start);
/// One database for the whole suite. It ends with this process.
pub(crate) static POSTGRES: LazyLock<Postgres> = LazyLock::new(Postgres::start);

fn backend_address(backend: &'static str, place: impl Fn(&str) -> String) -> BackendAddress {
    let temp = tempfile::tempdir().unwrap();
    let place: Address = place(temp.path().to_str().unwrap()).parse().unwrap();
    assert_eq!(place.backend(), backend);
    let tuning = Tuning {
        repository: RepositoryTuning {
            // No other program uses the store: do not wait for late writers.
            tenure_only: true,
            ..RepositoryTuning::default()
        },
        ..Tuning::default()
    };
    let tenure = Tenure::builder().tuning(tuning).build().unwrap();
    BackendAddress {
        backend,
        tenure,
        place,
        temp,
    }
}

impl BackendAddress {
    pub(crate) fn lock(&self) -> Lock {
        self.tenure.lock(&self.place).unwrap().blocking()
    }

    pub(crate) fn inspect(&self) -> LockState {
        wait(self.tenure.inspect(&self.place)).unwrap()
    }

    pub(crate) fn ask(&self, reason: &str) -> Result<Vec<Blocker>, Error> {
        wait(self.tenure.ask(&self.place, Some(reason)))
    }

    pub(crate) fn break_hold(&self, id: Option<&HoldId>, force: Force) -> Result<Broken, Error> {
        wait(self.tenure.break_hold(&self.place, id, force, "test"))
    }

    pub(crate) fn break_all(&self) {
        self.break_hold(None, Force::Yes).unwrap();
    }

    /// Returns the parent: the directory, or the parent path.
    pub(crate) fn above(&self) -> Address {
        let dir = self.temp.path().to_str().unwrap();
        match &self.place {
            Address::Memory(_) | Address::Daemon { .. } => {
                let text = self.place.to_string();
                text.rsplit_once('/').unwrap().0.parse().unwrap()
            }
            Address::Sidecar(_) => dir.parse().unwrap(),
            Address::Upload { .. } => format!("upload:{dir}").parse().unwrap(),
            other => other.clone(),
        }
    }

    /// Returns the arguments that make an actor hold this lock, with the shortest lease.
    pub(crate) fn actor_arguments(&self) -> Vec<String> {
        let capabilities = Capabilities::of(&self.place);
        let shortest = capabilities
            .lease
            .map(|lease| lease.start().as_millis().max(1000));
        let place = self.place.to_string();
        std::iter::once(place)
            .chain(shortest.map(|ttl| ttl.to_string()))
            .collect()
    }
}

/// The table of exceptions agrees with the declared capabilities.
#[test]
fn exceptions_are_what_the_capabilities_declare() {
    for backend_address in everywhere() {
        let declared = Capabilities::of(&backend_address.place);
        let is_exempt = |case| exception(backend_address.backend, case).is_some();
        assert_eq!(
            declared.modes == Modes::Exclusive,
            is_exempt(Case::Shared),
            "{}",
            backend_address.backend
        );
        assert_eq!(
            declared.ask,
            !is_exempt(Case::Ask),
            "{}",
            backend_address.backend
        );
        assert_eq!(
            declared.across == tenure::Across::Process,
            is_exempt(Case::Crash) && is_exempt(Case::Leave),
            "{}",
            backend_address.backend
        );
        assert!(declared.to_string().lines().count() == 7, "{declared}");
    }
}
