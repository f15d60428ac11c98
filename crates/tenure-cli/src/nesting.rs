//! Locks of the `tenure run` that this process runs under. A nested run of the same lock would wait
//! for itself.

use std::ffi::OsString;
use std::fs;

use tenure::{Address, Mode};

/// The variable with one line per held lock of all outer runs: pid, mode and normalized address.
const VARIABLE: &str = "TENURE_HOLDS";

/// A lock of an outer run.
pub(crate) struct OuterHold {
    /// The process that holds it, an ancestor of this one.
    pub(crate) pid: u32,
    shared: bool,
    place: String,
}

impl OuterHold {
    /// Returns whether this hold blocks a request for `place` as long as this process runs.
    pub(crate) fn blocks(&self, place: &Address, mode: Mode) -> bool {
        let shares = matches!(mode, Mode::Shared | Mode::SharedTree);
        let wanted = place.normalized().to_string();
        // On the daemon an exclusive lock covers the paths below it.
        let covers = |above: &str, below: &str| {
            let rest = below.strip_prefix(above);
            rest.is_some_and(|rest| rest.starts_with('/') || above.ends_with('/'))
        };
        let is_tree = matches!(place, Address::Daemon { .. });
        let overlaps = wanted == self.place
            || is_tree && (covers(&wanted, &self.place) || covers(&self.place, &wanted));
        let is_permit = matches!(mode, Mode::Permit(_));
        overlaps && !is_permit && !(shares && self.shared)
    }
}

/// Returns the locks of the runs that this process is part of.
///
/// A process that outlived its run has the variable, too, but the holder is not its ancestor.
pub(crate) fn outer_holds() -> Vec<OuterHold> {
    let Ok(text) = std::env::var(VARIABLE) else {
        return Vec::new();
    };
    let ancestors = ancestors();
    let holds = text.lines().filter_map(|line| {
        let (pid, rest) = line.split_once(' ')?;
        let (mode, place) = rest.split_once(' ')?;
        Some(OuterHold {
            pid: pid.parse().ok()?,
            shared: mode != "exclusive",
            place: place.to_owned(),
        })
    });
    holds.filter(|hold| ancestors.contains(&hold.pid)).collect()
}

/// Returns the variable for the child: the locks of the outer runs and these.
pub(crate) fn variable<'a>(
    held: impl Iterator<Item = (&'a Address, Mode)>,
) -> (OsString, OsString) {
    let mut text = std::env::var(VARIABLE).unwrap_or_default();
    let pid = std::process::id();
    for (place, mode) in held {
        let mode = match mode {
            Mode::Exclusive => "exclusive",
            Mode::Shared | Mode::SharedTree | Mode::Permit(_) => "shared",
        };
        let place = place.normalized().to_string();
        // A name with a line break cannot be listed. Then only the early refusal is missing.
        if !place.contains('\n') {
            text.push_str(&format!("{pid} {mode} {place}\n"));
        }
    }
    (VARIABLE.into(), text.into())
}

fn ancestors() -> Vec<u32> {
    let mut pid = std::process::id();
    let mut ancestors = Vec::new();
    while let Some(parent) = parent_of(pid)
        && parent > 0
        && !ancestors.contains(&parent)
    {
        ancestors.push(parent);
        pid = parent;
    }
    ancestors
}

/// Reads field 4 of `stat`, counted after the last `)`: K7 (parse the process stat file).
fn parent_of(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_ascii_whitespace().nth(1)?.parse().ok()
}
