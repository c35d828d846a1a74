//! How the ports share the memory behind BAR 2.

use crate::registers::{MAX_PORTS, PortRegisters};
use inlane_core::region::Region;
use std::sync::atomic::{AtomicU64, Ordering};

const PAGE: u64 = 4096;
/// The first word: `ntbiv` and the layout's version; above it, in the top byte, the number of ports.
const MAGIC: u64 = 0x0001_766962746e;

/// Where each port's registers and memory are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Division {
    ports: u32,
    /// Inbound memory of each port.
    pub window_bytes: u64,
}

impl Division {
    /// Divides `bytes` among `ports`, or says why not.
    pub fn new(ports: u32, bytes: u64) -> Result<Self, String> {
        if !(2..=MAX_PORTS).contains(&ports) {
            return Err(format!("cannot join {ports} ports; give 2 to {MAX_PORTS}"));
        }
        let front = Self { ports, window_bytes: 0 }.memory(0);
        let window_bytes = bytes.saturating_sub(front) / u64::from(ports) / PAGE * PAGE;
        if window_bytes == 0 {
            return Err(format!(
                "shares {bytes} bytes, too few for {ports} ports: give the server a larger --memory (16M)"
            ));
        }
        Ok(Self { ports, window_bytes })
    }

    /// Offset of a port's registers.
    pub fn registers(&self, port: u32) -> u64 {
        PAGE + u64::from(port) * size_of::<PortRegisters>() as u64
    }

    /// Offset of a port's inbound memory.
    pub fn memory(&self, port: u32) -> u64 {
        self.registers(self.ports) + u64::from(port) * self.window_bytes
    }
}

/// Marks the memory as divided among `ports`, or finds that it is; the first machine decides.
pub(super) fn claim(shared: &Region, ports: u32) -> Result<(), String> {
    // SAFETY: the first word of at least a page, aligned; every machine uses it as an atomic.
    let word = unsafe { AtomicU64::from_ptr(shared.as_ptr().cast()) };
    let mine = MAGIC | u64::from(ports) << 56;
    match word.compare_exchange(0, mine, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Ok(()),
        Err(there) if there == mine => Ok(()),
        Err(there) if there << 8 == MAGIC << 8 => Err(format!(
            "is divided among {} ports by another machine, not {ports}: give all the same",
            there >> 56
        )),
        Err(_) => {
            Err("is in use by something else, or by another release of inlane: restart its server".into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_do_not_overlap() {
        for (ports, bytes) in [(2, 1 << 20), (3, 1 << 20), (64, 64 << 20), (2, 20480)] {
            let division = Division::new(ports, bytes).unwrap();
            let registers = division.registers(ports - 1) + size_of::<PortRegisters>() as u64;
            assert!(registers <= division.memory(0));
            assert!(division.memory(ports - 1) + division.window_bytes <= bytes);
            assert!(division.memory(1).is_multiple_of(PAGE));
        }
        for (ports, bytes) in [(0, 1 << 20), (1, 1 << 20), (65, 1 << 30), (2, 16384), (2, 0)] {
            assert!(Division::new(ports, bytes).is_err(), "{ports} {bytes}");
        }
    }

    #[test]
    fn the_first_decides() {
        let shared = Region::host(4096).unwrap();
        claim(&shared, 2).unwrap();
        claim(&shared, 2).unwrap();
        assert!(claim(&shared, 3).unwrap_err().contains("among 2 ports"));
        // SAFETY: our own memory.
        unsafe { shared.as_ptr().cast::<u64>().write(0x1234) };
        assert!(claim(&shared, 2).unwrap_err().contains("something else"));
    }
}
