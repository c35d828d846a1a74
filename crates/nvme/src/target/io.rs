//! I/O commands: decodes and validates them, and carries out operations on namespaces in memory.

use super::subsystem::Subsystem;
use crate::namespace::{Counted, Counts, Memory, Namespace};
use crate::wire::command::{Command, Status, dsm, io, io_flags};
use zerocopy::FromBytes;

/// What an I/O command does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Read blocks.
    Read,
    /// Write blocks.
    Write {
        /// The data must be durable before the command completes (FUA).
        durable: bool,
    },
    /// Compare blocks with data from the host.
    Compare,
    /// Make all data durable that was written by completed commands.
    Flush,
    /// Set blocks to zero.
    Zero {
        /// True if the blocks may be deallocated. False if they should stay allocated.
        deallocate: bool,
        /// True if the zeros must be durable before the command completes (FUA).
        durable: bool,
    },
    /// Deallocate ranges of blocks. The host lists them in its data.
    Deallocate {
        /// The number of ranges.
        ranges: u16,
    },
}

impl Operation {
    /// Returns true if the host sends data with the command: for a write, a compare and a deallocation.
    pub fn receives(self) -> bool {
        matches!(self, Operation::Write { .. } | Operation::Compare | Operation::Deallocate { .. })
    }

    /// Returns true if the operation changes the namespace.
    pub fn modifies(self) -> bool {
        matches!(self, Operation::Write { .. } | Operation::Zero { .. } | Operation::Deallocate { .. })
    }
}

/// A validated I/O command. Its range lies within the namespace.
#[derive(Clone, Copy, Debug)]
pub struct IoRequest {
    /// The namespace identifier.
    pub namespace: u32,
    /// What to do.
    pub operation: Operation,
    /// The start of the range, in bytes.
    pub offset: u64,
    /// The length of the range, in bytes.
    pub length: u64,
    /// The length of the data that is transferred to or from the host, in bytes.
    pub data_bytes: u32,
}

/// Validates an I/O command, except for its SGL.
///
/// # Errors
/// The status with which the command completes.
#[inline]
pub fn plan(command: &Command, subsystem: &Subsystem) -> Result<IoRequest, Status> {
    let (durable, deallocate) = {
        let flags = command.cdw12.get();
        (flags & io_flags::FUA != 0, flags & io_flags::DEALLOCATE != 0)
    };
    let operation = match command.opcode {
        io::READ => Operation::Read,
        io::WRITE => Operation::Write { durable },
        io::FLUSH => Operation::Flush,
        io::COMPARE => Operation::Compare,
        io::WRITE_ZEROES => Operation::Zero { deallocate, durable },
        io::DATASET_MANAGEMENT => Operation::Deallocate { ranges: (command.cdw10.get() as u8).into() },
        _ => return Err(Status::INVALID_OPCODE.dnr()),
    };
    let id = command.nsid.get();
    let namespace = subsystem.namespace(id).ok_or(Status::INVALID_NAMESPACE.dnr())?;
    if operation.modifies() {
        if namespace.read_only {
            return Err(Status::WRITE_PROTECTED.dnr());
        }
        if namespace.flush_failed() {
            return Err(Status::WRITE_FAULT.dnr());
        }
    }
    let mut request = IoRequest { namespace: id, operation, offset: 0, length: 0, data_bytes: 0 };
    match operation {
        Operation::Flush => {}
        Operation::Deallocate { ranges } => {
            // The command's field NR is the number of ranges less one. The length of the data does not show
            // the number, because Linux always sends the longest list.
            let ranges = ranges + 1;
            request.operation = Operation::Deallocate { ranges };
            request.data_bytes = u32::from(ranges) * size_of::<dsm::Range>() as u32;
        }
        Operation::Read | Operation::Write { .. } | Operation::Compare | Operation::Zero { .. } => {
            let range = namespace.range(command.lba(), command.block_count());
            (request.offset, request.length) = range.ok_or(Status::LBA_OUT_OF_RANGE.dnr())?;
            if !matches!(operation, Operation::Zero { .. }) {
                if request.length > subsystem.limits.transfer_bytes().into() {
                    return Err(Status::INVALID_FIELD.dnr());
                }
                request.data_bytes = request.length as u32;
            }
        }
    }
    Ok(request)
}

/// Returns the byte ranges that a Dataset Management command deallocates, in order and without overlaps, because a host
/// may name the whole namespace 256 times. The list is empty if the command does not ask to deallocate.
///
/// # Errors
/// If a range lies beyond the namespace: the status for the command.
pub fn ranges(
    command: &Command,
    count: u16,
    data: &[u8],
    namespace: &Namespace,
) -> Result<Vec<(u64, u64)>, Status> {
    if command.cdw11.get() & dsm::DEALLOCATE == 0 {
        return Ok(Vec::new());
    }
    let bytes =
        data.get(..usize::from(count) * size_of::<dsm::Range>()).ok_or(Status::INVALID_SGL_LENGTH.dnr())?;
    let list = <[dsm::Range]>::ref_from_bytes(bytes).map_err(|_| Status::INTERNAL_ERROR)?;
    let used = list.iter().filter(|range| range.blocks.get() != 0);
    let mut ranges = used
        .map(|range| {
            namespace.range(range.lba.get(), range.blocks.get()).ok_or(Status::LBA_OUT_OF_RANGE.dnr())
        })
        .collect::<Result<Vec<_>, _>>()?;
    ranges.sort_unstable();
    ranges.dedup_by(|(offset, length), (before, total)| {
        let overlaps = *offset <= *before + *total;
        if overlaps {
            *total = (*total).max(*offset + *length - *before);
        }
        overlaps
    });
    Ok(ranges)
}

/// Carries out an operation on a namespace in memory. `data` is the data that the host sent. Does nothing for
/// a read, because the data of a read is sent directly from the namespace's memory.
///
/// # Errors
/// The status with which the command completes.
pub fn execute_on_memory(
    memory: &Memory,
    namespace: &Namespace,
    command: &Command,
    request: &IoRequest,
    data: &[u8],
) -> Result<(), Status> {
    match request.operation {
        Operation::Write { .. } => memory.write(request.offset, &data[..request.length as usize]),
        Operation::Compare => {
            if !memory.equals(request.offset, &data[..request.length as usize]) {
                return Err(Status::COMPARE_FAILURE.dnr());
            }
        }
        Operation::Zero { .. } => memory.zero(request.offset, request.length),
        Operation::Deallocate { ranges: count } => {
            for (offset, length) in ranges(command, count, data, namespace)? {
                memory.zero(offset, length);
            }
        }
        // Do nothing for a flush, because memory has no volatile cache in front of it. Do nothing for a read,
        // because its data is sent from the memory.
        Operation::Flush | Operation::Read => {}
    }
    Ok(())
}

/// Counts of completed commands that are not yet added to the counters of their namespace. All threads share
/// the namespace's counters, so a connection adds its counts only once for each batch of commands.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    namespace: u32,
    counts: Counts,
}

impl Tally {
    /// Counts a completed command.
    #[inline]
    pub fn count(&mut self, request: &IoRequest, status: Status, subsystem: &Subsystem) {
        if self.namespace != request.namespace {
            self.flush(subsystem);
            self.namespace = request.namespace;
        }
        let counted = match request.operation {
            _ if !status.is_success() => Counted::Error,
            Operation::Read => Counted::Read,
            Operation::Write { .. } => Counted::Write,
            Operation::Flush => Counted::Flush,
            Operation::Compare => Counted::Compare,
            Operation::Zero { .. } | Operation::Deallocate { .. } => Counted::Other,
        };
        let [operations, bytes] = &mut self.counts[counted as usize];
        *operations += 1;
        *bytes += request.length;
    }

    /// Adds the counted commands to the counters of their namespace.
    #[inline]
    pub fn flush(&mut self, subsystem: &Subsystem) {
        if let Some(namespace) = subsystem.namespace(self.namespace) {
            namespace.counters.add(&self.counts);
            *self = Self::default();
        }
    }
}
