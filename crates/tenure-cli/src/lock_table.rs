//! Locks as table rows: the columns of `ls` and `top`.

use std::time::Duration;

use tenure::{Blocker, HolderLiveness, LockState};

/// The columns of a row.
pub(crate) const HEADINGS: [&str; 6] = ["WHERE", "MODE", "HELD BY", "SINCE", "LEASE", "WAITING"];

/// Returns one row per hold, and one for an address that has only waiters or notes.
pub(crate) fn rows(states: &[LockState]) -> Vec<[String; 6]> {
    let mut rows = Vec::new();
    for state in states {
        if !state.not_a_record {
            rows.extend(state.holders.iter().map(|holder| row(state, holder)));
        }
        if state.holders.is_empty() || state.not_a_record {
            let note = match state.not_a_record {
                true => "not a lock record".to_owned(),
                false => state.notes.first().cloned().unwrap_or_default(),
            };
            let waiting = waiting(state);
            rows.push([
                state.place.to_string(),
                String::new(),
                note,
                String::new(),
                String::new(),
                waiting,
            ]);
        }
    }
    rows
}

fn row(state: &LockState, hold: &Blocker) -> [String; 6] {
    let lease = match (hold.lease_left, hold.verdict.life) {
        (Some(left), _) => span(left),
        (None, HolderLiveness::Alive) => "alive".to_owned(),
        (None, HolderLiveness::Dead) => "dead".to_owned(),
        (None, HolderLiveness::Unknown) => "unknown".to_owned(),
    };
    [
        hold.place.to_string(),
        hold.mode.name().to_owned(),
        hold.holder.to_string(),
        hold.held_for.map_or_else(String::new, span),
        lease,
        waiting(state),
    ]
}

fn waiting(state: &LockState) -> String {
    match state.waiters.len() {
        0 => String::new(),
        count => count.to_string(),
    }
}

/// Formats a duration: `0.8s`, `42s`, `12m`, `5h`, `3d`.
pub(crate) fn span(time: Duration) -> String {
    match time.as_secs() {
        0 => format!("{:.1}s", time.as_secs_f64()),
        seconds @ 1..=119 => format!("{seconds}s"),
        seconds @ 120..=7199 => format!("{}m", seconds / 60),
        seconds @ 7200..=172_799 => format!("{}h", seconds / 3600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

/// Formats rows under headings, with aligned columns.
pub(crate) fn layout(rows: &[[String; 6]]) -> String {
    let mut widths = HEADINGS.map(|heading| heading.chars().count());
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: [&str; 6]| {
        let padded = cells
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{cell:width$}"));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let mut lines = vec![line(HEADINGS)];
    lines.extend(
        rows.iter()
            .map(|row| line(row.each_ref().map(String::as_str))),
    );
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let row = ["a", "exclusive", "ci-7 (pid 1)", "3s", "alive", ""].map(str::to_owned);
        assert_eq!(
            layout(&[row]),
            "WHERE  MODE       HELD BY       SINCE  LEASE  WAITING\n\
             a      exclusive  ci-7 (pid 1)  3s     alive"
        );
    }

    #[test]
    fn spans_are_short() {
        assert_eq!(span(Duration::from_millis(840)), "0.8s");
        assert_eq!(span(Duration::from_secs(7200)), "2h");
    }
}
