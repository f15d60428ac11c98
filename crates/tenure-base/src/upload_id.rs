//! Validated identifier of an upload. It becomes part of file names, so it must not lead to another
//! directory (U2 (allowed identifiers)).

use std::fmt;

use crate::error::Class;

/// Bytes reserved for what is added to a name: `.` before, `.lock.tenure-<16 hex>` after (U2).
const SPARE: usize = 24;
/// Maximum length of a file name on Linux.
const NAME_MAX: usize = 255;

/// Identifier of an upload, such as `a/b-7`: one or more components of allowed characters, none of
/// them `.` or `..` (U2).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UploadId(Box<str>);

/// Why some text is not an [`UploadId`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UploadIdError {
    /// The text is empty.
    #[error("the upload identifier is empty")]
    Empty,
    /// A component is empty: `/x`, `a//b` or `a/`.
    #[error("the upload identifier has an empty component")]
    EmptyComponent,
    /// A component is `.` or `..`.
    #[error("the upload identifier would leave its directory")]
    Leaves,
    /// The text contains this character, which is not allowed.
    #[error("the upload identifier has the character {0:?}, which is not allowed")]
    Character(char),
    /// A component is too long for the file names made from it.
    #[error("a component of the upload identifier is longer than {} bytes", NAME_MAX - SPARE)]
    TooLong,
}

impl UploadIdError {
    /// Returns [`Class::BadInput`], for programs that sort failures by class.
    pub fn class(&self) -> Class {
        Class::BadInput
    }
}

impl UploadId {
    /// Validates `text`. A valid identifier is safe to use as a relative path.
    pub fn new(text: &str) -> Result<UploadId, UploadIdError> {
        if text.is_empty() {
            return Err(UploadIdError::Empty);
        }
        if let Some(bad) = text.chars().find(|c| !is_allowed(*c)) {
            return Err(UploadIdError::Character(bad));
        }
        for component in text.split('/') {
            match component {
                "" => return Err(UploadIdError::EmptyComponent),
                "." | ".." => return Err(UploadIdError::Leaves),
                _ if component.len() > NAME_MAX - SPARE => return Err(UploadIdError::TooLong),
                _ => {}
            }
        }
        Ok(UploadId(text.into()))
    }

    /// Returns the identifier as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the subdirectory, if any, and the last component.
    #[doc(hidden)]
    pub fn split(&self) -> (Option<&str>, &str) {
        match self.0.rsplit_once('/') {
            Some((dir, name)) => (Some(dir), name),
            None => (None, &self.0),
        }
    }
}

impl fmt::Display for UploadId {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_allowed(c: char) -> bool {
    c.is_ascii_alphanumeric() || "-._~%!$'()*+,;=/:@".contains(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// U2: the characters of the protocol, and names up to the limit.
    #[test]
    fn harmless_identifiers_are_accepted() {
        let longest = "x".repeat(231);
        for text in [
            "up",
            "a/b",
            "..a",
            "a..",
            ".hidden",
            "-._~%!$'()*+,;=:@",
            &longest,
        ] {
            assert_eq!(
                UploadId::new(text).map(|id| id.to_string()),
                Ok(text.to_owned())
            );
        }
    }

    /// U2: an identifier that could lead out of the directory or to another name is refused.
    #[test]
    fn identifiers_that_lead_elsewhere_are_refused() {
        let too_long = "x".repeat(232);
        for (text, expected) in [
            ("", UploadIdError::Empty),
            ("/x", UploadIdError::EmptyComponent),
            ("a//b", UploadIdError::EmptyComponent),
            ("a/", UploadIdError::EmptyComponent),
            ("../x", UploadIdError::Leaves),
            ("a/./b", UploadIdError::Leaves),
            ("a/..", UploadIdError::Leaves),
            ("a\0b", UploadIdError::Character('\0')),
            ("a b", UploadIdError::Character(' ')),
            ("a\nb", UploadIdError::Character('\n')),
            ("ü", UploadIdError::Character('ü')),
            (&too_long, UploadIdError::TooLong),
        ] {
            assert_eq!(UploadId::new(text), Err(expected), "{text:?}");
        }
    }
}
