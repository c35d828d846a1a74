//! The result document of a target: the I/O that hosts did on each namespace while the target ran.

use super::subsystem::Subsystem;
use crate::namespace::Counted;
use inlane_result::{Cell, Quantity, Row, Value, phrase};
use schemars::JsonSchema;
use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Summary of a target's run: what it served from its start to its end.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct TargetResult {
    /// The addresses on which the target listened.
    pub listeners: Vec<String>,
    /// The NQN of the subsystem that the target served.
    pub nqn: String,
    /// The number of worker threads.
    pub threads: usize,
    /// The number of connections that were accepted.
    pub connections: u64,
    /// The number of refusals: refused connections, refused Connect commands, failed authentications, and
    /// connections that were closed because of a limit or a timeout.
    pub refused: u64,
    /// The number of connections that were closed to make room for others. This happens if too many hosts
    /// have not connected a queue or have not authenticated themselves. `refused` includes these connections.
    pub displaced: u64,
    /// The number of connections that the target ended because the host violated the protocol.
    pub protocol_violations: u64,
    /// The number of received PDUs whose data digest was wrong.
    pub data_digest_errors: u64,
    /// The number of controllers that hosts created.
    pub controllers: u64,
    /// The number of controllers that ended because their keep-alive timers expired.
    pub keep_alive_expirations: u64,
    /// What hosts did with each namespace.
    pub namespaces: Vec<NamespaceResult>,
}

/// What hosts did with a namespace.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct NamespaceResult {
    /// The namespace identifier.
    pub id: u32,
    /// The specification of the namespace as the user wrote it, such as `memory:1G`.
    pub name: String,
    /// The size of the namespace in bytes when the run ended.
    pub size_bytes: u64,
    /// The size of a block in bytes.
    pub block_bytes: u32,
    /// True if hosts could not write.
    pub read_only: bool,
    /// The number of successful Read commands.
    pub reads: u64,
    /// The number of bytes that successful Read commands returned.
    pub read_bytes: u64,
    /// The number of successful Write commands.
    pub writes: u64,
    /// The number of bytes that successful Write commands stored.
    pub written_bytes: u64,
    /// The number of successful Flush commands.
    pub flushes: u64,
    /// The number of successful commands of other kinds: Compare, Write Zeroes and Dataset Management.
    pub other_commands: u64,
    /// The number of commands that ended with an error status.
    pub errors: u64,
}

impl TargetResult {
    /// Reads the counters of a target with `threads` worker threads.
    pub(super) fn of(subsystem: &Subsystem, threads: usize) -> Self {
        let counters = &subsystem.counters;
        let get = |counter: &AtomicU64| counter.load(Relaxed);
        let namespaces = subsystem.namespaces.iter().map(|namespace| {
            let get = |counted| namespace.counters.get(counted);
            let ([reads, read_bytes], [writes, written_bytes]) = (get(Counted::Read), get(Counted::Write));
            NamespaceResult {
                id: namespace.id,
                name: namespace.name.clone(),
                size_bytes: namespace.bytes(),
                block_bytes: namespace.block_bytes(),
                read_only: namespace.read_only,
                reads,
                read_bytes,
                writes,
                written_bytes,
                flushes: get(Counted::Flush)[0],
                other_commands: get(Counted::Compare)[0] + get(Counted::Other)[0],
                errors: get(Counted::Error)[0],
            }
        });
        Self {
            listeners: subsystem.listeners.iter().map(ToString::to_string).collect(),
            nqn: subsystem.nqn.clone(),
            threads,
            connections: get(&counters.connections),
            refused: get(&counters.refused),
            displaced: get(&counters.displaced),
            protocol_violations: get(&counters.violations),
            data_digest_errors: get(&counters.digest_errors),
            controllers: get(&counters.controllers),
            keep_alive_expirations: get(&counters.expired),
            namespaces: namespaces.collect(),
        }
    }
}

impl Row for TargetResult {
    fn parameters(&self) -> Vec<Cell> {
        Vec::new()
    }

    fn figures(&self) -> Vec<Cell> {
        vec![Cell::new("connections", self.connections), Cell::new("refused", self.refused)]
    }

    fn lines(&self) -> Vec<Cell> {
        let mut lines = vec![
            Cell::new("target", format!("{} at {}", self.nqn, self.listeners.join(", "))),
            Cell::new(
                "hosts",
                phrase![
                    self.connections,
                    " connections, ",
                    self.controllers,
                    " controllers; ",
                    self.refused,
                    " refused (",
                    self.displaced,
                    " to make room), ",
                    self.keep_alive_expirations,
                    " keep-alive timers expired, ",
                    self.protocol_violations,
                    " protocol violations, ",
                    self.data_digest_errors,
                    " data digest errors"
                ],
            ),
        ];
        lines.extend(self.namespaces.iter().map(|it| {
            let moved = |count, what, bytes| phrase![count, what, Quantity::Bytes(bytes), ")"];
            let operations = [
                moved(it.reads, " reads (", it.read_bytes),
                moved(it.writes, " writes (", it.written_bytes),
                phrase![it.flushes, " flushes"],
                phrase![it.other_commands, " other commands"],
                phrase![it.errors, " errors"],
            ];
            Cell::new(format!("namespace {}", it.id), phrase![&it.name, ": ", Value::list(operations, ", ")])
        }));
        lines
    }
}
