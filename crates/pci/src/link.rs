//! A PCI Express link: its current speed and width, its highest speed and width, and the highest payload
//! rate.

use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;

/// The overhead of a transaction layer packet: header with a 64-bit address (16 bytes), sequence number and
/// LCRC (6), and framing (2). Source: PCI Express Base Specification, 2.2 and 3.6.
pub const TLP_OVERHEAD_BYTES: u32 = 24;

/// The speed and width of a PCIe link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct LinkRate {
    /// Millions of transfers per second on each lane: 2500 (Gen1) to 64000 (Gen6).
    pub megatransfers_per_second: u32,
    /// The number of PCIe lanes.
    pub lanes: u8,
}

impl LinkRate {
    /// Parses the texts of a link's speed and width in sysfs, such as `16.0 GT/s PCIe` and `8`. Returns
    /// `None` for other texts.
    pub fn parse(speed: &str, width: &str) -> Option<Self> {
        let gigatransfers: f64 = speed.split_whitespace().next()?.parse().ok()?;
        let megatransfers_per_second = (gigatransfers * 1000.0) as u32;
        let lanes = width.parse().ok()?;
        let rate = Self { megatransfers_per_second, lanes };
        (rate.generation().is_some() && (1..=32).contains(&lanes)).then_some(rate)
    }

    /// Returns the PCIe generation, 1 to 6.
    pub fn generation(self) -> Option<u8> {
        [2500, 5000, 8000, 16000, 32000, 64000]
            .iter()
            .position(|&speed| speed == self.megatransfers_per_second)
            .map(|n| n as u8 + 1)
    }

    /// Returns the bits per second of one direction after line coding: 8b/10b up to Gen2, 128b/130b up to
    /// Gen5, flits of 236 bytes in 256 for Gen6.
    pub fn bits_per_second(self) -> f64 {
        let coding = match self.generation() {
            Some(1 | 2) => 8.0 / 10.0,
            Some(6) => 236.0 / 256.0,
            _ => 128.0 / 130.0,
        };
        f64::from(self.megatransfers_per_second) * 1e6 * f64::from(self.lanes) * coding
    }

    /// Returns the highest payload rate of one direction, in bytes per second, if each packet carries
    /// `payload` bytes.
    pub fn payload_bytes_per_second(self, payload: u32) -> f64 {
        let share = f64::from(payload) / f64::from(payload.saturating_add(TLP_OVERHEAD_BYTES));
        self.bits_per_second() / 8.0 * share
    }

    /// Returns the rate that two ends negotiate: the lower speed and width.
    pub fn min(self, other: Self) -> Self {
        Self {
            megatransfers_per_second: self.megatransfers_per_second.min(other.megatransfers_per_second),
            lanes: self.lanes.min(other.lanes),
        }
    }
}

/// Writes the rate as `Gen4 x8`.
impl fmt::Display for LinkRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.generation() {
            Some(generation) => write!(f, "Gen{generation} x{}", self.lanes),
            None => write!(f, "{} GT/s x{}", f64::from(self.megatransfers_per_second) / 1000.0, self.lanes),
        }
    }
}

/// The link from a function to the bridge above it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Link {
    /// The current rate. An idle device may lower its rate to save power.
    pub current: LinkRate,
    /// The highest rate that the PCI function supports at its end of the link.
    pub max: LinkRate,
}

/// How far a link runs below the rate that its device supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Shortfall {
    /// The current rate.
    pub current: LinkRate,
    /// The highest rate that the device at the lower end supports.
    pub device: LinkRate,
    /// The highest rate that both ends support. If the upper end is unknown, the device's highest rate.
    pub possible: LinkRate,
}

impl Shortfall {
    /// Compares the current rate of `link` with the highest rate that both the device and the `slot` above it
    /// support. Returns `None` if the link runs at the device's highest rate.
    pub fn of(link: Link, slot: Option<LinkRate>) -> Option<Self> {
        let possible = slot.map_or(link.max, |slot| slot.min(link.max));
        let shortfall = Self { current: link.current, device: link.max, possible };
        (shortfall.narrow() || shortfall.slow()).then_some(shortfall)
    }

    /// Returns true if the link has fewer lanes than the device.
    pub fn narrow(&self) -> bool {
        self.current.lanes < self.device.lanes
    }

    /// Returns true if the link is slower than the device supports.
    pub fn slow(&self) -> bool {
        self.current.megatransfers_per_second < self.device.megatransfers_per_second
    }
}

/// Writes, for example, `x8 of x16 (the slot has x8); Gen1 of Gen4 (idle devices slow down; check again under
/// load)`.
impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.narrow() {
            write!(f, "x{} of x{}", self.current.lanes, self.device.lanes)?;
            if self.current.lanes < self.possible.lanes {
                write!(
                    f,
                    " (both ends have x{}; reseat the card, check risers and bifurcation)",
                    self.possible.lanes
                )?;
            } else {
                write!(f, " (the slot has x{})", self.possible.lanes)?;
            }
        }
        if self.slow() {
            let generation = |rate: LinkRate| rate.generation().map_or("?".into(), |n| n.to_string());
            let separator = if self.narrow() { "; " } else { "" };
            write!(f, "{separator}Gen{} of Gen{}", generation(self.current), generation(self.device))?;
            if self.current.megatransfers_per_second < self.possible.megatransfers_per_second {
                write!(f, " (idle devices slow down; check again under load)")?;
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

    fn rate(generation: usize, lanes: u8) -> LinkRate {
        LinkRate { megatransfers_per_second: [0, 2500, 5000, 8000, 16000, 32000, 64000][generation], lanes }
    }

    #[test]
    fn parses_the_texts_of_kernels() {
        assert_eq!(LinkRate::parse("16.0 GT/s PCIe", "8"), Some(rate(4, 8)));
        assert_eq!(LinkRate::parse("8 GT/s", "16"), Some(rate(3, 16)));
        assert_eq!(LinkRate::parse("2.5 GT/s PCIe", "1"), Some(rate(1, 1)));
        for (speed, width) in [
            ("Unknown", "8"),
            ("Unknown speed", "0"),
            ("16.0 GT/s", "0"),
            ("", ""),
            ("nan", "4"),
            ("1e30", "4"),
            ("-8", "4"),
        ] {
            assert_eq!(LinkRate::parse(speed, width), None, "{speed} {width}");
        }
    }

    #[test]
    fn ceilings_are_those_of_the_specification() {
        // Gen5 x16 has 504 Gb/s after line coding, and 57.6 GB/s of payload in packets of 256 bytes.
        assert!((rate(5, 16).bits_per_second() / 1e9 - 504.1).abs() < 0.1);
        assert!((rate(5, 16).payload_bytes_per_second(256) / 1e9 - 57.6).abs() < 0.1);
        // Gen4 x8 has 15.754 GB/s after line coding: 8 lanes of 16 GT/s, times 128/130.
        assert!((rate(4, 8).bits_per_second() / 8e9 - 15.754).abs() < 0.001);
    }

    #[test]
    fn shortfalls_name_the_end_that_limits() {
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
