//! What a twin's operations cost: link, DMA engine and BAR, and the figures published for one accelerator.

use std::time::Duration;

const MIB: f64 = 1024.0 * 1024.0;

/// What a DMA engine costs.
#[derive(Clone, Debug, PartialEq)]
pub struct DmaCosts {
    /// Bytes a second towards the device.
    pub to_device: f64,
    /// Bytes a second from the device.
    pub from_device: f64,
    /// What a transfer costs before its first byte.
    pub per_transfer: Duration,
    /// From the end of a transfer to its interrupt.
    pub interrupt: Duration,
}

impl DmaCosts {
    /// An engine that is as fast as this machine copies, and costs nothing a transfer.
    pub fn unlimited() -> Self {
        Self {
            to_device: f64::INFINITY,
            from_device: f64::INFINITY,
            per_transfer: Duration::ZERO,
            interrupt: Duration::ZERO,
        }
    }

    /// The time a transfer takes in the model.
    pub fn time(&self, bytes: usize, to_device: bool) -> Duration {
        let rate = if to_device { self.to_device } else { self.from_device };
        self.per_transfer + Duration::from_secs_f64(bytes as f64 / rate)
    }
}

/// What the processor's accesses to a BAR cost.
#[derive(Clone, Debug, PartialEq)]
pub struct BarCosts {
    /// Bytes a second that stores reach.
    pub write: f64,
    /// Bytes a second that loads reach.
    pub read: f64,
}

/// What an accelerator's twin costs.
#[derive(Clone, Debug, PartialEq)]
pub struct Costs {
    /// What the costs are those of, for results.
    pub name: String,
    /// The link's rate after encoding, bytes a second each way.
    pub link: f64,
    /// Its DMA engines, one each way.
    pub dma: DmaCosts,
    /// Its BAR.
    pub bar: BarCosts,
    /// Bytes of memory.
    pub memory: usize,
}

impl Costs {
    /// The published accelerator in its published slot 0 (PCIe Gen4 x8) or 1 (Gen3 x4).
    ///
    /// Rates as published, with MB = 2^20 bytes. What a transfer costs before its first byte was not published; 10 us
    /// (a driver call, a descriptor, a doorbell) is ours, and no figure published tells it from zero.
    pub fn published(slot: u32) -> Self {
        let (name, link, to_device, from_device, write, read) = match slot % 2 {
            0 => ("published NPU, Gen4 x8", 15.754e9, 8014.24, 9558.77, 6.76, 28.11),
            _ => ("published NPU, Gen3 x4", 3.94e9, 2452.07, 3023.30, 3.22, 28.12),
        };
        Self {
            name: name.into(),
            link,
            dma: DmaCosts {
                to_device: to_device * MIB,
                from_device: from_device * MIB,
                per_transfer: Duration::from_micros(10),
                interrupt: Duration::from_micros(5),
            },
            bar: BarCosts { write: write * MIB, read: read * MIB },
            memory: 1 << 30,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_rates_are_shares_of_the_link_as_published() {
        // 49.68 % and 59.25 % of 15.754 GB/s, 60.80 % and 74.96 % of 3.94 GB/s; published with GB = 1024 MB.
        let share = |slot, to_device: bool| {
            let costs = Costs::published(slot);
            let rate = if to_device { costs.dma.to_device } else { costs.dma.from_device };
            rate / MIB / 1024.0 / (costs.link / 1e9) * 100.0
        };
        for (slot, to_device, published) in
            [(0, true, 49.68), (0, false, 59.25), (1, true, 60.80), (1, false, 74.96)]
        {
            assert!((share(slot, to_device) - published).abs() < 0.1, "{slot} {to_device}");
        }
    }

    #[test]
    fn time_is_cost_and_rate() {
        let costs = DmaCosts { to_device: 1e9, from_device: 2e9, ..DmaCosts::unlimited() };
        assert_eq!(costs.time(1_000_000, true), Duration::from_millis(1));
        assert_eq!(costs.time(1_000_000, false), Duration::from_micros(500));
        assert_eq!(DmaCosts::unlimited().time(1 << 30, true), Duration::ZERO);
    }
}
