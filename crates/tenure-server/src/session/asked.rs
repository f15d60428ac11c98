//! Fence-checks that a session has asked before: whoever holds a lock asks the same again and again, and what was
//! asked is read once.

use std::hash::Hasher as _;

use rustc_hash::FxHasher;
use tenure_node::ClientRequest;

use super::short;

/// So many are remembered, each in a place of its own: a newer one takes it.
const PLACES: usize = 128;
/// Longer ones are not.
const LONGEST: usize = 256;

/// See the module. Most sessions ask for little, so a place is small until it is taken.
#[derive(Default)]
pub(super) struct AskedBefore(Vec<Option<Box<Known>>>);

struct Known {
    bytes: Box<[u8]>,
    request: ClientRequest,
}

impl AskedBefore {
    /// What the fields of a fence-check ask; nothing where they are unusual, or wrong.
    pub(super) fn request(&mut self, bytes: &[u8]) -> Option<&ClientRequest> {
        if bytes.len() > LONGEST {
            return None;
        }
        if self.0.is_empty() {
            self.0.resize_with(PLACES, || None);
        }
        let mut hasher = FxHasher::default();
        hasher.write(bytes);
        let place = &mut self.0[hasher.finish() as usize % PLACES];
        if place.as_ref().is_none_or(|known| *known.bytes != *bytes) {
            *place = Some(Box::new(Known {
                request: short::parse(bytes)?.ok()?,
                bytes: bytes.into(),
            }));
        }
        place.as_ref().map(|known| &known.request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handlers::wire;

    fn fields(owner: &str, path: &str) -> Vec<u8> {
        let text = |key: u8, text: &str| {
            let length = u8::try_from(text.len()).unwrap();
            [&[key, length][..], text.as_bytes()].concat()
        };
        [text(10, owner), vec![16, 7], text(26, path)].concat()
    }

    /// Whatever was asked in between, and wherever it is remembered.
    #[test]
    fn what_was_asked_before_is_what_is_asked() {
        let mut before = AskedBefore::default();
        for round in 0..3 {
            for number in 0..4 * PLACES {
                let (owner, path) = (format!("amy-{number}"), format!("t:/{}", number % 7));
                let found = before.request(&fields(&owner, &path));
                let wanted = wire::check_fencing(&owner, 7, &[&path]).ok();
                assert_eq!(format!("{found:?}"), format!("{:?}", wanted.as_ref()));
                assert!(found.is_some(), "round {round}");
            }
        }
        assert!(before.request(b"no fence-check").is_none());
        assert!(before.request(&fields("amy", "no path")).is_none());
    }
}
