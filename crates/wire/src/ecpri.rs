//! eCPRI over Ethernet (eCPRI 2.0): the common header, and the PC id and sequence id of messages with IQ data
//! or real-time control data.
//!
//! ```text
//! 0                          1      2              4       6                      8
//! | revision, reserved, more | type | payload size | PC id | sequence, end, subseq | O-RAN section headers ...
//! ```

use crate::{Error, Result};

/// The length of the common header, in bytes.
pub const HEADER: usize = 4;
/// The length in bytes of the common header plus the PC id and the sequence id. IQ data and real-time control
/// messages begin with these.
pub const DATA_HEADER: usize = 8;
/// Message type: IQ data (the O-RAN user plane).
pub const IQ_DATA: u8 = 0;
/// Message type: real-time control data (the O-RAN control plane).
pub const REAL_TIME_CONTROL: u8 = 2;

view! {
    /// An eCPRI message of type [`IQ_DATA`] or [`REAL_TIME_CONTROL`].
    Message("eCPRI", 8) check = check {
        /// Message type.
        kind / set_kind: u8 = 1,
        /// The payload size: the number of bytes after the common header. The buffer may hold fewer or more.
        payload_size / set_payload_size: u16 = 2,
        /// The PC id, which O-RAN uses as eAxC: the antenna and carrier.
        pc_id / set_pc_id: u16 = 4,
        /// The sequence number within the eAxC.
        sequence / set_sequence: u8 = 6,
    }
}

fn check(bytes: &[u8]) -> Result<()> {
    let malformed = |field, value: u64| Err(Error::Malformed { header: "eCPRI", field, value });
    match (bytes[0] >> 4, bytes[1]) {
        (1, IQ_DATA | REAL_TIME_CONTROL) => Ok(()),
        (1, kind) => malformed("message type", kind as u64),
        (revision, _) => malformed("revision", revision as u64),
    }
}

impl<T: AsRef<[u8]>> Message<T> {
    /// Returns the offset of the message's end. The size field determines it, but it is at least the header's
    /// length and at most the buffer's length.
    pub fn end(&self) -> usize {
        (HEADER + self.payload_size() as usize).clamp(DATA_HEADER, self.bytes().len())
    }

    /// Returns the payload: section headers and IQ samples.
    pub fn payload(&self) -> &[u8] {
        &self.bytes()[DATA_HEADER..self.end()]
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Message<T> {
    /// Makes `buffer` one IQ data message that is not split, with the buffer's size. Keeps the payload.
    ///
    /// # Errors
    /// [`Error::Truncated`] if the headers do not fit, [`Error::Malformed`] beyond 65535 bytes.
    pub fn init(mut buffer: T) -> Result<Self> {
        let bytes = buffer.as_mut();
        crate::view::require("eCPRI", bytes, DATA_HEADER)?;
        let value = (bytes.len() - HEADER) as u64;
        let size = u16::try_from(value).map_err(|_| Error::Malformed {
            header: "eCPRI",
            field: "payload size",
            value,
        })?;
        bytes[..DATA_HEADER].copy_from_slice(&[0x10, IQ_DATA, 0, 0, 0, 0, 0, 0x80]);
        let mut message = Self(buffer);
        message.set_payload_size(size);
        Ok(message)
    }

    /// Returns the payload for writing.
    pub fn payload_mut(&mut self) -> &mut [u8] {
        let end = self.end();
        &mut self.0.as_mut()[DATA_HEADER..end]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_as_written() {
        let mut message = Message::init(vec![0xff; 20]).unwrap();
        message.set_pc_id(0x1234);
        message.set_sequence(200);
        let bytes = message.into_inner();
        let message = Message::new(&bytes).unwrap();
        assert_eq!((message.pc_id(), message.sequence(), message.payload_size()), (0x1234, 200, 16));
        assert_eq!((bytes[0] & 1, bytes[7]), (0, 0x80), "neither concatenated nor split");
        assert_eq!(message.payload().len(), 12);
    }

    #[test]
    fn other_types_are_refused_and_wrong_sizes_stay_inside() {
        assert!(Message::new([0x20, 0, 0, 8, 0, 0, 0, 0]).is_err());
        assert!(Message::new([0x10, 7, 0, 8, 0, 0, 0, 0]).is_err());
        assert!(Message::new([0x10, 0, 0, 0, 0, 0, 0]).is_err());
        assert_eq!(Message::new([0x10, 0, 0, 0, 0, 0, 0, 0, 9]).unwrap().payload().len(), 0);
        assert_eq!(Message::new([0x10, 0, 0xff, 0, 0, 0, 0, 0, 9]).unwrap().payload().len(), 1);
    }
}
