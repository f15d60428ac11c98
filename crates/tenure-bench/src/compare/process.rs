//! Resource usage of a process, from `/proc`.

use std::path::Path;
use std::time::Duration;

/// Resource usage at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    /// CPU time of all threads.
    pub(crate) cpu: Duration,
    /// Resident memory in bytes.
    pub(crate) resident: u64,
    /// Bytes written by the disk that holds the data, by all processes. The per-process counter of
    /// the kernel counts whole page-cache folios, which can be hundreds of times what reaches the
    /// disk.
    pub(crate) written: u64,
}

impl Usage {
    /// Reads the usage of a process. All values are 0 if it has exited.
    pub(crate) fn of(pid: u32, data: &Path) -> Usage {
        let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}"));
        let stat = read("stat").unwrap_or_default();
        // The name is in parentheses and may contain any character. After it, fields 12 and 13 are
        // the user and system time.
        let ticks: u64 = stat
            .rsplit_once(") ")
            .map(|(_, rest)| rest.split(' ').skip(11).take(2))
            .into_iter()
            .flatten()
            .filter_map(|field| field.parse::<u64>().ok())
            .sum();
        let per_second = rustix::param::clock_ticks_per_second();
        let field = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name));
            line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok())
                .unwrap_or(0)
        };
        Usage {
            cpu: Duration::from_secs_f64(ticks as f64 / per_second as f64),
            resident: field(&read("status").unwrap_or_default(), "VmRSS:") * 1024,
            written: written_under(data),
        }
    }

    /// Returns the usage since an earlier moment. Memory is the current value.
    pub(crate) fn since(&self, before: &Usage) -> Usage {
        Usage {
            cpu: self.cpu.saturating_sub(before.cpu),
            resident: self.resident,
            written: self.written.saturating_sub(before.written),
        }
    }

    /// Adds the usage of another period. Memory is the later value.
    pub(crate) fn and(&self, later: &Usage) -> Usage {
        Usage {
            cpu: self.cpu + later.cpu,
            resident: later.resident,
            written: self.written + later.written,
        }
    }
}

/// Returns the bytes that a directory's device has written since boot.
fn written_under(directory: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let device = std::fs::metadata(directory).map_or(0, |data| data.dev());
    let number = [rustix::fs::major(device), rustix::fs::minor(device)].map(|n| n.to_string());
    let all = std::fs::read_to_string("/proc/diskstats").unwrap_or_default();
    all.lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .find(|fields| fields.len() > 9 && fields[0] == number[0] && fields[1] == number[1])
        // In sectors of 512 bytes, independent of the device's own sector size.
        .and_then(|fields| fields[9].parse::<u64>().ok())
        .map_or(0, |sectors| sectors * 512)
}

/// Returns the disk space that the files of a directory occupy.
pub(crate) fn disk(directory: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(entries) = std::fs::read_dir(directory) else {
        return 0;
    };
    entries
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(data) if data.is_dir() => disk(&entry.path()),
            Ok(data) => data.blocks() * 512,
            Err(_) => 0,
        })
        .sum()
}
