//! Paths and namespaces, parsed and validated once at the boundary (R1–R6, R11 namespace strings,
//! R20 which paths a namespace contains).
//!
//! A path is `handler:/a/b/c`. Inside the engine a path is always one of these types, never a
//! `&str`.

use alloc::sync::Arc;
use core::fmt;

use crate::byte_search::{find, until_slash};
use crate::segment::Segments;
use crate::value::Invalid;

/// `handler:/a/b`, known to be well formed (R1–R4). Compared byte by byte (R5: paths compare byte
/// by byte). Cheap to clone: the text is shared.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Path {
    text: Arc<str>,
    // The index of the `:`. At most 4095, so it fits.
    colon: u16,
}

impl Path {
    /// Maximum length of a path, in bytes.
    pub const MAX_BYTES: usize = 4096;
    /// Maximum number of segments of a path.
    pub const MAX_SEGMENTS: usize = 256;

    /// Parses a path.
    pub fn parse(text: &str) -> Result<Path, Invalid> {
        let colon = Path::check(text)?;
        Ok(Path {
            text: text.into(),
            colon,
        })
    }

    /// Validates a path; returns the index of its `:`.
    fn check(text: &str) -> Result<u16, Invalid> {
        // All special characters are ASCII, so the check works on bytes.
        let bytes = text.as_bytes();
        if bytes.is_empty() || bytes.len() > Self::MAX_BYTES {
            return Err(Invalid::Path("1 to 4096 bytes are allowed"));
        }
        if has_control(bytes) {
            return Err(Invalid::Path("U+0000 and U+001F are not allowed"));
        }
        let colon = find(bytes, b':').ok_or(Invalid::Path("it must be `handler:/…`"))?;
        let (handler, rest) = (&bytes[..colon], &bytes[colon + 1..]);
        if handler.is_empty() || handler.contains(&b'/') {
            return Err(Invalid::Path(
                "the handler must not be empty nor contain `/`",
            ));
        }
        let Some(mut tail) = rest.strip_prefix(b"/") else {
            return Err(Invalid::Path(
                "after the handler's `:` it must start with `/`",
            ));
        };
        let mut count = 0;
        while !tail.is_empty() || count > 0 {
            let (segment, rest) = tail.split_at(until_slash(tail));
            if matches!(segment, b"" | b"." | b"..") {
                return Err(Invalid::Path(
                    "empty segments, `.` and `..` are not allowed",
                ));
            }
            count += 1;
            match rest.strip_prefix(b"/") {
                Some(rest) => tail = rest,
                None => break,
            }
        }
        if count > Self::MAX_SEGMENTS {
            return Err(Invalid::Path("at most 256 segments are allowed"));
        }
        u16::try_from(colon).map_err(|_| Invalid::Path("the handler is too long"))
    }

    /// Creates a path from parts of valid ones, without validation.
    pub(crate) fn trusted(text: alloc::string::String) -> Path {
        let colon = text.find(':').unwrap_or(0);
        Path {
            // A valid path's handler is shorter than the longest path.
            colon: u16::try_from(colon).unwrap_or(0),
            text: text.into(),
        }
    }

    /// Returns the path as a string.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the part before the first `:`.
    pub fn handler(&self) -> &str {
        &self.text[..usize::from(self.colon)]
    }

    /// Iterates over the segments from the top; empty for the handler root `h:/`.
    pub fn segments(&self) -> impl Iterator<Item = &str> {
        Segments::of(&self.text[usize::from(self.colon) + 2..])
    }

    /// Returns the number of segments.
    pub fn depth(&self) -> usize {
        self.segments().count()
    }

    /// Returns whether `other` is strictly below `self` (R6).
    pub fn is_ancestor_of(&self, other: &Path) -> bool {
        self.text.len() < other.text.len() && covers(&self.text, &other.text)
    }
}

/// Whether U+0000 or U+001F is in a text.
fn has_control(bytes: &[u8]) -> bool {
    find(bytes, 0).is_some() || find(bytes, 0x1f).is_some()
}

/// Whether `path` is `root` or lies below it, both being texts of valid paths.
fn covers(root: &str, path: &str) -> bool {
    match path.strip_prefix(root) {
        Some("") => true,
        // `h:/` is the only path that ends in `/`.
        Some(rest) => root.ends_with('/') || rest.starts_with('/'),
        None => false,
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.text, f)
    }
}

/// The name of a namespace: a bare handler or a path (R11). The unit of conflict and of sharding.
/// Cheap to clone: the text is shared.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Namespace(Arc<str>);

impl Namespace {
    /// The longest bare handler, in bytes. A name with `:` is as long as a path may be.
    pub const MAX_HANDLER_BYTES: usize = 1024;

    /// Parses a namespace string.
    pub fn parse(text: &str) -> Result<Namespace, Invalid> {
        let bytes = text.as_bytes();
        if bytes.contains(&b':') {
            return match Path::check(text) {
                Ok(_) => Ok(Namespace(text.into())),
                Err(Invalid::Path(what)) => Err(Invalid::Namespace(what)),
                Err(other) => Err(other),
            };
        }
        if text.is_empty() || text.len() > Self::MAX_HANDLER_BYTES {
            return Err(Invalid::Namespace("a bare handler has 1 to 1024 bytes"));
        }
        if bytes.contains(&b'/') || has_control(bytes) {
            return Err(Invalid::Namespace(
                "a bare handler has no `/`, U+0000 nor U+001F",
            ));
        }
        Ok(Namespace(text.into()))
    }

    /// Returns the fallback namespace of a path: handler and first `prefix_segments` segments (R22:
    /// fallback namespace).
    pub fn fallback(path: &Path, prefix_segments: usize) -> Namespace {
        Namespace(Namespace::fallback_name(path, prefix_segments).into())
    }

    /// The name of [`Namespace::fallback`].
    pub(crate) fn fallback_name(path: &Path, prefix_segments: usize) -> &str {
        if prefix_segments == 0 {
            return path.handler();
        }
        let start = usize::from(path.colon) + 2;
        let mut end = start + until_slash(&path.text.as_bytes()[start..]);
        for _ in 1..prefix_segments {
            if let Some(rest) = path.text.as_bytes().get(end + 1..) {
                end += 1 + until_slash(rest);
            }
        }
        &path.text[..end]
    }

    /// Returns the name as a string.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the handler whose paths it may contain.
    pub fn handler(&self) -> &str {
        self.0.split(':').next().unwrap_or(&self.0)
    }

    /// Returns whether this is a bare handler, without `:`.
    pub fn is_bare(&self) -> bool {
        !self.0.contains(':')
    }

    /// Returns whether the path is below this name. Ignores nested explicit namespaces (R20).
    pub fn contains(&self, path: &Path) -> bool {
        // No bare handler covers a path as text, and no other name is a handler.
        covers(&self.0, path.as_str()) || *self.0 == *path.handler()
    }

    /// Returns whether the text of a path or of a namespace is this name or below it.
    pub fn covers_text(&self, text: &str) -> bool {
        if self.is_bare() {
            let handler = text.split(':').next().unwrap_or(text);
            return *self.0 == *handler;
        }
        covers(&self.0, text)
    }

    /// Returns the part of a path after the name. The path must be in this namespace.
    pub(crate) fn rest<'a>(&self, path: &'a Path) -> &'a str {
        path.as_str().get(self.0.len()..).unwrap_or("")
    }

    /// Returns the path of this namespace with `rest` after the name.
    pub(crate) fn path(&self, rest: &str) -> Path {
        Path::trusted([self.as_str(), rest].concat())
    }

    /// Returns whether this namespace contains every path of `inner` and differs from it.
    pub fn encloses(&self, inner: &Namespace) -> bool {
        if self == inner || inner.is_bare() {
            return false;
        }
        if self.is_bare() {
            *self.0 == *inner.handler()
        } else {
            covers(&self.0, &inner.0)
        }
    }
}

impl core::borrow::Borrow<str> for Namespace {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}
