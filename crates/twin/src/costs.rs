//! The costs of a twin's link, DMA engines and BAR. Also the figures that were published for one accelerator.

use std::time::Duration;

const MIB: f64 = 1024.0 * 1024.0;

/// The costs of a DMA engine.
#[derive(Clone, Debug, PartialEq)]
pub struct DmaCosts {
    /// Bytes per second into the device.
    pub to_device: f64,
    /// Bytes per second out of the device.
    pub from_device: f64,
    /// The fixed time of a transfer, before its first byte.
    pub per_transfer: Duration,
    /// The time from the end of a transfer until its interrupt arrives.
    pub interrupt: Duration,
}

impl DmaCosts {
    /// Returns costs without delays. The twin then copies as fast as this machine can.
    pub fn unlimited() -> Self {
        Self {
            to_device: f64::INFINITY,
            from_device: f64::INFINITY,
            per_transfer: Duration::ZERO,
            interrupt: Duration::ZERO,
        }
    }

    /// Returns the time that a transfer of `bytes` takes in the model: to the device if `to_device` is true,
    /// else out of the device.
    pub fn time(&self, bytes: usize, to_device: bool) -> Duration {
        let rate = if to_device { self.to_device } else { self.from_device };
        self.per_transfer + Duration::from_secs_f64(bytes as f64 / rate)
    }
}

/// The costs of CPU accesses to a BAR.
#[derive(Clone, Debug, PartialEq)]
pub struct BarCosts {
    /// The rate of CPU stores to the BAR, in bytes per second.
    pub write: f64,
    /// The rate of CPU loads from the BAR, in bytes per second.
    pub read: f64,
}

/// The costs of an accelerator's twin.
#[derive(Clone, Debug, PartialEq)]
pub struct Costs {
    /// The name that results show for a device with these costs.
    pub name: String,
    /// The link's rate after encoding, in bytes per second and direction.
    pub link: f64,
    /// The DMA engines, one for each direction.
    pub dma: DmaCosts,
    /// The BAR.
    pub bar: BarCosts,
    /// The size of the memory in bytes.
    pub memory: usize,
}

impl Costs {
    /// Returns the costs of the published accelerator in slot 0 (PCIe Gen4 x8) or slot 1 (Gen3 x4). An even
    /// `slot` means slot 0, an odd one slot 1.
    ///
    /// The rates are the published ones, with MB = 2^20 bytes. The fixed time of a transfer was not
    /// published. We assume 10 us for a driver call, a descriptor and a doorbell.
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
    fn rates_are_the_published_shares_of_the_link() {
        // The paper reports these shares of the link's rate. The paper also reports rates in MB/s, which are
        // consistent with the shares if 1 GB is 1024 MB.
        //
        // | slot | link's rate | to the device | from the device |
        // | --- | --- | --- | --- |
        // | 0 | 15.754 GB/s | 49.68 % | 59.25 % |
        // | 1 | 3.94 GB/s | 60.80 % | 74.96 % |
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
    fn a_transfer_takes_its_fixed_time_and_bytes_by_rate() {
        let costs = DmaCosts { to_device: 1e9, from_device: 2e9, ..DmaCosts::unlimited() };
        assert_eq!(costs.time(1_000_000, true), Duration::from_millis(1));
        assert_eq!(costs.time(1_000_000, false), Duration::from_micros(500));
        assert_eq!(DmaCosts::unlimited().time(1 << 30, true), Duration::ZERO);
    }
}
