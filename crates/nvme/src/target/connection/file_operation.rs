//! I/O commands on files and devices: starts their operations and completes them.

use super::TargetConnection;
use crate::namespace::Storage;
use crate::target::io::{self, IoRequest, Operation};
use crate::target::storage::OngoingOperation;
use crate::wire::command::Status;

impl TargetConnection {
    /// Prepares the file operation of an I/O command. Returns false if no buffer is available.
    pub(super) fn start_file_operation(&mut self, slot: u16, request: IoRequest) -> bool {
        let namespace = self.setup.subsystem.namespace(request.namespace).expect("a validated namespace");
        if request.operation.modifies() && !namespace.can_write(request.offset + request.length, self.now_ms)
        {
            self.finish(slot, Status::LBA_OUT_OF_RANGE.dnr(), 0);
            return true;
        }
        let entry = self.slots.get_mut(slot);
        let mut ranges = Vec::new();
        let address = match request.operation {
            Operation::Read => {
                let Some(buffer) = self.setup.share.allocate(request.length as usize) else { return false };
                entry.buffer.insert(buffer).address()
            }
            Operation::Compare => {
                let buffer = entry.buffer.as_mut().expect("the data was received");
                buffer[request.length as usize..].as_mut_ptr()
            }
            Operation::Write { .. } => entry.buffer.as_ref().expect("the data was received").address(),
            Operation::Deallocate { ranges: count } => {
                let data = entry.buffer.as_deref().unwrap_or_default();
                match io::ranges(&entry.command, count, data, namespace) {
                    Ok(list) => ranges = list,
                    Err(status) => {
                        self.finish(slot, status, 0);
                        return true;
                    }
                }
                std::ptr::null_mut()
            }
            Operation::Flush | Operation::Zero { .. } => std::ptr::null_mut(),
        };
        if request.operation == Operation::Flush && namespace.flush_failed() {
            self.finish(slot, Status::WRITE_FAULT.dnr(), 0);
            return true;
        }
        let Storage::File(file) = &namespace.storage else { unreachable!("memory needs no file operation") };
        let progress = OngoingOperation::new(request, address, ranges, file.is_direct());
        if progress.is_empty() {
            self.finish(slot, Status::SUCCESS, 0);
            return true;
        }
        entry.progress = Some(progress);
        self.ready.push_back(slot);
        true
    }

    /// Completes a command whose file operation has ended.
    pub(super) fn operation_done(&mut self, slot: u16, status: Status) {
        let entry = self.slots.get_mut(slot);
        if entry.internal {
            self.slots.remove(slot);
            self.shutdown_flushes -= 1;
            if let (false, Some(queue)) = (status.is_success(), &self.queue) {
                queue.controller.fail();
            }
            if self.shutdown_flushes == 0 && self.flush_again {
                return self.flush_for_shutdown();
            }
            return self.end_shutdown();
        }
        let request = entry.request.expect("an I/O command");
        match request.operation {
            Operation::Read if status.is_success() => self.send_buffer(slot, request.length as usize),
            Operation::Compare if status.is_success() => {
                let length = request.length as usize;
                let (data, blocks) = entry.buffer.as_ref().expect("the data was received").split_at(length);
                let equal = data == &blocks[..length];
                self.finish(slot, if equal { status } else { Status::COMPARE_FAILURE.dnr() }, 0);
            }
            _ => self.finish(slot, status, 0),
        }
    }
}
