//! Locks as table rows: the columns of `ls` and `top`.

use std::cmp::Ordering;
use std::time::Duration;

use tenure::{Address, Blocker, HolderLiveness, LockState, Mode};

use crate::terminal::{self, Tone};

/// The number of columns.
pub(crate) const COLUMNS: usize = 6;

/// The columns of a row.
pub(crate) const HEADINGS: [&str; COLUMNS] =
    ["WHERE", "MODE", "HELD BY", "SINCE", "LEASE", "WAITING"];

/// Shorter leases are shown with caution.
const SOON: Duration = Duration::from_secs(5);
/// A column is not made narrower than this.
const NARROWEST: usize = 12;

/// What is not known, or does not exist.
const NONE: &str = "–";

/// One row of the table.
#[derive(Clone, Debug)]
pub(crate) struct LockRow {
    /// The position of the lock in the list that the rows were made of.
    pub(crate) state: usize,
    pub(crate) cells: [String; COLUMNS],
    /// The tone of the lease.
    pub(crate) tone: Tone,
}

/// Sorts locks as a person would: `job-2` before `job-10`, a path before those below it.
pub(crate) fn sort(states: &mut [LockState]) {
    states.sort_by_cached_key(|state| natural_key(&state.place.to_string()));
}

/// Compares two texts by their parts: numbers by value, other text by its characters.
pub(crate) fn natural_order(one: &str, two: &str) -> Ordering {
    natural_key(one).cmp(&natural_key(two))
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum NamePart {
    /// Sorts before everything else, so that a path comes before those below it.
    Slash,
    /// Length without leading zeros, digits, length.
    Number(usize, String, usize),
    Text(String),
}

fn natural_key(text: &str) -> Vec<NamePart> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let kind = |c: char| (c == '/', c.is_ascii_digit());
        let end = match first {
            '/' => 1,
            _ => rest.find(|c| kind(c) != kind(first)).unwrap_or(rest.len()),
        };
        let (part, after) = rest.split_at(end);
        rest = after;
        parts.push(match first {
            '/' => NamePart::Slash,
            '0'..='9' => {
                let digits = part.trim_start_matches('0');
                NamePart::Number(digits.len(), digits.to_owned(), part.len())
            }
            _ => NamePart::Text(part.to_owned()),
        });
    }
    parts
}

/// Returns one row per hold, and one for an address that has only waiters or notes.
pub(crate) fn rows(states: &[LockState]) -> Vec<LockRow> {
    let mut rows = Vec::new();
    for (at, state) in states.iter().enumerate() {
        let start = rows.len();
        if !state.not_a_record {
            rows.extend(state.holders.iter().map(|holder| row(at, state, holder)));
        }
        if rows.len() == start {
            let note = match state.not_a_record {
                true => "not a lock record".to_owned(),
                false => note(states, state),
            };
            let mut cells = [(); COLUMNS].map(|()| NONE.to_owned());
            cells[0] = state.place.to_string();
            cells[2] = note;
            cells[5] = waiting(state);
            rows.push(LockRow {
                state: at,
                cells,
                tone: Tone::Quiet,
            });
        }
    }
    rows
}

/// Explains why there are waiters where no lock is held: a lock above or below is in the way.
fn note(states: &[LockState], state: &LockState) -> String {
    if let Some(note) = state.notes.first() {
        return note.clone();
    }
    let path = |place: &Address| match place {
        Address::Daemon { path, .. } => Some(path.clone()),
        _ => None,
    };
    let Some(here) = path(&state.place) else {
        return NONE.to_owned();
    };
    let related = states.iter().find(|other| {
        let there = path(&other.place);
        let overlaps =
            there.is_some_and(|there| there.is_ancestor_of(&here) || here.is_ancestor_of(&there));
        overlaps && !other.holders.is_empty()
    });
    related.map_or_else(
        || NONE.to_owned(),
        |other| format!("held at {}", other.place),
    )
}

fn row(at: usize, state: &LockState, hold: &Blocker) -> LockRow {
    let (lease, tone) = match (hold.lease_left, hold.verdict.life) {
        (Some(left), _) => (
            duration(left),
            if left < SOON {
                Tone::Caution
            } else {
                Tone::Plain
            },
        ),
        (None, HolderLiveness::Alive) => ("alive".to_owned(), Tone::Good),
        (None, HolderLiveness::Dead) => ("dead".to_owned(), Tone::Bad),
        (None, HolderLiveness::Unknown) => ("unknown".to_owned(), Tone::Caution),
    };
    let mode = match (hold.mode, state.permits) {
        (Mode::Permit(_), Some(permits)) => format!("permit {}/{}", permits.held, permits.of),
        (mode, _) => mode.name().to_owned(),
    };
    let cells = [
        hold.place.to_string(),
        mode,
        hold.holder.to_string(),
        hold.held_for.map_or_else(|| NONE.to_owned(), duration),
        lease,
        waiting(state),
    ];
    LockRow {
        state: at,
        cells,
        tone,
    }
}

fn waiting(state: &LockState) -> String {
    match &state.waiters {
        // Lock files and repositories have no queue.
        None => NONE.to_owned(),
        Some(waiters) => waiters.len().to_string(),
    }
}

/// Formats a duration as all messages do.
pub(crate) fn duration(time: Duration) -> String {
    tenure::HumanDuration(time).to_string()
}

/// Returns the widths of the columns, so that a row with two spaces between columns fits into
/// `width`. Only the address and the holder become narrower.
pub(crate) fn widths(rows: &[LockRow], width: Option<usize>) -> [usize; COLUMNS] {
    let mut widths = HEADINGS.map(|heading| heading.chars().count());
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(&row.cells) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let Some(limit) = width else {
        return widths;
    };
    let fixed = widths[1] + widths[3] + widths[4] + widths[5] + 2 * (COLUMNS - 1);
    let free = limit.saturating_sub(fixed).max(2 * NARROWEST);
    let [place, holder] = [widths[0], widths[2]];
    if place + holder > free {
        // The address has the first claim to three fifths, and each to what the other leaves.
        let most = (free * 3 / 5).max(free.saturating_sub(holder));
        widths[0] = place.min(most);
        widths[2] = holder.min(free - widths[0]);
    }
    widths
}

/// Shortens the cells of a row to these widths.
pub(crate) fn fit(row: &LockRow, widths: &[usize; COLUMNS]) -> [String; COLUMNS] {
    let mut cells = row.cells.clone();
    cells[0] = terminal::cut_middle(&cells[0], widths[0]);
    cells[2] = terminal::cut_end(&cells[2], widths[2]);
    cells
}

/// Formats rows under headings, with aligned columns.
pub(crate) fn layout(rows: &[LockRow], width: Option<usize>, colored: bool) -> String {
    let widths = widths(rows, width);
    let line = |cells: [String; COLUMNS], tones: [Tone; COLUMNS]| {
        let mut line = String::new();
        let last = cells.iter().rposition(|cell| !cell.is_empty()).unwrap_or(0);
        for (at, cell) in cells.iter().enumerate().take(last + 1) {
            let length = cell.chars().count();
            line.push_str(&tones[at].paint(cell, colored));
            if at < last {
                line.push_str(&" ".repeat(widths[at].saturating_sub(length) + 2));
            }
        }
        line
    };
    let mut lines = vec![line(HEADINGS.map(str::to_owned), [Tone::Strong; COLUMNS])];
    for row in rows {
        let mut tones = [Tone::Plain; COLUMNS];
        tones[4] = row.tone;
        lines.push(line(fit(row, &widths), tones));
    }
    lines.join("\n")
}

/// Formats the waiters of a lock, one per line, in queue order.
pub(crate) fn waiter_lines(state: &LockState) -> Vec<String> {
    let waiters = state.known_waiters().iter().enumerate();
    waiters
        .map(|(at, waiter)| format!("{}. {waiter}", at + 1))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(cells: [&str; COLUMNS]) -> LockRow {
        LockRow {
            state: 0,
            cells: cells.map(str::to_owned),
            tone: Tone::Good,
        }
    }

    #[test]
    fn columns_line_up() {
        let row = row(["a", "exclusive", "ci-7 (pid 1)", "3 s", "alive", "0"]);
        assert_eq!(
            layout(&[row], None, false),
            "WHERE  MODE       HELD BY       SINCE  LEASE  WAITING\n\
             a      exclusive  ci-7 (pid 1)  3 s    alive  0"
        );
    }

    /// No line is longer than the terminal; what is short stays whole.
    #[test]
    fn a_table_fits_into_the_terminal() {
        let long = [
            "tenant:/acme/projects/27/files/report-2026.pdf",
            "exclusive",
            "worker-27 (pid 123456 on atlas.example.com) for nightly import",
            "27 min",
            "59 min",
            "5",
        ];
        for width in [80, 120] {
            let table = layout(&[row(long)], Some(width), false);
            for line in table.lines() {
                assert!(line.chars().count() <= width, "{line}");
            }
            assert!(
                table.contains("pdf") && table.contains("worker-27"),
                "{table}"
            );
        }
        assert!(layout(&[row(long)], None, false).contains(long[2]));
        let short = ["a", "shared", "b", "1 s", "2 s", "0"];
        assert!(!layout(&[row(short)], Some(80), false).contains('…'));
    }

    #[test]
    fn numbers_in_names_are_sorted_by_their_value() {
        let mut names = vec![
            "t:/job-10",
            "t:/job-2",
            "t:/job-2/a",
            "t:/job",
            "t:/job-02",
            "t:/a",
        ];
        names.sort_by(|one, two| natural_order(one, two));
        assert_eq!(
            names,
            [
                "t:/a",
                "t:/job",
                "t:/job-2",
                "t:/job-2/a",
                "t:/job-02",
                "t:/job-10"
            ]
        );
    }
}
