//! `tenure ls`: what is held.

use std::process::ExitCode;

use clap::Args;
use tenure::{Address, LockState, Tenure, blocking};

use crate::options::Reading;
use crate::say::{self, Failed, Form};
use crate::table;

/// What is held at or below a place.
///
/// WHERE may be a directory, an upload directory, a repository or a path of the daemon. Without WHERE: the lock files of this directory and, if TENURE_URL is set, every lock of the daemon.
///
/// Examples:
///   tenure ls
///   tenure ls /var/lib/jobs
///   tenure ls tenant:/acme
///   tenure ls --json | jq -r '.[].place'
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Ls {
    /// Print JSON: a list of places with holders and waiters.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    reading: Reading,
    /// Where to look.
    #[arg(value_name = "WHERE")]
    place: Option<String>,
}

impl Ls {
    pub(crate) fn run(self) -> ExitCode {
        Form::of(self.json).end(self.list().map(|()| 0))
    }

    fn list(&self) -> Result<(), Failed> {
        let states = Scope::new(self.place.as_deref(), &self.reading)?.list()?;
        match Form::of(self.json) {
            Form::Json => say::line(&say::to_json(&states)?),
            Form::Text if states.is_empty() => {
                eprintln!("tenure: nothing is held here");
                Ok(())
            }
            Form::Text => say::line(&table::layout(&table::rows(&states))),
        }
    }
}

/// What `ls` and `top` look at.
pub(crate) struct Scope {
    place: Option<Address>,
    tenure: Tenure,
}

impl Scope {
    pub(crate) fn new(place: Option<&str>, reading: &Reading) -> Result<Scope, Failed> {
        let place: Option<Address> = place.map(str::parse).transpose()?;
        let tenure = match &place {
            Some(place) => reading.tenure(std::slice::from_ref(place))?,
            None => Tenure::from_env()?,
        };
        Ok(Scope { place, tenure })
    }

    pub(crate) fn list(&self) -> Result<Vec<LockState>, Failed> {
        if let Some(place) = &self.place {
            return Ok(blocking::wait(self.tenure.list(place))?);
        }
        let here = Address::Sidecar(".".into());
        let mut states = blocking::wait(self.tenure.list(here))?;
        if std::env::var_os("TENURE_URL").is_some_and(|url| !url.is_empty()) {
            states.extend(blocking::wait(self.tenure.list_all())?);
        }
        Ok(states)
    }

    pub(crate) fn tenure(&self) -> &Tenure {
        &self.tenure
    }
}
