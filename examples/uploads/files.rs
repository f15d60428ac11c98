//! Uploads on disk: `ID` has the bytes, `ID.length` the total length. The offset is the size of the
//! file.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use axum::http::StatusCode;

use crate::http_error::HttpError;

/// A directory of uploads.
#[derive(Clone)]
pub(crate) struct Files {
    directory: PathBuf,
}

/// One upload.
pub(crate) struct Upload {
    id: String,
    data: PathBuf,
    length: PathBuf,
}

impl Files {
    pub(crate) fn in_directory(directory: impl Into<PathBuf>) -> Files {
        Files {
            directory: directory.into(),
        }
    }

    fn upload(&self, id: &str) -> Upload {
        Upload {
            id: id.to_owned(),
            data: self.directory.join(id),
            length: self.directory.join(format!("{id}.length")),
        }
    }

    /// Creates an empty upload with a random name.
    pub(crate) fn create(&self, length: u64) -> Result<Upload, HttpError> {
        let mut random = [0; 16];
        File::open("/dev/urandom")?.read_exact(&mut random)?;
        let upload = self.upload(&format!("{:032x}", u128::from_ne_bytes(random)));
        new(&upload.data)?.sync_all()?;
        // Written last: an upload counts as created once it has a length.
        let mut file = new(&upload.length)?;
        file.write_all(length.to_string().as_bytes())?;
        file.sync_all()?;
        File::open(&self.directory)?.sync_all()?;
        Ok(upload)
    }

    /// Finds an upload. Names come from clients, so only valid ones are looked up.
    pub(crate) fn find(&self, id: &str) -> Result<Upload, HttpError> {
        let ours = id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        let upload = ours.then(|| self.upload(id));
        upload
            .filter(|upload| upload.length.exists())
            .ok_or_else(|| HttpError::because(StatusCode::NOT_FOUND, "no such upload"))
    }
}

impl Upload {
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn offset(&self) -> Result<u64, HttpError> {
        Ok(fs::metadata(&self.data)?.len())
    }

    pub(crate) fn length(&self) -> Result<u64, HttpError> {
        let text = fs::read_to_string(&self.length)?;
        Ok(text.parse().map_err(io::Error::other)?)
    }

    pub(crate) fn remove(&self) -> Result<(), HttpError> {
        fs::remove_file(&self.length)?;
        Ok(fs::remove_file(&self.data)?)
    }

    /// Opens the upload for writing if the client's offset is the current one.
    pub(crate) fn open_at(&self, from: u64) -> Result<OpenUpload, HttpError> {
        let (offset, length) = (self.offset()?, self.length()?);
        if offset != from {
            return Err(HttpError::because(
                StatusCode::CONFLICT,
                format!("the offset is {offset}"),
            ));
        }
        let file = OpenOptions::new().append(true).open(&self.data)?;
        Ok(OpenUpload {
            file,
            offset,
            length,
        })
    }
}

/// An upload that is open for writing.
pub(crate) struct OpenUpload {
    file: File,
    offset: u64,
    length: u64,
}

impl OpenUpload {
    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<(), HttpError> {
        let after = self.offset + bytes.len() as u64;
        if after > self.length {
            let most = format!("the upload has {} bytes", self.length);
            return Err(HttpError::because(StatusCode::PAYLOAD_TOO_LARGE, most));
        }
        self.file.write_all(bytes)?;
        self.offset = after;
        Ok(())
    }

    pub(crate) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }
}

fn new(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).open(path)
}
