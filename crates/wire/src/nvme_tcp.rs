//! NVMe/TCP PDU headers (NVM Express TCP transport 1.0, section 3.6): the common header, and that of data PDUs. NVMe is
//! little-endian.
//!
//! ```text
//! 0      1       2               3             4            8
//! | type | flags | header length | data offset | PDU length | specific header ..., digest, pad, data, digest
//! ```

use crate::{Error, Result};

/// Bytes of the common header.
pub const HEADER: usize = 8;
/// Bytes of a data PDU's header, the common one included.
pub const DATA_HEADER: usize = 24;

/// PDU type: initialise connection, request.
pub const IC_REQUEST: u8 = 0;
/// PDU type: initialise connection, response.
pub const IC_RESPONSE: u8 = 1;
/// PDU type: host ends the connection because of an error.
pub const H2C_TERMINATE: u8 = 2;
/// PDU type: controller ends the connection because of an error.
pub const C2H_TERMINATE: u8 = 3;
/// PDU type: command capsule.
pub const COMMAND: u8 = 4;
/// PDU type: response capsule.
pub const RESPONSE: u8 = 5;
/// PDU type: data from the host.
pub const H2C_DATA: u8 = 6;
/// PDU type: data from the controller.
pub const C2H_DATA: u8 = 7;
/// PDU type: ready to transfer.
pub const R2T: u8 = 9;

/// Flag: a header digest is there.
pub const HEADER_DIGEST: u8 = 1 << 0;
/// Flag: a data digest is there.
pub const DATA_DIGEST: u8 = 1 << 1;
/// Flag: last data PDU of the command.
pub const LAST: u8 = 1 << 2;
/// Flag: success is implied, no response capsule follows.
pub const SUCCESS: u8 = 1 << 3;

view! {
    /// A PDU's common header.
    Pdu("NVMe/TCP", 8) check = check {
        /// PDU type.
        kind / set_kind: u8 = 0,
        /// Flags.
        flags / set_flags: u8 = 1,
        /// Bytes of the header without its digest.
        header_len / set_header_len: u8 = 2,
        /// Where data begins in the PDU; 0 when there is none.
        data_offset / set_data_offset: u8 = 3,
    }
}

fn check(bytes: &[u8]) -> Result<()> {
    let malformed = |field, value: u64| Err(Error::Malformed { header: "NVMe/TCP", field, value });
    let length = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
    if (bytes[2] as usize) < HEADER {
        return malformed("header length", bytes[2] as u64);
    }
    if length < bytes[2] as u32 {
        return malformed("PDU length", length as u64);
    }
    Ok(())
}

impl<T: AsRef<[u8]>> Pdu<T> {
    /// Bytes of the whole PDU: digests, padding and data included.
    pub fn length(&self) -> u32 {
        u32_at(self.bytes(), 4)
    }
}

view! {
    /// The header of a data PDU ([`H2C_DATA`], [`C2H_DATA`]), the common one included.
    Data("NVMe/TCP data", 24) check = check {}
}

impl<T: AsRef<[u8]>> Data<T> {
    /// Which command's data.
    pub fn command_id(&self) -> u16 {
        u16::from_le_bytes([self.bytes()[8], self.bytes()[9]])
    }

    /// Transfer tag of the R2T that asked for it.
    pub fn transfer_tag(&self) -> u16 {
        u16::from_le_bytes([self.bytes()[10], self.bytes()[11]])
    }

    /// Where in the command's buffer.
    pub fn offset(&self) -> u32 {
        u32_at(self.bytes(), 12)
    }

    /// How many bytes.
    pub fn data_length(&self) -> u32 {
        u32_at(self.bytes(), 16)
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_pdu() {
        let mut bytes =
            vec![C2H_DATA, LAST | SUCCESS, 24, 24, 0x18, 0x10, 0, 0, 5, 0, 0, 0, 0, 2, 0, 0, 0, 0x10];
        bytes.resize(24, 0);
        let pdu = Pdu::new(&bytes).unwrap();
        assert_eq!((pdu.kind(), pdu.header_len(), pdu.data_offset(), pdu.length()), (C2H_DATA, 24, 24, 4120));
        let data = Data::new(&bytes).unwrap();
        assert_eq!((data.command_id(), data.offset(), data.data_length()), (5, 512, 4096));
    }

    #[test]
    fn lengths_that_lie() {
        assert!(Pdu::new([4, 0, 7, 0, 72, 0, 0, 0]).is_err());
        assert!(Pdu::new([4, 0, 72, 0, 71, 0, 0, 0]).is_err());
        assert!(Pdu::new([4, 0, 72, 0, 72, 0, 0]).is_err());
    }
}
