//! History: a bounded ring of the recent changes of holds and waiters (E22: History).
//!
//! ```text
//!   blocks   [ change · change · … ][ change · … ][ change · …       ]
//!            ▲ the oldest block is dropped whole when the budget is used up
//! ```
//!
//! Every replica feeds its own ring with the entries that it applies, so a new leader has the
//! changes that the old one had. The ring is not part of the replicated state: no outcome depends on
//! it, and a snapshot does not contain it. After a start it begins with the entries that the replica
//! applies again.

use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;

use crate::codec::{Reader, Writer};
use crate::event::ChangeKind;
use crate::path::Namespace;
use crate::policy::{Algorithm, Mode};
use crate::query::{HistoryEvent, HistoryPage};
use crate::value::{Fence, Holder, OwnerId};

/// Block size. A block is dropped as a whole.
const BLOCK: usize = 8192;
/// Longest part of each text of a holder description that is kept.
const HOLDER_TEXT: usize = 120;
/// Upper bound of the encoded size of a change's numbers.
const NUMBERS: usize = 48;

/// The recent changes of one space.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    blocks: VecDeque<Block>,
    /// Maximum bytes of all blocks; zero switches the history off.
    budget: usize,
    bytes: usize,
    /// The wall time from which on no change is missing; zero if none ever was.
    complete_since: u64,
    has_begun: bool,
}

#[derive(Clone, Debug)]
struct Block {
    /// The largest wall time of a change in the block: wall clocks of leaders differ.
    newest: u64,
    bytes: Vec<u8>,
}

/// One change, as it is reported.
pub(crate) struct Noted<'a> {
    pub(crate) kind: ChangeKind,
    pub(crate) path: &'a str,
    pub(crate) owner: Option<&'a OwnerId>,
    pub(crate) mode: Option<Mode>,
    pub(crate) fence: Option<Fence>,
    pub(crate) holder: Option<&'a Holder>,
}

impl History {
    /// Keeps changes from now on. `since` is the present wall time, or zero if nothing was ever
    /// applied.
    pub(crate) fn keep(&mut self, budget: usize, since: u64) {
        self.budget = budget;
        self.complete_since = since;
    }

    pub(crate) fn is_kept(&self) -> bool {
        self.budget > 0
    }

    /// Notes the wall time of an entry. The first one may be an old one that is applied again after
    /// a start: the history is complete from there on.
    pub(crate) fn pass_time(&mut self, wall: u64) {
        if !self.has_begun {
            self.has_begun = true;
            self.complete_since = self.complete_since.min(wall);
        }
    }

    /// Adds the newest change.
    pub(crate) fn note(&mut self, wall: u64, change: &Noted<'_>) {
        let owner = change.owner.map_or("", OwnerId::as_str);
        let texts = change.path.len() + owner.len() + 3 * HOLDER_TEXT;
        let block = match self.blocks.back_mut() {
            Some(block) if block.bytes.len() + NUMBERS + texts <= BLOCK => block,
            _ => {
                self.make_room(BLOCK.max(NUMBERS + texts));
                let first = self.blocks.is_empty();
                self.blocks.push_back(Block {
                    newest: wall,
                    // Most groups never fill a block.
                    bytes: Vec::with_capacity(if first { 0 } else { BLOCK }),
                });
                match self.blocks.back_mut() {
                    Some(block) => block,
                    None => return,
                }
            }
        };
        let before = block.bytes.len();
        block.newest = block.newest.max(wall);
        let mut out = Writer::append_to(core::mem::take(&mut block.bytes));
        out.byte(kind_number(change.kind));
        out.byte(change.mode.map_or(0, |mode| mode as u8 + 1));
        out.number(wall);
        out.number(change.fence.map_or(0, Fence::number));
        out.text(change.path);
        out.text(owner);
        match change.holder {
            None => out.byte(0),
            Some(holder) => {
                out.byte(1);
                out.number(u64::from(holder.pid));
                for text in [&holder.name, &holder.host, &holder.purpose] {
                    out.text(start_of(text, HOLDER_TEXT));
                }
            }
        }
        block.bytes = out.into_bytes();
        self.bytes += block.bytes.len() - before;
    }

    /// Drops the oldest blocks until the budget has room for so many bytes.
    fn make_room(&mut self, bytes: usize) {
        while self.bytes + bytes > self.budget
            && let Some(oldest) = self.blocks.pop_front()
        {
            self.bytes -= oldest.bytes.len();
            self.complete_since = self.complete_since.max(oldest.newest);
        }
    }

    /// Returns the newest changes at or below a prefix, in the order in which they were applied.
    pub(crate) fn page(&self, prefix: Option<&Namespace>, since: u64, most: usize) -> HistoryPage {
        // The newest block first, so that a page costs what is in it.
        let mut found: Vec<HistoryEvent> = Vec::new();
        let mut is_cut = false;
        for block in self.blocks.iter().rev() {
            if block.newest < since {
                continue;
            }
            if found.len() >= most {
                is_cut = true;
                break;
            }
            let mut input = Reader::new(&block.bytes);
            let mut events = Vec::new();
            while let Some(event) = take(&mut input, prefix, since) {
                events.extend(event);
            }
            found.extend(events.into_iter().rev());
        }
        is_cut |= found.len() > most;
        found.truncate(most);
        found.reverse();
        HistoryPage {
            events: found,
            complete_since: self.complete_since,
            is_cut,
        }
    }
}

/// Reads the next change: `None` at the end, `Some(None)` for a change that was not asked for.
fn take(
    input: &mut Reader<'_>,
    prefix: Option<&Namespace>,
    since: u64,
) -> Option<Option<HistoryEvent>> {
    let kind = kind_of(input.byte().ok()?)?;
    let mode = match input.byte().ok()? {
        0 => None,
        number => Mode::ALL.get(usize::from(number) - 1).copied(),
    };
    let wall = input.number().ok()?;
    let fence = Fence::from_number(input.number().ok()?);
    let path = input.text().ok()?;
    let owner = input.text().ok()?;
    let holder = match input.byte().ok()? {
        0 => None,
        _ => {
            let pid = u32::try_from(input.number().ok()?).ok()?;
            let texts = (input.text().ok()?, input.text().ok()?, input.text().ok()?);
            Some((pid, texts))
        }
    };
    if wall < since || prefix.is_some_and(|prefix| !prefix.covers_text(path)) {
        return Some(None);
    }
    Some(Some(HistoryEvent {
        wall,
        kind,
        path: String::from(path),
        owner: OwnerId::new(owner).ok(),
        mode,
        fence,
        holder: holder.map(|(pid, (name, host, purpose))| Holder {
            name: name.into(),
            host: host.into(),
            pid,
            purpose: purpose.into(),
            labels: Vec::new(),
        }),
    }))
}

/// Returns the start of a text, cut between characters.
fn start_of(text: &str, bytes: usize) -> &str {
    let mut end = text.len().min(bytes);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

fn kind_number(kind: ChangeKind) -> u8 {
    match kind {
        ChangeKind::Granted => 0,
        ChangeKind::Queued => 1,
        ChangeKind::Released => 2,
        ChangeKind::Expired => 3,
        ChangeKind::Killed => 4,
        ChangeKind::Dequeued => 5,
        ChangeKind::Asked => 6,
        ChangeKind::Policy { algorithm } => 16 + algorithm as u8,
    }
}

fn kind_of(number: u8) -> Option<ChangeKind> {
    Some(match number {
        0 => ChangeKind::Granted,
        1 => ChangeKind::Queued,
        2 => ChangeKind::Released,
        3 => ChangeKind::Expired,
        4 => ChangeKind::Killed,
        5 => ChangeKind::Dequeued,
        6 => ChangeKind::Asked,
        number => ChangeKind::Policy {
            algorithm: Algorithm::ALL
                .into_iter()
                .find(|algorithm| 16 + *algorithm as u8 == number)?,
        },
    })
}

#[cfg(test)]
mod tests {
    use alloc::format;

    use super::*;

    fn noted<'a>(path: &'a str, owner: &'a OwnerId, holder: Option<&'a Holder>) -> Noted<'a> {
        Noted {
            kind: ChangeKind::Granted,
            path,
            owner: Some(owner),
            mode: Some(Mode::Write),
            fence: Fence::from_number(7),
            holder,
        }
    }

    #[test]
    fn what_comes_out_is_what_went_in_and_long_texts_are_cut_between_characters() {
        let mut history = History::default();
        history.keep(1 << 20, 8);
        let amy = OwnerId::new("amy").unwrap();
        let holder = Holder {
            name: "n".into(),
            host: "h".into(),
            pid: 9,
            purpose: "ü".repeat(100),
            labels: Vec::new(),
        };
        history.pass_time(5);
        history.note(10, &noted("t:/a/b", &amy, Some(&holder)));
        history.note(11, &noted("t:/ab", &amy, None));
        let policy = ChangeKind::Policy {
            algorithm: Algorithm::Semaphore,
        };
        history.note(
            12,
            &Noted {
                kind: policy,
                path: "t",
                owner: None,
                mode: None,
                fence: None,
                holder: None,
            },
        );
        let all = history.page(None, 0, 100);
        assert_eq!((all.events.len(), all.complete_since), (3, 5));
        assert_eq!(all.events[0].holder.as_ref().unwrap().purpose.len(), 120);
        assert_eq!((all.events[2].kind, &*all.events[2].path), (policy, "t"));
        let below = Namespace::parse("t:/a").unwrap();
        let below = history.page(Some(&below), 0, 100);
        assert_eq!(below.events.len(), 1, "t:/ab is not below t:/a");
        assert_eq!(history.page(None, 11, 100).events.len(), 2);
        let newest = history.page(None, 0, 1);
        assert!(newest.is_cut && newest.events[0].wall == 12);
    }

    /// The memory stays within the budget, and the page says from when on it is complete.
    #[test]
    fn the_oldest_changes_make_room_and_the_page_says_so() {
        let mut history = History::default();
        let budget = 8 * BLOCK;
        history.keep(budget, 0);
        let owner = OwnerId::new(&"o".repeat(900)).unwrap();
        history.pass_time(1);
        for wall in 1..1000 {
            history.note(wall, &noted(&format!("t:/{wall}"), &owner, None));
            let room: usize = history.blocks.iter().map(|one| one.bytes.capacity()).sum();
            assert!(room <= budget + BLOCK, "{room}");
        }
        let page = history.page(None, 0, usize::MAX);
        let first = page.events.first().unwrap().wall;
        assert!(first > 900 && page.complete_since == first - 1);
        assert_eq!(page.events.last().unwrap().wall, 999);
        assert!(
            page.events
                .windows(2)
                .all(|two| two[0].wall + 1 == two[1].wall)
        );
    }
}
