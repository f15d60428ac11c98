//! Lock addresses: parsing, normalization and lock order, C18 (address grammar).
//!
//! ```
//! use tenure::Address;
//!
//! let address: Address = "state.json".parse()?;
//! assert!(matches!(address, Address::Sidecar(_)));
//! let address: Address = "tenant:/acme/projects/42".parse()?;
//! assert!(matches!(address, Address::Daemon { .. }));
//! # Ok::<(), tenure::Error>(())
//! ```

use std::cmp::Ordering;
use std::fmt;
use std::path::{Path as FilePath, PathBuf};
use std::str::FromStr;

use serde::{Serialize, Serializer};
use tenure_base::UploadId;
use tenure_core::path::Path;

use crate::endpoint::Endpoint;
use crate::error::{Error, InputError};

/// The address of a lock.
///
/// | text | lock |
/// |---|---|
/// | `mem:jobs/nightly` | a lock within this process |
/// | `state.json`, `./a:b`, `sidecar:state.json` | `state.json.lock` beside the file |
/// | `exclusive:.beads` | the exclusive lock of a database directory |
/// | `upload:DIR/ID`, `upload:DIR#a/b` | the lock of one upload |
/// | `repo:/mnt/backup`, `s3://bucket/prefix`, `gs://…`, `az://…` | a repository |
/// | `tenure://host:port[,host:port]/tenant:/acme`, `tenant:/acme` | a path of the daemon |
/// | `tenure+tls://host:port[,host:port]/tenant:/acme` | the same over TLS |
/// | `postgres://host/database/tenant:/acme` | the same in a PostgreSQL database |
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Address {
    /// A lock within this process.
    Memory(MemoryName),
    /// A lock file beside the file that it protects.
    Sidecar(PathBuf),
    /// The exclusive lock of a database directory.
    Exclusive(PathBuf),
    /// The lock of one upload.
    Upload {
        /// The directory of the upload locks.
        dir: PathBuf,
        /// The id of the upload.
        id: UploadId,
    },
    /// A repository in a directory or a bucket.
    #[cfg(feature = "store")]
    Repository(tenure_store::RepositoryAddress),
    /// A path on the daemon.
    Daemon {
        /// The nodes to try. Empty: the nodes of the settings (`TENURE_URL`).
        nodes: Vec<Endpoint>,
        /// The path to lock.
        path: Path,
    },
}

/// The name of a lock in memory, such as `jobs/nightly`. Names form a tree, as on the daemon.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemoryName(Path);

impl MemoryName {
    /// Parses a name: segments between single slashes, none of them `.` or `..`.
    pub fn new(name: &str) -> Result<MemoryName, Error> {
        let rooted = format!("mem:/{}", name.trim_start_matches('/'));
        match Path::parse(&rooted) {
            Ok(path) if path.depth() > 0 => Ok(MemoryName(path)),
            Ok(_) => Err(input(
                &format!("mem:{name}"),
                "names no lock: write mem:NAME",
            )),
            Err(invalid) => Err(input(&format!("mem:{name}"), invalid.to_string())),
        }
    }

    pub(crate) fn from_path(path: Path) -> MemoryName {
        MemoryName(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Address {
    /// Returns the name of the backend: `mem`, `sidecar`, `exclusive`, `upload`, `repository`,
    /// `daemon` or `postgres`.
    pub fn backend(&self) -> &'static str {
        match self {
            Address::Memory(_) => "mem",
            Address::Sidecar(_) => "sidecar",
            Address::Exclusive(_) => "exclusive",
            Address::Upload { .. } => "upload",
            #[cfg(feature = "store")]
            Address::Repository(_) => "repository",
            Address::Daemon { nodes, .. } => match nodes.first().and_then(Endpoint::engine_address)
            {
                Some(_) => "postgres",
                None => "daemon",
            },
        }
    }

    /// Returns whether the lock is a lock file. Acquiring one needs no runtime and no thread.
    pub fn is_file(&self) -> bool {
        matches!(
            self,
            Address::Sidecar(_) | Address::Exclusive(_) | Address::Upload { .. }
        )
    }

    /// Returns the path if the backend is a tree of paths. Several paths of one tree can be
    /// acquired in one step.
    pub(crate) fn path(&self) -> Option<&Path> {
        match self {
            Address::Memory(name) => Some(name.path()),
            Address::Daemon { path, .. } => Some(path),
            Address::Sidecar(_) | Address::Exclusive(_) | Address::Upload { .. } => None,
            #[cfg(feature = "store")]
            Address::Repository(_) => None,
        }
    }

    /// Returns whether both are paths of the same tree: of one daemon, or of this process.
    pub(crate) fn same_tree(&self, other: &Address) -> bool {
        match (self, other) {
            (Address::Memory(_), Address::Memory(_)) => true,
            (Address::Daemon { nodes: one, .. }, Address::Daemon { nodes: two, .. }) => one == two,
            _ => false,
        }
    }

    /// Returns the address with canonical, absolute file paths, so that two spellings of one lock
    /// are equal: C6 (several locks at once).
    #[must_use]
    pub fn normalized(&self) -> Address {
        match self {
            Address::Sidecar(file) => Address::Sidecar(real_file(file)),
            Address::Exclusive(dir) => Address::Exclusive(real(dir)),
            Address::Upload { dir, id } => Address::Upload {
                dir: real(dir),
                id: id.clone(),
            },
            #[cfg(feature = "store")]
            Address::Repository(tenure_store::RepositoryAddress::Directory(dir)) => {
                Address::Repository(tenure_store::RepositoryAddress::Directory(real(dir)))
            }
            other => other.clone(),
        }
    }

    /// Compares in the global lock order (C6): by address, and within a tree a path before its
    /// descendants.
    ///
    /// Clients that lock in this order cannot deadlock each other.
    pub fn lock_order(&self, other: &Address) -> Ordering {
        // `/` is replaced by a byte that sorts before all others, so that byte order is tree order:
        // `m`, `m/x`, `m-1`.
        let key = |place: &Address| place.to_string().replace('/', "\u{1}");
        key(self).cmp(&key(other))
    }
}

fn real(path: &FilePath) -> PathBuf {
    path.canonicalize()
        .or_else(|_| std::path::absolute(path))
        .unwrap_or_else(|_| path.to_owned())
}

/// Resolves the directory only: the file may not exist, and a symlink as the last component is not
/// followed, S1 (normalized target).
fn real_file(file: &FilePath) -> PathBuf {
    let absolute = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    match (absolute.parent(), absolute.file_name()) {
        (Some(dir), Some(name)) => real(dir).join(name),
        _ => absolute,
    }
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Address, Error> {
        if let Some((scheme, rest)) = text.split_once("://")
            && !scheme.contains(['/', '.'])
        {
            return match scheme {
                "tenure" => daemon(text, rest, false),
                "tenure+tls" => daemon(text, rest, true),
                "postgres" | "postgresql" => engine(rest),
                "s3" | "gs" | "az" => repository(text),
                _ => Err(input(
                    text,
                    "is not an address: before :// there is s3, gs, az, postgres, tenure or tenure+tls (./ in front means a file)",
                )),
            };
        }
        if let Some((scheme, rest)) = text.split_once(':') {
            match scheme {
                "sidecar" | "exclusive" if rest.is_empty() => {
                    return Err(input(text, "names no file"));
                }
                "sidecar" => return Ok(Address::Sidecar(rest.into())),
                "exclusive" => return Ok(Address::Exclusive(rest.into())),
                "upload" => return upload(text, rest),
                "repo" => return repository(text),
                "mem" => return MemoryName::new(rest).map(Address::Memory),
                _ => {}
            }
        }
        if text.is_empty() {
            return Err(input(text, "is empty: name a file or another address"));
        }
        match Path::parse(text) {
            Ok(path) => {
                let nodes = Vec::new();
                Ok(Address::Daemon { nodes, path })
            }
            Err(invalid) if looks_like_an_address(text) => Err(near_miss(text, &invalid)),
            Err(_) => Ok(Address::Sidecar(text.into())),
        }
    }
}

/// Returns whether the text begins like `word:`. A mistyped address of a shared lock must never
/// become a file on one machine.
fn looks_like_an_address(text: &str) -> bool {
    let first = text.split('/').next().unwrap_or_default();
    first.contains(':')
}

fn near_miss(text: &str, invalid: &tenure_core::value::Invalid) -> Error {
    let advice = match text.split(':').next() {
        Some(store @ ("s3" | "gs" | "az")) => {
            format!("for a bucket write {store}://BUCKET/PREFIX; ")
        }
        Some("tenure") => "for a daemon write tenure://HOST:PORT/HANDLER:/PATH; ".to_owned(),
        _ => String::new(),
    };
    input(
        text,
        format!(
            "is not a valid address: {invalid}; {advice}for a file of that name write ./{text}"
        ),
    )
}

/// Parses `host:port[,host:port…]/handler:/path`.
fn daemon(text: &str, rest: &str, tls: bool) -> Result<Address, Error> {
    let (hosts, path) = rest
        .split_once('/')
        .filter(|(_, path)| !path.is_empty())
        .ok_or_else(|| {
            input(
                text,
                "names no path: write tenure://host:port/handler:/path",
            )
        })?;
    let path = Path::parse(path).map_err(|invalid| input(text, invalid.to_string()))?;
    let mut nodes = match hosts {
        "" if tls => return Err(input(text, "names no host: write tenure+tls://host:port/…")),
        "" => Vec::new(),
        hosts => Endpoint::list(hosts).map_err(|error| input(text, error.to_string()))?,
    };
    if tls {
        nodes = nodes.into_iter().map(Endpoint::with_tls).collect();
    }
    Ok(Address::Daemon { nodes, path })
}

/// Parses `[user@]host[:port][,host…]/database/handler:/path`. The text is not quoted in errors: it may
/// contain a password by mistake.
fn engine(rest: &str) -> Result<Address, Error> {
    let (place, behind) = rest.split_once('/').unwrap_or((rest, ""));
    let (database, path) = behind.split_once('/').unwrap_or((behind, ""));
    let node = Endpoint::engine(&format!("postgres://{place}/{database}"))?;
    if path.is_empty() {
        let what = format!("names no path: write {node}/handler:/path");
        return Err(input(&node.to_string(), what));
    }
    let path = Path::parse(path).map_err(|invalid| input(path, invalid.to_string()))?;
    Ok(Address::Daemon {
        nodes: vec![node],
        path,
    })
}

/// Splits at the last `#`, otherwise at the last `/`: U24 (upload address and verbs).
fn upload(text: &str, rest: &str) -> Result<Address, Error> {
    let (dir, id) = rest
        .rsplit_once('#')
        .or_else(|| rest.rsplit_once('/'))
        .unwrap_or((".", rest));
    let id = UploadId::new(id).map_err(|error| input(text, error.to_string()))?;
    let dir = match dir {
        // `upload:/7` is the upload `7` in the root directory.
        "" => "/",
        dir => dir,
    };
    Ok(Address::Upload {
        dir: dir.into(),
        id,
    })
}

#[cfg(feature = "store")]
fn repository(text: &str) -> Result<Address, Error> {
    text.parse()
        .map(Address::Repository)
        .map_err(|error: tenure_store::AddressError| input(text, error.to_string()))
}

#[cfg(not(feature = "store"))]
fn repository(text: &str) -> Result<Address, Error> {
    Err(input(text, "repositories are left out of this build"))
}

fn input(text: &str, what: impl Into<String>) -> Error {
    Error::Input(InputError::new(text, what))
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Memory(MemoryName(path)) => {
                write!(f, "mem:{}", path.as_str().trim_start_matches("mem:/"))
            }
            Address::Sidecar(file) => write!(f, "sidecar:{}", file.display()),
            Address::Exclusive(dir) => write!(f, "exclusive:{}", dir.display()),
            Address::Upload { dir, id } => write!(f, "upload:{}#{id}", dir.display()),
            #[cfg(feature = "store")]
            Address::Repository(address) => address.fmt(f),
            Address::Daemon { nodes, path } if nodes.is_empty() => {
                // A handler that is named like a scheme needs the long form, or it would be parsed
                // as that scheme.
                match path.handler() {
                    "sidecar" | "exclusive" | "upload" | "repo" | "mem" => {
                        write!(f, "tenure:///{}", path.as_str())
                    }
                    _ => f.write_str(path.as_str()),
                }
            }
            Address::Daemon { nodes, path }
                if nodes.iter().any(|node| node.engine_address().is_some()) =>
            {
                let nodes: Vec<String> = nodes.iter().map(Endpoint::to_string).collect();
                write!(f, "{}/{}", nodes.join(","), path.as_str())
            }
            Address::Daemon { nodes, path } => {
                let tls = nodes.iter().all(Endpoint::is_tls);
                let scheme = if tls { "tenure+tls" } else { "tenure" };
                let nodes: Vec<String> = nodes.iter().map(Endpoint::to_string).collect();
                write!(f, "{scheme}://{}/{}", nodes.join(","), path.as_str())
            }
        }
    }
}

impl Serialize for Address {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Conversion into an [`Address`]: from text, or from the path of a file.
pub trait IntoAddress {
    /// Converts into an address.
    ///
    /// # Errors
    ///
    /// [`Error::Input`] if the text is no valid address.
    fn into_address(self) -> Result<Address, Error>;
}

impl IntoAddress for Address {
    fn into_address(self) -> Result<Address, Error> {
        Ok(self)
    }
}

impl IntoAddress for &Address {
    fn into_address(self) -> Result<Address, Error> {
        Ok(self.clone())
    }
}

impl IntoAddress for &str {
    fn into_address(self) -> Result<Address, Error> {
        self.parse()
    }
}

impl IntoAddress for String {
    fn into_address(self) -> Result<Address, Error> {
        self.parse()
    }
}

impl IntoAddress for &String {
    fn into_address(self) -> Result<Address, Error> {
        self.parse()
    }
}

/// Always a sidecar lock: the path is not parsed as an address.
impl IntoAddress for &FilePath {
    fn into_address(self) -> Result<Address, Error> {
        Ok(Address::Sidecar(self.to_owned()))
    }
}

/// Always a sidecar lock: the path is not parsed as an address.
impl IntoAddress for PathBuf {
    fn into_address(self) -> Result<Address, Error> {
        Ok(Address::Sidecar(self))
    }
}

/// Always a sidecar lock: the path is not parsed as an address.
impl IntoAddress for &PathBuf {
    fn into_address(self) -> Result<Address, Error> {
        Ok(Address::Sidecar(self.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "store")]
    fn shown(text: &str) -> String {
        match text.parse::<Address>() {
            Ok(place) => format!("{} {place}", place.backend()),
            Err(error) => format!("! {error}"),
        }
    }

    /// C18: the first matching form decides, and `./` always means a file.
    #[cfg(feature = "store")]
    #[test]
    fn addresses_are_read_in_the_order_of_the_rule() {
        for (text, want) in [
            ("state.json", "sidecar sidecar:state.json"),
            ("./tenant:/acme", "sidecar sidecar:./tenant:/acme"),
            ("./s3://x", "sidecar sidecar:./s3://x"),
            ("./a:b", "sidecar sidecar:./a:b"),
            ("d/a:b", "sidecar sidecar:d/a:b"),
            ("sidecar:a#b", "sidecar sidecar:a#b"),
            ("exclusive:.beads", "exclusive exclusive:.beads"),
            ("upload:up/7", "upload upload:up#7"),
            ("upload:up#a/7", "upload upload:up#a/7"),
            ("upload:/7", "upload upload:/#7"),
            ("repo:/mnt", "repository repo:/mnt"),
            ("s3://bucket/a/", "repository s3://bucket/a"),
            ("mem:jobs/nightly", "mem mem:jobs/nightly"),
            ("mem:/jobs", "mem mem:jobs"),
            ("tenant:/acme/42", "daemon tenant:/acme/42"),
            ("tenure:///mem:/a", "daemon tenure:///mem:/a"),
            ("tenure://h:1,i/t:/a", "daemon tenure://h:1,i:50051/t:/a"),
            ("tenure://[::1]:9/t:/a", "daemon tenure://[::1]:9/t:/a"),
            (
                "tenure+tls://h:1,i/t:/a",
                "daemon tenure+tls://h:1,i:50051/t:/a",
            ),
        ] {
            assert_eq!(shown(text), want, "{text}");
            let place: Address = text.parse().unwrap();
            assert_eq!(
                place.to_string().parse::<Address>().unwrap(),
                place,
                "{text}"
            );
        }
    }

    /// C18: a database that keeps the log, then the path. A password is refused and not repeated.
    #[cfg(feature = "postgres")]
    #[test]
    fn a_path_in_a_database() {
        for text in [
            "postgres://h/db/t:/a/b",
            "postgres://amy@h:5433,i/db/t:/a",
            "postgres:///db/t:/a",
        ] {
            let place: Address = text.parse().unwrap();
            assert_eq!(place.to_string(), text);
            assert_eq!(place.backend(), "postgres");
            assert_eq!(text.parse::<Address>().unwrap(), place);
        }
        let error = "postgres://amy:secret@h/db/t:/a"
            .parse::<Address>()
            .unwrap_err();
        assert!(!error.to_string().contains("secret"), "{error}");
        for text in ["postgres://h/db", "postgres://h/db/", "postgres://h/db/x"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }

    /// C18: an unknown scheme is an error, not a file name; the message quotes the text.
    #[test]
    fn what_is_no_address_is_refused() {
        for text in [
            "",
            "sidecar:",
            "exclusive:",
            "http://x/y",
            "upload:up/..",
            "mem:",
            "mem:a//b",
            "tenure://h",
            "tenure://h/",
            "tenure://h:x/t:/a",
            "tenure://h/nopath",
            "s3://",
            "repo:",
        ] {
            let error = text.parse::<Address>().unwrap_err();
            assert!(
                matches!(error, Error::Input(_) | Error::Unsupported(_)),
                "{text}"
            );
            assert!(error.to_string().contains(text), "{error}");
        }
    }

    /// C18: a text that begins like `word:` and is no address is refused with the reason and the
    /// way to name a file.
    #[test]
    fn a_near_miss_is_not_a_file() {
        for text in [
            "tenant:acme",
            "tenant:/acme//x",
            "tenant:/acme/../x",
            "tenant:/acme/./x",
            "tenant:/acme/",
            "tenant:",
            "tenant:acme/x",
            "s3:bucket/x",
            "s3:/bucket//x",
            "gs:bucket",
            "az:container/x",
            "b2:bucket/x",
            "local:dir",
            "sftp:host",
            "ftp:x",
            "http:x",
            "tenure:host",
            "tenure:50051",
            "localhost:50051",
            "127.0.0.1:50051",
            "Sidecar:x",
            "EXCLUSIVE:db",
            "uploads:up",
            "repository:dir",
            "memory:x",
            "file:x",
            "file:a//b",
            ":/x",
            ":",
            "a:b",
            "a:b:c",
            "c:\\x",
            "10:30.log",
        ] {
            let Err(error) = text.parse::<Address>() else {
                panic!("{text} was taken for an address");
            };
            let error = error.to_string();
            assert!(error.contains(&format!("write ./{text}")), "{error}");
        }
        let error = "s3:bucket/x".parse::<Address>().unwrap_err().to_string();
        assert!(error.contains("s3://BUCKET/PREFIX"), "{error}");
        let error = "tenant:/acme//x"
            .parse::<Address>()
            .unwrap_err()
            .to_string();
        assert!(error.contains("empty segments"), "{error}");
    }

    /// C6: in a tree, a path comes before its descendants.
    #[test]
    fn a_parent_is_locked_before_its_children_and_its_siblings() {
        let mut places: Vec<Address> = ["t:/m-1", "t:/m/x", "t:/m"]
            .map(|text| text.parse().unwrap())
            .into();
        places.sort_by(Address::lock_order);
        let order: Vec<String> = places.iter().map(Address::to_string).collect();
        assert_eq!(order, ["t:/m", "t:/m/x", "t:/m-1"]);
    }

    /// C6: two spellings of one file are one lock.
    #[test]
    fn two_spellings_of_a_file_are_one_place() {
        let temp = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(temp.path(), temp.path().join("alias")).unwrap();
        let plain = Address::Sidecar(temp.path().join("state"));
        let alias = Address::Sidecar(temp.path().join("alias/./state"));
        assert_eq!(plain.normalized(), alias.normalized());
    }
}
