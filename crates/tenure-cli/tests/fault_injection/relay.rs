//! TCP relay with latency: bytes arrive in order, unchanged, and late.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

/// Range of the delay: a distant continent, with jitter.
const LATE_MS: std::ops::Range<u64> = 80..240;
/// Pieces that may be under way on one connection.
const UNDER_WAY: usize = 1024;

/// A relay. Dropping it ends its connections.
pub(crate) struct Relay {
    pub(crate) address: SocketAddr,
    /// Bytes that have passed.
    passed: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl Relay {
    /// Listens at an address of this machine for connections to a target.
    pub(crate) fn between(host: &str, target: &str) -> Relay {
        let listener = std::net::TcpListener::bind((host, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let listener = TcpListener::from_std(listener).unwrap();
        let passed = Arc::<AtomicU64>::default();
        let (target, its) = (target.to_owned(), Arc::clone(&passed));
        let task = tokio::spawn(async move {
            // Connections are owned by this task, and end with it.
            let mut all = tokio::task::JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                all.spawn(connection(client, target.clone(), Arc::clone(&its)));
                while all.try_join_next().is_some() {}
            }
        });
        Relay {
            address,
            passed,
            task,
        }
    }

    pub(crate) fn passed(&self) -> u64 {
        self.passed.load(Ordering::Relaxed)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn connection(client: TcpStream, target: String, passed: Arc<AtomicU64>) {
    let Ok(server) = TcpStream::connect(target).await else {
        return;
    };
    for stream in [&client, &server] {
        let _ = stream.set_nodelay(true);
    }
    let (client, server) = (client.into_split(), server.into_split());
    // When one direction ends, so does the other: dropping them closes both sockets.
    tokio::select! {
        () = pass(client.0, server.1, &passed) => {}
        () = pass(server.0, client.1, &passed) => {}
    }
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, passed: &AtomicU64) {
    let (pieces, mut late) = mpsc::channel::<(Instant, Vec<u8>)>(UNDER_WAY);
    let read = async move {
        let mut bytes = vec![0; 16 << 10];
        let spread = LATE_MS.end - LATE_MS.start;
        let (mut count, mut due) = (0u64, Instant::now());
        while let Ok(length @ 1..) = from.read(&mut bytes).await {
            count += 1;
            // Late by a different amount each time, and never out of order.
            let by = LATE_MS.start + count.wrapping_mul(0x9e37_79b9_7f4a_7c15) % spread;
            due = due.max(Instant::now() + Duration::from_millis(by));
            if pieces.send((due, bytes[..length].to_vec())).await.is_err() {
                return;
            }
        }
    };
    let write = async move {
        while let Some((due, bytes)) = late.recv().await {
            sleep_until(due).await;
            if to.write_all(&bytes).await.is_err() {
                return;
            }
            passed.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        }
    };
    // What is under way still arrives after the last byte was read.
    let read = async {
        read.await;
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = write => {}
        () = read => {}
    }
}
