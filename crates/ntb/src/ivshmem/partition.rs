//! Divides the memory behind BAR 2 among the ports: each gets registers and inbound memory.

use crate::field::MACHINES;
use crate::registers::PortRegisters;
use inlane_core::region::Region;
use std::sync::atomic::{AtomicU64, Ordering};

const PAGE: u64 = 4096;
/// The first word of the partitioned memory: `ntbiv` and the version of the partition. The word in the memory
/// also holds the number of ports in its top byte. That byte is 0 in this constant.
const MAGIC: u64 = 0x0002_766962746e;
/// The most ports. Their number fits into a byte of the first word.
const MAX_PORTS: u32 = 64;

/// The offsets of each port's registers and memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Partition {
    ports: u32,
    /// Size of each port's inbound memory in bytes.
    pub window_bytes: u64,
}

impl Partition {
    /// Partitions `bytes` among `ports`. Returns the reason if that is impossible.
    pub fn new(ports: u32, bytes: u64) -> Result<Self, String> {
        if !(2..=MAX_PORTS).contains(&ports) {
            return Err(format!("{ports} ports are not supported; give 2 to {MAX_PORTS}"));
        }
        let first = Self { ports, window_bytes: 0 }.memory(0);
        let window_bytes = bytes.saturating_sub(first) / u64::from(ports) / PAGE * PAGE;
        if window_bytes == 0 {
            return Err(format!(
                "its memory of {bytes} bytes is too small for {ports} ports; give its server more memory, for example 16M"
            ));
        }
        Ok(Self { ports, window_bytes })
    }

    /// Returns the offset of a port's registers.
    pub fn registers(&self, port: u32) -> u64 {
        PAGE + u64::from(port) * size_of::<PortRegisters>() as u64
    }

    /// Returns the offset of a port's inbound memory.
    pub fn memory(&self, port: u32) -> u64 {
        self.registers(self.ports) + u64::from(port) * self.window_bytes
    }
}

/// Writes the number of `ports` into the first word of the memory if the word is still 0. Otherwise checks
/// the word. Returns an error message if the word holds another number of ports, or if another program uses
/// the memory.
pub(super) fn claim(shared: &Region, ports: u32) -> Result<(), String> {
    // SAFETY: the word is at the start of a page, so it is aligned. Every machine accesses it only as an
    // atomic.
    let word = unsafe { AtomicU64::from_ptr(shared.as_ptr().cast()) };
    let mine = MAGIC | u64::from(ports) << 56;
    match word.compare_exchange(0, mine, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Ok(()),
        Err(there) if there == mine => Ok(()),
        Err(there) if there << 8 == MAGIC << 8 => Err(format!(
            "another machine partitioned its memory among {} ports, not {ports}; give all machines the same number of {MACHINES}",
            there >> 56
        )),
        Err(_) => {
            Err("another program or another release of inlane uses its memory; restart the ivshmem server"
                .into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_do_not_overlap() {
        for (ports, bytes) in [(2, 1 << 20), (3, 1 << 20), (64, 64 << 20), (2, 118784)] {
            let partition = Partition::new(ports, bytes).unwrap();
            let registers = partition.registers(ports - 1) + size_of::<PortRegisters>() as u64;
            assert!(registers <= partition.memory(0));
            assert!(partition.memory(ports - 1) + partition.window_bytes <= bytes);
            assert!(partition.memory(1).is_multiple_of(PAGE));
        }
        for (ports, bytes) in [(0, 1 << 20), (1, 1 << 20), (65, 1 << 30), (2, 110592), (2, 0)] {
            assert!(Partition::new(ports, bytes).is_err(), "{ports} {bytes}");
        }
    }

    #[test]
    fn the_first_machine_decides() {
        let shared = Region::host(4096).unwrap();
        claim(&shared, 2).unwrap();
        claim(&shared, 2).unwrap();
        assert!(claim(&shared, 3).unwrap_err().contains("among 2 ports"));
        // SAFETY: only this test uses the memory.
        unsafe { shared.as_ptr().cast::<u64>().write(0x1234) };
        assert!(claim(&shared, 2).unwrap_err().contains("another program"));
    }
}
