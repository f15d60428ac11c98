//! Which process uses a port or a directory, from `/proc`. Shows only processes that this user may
//! examine.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

/// Returns the process that listens on a TCP port, as text: `pid 42 (tenure)`.
pub(crate) fn of_port(address: SocketAddr) -> Option<String> {
    let inodes = listening(address.port());
    let is_socket = |target: &str| {
        let inode = target
            .strip_prefix("socket:[")
            .and_then(|text| text.strip_suffix(']'));
        inode.is_some_and(|inode| inodes.iter().any(|one| one == inode))
    };
    find(|target| is_socket(target))
}

/// Returns a process that has a file below this directory open.
pub(crate) fn of_directory(dir: &Path) -> Option<String> {
    let dir = dir.canonicalize().ok()?;
    find(|target| Path::new(target).starts_with(&dir))
}

fn find(is_wanted: impl Fn(&str) -> bool) -> Option<String> {
    let own = std::process::id().to_string();
    for process in fs::read_dir("/proc").ok()?.flatten() {
        let pid = process.file_name().to_string_lossy().into_owned();
        if pid == own || !pid.bytes().all(|byte| byte.is_ascii_digit()) {
            continue;
        }
        let Ok(descriptors) = fs::read_dir(process.path().join("fd")) else {
            continue;
        };
        let mut targets = descriptors
            .flatten()
            .filter_map(|fd| fs::read_link(fd.path()).ok());
        if targets.any(|target| target.to_str().is_some_and(&is_wanted)) {
            let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            return Some(format!("pid {pid} ({})", name.trim_end()));
        }
    }
    None
}

/// Returns the inodes of the sockets that listen on this port, on any address.
fn listening(port: u16) -> Vec<String> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"]
        .map(|file| fs::read_to_string(file).unwrap_or_default());
    let wanted = format!(":{port:04X}");
    let mut inodes = Vec::new();
    for line in tables.iter().flat_map(|table| table.lines()) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        // Fields: number, local address, remote address, state (0A: listening), …, inode.
        if let [_, local, _, "0A", _, _, _, _, _, inode, ..] = fields[..]
            && local.ends_with(&wanted)
        {
            inodes.push(inode.to_owned());
        }
    }
    inodes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The search leaves this process out, so a port of its own has no other user.
    #[test]
    fn a_listening_socket_is_found_by_its_port() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert_eq!(listening(address.port()).len(), 1);
        assert_eq!(of_port(address), None);
    }
}
