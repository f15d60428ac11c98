//! `tenure history`: who held a daemon lock and who waited for it, from the daemon's recent history.

use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use serde_json::json;
use tenure::Address;
use tenure_core::text::printable;
use tenure_files::internal::block_on;
use tenure_wire::v1;

use crate::duration;
use crate::options::InspectOptions;
use crate::output::{CommandFailure, OutputFormat};

/// Show who held a lock and who waited for it during the last hours.
///
/// Every node of the daemon keeps the recent holds and waits in memory (history_mb). The answer says
/// from when on it is complete.
///
/// Examples:
///   tenure history tenant:/acme/projects/42
///   tenure history --since 2h tenant:/acme
///   tenure history --json --since 10m tenant:/acme | jq '.spans[].owner'
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct HistoryCommand {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// How far to look back, such as 10m or 2h [default: as far as the daemon remembers].
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    since: Option<Duration>,
    #[command(flatten)]
    inspect_options: InspectOptions,
    /// The address of the lock. Locks below it are included.
    #[arg(value_name = "WHERE")]
    place: String,
}

impl HistoryCommand {
    pub(crate) fn run(self) -> ExitCode {
        OutputFormat::of(self.json).end(self.show().map(|()| 0))
    }

    fn show(&self) -> Result<(), CommandFailure> {
        let place: Address = self.place.parse()?;
        let Address::Daemon { nodes, path } = &place else {
            return Err(CommandFailure::usage(format!(
                "{place} has no history: only the daemon keeps one (handler:/path)"
            )));
        };
        let tenure = self.inspect_options.tenure(std::slice::from_ref(&place))?;
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let since = self.since.map(|since| now.saturating_sub(since));
        let request = v1::HistoryRequest {
            prefix: path.as_str().to_owned(),
            since_ms: since.map_or(0, millis),
            page: 2048,
            exact: false,
        };
        let found = block_on(tenure.calls_of(nodes)?.history(request))?;
        let spans: Vec<_> = found.spans.iter().map(span_json).collect();
        let json = json!({
            "spans": spans,
            "complete_since_ms": known(found.complete_since_ms),
            "cut": found.cut,
            "missing_groups": found.missing_groups,
        });
        OutputFormat::of(self.json).answer(sentences(&place, &found, millis(now)), &json)
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// A time of zero is unknown.
fn known(time: u64) -> Option<u64> {
    (time > 0).then_some(time)
}

fn end_name(span: &v1::HistorySpan) -> Option<&'static str> {
    Some(match span.end() {
        v1::ChangeKind::Released => "released",
        v1::ChangeKind::Expired => "expired",
        v1::ChangeKind::Killed => "broken",
        v1::ChangeKind::Dequeued => "gave up waiting",
        _ => return None,
    })
}

fn mode_name(span: &v1::HistorySpan) -> &'static str {
    match span.mode() {
        v1::Mode::Write => "exclusive",
        v1::Mode::Read => "shared",
        v1::Mode::ReadTree => "shared subtree",
    }
}

fn span_json(span: &v1::HistorySpan) -> serde_json::Value {
    let holder = span.holder.as_ref();
    json!({
        "path": span.path,
        "owner": span.owner,
        "mode": mode_name(span),
        "fence": (span.fence > 0).then_some(span.fence),
        "holder": holder.map(|holder| json!({
            "name": holder.name,
            "host": holder.host,
            "pid": holder.pid,
            "purpose": holder.purpose,
        })),
        "queued_ms": known(span.queued_ms),
        "granted_ms": known(span.granted_ms),
        "ended_ms": known(span.ended_ms),
        "end": end_name(span),
    })
}

fn sentences(place: &Address, found: &v1::HistoryResponse, now: u64) -> String {
    let mut lines = Vec::new();
    if found.spans.is_empty() {
        lines.push(format!("{place}: nothing held it or waited for it"));
    }
    for span in &found.spans {
        lines.push(sentence(span, now));
    }
    if found.complete_since_ms > 0 {
        let ago = shown(now.saturating_sub(found.complete_since_ms));
        lines.push(format!(
            "complete for the last {ago}; what was before is not kept"
        ));
    }
    if found.cut {
        lines.push("older changes are left out: use a shorter --since or a deeper path".to_owned());
    }
    if found.missing_groups > 0 {
        lines.push(format!(
            "{} groups have no leader now: what they contain is missing",
            found.missing_groups
        ));
    }
    lines.join("\n")
}

fn sentence(span: &v1::HistorySpan, now: u64) -> String {
    let ago = |time: u64| format!("{} ago", shown(now.saturating_sub(time)));
    let holder = span.holder.as_ref();
    let who = match holder.filter(|holder| !holder.name.is_empty()) {
        Some(holder) => {
            let purpose = match holder.purpose.as_str() {
                "" => String::new(),
                purpose => format!(", {purpose}"),
            };
            format!(
                "{} (pid {} on {}{purpose})",
                holder.name, holder.pid, holder.host
            )
        }
        None => span.owner.clone(),
    };
    let waited = match (span.queued_ms, span.granted_ms) {
        (0, _) => String::new(),
        (queued, 0) => format!(" waited since {}", ago(queued)),
        (queued, granted) => format!(" waited {},", shown(granted.saturating_sub(queued))),
    };
    let held = match (span.granted_ms, span.ended_ms) {
        (0, 0) => String::new(),
        (0, ended) => format!(" until {}", ago(ended)),
        (granted, 0) => format!(" holds since {}", ago(granted)),
        (granted, ended) => {
            let long = shown(ended.saturating_sub(granted));
            format!(" held from {} for {long}", ago(granted))
        }
    };
    let end = end_name(span).map_or_else(String::new, |end| format!(", {end}"));
    let line = format!(
        "{}  {}  {who}{waited}{held}{end}",
        span.path,
        mode_name(span)
    );
    printable(&line).into_owned()
}

/// Formats a duration with its two largest units.
fn shown(millis: u64) -> String {
    let seconds = millis / 1000;
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, 0) => format!("{millis} ms"),
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (hours, minutes, _) => format!("{hours} h {minutes} min"),
    }
}
