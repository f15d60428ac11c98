//! An upload directory for tests, with a locker that never polls.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, SystemTime};

use serde_json::Value;
use tenure_files::Durability;
use tenure_files::upload::{
    FileLocker, OnRequest, Options, UploadGuard, UploadId, UploadLocker, UploadReleaseRequest,
    UploadTimes, Wait,
};
use tenure_testkit::TIMEOUT;

pub(crate) struct UploadFixture {
    temp: tempfile::TempDir,
}

impl UploadFixture {
    pub(crate) fn new() -> UploadFixture {
        UploadFixture {
            temp: tempfile::tempdir().unwrap(),
        }
    }

    pub(crate) fn dir(&self) -> &Path {
        self.temp.path()
    }

    pub(crate) fn lock(&self) -> PathBuf {
        self.dir().join("up.lock")
    }

    pub(crate) fn stop(&self) -> PathBuf {
        self.dir().join("up.stop")
    }

    pub(crate) fn locker(&self) -> FileLocker {
        self.locker_with(|_| {})
    }

    /// A locker that never polls: every reaction is caused by an event (K42: watch and poll).
    pub(crate) fn locker_with(&self, change: impl FnOnce(&mut Options)) -> FileLocker {
        let mut options = Options {
            durability: Durability::Fast,
            times: UploadTimes {
                holder_poll: HOUR,
                acquirer_poll: HOUR,
                ..UploadTimes::default()
            },
            ..Options::default()
        };
        change(&mut options);
        FileLocker::with(self.dir(), options).unwrap()
    }

    pub(crate) fn hold(&self) -> UploadGuard {
        self.locker().lock(&up(), Wait::No, nothing()).unwrap()
    }

    pub(crate) fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.dir()).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    pub(crate) fn token(&self) -> String {
        self.block()["token"].as_str().unwrap().to_owned()
    }

    pub(crate) fn block(&self) -> Value {
        let text = fs::read_to_string(self.lock()).unwrap();
        let line = text
            .lines()
            .nth(1)
            .unwrap()
            .strip_prefix("tenure ")
            .unwrap()
            .to_owned();
        serde_json::from_str(&line).unwrap()
    }

    pub(crate) fn request(&self) -> Value {
        let text = fs::read_to_string(self.stop()).unwrap();
        serde_json::from_str(text.trim().strip_prefix("tenure ").unwrap()).unwrap()
    }
}

pub(crate) const HOUR: Duration = Duration::from_secs(3600);
pub(crate) const SOON: Wait = Wait::For(Duration::from_millis(50));
pub(crate) const LONG: Wait = Wait::For(TIMEOUT);

pub(crate) fn up() -> UploadId {
    UploadId::new("up").unwrap()
}

pub(crate) fn nothing() -> OnRequest {
    Arc::new(|_| {})
}

/// A callback that counts, and the requests that it received.
pub(crate) fn listener() -> (OnRequest, mpsc::Receiver<UploadReleaseRequest>) {
    let (heard, requests) = mpsc::channel();
    let heard = Mutex::new(heard);
    let on_request = Arc::new(move |request: &UploadReleaseRequest| {
        let _ = heard.lock().unwrap().send(request.clone());
    });
    (on_request, requests)
}

/// Makes a request as an original does: a file without content.
pub(crate) fn touch_stop(fixture: &UploadFixture, time: SystemTime) {
    fs::write(fixture.stop(), "").unwrap();
    let file = fs::OpenOptions::new()
        .write(true)
        .open(fixture.stop())
        .unwrap();
    file.set_modified(time).unwrap();
}
