//! Calls counted by face, RPC and status. The table is small and fixed: no label comes from a client.

use std::sync::OnceLock;
use std::time::Duration;

use tenure_cluster::{Durations, Histogram};

/// How a call came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Face {
    /// Over gRPC, also as an operation of a session.
    Grpc,
    /// As JSON over HTTP.
    Http,
}

impl Face {
    const ALL: [Face; 2] = [Face::Grpc, Face::Http];

    /// The value of `rpc.system`.
    pub fn name(self) -> &'static str {
        match self {
            Face::Grpc => "grpc",
            Face::Http => "http",
        }
    }
}

macro_rules! rpcs {
    ($($name:ident)+) => {
        /// The RPCs of the service.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs, reason = "the proto file has the words")]
        pub enum Rpc { $($name),+ }

        impl Rpc {
            /// All of them, in the order of their numbers.
            pub const ALL: &[Rpc] = &[$(Rpc::$name),+];

            /// The name in the proto file.
            pub fn name(self) -> &'static str {
                match self { $(Rpc::$name => stringify!($name)),+ }
            }

            /// Service and name, as a span is called.
            pub fn full_name(self) -> &'static str {
                match self { $(Rpc::$name => concat!("pathlockd.v1.PathLock/", stringify!($name))),+ }
            }
        }
    };
}

rpcs! {
    Acquire SetNamespacePolicy GetNamespacePolicy DeleteNamespacePolicy AcquireStream Release
    ReleaseAll Renew ForceRelease AssertFencing DetectCycle IsBlocking IncrFencingToken SetWaitEdge
    ClearWaitEdge IsOwnerAlive RequestRevoke InspectPath ListOwnerLocks DumpLocks Subscribe Health
    Explain Watch Break Session ListNamespacePolicies
}

/// The codes of gRPC, 0 to 16.
const CODES: usize = 17;

/// Every combination that has occurred. A cell is made when it is first needed.
pub(crate) struct Calls {
    cells: Vec<OnceLock<Box<Histogram>>>,
}

impl Default for Calls {
    fn default() -> Calls {
        let cells = Face::ALL.len() * Rpc::ALL.len() * CODES;
        Calls {
            cells: (0..cells).map(|_| OnceLock::new()).collect(),
        }
    }
}

/// One combination and its calls.
pub(crate) struct Counted {
    pub(crate) face: Face,
    pub(crate) rpc: Rpc,
    pub(crate) code: tonic::Code,
    pub(crate) durations: Durations,
}

impl Calls {
    pub(crate) fn record(&self, face: Face, rpc: Rpc, code: tonic::Code, took: Duration) {
        let row = face as usize * Rpc::ALL.len() + rpc as usize;
        if let Some(cell) = self.cells.get(row * CODES + code as usize) {
            cell.get_or_init(Box::default).record(took);
        }
    }

    /// What has occurred so far.
    pub(crate) fn read(&self) -> Vec<Counted> {
        let mut counted = Vec::new();
        let rows = Face::ALL
            .iter()
            .flat_map(|face| Rpc::ALL.iter().map(move |rpc| (*face, *rpc)));
        for ((face, rpc), cells) in rows.zip(self.cells.chunks(CODES)) {
            for (code, cell) in (0i32..).zip(cells) {
                if let Some(histogram) = cell.get() {
                    counted.push(Counted {
                        face,
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
        let calls = Calls::default();
        let last = *Rpc::ALL.last().unwrap();
        calls.record(
            Face::Http,
            last,
            tonic::Code::Unauthenticated,
            Duration::ZERO,
        );
        calls.record(Face::Grpc, Rpc::Acquire, tonic::Code::Ok, Duration::ZERO);
        let read = calls.read();
        let labels: Vec<_> = read
            .iter()
            .map(|c| (c.face, c.rpc, c.code, c.durations.count()))
            .collect();
        assert_eq!(
            labels,
            [
                (Face::Grpc, Rpc::Acquire, tonic::Code::Ok, 1),
                (Face::Http, last, tonic::Code::Unauthenticated, 1),
            ]
        );
    }

    /// The table has every RPC of the proto file.
    #[test]
    fn every_rpc_is_counted() {
        use prost::Message;
        let set = tonic_types_of(tenure_wire::DESCRIPTORS);
        fn tonic_types_of(bytes: &[u8]) -> prost_types::FileDescriptorSet {
            prost_types::FileDescriptorSet::decode(bytes).unwrap()
        }
        let declared: Vec<String> = set.file[0].service[0]
            .method
            .iter()
            .map(|method| method.name().to_owned())
            .collect();
        let mut counted: Vec<&str> = Rpc::ALL.iter().map(|rpc| rpc.name()).collect();
        counted.sort_unstable();
        let mut sorted = declared.clone();
        sorted.sort_unstable();
        assert_eq!(counted, sorted);
    }
}
