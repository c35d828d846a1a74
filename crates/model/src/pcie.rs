//! The payload rates of PCI Express links, computed from their configuration.
//!
//! | overhead of a packet (TLP) | bytes | PCI Express Base Specification |
//! | --- | --- | --- |
//! | framing, sequence number and LCRC, Gen1 and Gen2: STP 1, sequence 2, LCRC 4, END 1 | 8 | 5.0, 3.6 and 4.2.1 |
//! | framing with sequence number, and LCRC, Gen3 to Gen5: STP token 4, LCRC 4 | 8 | 5.0, 3.6 and 4.2.2 |
//! | header of a memory request with a 64-bit address | 16 | 5.0, 2.2.4 and 2.2.7 |
//! | header of a completion | 12 | 5.0, 2.2.9 |
//!
//! A write or a read request therefore has 24 bytes of overhead, and a completion has 20. Gen6 sends flits of 256
//! bytes, of which 236 carry TLPs; a TLP then has its header only (6.0, 2.2.1 and 4.2.3).
//!
//! Acknowledgments, flow-control updates and clock compensation (SKP) are not in the model. They take one or two
//! percent. Use an efficiency below 1 to include them.

/// A PCI Express link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pcie {
    /// The generation, 1 to 6.
    pub generation: u8,
    /// The number of lanes, 1 to 32.
    pub lanes: u8,
    /// The most payload bytes of a packet (Max_Payload_Size).
    pub max_payload: u32,
    /// The most bytes that a read request asks for (Max_Read_Request_Size).
    pub max_read_request: u32,
    /// The payload bytes of a completion: from 64, the read completion boundary, to `max_payload`.
    pub completion: u32,
}

/// A transfer over a link. A device is at its lower end, and memory of the host is at its upper end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// The device writes host memory. Data goes up.
    Write,
    /// The device reads host memory. Requests go up, data comes down.
    Read,
    /// The CPU stores to the device. Data goes down.
    Store,
    /// The CPU loads from the device. Requests go down, data comes up.
    Load,
}

/// Bytes on the wire for each byte of payload.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WireBytes {
    /// From the device toward the host.
    pub up: f64,
    /// From the host toward the device.
    pub down: f64,
}

impl Pcie {
    /// Returns the bytes per second of one direction after line coding: 8b/10b up to Gen2, 128b/130b up to Gen5,
    /// 236 of 256 bytes of each flit for Gen6.
    pub fn wire_bytes_per_second(&self) -> f64 {
        let gigatransfers = [2.5, 5.0, 8.0, 16.0, 32.0, 64.0][usize::from(self.generation.clamp(1, 6)) - 1];
        let coding = match self.generation {
            0..=2 => 8.0 / 10.0,
            3..=5 => 128.0 / 130.0,
            _ => 236.0 / 256.0,
        };
        gigatransfers * 1e9 * f64::from(self.lanes) * coding / 8.0
    }

    /// Returns the wire bytes for each byte of transfers of `bytes` bytes. `None` stands for long transfers, in
    /// which all packets are full.
    pub fn wire_bytes(&self, transfer: Transfer, bytes: Option<f64>) -> WireBytes {
        let (request, completion) = if self.generation < 6 { (24.0, 20.0) } else { (16.0, 12.0) };
        // The wire bytes for each payload byte if packets carry up to `most` bytes.
        let overhead = |header: f64, most: u32| match bytes {
            Some(bytes) => header * (bytes / f64::from(most)).ceil() / bytes,
            None => header / f64::from(most),
        };
        let data = 1.0 + overhead(request, self.max_payload);
        let requests = overhead(request, self.max_read_request);
        let answers = 1.0 + overhead(completion, self.completion.min(self.max_payload));
        match transfer {
            Transfer::Write => WireBytes { up: data, down: 0.0 },
            Transfer::Read => WireBytes { up: requests, down: answers },
            Transfer::Store => WireBytes { up: 0.0, down: data },
            Transfer::Load => WireBytes { up: answers, down: requests },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GEN5: Pcie =
        Pcie { generation: 5, lanes: 16, max_payload: 256, max_read_request: 512, completion: 256 };

    #[test]
    fn payload_rates_are_those_of_the_specification() {
        // 32 GT/s on 16 lanes, 128b/130b: 504.1 Gb/s, of which 256 of 280 bytes are payload.
        assert!((GEN5.wire_bytes_per_second() * 8.0 / 1e9 - 504.123).abs() < 0.001);
        let write = GEN5.wire_bytes(Transfer::Write, None);
        assert_eq!(write, WireBytes { up: 280.0 / 256.0, down: 0.0 });
        let read = GEN5.wire_bytes(Transfer::Read, None);
        assert_eq!(read, WireBytes { up: 24.0 / 512.0, down: 276.0 / 256.0 });
        let mirrored = GEN5.wire_bytes(Transfer::Load, None);
        assert_eq!((mirrored.up, mirrored.down), (read.down, read.up));
    }

    #[test]
    fn short_transfers_fill_their_packets_partly() {
        // 300 bytes need two packets.
        let write = GEN5.wire_bytes(Transfer::Write, Some(300.0));
        assert_eq!(write.up, 1.0 + 48.0 / 300.0);
        let read = GEN5.wire_bytes(Transfer::Read, Some(64.0));
        assert_eq!((read.up, read.down), (24.0 / 64.0, 84.0 / 64.0));
    }

    #[test]
    fn line_coding_depends_on_the_generation() {
        let rate = |generation| Pcie { generation, lanes: 1, ..GEN5 }.wire_bytes_per_second();
        assert_eq!([rate(1), rate(2)], [250e6, 500e6]);
        assert!((rate(3) - 984.6e6).abs() < 0.1e6);
        assert_eq!(rate(6), 8e9 * 236.0 / 256.0);
    }
}
