//! A fence-check of one path, read from its bytes without copies of its texts.
//!
//! This is what a session is asked most often. Whatever looks unusual is left to the generated
//! reader: nothing here decides what a message means otherwise.

use tenure_node::ClientRequest;

use crate::handlers::wire;
use crate::status::Failure;

/// Keys of `SessionRequest`: a field's number and how it is written.
const ID: u8 = 1 << 3;
const ASSERT_FENCING: u8 = 6 << 3 | 2;

/// Keys of `AssertFencingRequest`.
const OWNER: u8 = 1 << 3 | 2;
const TOKEN: u8 = 2 << 3;
const PATH: u8 = 3 << 3 | 2;

/// The id of a fence-check and what it asks. Nothing where a field is missing, repeated, out of order or
/// unknown.
pub(super) fn fence_check(message: &[u8]) -> Option<(u64, Result<ClientRequest, Failure>)> {
    let (id, check) = split(message)?;
    Some((id, parse(check)?))
}

/// The id of a fence-check, and its fields: equal ones ask the same.
pub(super) fn split(message: &[u8]) -> Option<(u64, &[u8])> {
    let mut message = Fields(message);
    message.key(ID)?;
    let id = message.number().filter(|id| *id != 0)?;
    message.key(ASSERT_FENCING)?;
    let check = message.bytes()?;
    message.0.is_empty().then_some((id, check))
}

/// What the fields of a fence-check ask.
pub(super) fn parse(check: &[u8]) -> Option<Result<ClientRequest, Failure>> {
    let mut check = Fields(check);
    check.key(OWNER)?;
    let owner = check.text()?;
    check.key(TOKEN)?;
    let token = check.number()?.cast_signed();
    check.key(PATH)?;
    let path = check.text()?;
    let is_all = check.0.is_empty();
    is_all.then(|| wire::check_fencing(owner, token, &[path]))
}

/// What is left of a message.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn key(&mut self, wanted: u8) -> Option<()> {
        (self.byte()? == wanted).then_some(())
    }

    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        // A tenth byte would hold one bit.
        for shift in (0..63).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.number()?).ok()?;
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    fn text(&mut self) -> Option<&'a str> {
        std::str::from_utf8(self.bytes()?).ok()
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use tenure_wire::v1;

    use super::*;

    fn message(id: u64, owner_id: &str, fencing_token: i64, paths: &[&str]) -> Vec<u8> {
        let check = v1::AssertFencingRequest {
            owner_id: owner_id.to_owned(),
            fencing_token,
            paths: paths.iter().map(|path| (*path).to_owned()).collect(),
        };
        let op = Some(v1::session_request::Op::AssertFencing(check));
        v1::SessionRequest { id, op }.encode_to_vec()
    }

    /// What the generated reader makes of the same bytes.
    fn long(bytes: &[u8]) -> Option<(u64, Result<ClientRequest, Failure>)> {
        let message = v1::SessionRequest::decode(bytes).ok()?;
        let id = message.id;
        Some((id, super::super::parse(message).map(|(_, request)| request)))
    }

    fn shown(found: Option<(u64, Result<ClientRequest, Failure>)>) -> String {
        format!("{found:?}")
    }

    /// R73, E10: read the short way or the long way, it is the same request or the same refusal.
    #[test]
    fn the_short_way_says_what_the_long_way_says() {
        for bytes in [
            message(1, "amy", 7, &["t:/a"]),
            message(u64::MAX >> 1, "amy", i64::MAX, &["t:/a/b"]),
            message(300, "\0", 7, &["t:/a"]),
            message(2, "amy", 7, &["nothing"]),
        ] {
            let short = fence_check(&bytes);
            assert!(short.is_some(), "{bytes:?}");
            assert_eq!(shown(short), shown(long(&bytes)));
        }
    }

    #[test]
    fn what_is_unusual_goes_the_long_way() {
        let usual = message(1, "amy", 7, &["t:/a"]);
        let twice = [&usual[..], &usual].concat();
        let with_more = [&usual[..], &[0x7a, 0]].concat();
        for bytes in [
            message(0, "amy", 7, &["t:/a"]),
            message(1, "", 7, &["t:/a"]),
            message(1, "amy", 0, &["t:/a"]),
            message(1, "amy", -1, &["t:/a"]),
            message(1, "amy", 7, &[]),
            message(1, "amy", 7, &["t:/a", "t:/b"]),
            v1::SessionRequest { id: 1, op: None }.encode_to_vec(),
            twice,
            with_more,
        ] {
            assert!(fence_check(&bytes).is_none(), "{bytes:?}");
        }
        for end in 0..usual.len() {
            assert!(fence_check(&usual[..end]).is_none(), "cut at {end}");
        }
    }
}
