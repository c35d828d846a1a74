//! eCPRI over Ethernet (eCPRI 2.0): the common header, and the two words in front of IQ data and real-time control.
//!
//! ```text
//! 0                          1      2              4       6                      8
//! | revision, reserved, more | type | payload size | PC id | sequence, end, subseq | O-RAN section headers ...
//! ```

use crate::{Error, Result};

/// Bytes of the common header.
pub const HEADER: usize = 4;
/// Bytes of the common header with PC id and sequence id, as IQ data and real-time control have them.
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
        /// Bytes behind the common header as the header says it; the buffer may hold less or more.
        payload_size / set_payload_size: u16 = 2,
        /// PC id: in O-RAN the eAxC, which antenna-carrier this is.
        pc_id / set_pc_id: u16 = 4,
        /// Sequence number of the eAxC.
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
    /// Another eCPRI message follows in the same frame.
    pub fn concatenated(&self) -> bool {
        self.bytes()[0] & 1 != 0
    }

    /// Last part of a message that the radio transport split (the E bit).
    pub fn is_last(&self) -> bool {
        self.bytes()[7] & 0x80 != 0
    }

    /// Which part of a split message, 0 to 127.
    pub fn subsequence(&self) -> u8 {
        self.bytes()[7] & 0x7f
    }

    /// Where the message ends in the buffer: by its size, or where the buffer ends.
    pub fn end(&self) -> usize {
        (HEADER + self.payload_size() as usize).clamp(DATA_HEADER, self.bytes().len())
    }

    /// What follows the sequence id: section headers and IQ samples.
    pub fn payload(&self) -> &[u8] {
        &self.bytes()[DATA_HEADER..self.end()]
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Message<T> {
    /// Makes `buffer` one IQ data message that is not split, of the buffer's size, and leaves the payload as it is.
    ///
    /// # Errors
    /// [`Error::Truncated`] when the headers do not fit, [`Error::Malformed`] beyond 65535 bytes.
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

    /// What follows the sequence id, to change.
    pub fn payload_mut(&mut self) -> &mut [u8] {
        let end = self.end();
        &mut self.0.as_mut()[DATA_HEADER..end]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_and_read() {
        let mut message = Message::init(vec![0xff; 20]).unwrap();
        message.set_pc_id(0x1234);
        message.set_sequence(200);
        let bytes = message.into_inner();
        let message = Message::new(&bytes).unwrap();
        assert_eq!((message.pc_id(), message.sequence(), message.payload_size()), (0x1234, 200, 16));
        assert!(message.is_last() && !message.concatenated() && message.subsequence() == 0);
        assert_eq!(message.payload().len(), 12);
    }

    #[test]
    fn other_messages_and_lying_sizes() {
        assert!(Message::new([0x20, 0, 0, 8, 0, 0, 0, 0]).is_err());
        assert!(Message::new([0x10, 7, 0, 8, 0, 0, 0, 0]).is_err());
        assert!(Message::new([0x10, 0, 0, 0, 0, 0, 0]).is_err());
        assert_eq!(Message::new([0x10, 0, 0, 0, 0, 0, 0, 0, 9]).unwrap().payload().len(), 0);
        assert_eq!(Message::new([0x10, 0, 0xff, 0, 0, 0, 0, 0, 9]).unwrap().payload().len(), 1);
    }
}
