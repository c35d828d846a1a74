//! A PCI Express link: its speed and width, what it could be, what it carries.

use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;

/// What a transaction layer packet costs beside its payload: header with a 64-bit address (16), sequence number and
/// LCRC (6), framing (2) (PCI Express Base Specification, 2.2 and 3.6).
pub const TLP_OVERHEAD_BYTES: u32 = 24;

/// The speed and width of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Rate {
    /// Millions of transfers a second on a lane: 2500 (Gen1) to 64000 (Gen6).
    pub megatransfers_per_second: u32,
    /// Lanes.
    pub lanes: u8,
}

impl Rate {
    /// From what sysfs says: `16.0 GT/s PCIe` and `8`; `None` for `Unknown`, for no lanes, and for what is no PCIe.
    pub fn parse(speed: &str, width: &str) -> Option<Self> {
        let gigatransfers: f64 = speed.split_whitespace().next()?.parse().ok()?;
        let megatransfers_per_second = (gigatransfers * 1000.0) as u32;
        let lanes = width.parse().ok()?;
        let rate = Self { megatransfers_per_second, lanes };
        (rate.generation().is_some() && (1..=32).contains(&lanes)).then_some(rate)
    }

    /// The generation, 1 to 6.
    pub fn generation(self) -> Option<u8> {
        [2500, 5000, 8000, 16000, 32000, 64000]
            .iter()
            .position(|&speed| speed == self.megatransfers_per_second)
            .map(|n| n as u8 + 1)
    }

    /// What goes over the link in one direction after line coding: 8b/10b to Gen2, 128b/130b to Gen5, flits of 236 bytes in
    /// 256 from Gen6.
    pub fn bits_per_second(self) -> f64 {
        let coding = match self.generation() {
            Some(1 | 2) => 8.0 / 10.0,
            Some(6) => 236.0 / 256.0,
            _ => 128.0 / 130.0,
        };
        f64::from(self.megatransfers_per_second) * 1e6 * f64::from(self.lanes) * coding
    }

    /// The payload ceiling of one direction in bytes a second: writes in packets of `payload` bytes.
    pub fn payload_bytes_per_second(self, payload: u32) -> f64 {
        let share = f64::from(payload) / f64::from(payload.saturating_add(TLP_OVERHEAD_BYTES));
        self.bits_per_second() / 8.0 * share
    }

    /// What two ends can agree on.
    pub fn min(self, other: Self) -> Self {
        Self {
            megatransfers_per_second: self.megatransfers_per_second.min(other.megatransfers_per_second),
            lanes: self.lanes.min(other.lanes),
        }
    }
}

/// `Gen4 x8`.
impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.generation() {
            Some(generation) => write!(f, "Gen{generation} x{}", self.lanes),
            None => write!(f, "{} GT/s x{}", f64::from(self.megatransfers_per_second) / 1000.0, self.lanes),
        }
    }
}

/// The link by which a function reaches the bridge above it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Link {
    /// As it runs now. Idle devices may have slowed theirs down to save power.
    pub current: Rate,
    /// The most this end can do.
    pub max: Rate,
}

/// A link that runs below what its device can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Shortfall {
    /// As it runs.
    pub current: Rate,
    /// What the device can do.
    pub device: Rate,
    /// What both ends can do; the device's, where the other end is unknown.
    pub possible: Rate,
}

impl Shortfall {
    /// Compares a device's link with what it and the `slot` above it can do.
    pub fn of(link: Link, slot: Option<Rate>) -> Option<Self> {
        let possible = slot.map_or(link.max, |slot| slot.min(link.max));
        let shortfall = Self { current: link.current, device: link.max, possible };
        (shortfall.narrow() || shortfall.slow()).then_some(shortfall)
    }

    /// Fewer lanes than the device has.
    pub fn narrow(&self) -> bool {
        self.current.lanes < self.device.lanes
    }

    /// Slower than the device can be.
    pub fn slow(&self) -> bool {
        self.current.megatransfers_per_second < self.device.megatransfers_per_second
    }
}

/// `x8 of x16 (the slot has x8); Gen1 of Gen4 (idle devices slow down: look again under load)`.
impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.narrow() {
            write!(f, "x{} of x{}", self.current.lanes, self.device.lanes)?;
            if self.current.lanes < self.possible.lanes {
                write!(
                    f,
                    " (both ends have x{}: reseat the card, check risers and bifurcation)",
                    self.possible.lanes
                )?;
            } else {
                write!(f, " (the slot has x{})", self.possible.lanes)?;
            }
        }
        if self.slow() {
            let generation = |rate: Rate| rate.generation().map_or("?".into(), |n| n.to_string());
            let separator = if self.narrow() { "; " } else { "" };
            write!(f, "{separator}Gen{} of Gen{}", generation(self.current), generation(self.device))?;
            if self.current.megatransfers_per_second < self.possible.megatransfers_per_second {
                write!(f, " (idle devices slow down: look again under load)")?;
            } else {
                write!(f, " (the slot is Gen{})", generation(self.possible))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(generation: usize, lanes: u8) -> Rate {
        Rate { megatransfers_per_second: [0, 2500, 5000, 8000, 16000, 32000, 64000][generation], lanes }
    }

    #[test]
    fn reads_what_kernels_wrote() {
        assert_eq!(Rate::parse("16.0 GT/s PCIe", "8"), Some(rate(4, 8)));
        assert_eq!(Rate::parse("8 GT/s", "16"), Some(rate(3, 16)));
        assert_eq!(Rate::parse("2.5 GT/s PCIe", "1"), Some(rate(1, 1)));
        for (speed, width) in [
            ("Unknown", "8"),
            ("Unknown speed", "0"),
            ("16.0 GT/s", "0"),
            ("", ""),
            ("nan", "4"),
            ("1e30", "4"),
            ("-8", "4"),
        ] {
            assert_eq!(Rate::parse(speed, width), None, "{speed} {width}");
        }
    }

    #[test]
    fn ceilings_are_those_of_the_specification() {
        // 504 Gb/s after coding, and 57.6 GB/s of payload in packets of 256 bytes.
        assert!((rate(5, 16).bits_per_second() / 1e9 - 504.1).abs() < 0.1);
        assert!((rate(5, 16).payload_bytes_per_second(256) / 1e9 - 57.6).abs() < 0.1);
        // The published link of a Gen4 x8 device: 15.754 GB/s.
        assert!((rate(4, 8).bits_per_second() / 8e9 - 15.754).abs() < 0.001);
    }

    #[test]
    fn shortfalls_say_whose_fault_it_is() {
        let link = |current, max| Link { current, max };
        let text = |link, slot| Shortfall::of(link, slot).map(|s| s.to_string());
        assert_eq!(text(link(rate(4, 16), rate(4, 16)), Some(rate(5, 16))), None);
        assert_eq!(
            text(link(rate(4, 8), rate(4, 16)), Some(rate(4, 8))).unwrap(),
            "x8 of x16 (the slot has x8)"
        );
        assert!(text(link(rate(4, 8), rate(4, 16)), Some(rate(4, 16))).unwrap().contains("reseat"));
        assert!(text(link(rate(1, 16), rate(4, 16)), Some(rate(4, 16))).unwrap().contains("under load"));
        assert_eq!(
            text(link(rate(3, 4), rate(4, 4)), Some(rate(3, 16))).unwrap(),
            "Gen3 of Gen4 (the slot is Gen3)"
        );
    }
}
