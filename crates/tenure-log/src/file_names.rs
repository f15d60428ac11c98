//! File names in the data directory. Files with other names are never touched.
//!
//! ```text
//! lock                                  the directory lock
//! end                                   the end marker
//! log-00000000000000000007              a log file and its number
//! spare-00000000000000000003            a preallocated file; its bytes have no meaning
//! snapshot-12-4711                      group, index
//! snapshot-12-4711.partial              a snapshot that is being written
//! ```

use crate::snapshot::SnapshotId;

/// A parsed file name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileName {
    Log(u64),
    Spare(u64),
    Snapshot(SnapshotId),
    Partial(SnapshotId),
    End,
}

impl std::fmt::Display for FileName {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            FileName::Log(number) => write!(out, "log-{number:020}"),
            FileName::Spare(number) => write!(out, "spare-{number:020}"),
            FileName::Snapshot(SnapshotId { group, index }) => {
                write!(out, "snapshot-{group}-{index}")
            }
            FileName::Partial(id) => write!(out, "{}.partial", FileName::Snapshot(*id)),
            FileName::End => out.write_str("end"),
        }
    }
}

impl FileName {
    /// Parses a name. Returns `None` unless it is exactly a name that Tenure writes.
    pub(crate) fn parse(text: &str) -> Option<FileName> {
        let name = if let Some(number) = text.strip_prefix("log-") {
            FileName::Log(number.parse().ok()?)
        } else if text == "end" {
            FileName::End
        } else if let Some(number) = text.strip_prefix("spare-") {
            FileName::Spare(number.parse().ok()?)
        } else {
            let id = text.strip_prefix("snapshot-")?;
            match id.strip_suffix(".partial") {
                Some(id) => FileName::Partial(parse_id(id)?),
                None => FileName::Snapshot(parse_id(id)?),
            }
        };
        (name.to_string() == text).then_some(name)
    }
}

fn parse_id(text: &str) -> Option<SnapshotId> {
    let mut numbers = text.split('-').map(|part| part.parse().ok());
    let id = SnapshotId {
        group: numbers.next()??,
        index: numbers.next()??,
    };
    numbers.next().is_none().then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_nothing_else_is() {
        let id = SnapshotId {
            group: 12,
            index: 4711,
        };
        for name in [
            FileName::Log(7),
            FileName::Spare(3),
            FileName::Snapshot(id),
            FileName::Partial(id),
            FileName::End,
        ] {
            assert_eq!(FileName::parse(&name.to_string()), Some(name));
        }
        for foreign in [
            "lock",
            "log-7",
            "log-",
            "spare-x",
            "snapshot-1",
            "snapshot-1-2-3",
        ] {
            assert_eq!(FileName::parse(foreign), None, "{foreign}");
        }
        assert_eq!(FileName::parse("snapshot-01-2"), None);
        assert_eq!(FileName::parse("log-000000000000000000007"), None);
    }
}
