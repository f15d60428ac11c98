//! Memory budget of all clients: connections, flow-control windows, request heads, open streams,
//! request bodies and operations in flight count against one number of bytes.
//!
//! ```text
//!   MemoryBudget ◀──pieces of 16 KiB── ConnectionBudget ◀──bytes── Charge (a stream, a body, a call)
//! ```
//!
//! What is always small (a head, a stream, the first 64 KiB of a body) may use the whole budget.
//! Large bodies leave a quarter of it, larger windows three quarters, so that a few large clients
//! cannot keep small requests out.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tonic::Status;

/// What an open connection costs: buffers of the socket, of TLS and of HTTP/2, and the smallest
/// flow-control window.
const CONNECTION: usize = 32 << 10;
/// What an open stream costs besides its head: measured about 3 KiB.
pub(crate) const STREAM: usize = 4 << 10;
/// Bytes of one charge above this count as large.
const SMALL: usize = 64 << 10;
/// A connection takes from the budget in pieces of this size, so that its requests do not contend
/// for one counter.
const PIECE: usize = 16 << 10;

/// Bytes that all clients together may occupy.
#[derive(Debug)]
pub(crate) struct MemoryBudget {
    total: usize,
    left: AtomicUsize,
}

impl MemoryBudget {
    pub(crate) fn new(bytes: usize) -> Arc<MemoryBudget> {
        Arc::new(MemoryBudget {
            total: bytes,
            left: AtomicUsize::new(bytes),
        })
    }

    /// Takes bytes if at least `keep` are left afterwards.
    fn take(&self, bytes: usize, keep: usize) -> bool {
        self.left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                left.checked_sub(bytes).filter(|left| *left >= keep)
            })
            .is_ok()
    }

    fn give_back(&self, bytes: usize) {
        self.left.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// The part of the budget that one connection uses. Returned when dropped.
#[derive(Debug)]
pub(crate) struct ConnectionBudget {
    budget: Arc<MemoryBudget>,
    part: Mutex<BudgetPart>,
}

#[derive(Debug, Default)]
struct BudgetPart {
    used: usize,
    /// At least `used`.
    taken: usize,
}

impl ConnectionBudget {
    /// Counts a new connection. `None` if the budget is exhausted: the connection is closed.
    pub(crate) fn open(budget: &Arc<MemoryBudget>) -> Option<Arc<ConnectionBudget>> {
        let connection = ConnectionBudget {
            budget: Arc::clone(budget),
            part: Mutex::default(),
        };
        let is_taken = connection.take(CONNECTION, 0, 0);
        is_taken.then(|| Arc::new(connection))
    }

    /// Counts a larger flow-control window, which the connection keeps. Returns whether it may use
    /// it.
    pub(crate) fn widen(&self, bytes: usize) -> bool {
        self.take(bytes, self.budget.total / 4 * 3, 0)
    }

    /// Counts bytes until the charge is dropped.
    pub(crate) fn charge(self: &Arc<Self>, bytes: usize) -> Result<Charge, Status> {
        let mut charge = Charge {
            connection: Arc::clone(self),
            bytes: 0,
        };
        charge.grow(bytes)?;
        Ok(charge)
    }

    /// Takes bytes, at least `piece` at once from the budget if it has as many.
    fn take(&self, bytes: usize, keep: usize, piece: usize) -> bool {
        let mut part = self.part.lock().unwrap_or_else(PoisonError::into_inner);
        let used = part.used + bytes;
        let missing = used.saturating_sub(part.taken);
        if missing > 0 {
            let piece = missing.max(piece);
            let taken = if self.budget.take(piece, keep) {
                piece
            } else if self.budget.take(missing, keep) {
                missing
            } else {
                return false;
            };
            part.taken += taken;
        }
        part.used = used;
        true
    }

    fn give_back(&self, bytes: usize) {
        let mut part = self.part.lock().unwrap_or_else(PoisonError::into_inner);
        part.used -= bytes;
        // One piece is kept, so that a busy connection does not go back and forth.
        let spare = part.taken - part.used;
        if spare > 2 * PIECE {
            part.taken -= spare - PIECE;
            self.budget.give_back(spare - PIECE);
        }
    }
}

impl Drop for ConnectionBudget {
    fn drop(&mut self) {
        let part = self.part.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.budget.give_back(part.taken);
    }
}

/// Bytes that something of a connection occupies. Returned when dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    connection: Arc<ConnectionBudget>,
    bytes: usize,
}

impl Charge {
    /// Counts more bytes. Fails with UNAVAILABLE if the budget is exhausted.
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<(), Status> {
        let is_large = self.bytes + bytes > SMALL;
        let keep = if is_large {
            self.connection.budget.total / 4
        } else {
            0
        };
        if !self.connection.take(bytes, keep, PIECE) {
            return Err(Status::unavailable(
                "the daemon's memory for requests is used up (client_memory_mb): try again",
            ));
        }
        self.bytes += bytes;
        Ok(())
    }

    /// Counts fewer bytes.
    pub(crate) fn shrink(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.connection.give_back(bytes);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.connection.give_back(self.bytes);
    }
}

/// Returns the approximate size of a request's head in memory.
pub(crate) fn head_bytes(headers: &http::HeaderMap, uri: &http::Uri) -> usize {
    /// Slot of a header in the map.
    const SLOT: usize = 96;
    let fields = headers
        .iter()
        .map(|(name, value)| SLOT + name.as_str().len() + value.len());
    let uri = uri.path().len() + uri.query().map_or(0, str::len);
    fields.sum::<usize>() + uri
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(budget: &MemoryBudget) -> usize {
        budget.left.load(Ordering::Relaxed)
    }

    #[test]
    fn everything_counts_and_all_of_it_comes_back() {
        let budget = MemoryBudget::new(4 << 20);
        let connection = ConnectionBudget::open(&budget).unwrap();
        let mut body = connection.charge(100).unwrap();
        body.grow(1 << 20).unwrap();
        assert!(left(&budget) < 3 << 20);
        body.shrink(1 << 20);
        assert!(left(&budget) >= (4 << 20) - CONNECTION - 3 * PIECE);
        drop(body);
        drop(connection);
        assert_eq!(left(&budget), 4 << 20);
    }

    /// Large bodies and windows leave room for small requests.
    #[test]
    fn large_clients_do_not_keep_small_ones_out() {
        let budget = MemoryBudget::new(4 << 20);
        let connection = ConnectionBudget::open(&budget).unwrap();
        assert!(
            !connection.widen(1 << 20),
            "with the connection it is more than a quarter"
        );
        assert!(connection.widen(1 << 19));
        let mut large = connection.charge(0).unwrap();
        while large.grow(SMALL).is_ok() {}
        assert!(left(&budget) >= 1 << 20);
        let small: Vec<_> = (0..100).map(|_| connection.charge(STREAM)).collect();
        assert!(small.iter().all(Result::is_ok));
    }

    #[test]
    fn an_exhausted_budget_refuses_connections_and_requests() {
        let budget = MemoryBudget::new(CONNECTION + 100);
        let connection = ConnectionBudget::open(&budget).unwrap();
        assert!(ConnectionBudget::open(&budget).is_none());
        let charge = connection.charge(100).unwrap();
        let refused = connection.charge(1).unwrap_err();
        assert_eq!(refused.code(), tonic::Code::Unavailable);
        drop(charge);
        assert!(connection.charge(1).is_ok());
    }
}
