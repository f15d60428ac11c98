//! Parser for repository addresses: `repo:`, `s3://`, `gs://` and `az://` (P3 (store key prefix),
//! P41 (repository addresses and verbs)).

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The address of a repository: `repo:<dir>`, `s3://<bucket>/<prefix>`, `gs://…` or `az://…`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RepositoryAddress {
    /// A directory, local or on a network file system.
    Directory(PathBuf),
    /// A bucket in an object store.
    Bucket(Bucket),
}

/// A bucket and the prefix of the repository in it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Bucket {
    /// The kind of object store.
    pub scheme: Scheme,
    /// The name of the bucket or container.
    pub name: String,
    /// The prefix of all keys, without leading and trailing slashes. Empty if there is none.
    pub prefix: String,
}

/// The kinds of object store, one per URL scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// Amazon S3 and compatible stores.
    S3,
    /// Google Cloud Storage.
    Google,
    /// Azure Blob Storage.
    Azure,
}

impl Scheme {
    fn word(self) -> &'static str {
        match self {
            Scheme::S3 => "s3",
            Scheme::Google => "gs",
            Scheme::Azure => "az",
        }
    }
}

/// The error of a text that is not a repository address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// The scheme is unknown.
    #[error("`{0}` is no repository: write repo:<dir>, s3://<bucket>/<prefix>, gs://… or az://…")]
    Scheme(String),
    /// The text is the spelling of another program.
    #[error("`{given}` is another program's spelling: write {ours}")]
    Original {
        /// The text that was given.
        given: String,
        /// The equivalent spelling in Tenure.
        ours: String,
    },
    /// The text names no bucket or no directory.
    #[error("`{0}` names no {1}")]
    Empty(String, &'static str),
    /// The prefix contains a component that is empty, `.` or `..`, or a control character.
    #[error("the prefix of `{0}` has an empty, `.` or `..` component, or control characters")]
    Prefix(String),
}

impl FromStr for RepositoryAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<RepositoryAddress, AddressError> {
        if let Some(dir) = text.strip_prefix("repo:") {
            return match dir {
                "" => Err(AddressError::Empty(text.into(), "directory")),
                dir => Ok(RepositoryAddress::Directory(dir.into())),
            };
        }
        for scheme in [Scheme::S3, Scheme::Google, Scheme::Azure] {
            let rest = text
                .strip_prefix(scheme.word())
                .and_then(|text| text.strip_prefix("://"));
            if let Some(rest) = rest {
                return bucket(text, scheme, rest);
            }
        }
        Err(foreign(text))
    }
}

fn bucket(text: &str, scheme: Scheme, rest: &str) -> Result<RepositoryAddress, AddressError> {
    let (name, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    if name.trim().is_empty() {
        return Err(AddressError::Empty(text.into(), "bucket"));
    }
    let prefix = prefix.trim_matches(|c: char| c.is_whitespace() || c == '/');
    let is_bad = |part: &str| matches!(part, "" | "." | "..") || part.contains(char::is_control);
    if !prefix.is_empty() && prefix.split('/').any(is_bad) {
        return Err(AddressError::Prefix(text.into()));
    }
    Ok(RepositoryAddress::Bucket(Bucket {
        scheme,
        name: name.into(),
        prefix: prefix.into(),
    }))
}

fn foreign(text: &str) -> AddressError {
    let original = |ours: String| AddressError::Original {
        given: text.into(),
        ours,
    };
    if let Some(path) = text.strip_prefix("local:") {
        return original(format!("repo:{path}"));
    }
    if let Some(rest) = text.strip_prefix("s3:") {
        return original(format!("s3://{rest}"));
    }
    if let Some(rest) = text.strip_prefix("b2:") {
        return original(format!("s3://{rest}, with the provider's S3 endpoint"));
    }
    if text.starts_with("sftp://") {
        return original("repo:<dir>, with the directory mounted".into());
    }
    AddressError::Scheme(text.into())
}

impl fmt::Display for RepositoryAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RepositoryAddress::Directory(path) => write!(f, "repo:{}", path.display()),
            RepositoryAddress::Bucket(Bucket {
                scheme,
                name,
                prefix,
            }) if prefix.is_empty() => {
                write!(f, "{}://{name}", scheme.word())
            }
            RepositoryAddress::Bucket(Bucket {
                scheme,
                name,
                prefix,
            }) => {
                write!(f, "{}://{name}/{prefix}", scheme.word())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// P3, P41: prefixes lose surrounding slashes and blanks, and nothing else.
    #[test]
    fn addresses_are_normalized() {
        for (text, shown) in [
            ("repo:/mnt/backup", "repo:/mnt/backup"),
            ("s3://bucket", "s3://bucket"),
            ("s3://bucket/", "s3://bucket"),
            ("s3://bucket/ /team/a/ ", "s3://bucket/team/a"),
            ("gs://bucket/a+b:c", "gs://bucket/a+b:c"),
            ("az://container/x", "az://container/x"),
        ] {
            assert_eq!(
                text.parse::<RepositoryAddress>().unwrap().to_string(),
                shown
            );
        }
    }

    /// P41 and section 8: a text that is not an address is refused; the error shows the right
    /// spelling.
    #[test]
    fn what_is_no_address_is_refused() {
        for text in [
            "",
            "x",
            "ftp://a",
            "s3://",
            "s3:///a",
            "repo:",
            "s3://b/../c",
            "s3://b/a//c",
        ] {
            assert!(text.parse::<RepositoryAddress>().is_err(), "{text}");
        }
        for (text, right) in [
            ("local:/x", "repo:/x"),
            ("s3:b/p", "s3://b/p"),
            ("b2:b", "s3://b"),
            ("sftp://h/x", "repo:"),
        ] {
            let error = text.parse::<RepositoryAddress>().unwrap_err().to_string();
            assert!(error.contains(right), "{error}");
        }
    }
}
