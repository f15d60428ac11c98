//! Where a repository is (P3, P41).

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// A repository's address: `repo:<dir>`, `s3://<bucket>/<prefix>`, `gs://…`, `az://…`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RepositoryAddress {
    /// A directory, perhaps on a network.
    Directory(PathBuf),
    /// A bucket.
    Bucket(Bucket),
}

/// A bucket and the place of the repository in it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Bucket {
    /// Which kind of store.
    pub scheme: Scheme,
    /// The bucket (or container).
    pub name: String,
    /// What all keys begin with; without slashes at its ends, empty if there is none.
    pub prefix: String,
}

/// Kinds of buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// Amazon S3 and everything that speaks like it.
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

/// Why a text is no repository's address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Not one of ours.
    #[error("`{0}` is no repository: write repo:<dir>, s3://<bucket>/<prefix>, gs://… or az://…")]
    Scheme(String),
    /// A spelling of other programs.
    #[error("`{given}` is another program's spelling: write {ours}")]
    Original {
        /// What was given.
        given: String,
        /// How it is written here.
        ours: String,
    },
    /// No bucket or directory is named.
    #[error("`{0}` names no {1}")]
    Empty(String, &'static str),
    /// A prefix that would leave the repository, or that no store can hold.
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

    /// P3, P41: prefixes lose their slashes and blanks, and nothing else.
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

    /// P41 and section 8: what is no address is said to be none, with the right spelling.
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
