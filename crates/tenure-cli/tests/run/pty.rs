//! A real terminal: a pseudo-terminal with a shell in it that has job control.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use super::shell::{RunFixture, TENURE};

/// An interactive shell on a terminal of its own. `$T` is the binary.
pub(crate) struct Terminal {
    shell: Child,
    pub(crate) keys: File,
    screen: Receiver<Vec<u8>>,
    seen: String,
}

impl Terminal {
    pub(crate) fn open(place: &RunFixture) -> Terminal {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY;
        let slave: OwnedFd = rustix::fs::open(name, flags, Mode::empty()).unwrap();
        // `setsid -c` makes the terminal the controlling one, as a login would.
        let shell = Command::new("setsid")
            .args(["-c", "bash", "--norc", "--noprofile", "--noediting", "-i"])
            .current_dir(place.path())
            .env("T", TENURE)
            .env("PS1", "ready> ")
            .env("TERM", "dumb")
            .env_remove("TENURE_URL")
            .stdin(Stdio::from(slave.try_clone().unwrap()))
            .stdout(Stdio::from(slave.try_clone().unwrap()))
            .stderr(Stdio::from(slave))
            .spawn()
            .unwrap();
        let keys = File::from(master);
        let mut screen_side = keys.try_clone().unwrap();
        let (sender, screen) = channel();
        std::thread::spawn(move || {
            let mut bytes = [0u8; 4096];
            while let Ok(length @ 1..) = screen_side.read(&mut bytes) {
                if sender.send(bytes[..length].to_vec()).is_err() {
                    break;
                }
            }
        });
        let mut terminal = Terminal {
            shell,
            keys,
            screen,
            seen: String::new(),
        };
        terminal.expect("ready> ");
        terminal
    }

    /// Types a line.
    pub(crate) fn line(&mut self, text: &str) {
        self.keys.write_all(text.as_bytes()).unwrap();
        self.keys.write_all(b"\r").unwrap();
    }

    /// Types one key: `\x03` is Ctrl-C, `\x1a` Ctrl-Z, `\x1c` Ctrl-\.
    pub(crate) fn key(&mut self, key: u8) {
        self.keys.write_all(&[key]).unwrap();
    }

    /// Waits until this text has appeared, and returns everything up to its end.
    pub(crate) fn expect(&mut self, text: &str) -> String {
        let limit = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(at) = self.seen.find(text) {
                let rest = self.seen.split_off(at + text.len());
                return std::mem::replace(&mut self.seen, rest);
            }
            match self.screen.recv_timeout(limit - Instant::now()) {
                Ok(bytes) => self.seen.push_str(&String::from_utf8_lossy(&bytes)),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    let last: String = self.seen.chars().rev().take(600).collect();
                    let last: String = last.chars().rev().collect();
                    panic!("{text:?} never appeared; the screen ends with {last:?}")
                }
            }
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Its terminal hangs up, which ends what still runs in it.
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}
