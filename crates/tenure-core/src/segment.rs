//! Path segments: the names of tree nodes, and the iterator from a path to its segments.

use alloc::boxed::Box;

use crate::byte_search::until_slash;
use crate::path::{Namespace, Path};

/// The name of a node. Short names, the usual case, are stored inline.
#[derive(Clone, Debug)]
pub(crate) enum Segment {
    Short { length: u8, bytes: [u8; SHORT] },
    Long(Box<str>),
}

const SHORT: usize = 22;

impl Segment {
    pub(crate) fn new(text: &str) -> Segment {
        match u8::try_from(text.len()) {
            Ok(length) if text.len() <= SHORT => {
                let mut bytes = [0; SHORT];
                bytes[..text.len()].copy_from_slice(text.as_bytes());
                Segment::Short { length, bytes }
            }
            _ => Segment::Long(text.into()),
        }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        match self {
            Segment::Short { length, bytes } => &bytes[..usize::from(*length)],
            Segment::Long(text) => text.as_bytes(),
        }
    }

    pub(crate) fn as_str(&self) -> &str {
        match self {
            // Always valid UTF-8: the bytes come from a `&str`.
            Segment::Short { .. } => core::str::from_utf8(self.as_bytes()).unwrap_or(""),
            Segment::Long(text) => text,
        }
    }
}

/// The segments of a path below the root of its namespace.
pub(crate) fn below_root<'a>(namespace: &Namespace, path: &'a Path) -> Segments<'a> {
    let text = path.as_str();
    let root = namespace.as_str().len();
    // Only a bare handler has the length of the path's handler; then `:/` follows, which is
    // skipped.
    let start = if root == path.handler().len() {
        root + 2
    } else {
        root
    };
    Segments::of(text.get(start..).unwrap_or(""))
}

/// Iterates over the parts of a string between slashes; skips empty ones.
#[derive(Clone)]
pub(crate) struct Segments<'a> {
    rest: &'a str,
}

impl<'a> Segments<'a> {
    pub(crate) fn of(text: &'a str) -> Segments<'a> {
        Segments { rest: text }
    }
}

impl<'a> Iterator for Segments<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let mut bytes = self.rest.as_bytes();
        let mut start = 0;
        while let [b'/', rest @ ..] = bytes {
            bytes = rest;
            start += 1;
        }
        if bytes.is_empty() {
            return None;
        }
        let length = until_slash(bytes);
        let segment = self.rest.get(start..start + length)?;
        self.rest = self.rest.get(start + length..)?;
        Some(segment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;

    #[test]
    fn short_and_long_names_come_back() {
        for length in [0, 1, SHORT, SHORT + 1, 300] {
            let text = "ä".repeat(length / 2) + &"x".repeat(length % 2);
            assert_eq!(Segment::new(&text).as_str(), text);
        }
    }

    #[test]
    fn segments_start_below_the_root() {
        let segments = |name, path| -> Vec<alloc::string::String> {
            let path = Path::parse(path).unwrap();
            below_root(&Namespace::parse(name).unwrap(), &path)
                .map(Into::into)
                .collect()
        };
        assert_eq!(segments("h", "h:/a/b"), vec!["a", "b"]);
        assert_eq!(segments("h:/", "h:/a/b"), vec!["a", "b"]);
        assert_eq!(segments("h:/a", "h:/a/b"), vec!["b"]);
        assert!(segments("h:/a", "h:/a").is_empty());
        assert!(segments("h", "h:/").is_empty());
    }
}
