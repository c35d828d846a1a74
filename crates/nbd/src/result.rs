//! The counters of an NBD server, and the row for them in the result document.

use super::protocol::{NbdRequest, request as kind};
use inlane_nvme::initiator::NamespaceInfo;
use inlane_nvme::namespace::{Counted, Counts};
use inlane_result::{Cell, Quantity, Row, phrase};
use schemars::JsonSchema;
use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The counters of an NBD server. The threads of all its clients share them.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) clients: AtomicU64,
    pub(super) refused_clients: AtomicU64,
    requests: inlane_nvme::namespace::Counters,
}

impl Counters {
    /// Counts a request that was answered.
    pub(super) fn count(&self, request: &NbdRequest, error: u32) {
        let counted = match request.kind.get() {
            _ if error != 0 => Counted::Error,
            kind::READ => Counted::Read,
            kind::WRITE => Counted::Write,
            _ => Counted::Other,
        };
        let mut counts = Counts::default();
        counts[counted as usize] = [1, request.length.get().into()];
        self.requests.add(&counts);
    }

    pub(super) fn result(&self, address: String, subsystem: &str, namespace: &NamespaceInfo) -> ExportResult {
        let get = |counted| self.requests.get(counted);
        let ([reads, read_bytes], [writes, written_bytes]) = (get(Counted::Read), get(Counted::Write));
        ExportResult {
            address,
            subsystem: subsystem.into(),
            namespace_id: namespace.nsid,
            namespace_bytes: namespace.bytes(),
            clients: self.clients.load(Relaxed),
            refused_clients: self.refused_clients.load(Relaxed),
            reads,
            read_bytes,
            writes,
            written_bytes,
            other_requests: get(Counted::Other)[0],
            errors: get(Counted::Error)[0],
        }
    }
}

/// The result of an NBD server's run, from its start to its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ExportResult {
    /// Where the server listened: `unix:PATH` or `HOST:PORT`.
    pub address: String,
    /// The NQN of the subsystem that has the namespace.
    pub subsystem: String,
    /// The identifier of the exported namespace.
    pub namespace_id: u32,
    /// The size of the namespace in bytes, when the server started.
    pub namespace_bytes: u64,
    /// The number of clients that were served.
    pub clients: u64,
    /// The number of clients that were refused because too many others were connected.
    pub refused_clients: u64,
    /// The number of successful reads.
    pub reads: u64,
    /// The number of bytes that successful reads returned.
    pub read_bytes: u64,
    /// The number of successful writes.
    pub writes: u64,
    /// The number of bytes that successful writes stored.
    pub written_bytes: u64,
    /// The number of successful requests of other kinds: flushes, trims and zeroed ranges.
    pub other_requests: u64,
    /// The number of requests that were answered with an error.
    pub errors: u64,
}

impl Row for ExportResult {
    fn parameters(&self) -> Vec<Cell> {
        vec![
            Cell::new("export", &self.address),
            Cell::new(
                "namespace",
                phrase![
                    self.namespace_id,
                    " of ",
                    &self.subsystem,
                    ", ",
                    Quantity::Bytes(self.namespace_bytes)
                ],
            ),
        ]
    }

    fn figures(&self) -> Vec<Cell> {
        vec![
            Cell::new("clients", self.clients),
            Cell::new("refused clients", self.refused_clients),
            Cell::new("reads", phrase![self.reads, " (", Quantity::Bytes(self.read_bytes), ")"]),
            Cell::new("writes", phrase![self.writes, " (", Quantity::Bytes(self.written_bytes), ")"]),
            Cell::new("other requests", self.other_requests),
            Cell::new("errors", self.errors),
        ]
    }
}
