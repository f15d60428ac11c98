//! Call counters: one histogram per transport, RPC and status code. The table has a fixed size,
//! because no label comes from a client.

use std::sync::OnceLock;
use std::time::Duration;

use tenure_cluster::{Histogram, HistogramSnapshot};

pub use crate::rpc::Rpc;

/// The transport of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// gRPC, including operations of a session.
    Grpc,
    /// JSON over HTTP.
    Http,
}

impl Transport {
    const ALL: [Transport; 2] = [Transport::Grpc, Transport::Http];

    /// Returns the value of `rpc.system`.
    pub fn name(self) -> &'static str {
        match self {
            Transport::Grpc => "grpc",
            Transport::Http => "http",
        }
    }
}

/// Number of gRPC codes, 0 to 16.
const CODES: usize = 17;

/// Table of histograms. A cell is allocated at its first use.
pub(crate) struct CallCounters {
    cells: Vec<OnceLock<Box<Histogram>>>,
}

impl Default for CallCounters {
    fn default() -> CallCounters {
        let cells = Transport::ALL.len() * Rpc::ALL.len() * CODES;
        CallCounters {
            cells: (0..cells).map(|_| OnceLock::new()).collect(),
        }
    }
}

/// One combination of labels with its durations.
pub(crate) struct CallCounter {
    pub(crate) transport: Transport,
    pub(crate) rpc: Rpc,
    pub(crate) code: tonic::Code,
    pub(crate) durations: HistogramSnapshot,
}

impl CallCounters {
    pub(crate) fn record(&self, transport: Transport, rpc: Rpc, code: tonic::Code, took: Duration) {
        let row = transport as usize * Rpc::ALL.len() + rpc as usize;
        if let Some(cell) = self.cells.get(row * CODES + code as usize) {
            cell.get_or_init(Box::default).record(took);
        }
    }

    /// Returns all combinations that have occurred.
    pub(crate) fn read(&self) -> Vec<CallCounter> {
        let mut counted = Vec::new();
        let rows = Transport::ALL
            .iter()
            .flat_map(|transport| Rpc::ALL.iter().map(move |rpc| (*transport, *rpc)));
        for ((transport, rpc), cells) in rows.zip(self.cells.chunks(CODES)) {
            for (code, cell) in (0i32..).zip(cells) {
                if let Some(histogram) = cell.get() {
                    counted.push(CallCounter {
                        transport,
                        rpc,
                        code: tonic::Code::from(code),
                        durations: histogram.read(),
                    });
                }
            }
        }
        counted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_found_under_its_own_labels() {
        let calls = CallCounters::default();
        let last = *Rpc::ALL.last().unwrap();
        calls.record(
            Transport::Http,
            last,
            tonic::Code::Unauthenticated,
            Duration::ZERO,
        );
        calls.record(
            Transport::Grpc,
            Rpc::Acquire,
            tonic::Code::Ok,
            Duration::ZERO,
        );
        let read = calls.read();
        let labels: Vec<_> = read
            .iter()
            .map(|c| (c.transport, c.rpc, c.code, c.durations.count()))
            .collect();
        assert_eq!(
            labels,
            [
                (Transport::Grpc, Rpc::Acquire, tonic::Code::Ok, 1),
                (Transport::Http, last, tonic::Code::Unauthenticated, 1),
            ]
        );
    }
}
