//! Locks as a tree of their paths: `ls --tree` and `top`.

use std::collections::BTreeMap;

use tenure::LockState;

use crate::lock_table::{COLUMNS, LockRow, natural_order};
use crate::terminal::Tone;

/// A segment of a path, with what is below it.
#[derive(Default)]
struct PathSegment {
    below: BTreeMap<String, PathSegment>,
    rows: Vec<LockRow>,
}

/// Returns the rows as a tree: each lock below the path that contains it. A path without a lock of its
/// own has a row only where the tree branches.
pub(crate) fn rows(states: &[LockState], rows: Vec<LockRow>) -> Vec<LockRow> {
    let mut root = PathSegment::default();
    for row in rows {
        let Some(state) = states.get(row.state) else {
            continue;
        };
        let place = state.place.to_string();
        let mut at = &mut root;
        for segment in segments(&place) {
            at = at.below.entry(segment.to_owned()).or_default();
        }
        at.rows.push(row);
    }
    let mut shown = Vec::new();
    for (name, segment) in in_order(root.below) {
        draw(name, segment, "", None, &mut shown);
    }
    shown
}

/// Splits an address: scheme or handler with the first slash, then the segments.
fn segments(place: &str) -> Vec<&str> {
    let start = match (place.find("://"), place.find(":/")) {
        // The host belongs to the first segment.
        (Some(scheme), _) => place[scheme + 3..]
            .find('/')
            .map_or(place.len(), |at| scheme + 3 + at),
        (None, Some(handler)) => handler + 1,
        (None, None) => 0,
    };
    let (head, rest) = place.split_at(start);
    let mut segments: Vec<&str> = rest.split('/').filter(|part| !part.is_empty()).collect();
    if !head.is_empty() {
        segments.insert(0, head);
    }
    segments
}

fn in_order(below: BTreeMap<String, PathSegment>) -> Vec<(String, PathSegment)> {
    let mut below: Vec<_> = below.into_iter().collect();
    below.sort_by(|(one, _), (two, _)| natural_order(one, two));
    below
}

/// Whether a segment is the last one of its parent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Branch {
    Middle,
    Last,
}

fn draw(
    mut name: String,
    mut segment: PathSegment,
    indent: &str,
    branch: Option<Branch>,
    shown: &mut Vec<LockRow>,
) {
    // A chain of segments without locks is one row.
    while segment.rows.is_empty() && segment.below.len() == 1 {
        let Some((next, below)) = segment.below.pop_first() else {
            break;
        };
        name = format!("{name}/{next}");
        segment = below;
    }
    let (edge, deeper) = match branch {
        None => ("", ""),
        Some(Branch::Middle) => ("├─ ", "│  "),
        Some(Branch::Last) => ("└─ ", "   "),
    };
    let label = format!("{indent}{edge}{name}");
    let indent = format!("{indent}{deeper}");
    if segment.rows.is_empty() {
        let mut cells = [(); COLUMNS].map(|()| String::new());
        cells[0] = label.clone();
        shown.push(LockRow {
            state: usize::MAX,
            cells,
            tone: Tone::Plain,
        });
    }
    for (at, mut row) in segment.rows.into_iter().enumerate() {
        // Further holders of the same lock.
        row.cells[0] = match at {
            0 => label.clone(),
            _ => format!(
                "{indent}{}",
                if segment.below.is_empty() { "" } else { "│" }
            ),
        };
        shown.push(row);
    }
    let below = in_order(segment.below);
    let last = below.len().saturating_sub(1);
    for (at, (name, segment)) in below.into_iter().enumerate() {
        let branch = if at == last {
            Branch::Last
        } else {
            Branch::Middle
        };
        draw(name, segment, &indent, Some(branch), shown);
    }
}

#[cfg(test)]
mod tests {
    use super::segments;

    #[test]
    fn addresses_are_split_at_their_slashes() {
        assert_eq!(segments("tenant:/acme/7"), ["tenant:", "acme", "7"]);
        assert_eq!(segments("sidecar:./a"), ["sidecar:.", "a"]);
        assert_eq!(segments("s3://bucket/x"), ["s3://bucket", "x"]);
        assert_eq!(segments("tenure://h:1/t:/a"), ["tenure://h:1", "t:", "a"]);
    }
}
