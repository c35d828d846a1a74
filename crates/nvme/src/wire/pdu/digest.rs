//! Digests of headers and data: CRC-32C (TCP section 3.3.1.1).

use crc_fast::{CrcAlgorithm, Digest};

/// Returns the digest of `bytes` in the byte order of the protocol, which is little-endian.
#[inline]
pub fn digest(bytes: &[u8]) -> [u8; 4] {
    crc_fast::crc32_iscsi(bytes).to_le_bytes()
}

/// The digest of data that is processed in parts. Update it directly after copying a part, because the part
/// is then still in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunningDigest(u32);

impl Default for RunningDigest {
    #[inline]
    fn default() -> Self {
        Self(u32::MAX)
    }
}

impl RunningDigest {
    /// Adds the next bytes of the data.
    #[inline]
    pub fn update(&mut self, bytes: &[u8]) {
        let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, self.0.into());
        digest.update(bytes);
        self.0 = digest.get_state() as u32;
    }

    /// Returns the digest of all bytes so far in the form in which it is sent: little-endian.
    #[inline]
    pub fn bytes(self) -> [u8; 4] {
        (!self.0).to_le_bytes()
    }
}
