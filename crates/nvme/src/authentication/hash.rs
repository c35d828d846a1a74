//! The hash functions of DH-HMAC-CHAP.

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256, Sha384, Sha512};
use std::fmt;
use zeroize::Zeroizing;

/// A hash function. The values are the identifiers on the wire (Base section 8.13.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Hash {
    /// SHA-256.
    Sha256 = 1,
    /// SHA-384.
    Sha384 = 2,
    /// SHA-512.
    Sha512 = 3,
}

impl Hash {
    /// All hash functions.
    pub const ALL: [Hash; 3] = [Hash::Sha256, Hash::Sha384, Hash::Sha512];

    /// Returns the hash function with this identifier, or `None` if there is none.
    pub fn from_id(id: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|hash| *hash as u8 == id)
    }

    /// Returns the length of a hash value in bytes.
    pub fn bytes(self) -> usize {
        [32, 48, 64][self as usize - 1]
    }

    /// Returns the hash value of `data`.
    pub(super) fn of(self, data: &[u8]) -> Zeroizing<Vec<u8>> {
        Zeroizing::new(match self {
            Hash::Sha256 => Sha256::digest(data).to_vec(),
            Hash::Sha384 => Sha384::digest(data).to_vec(),
            Hash::Sha512 => Sha512::digest(data).to_vec(),
        })
    }

    /// Returns the HMAC of the concatenated `parts`.
    pub(super) fn hmac(self, key: &[u8], parts: &[&[u8]]) -> Zeroizing<Vec<u8>> {
        Zeroizing::new(match self {
            Hash::Sha256 => keyed::<Hmac<Sha256>>(key, parts).finalize().into_bytes().to_vec(),
            Hash::Sha384 => keyed::<Hmac<Sha384>>(key, parts).finalize().into_bytes().to_vec(),
            Hash::Sha512 => keyed::<Hmac<Sha512>>(key, parts).finalize().into_bytes().to_vec(),
        })
    }

    /// Returns true if `expected` is the HMAC of the concatenated `parts`. The comparison takes the same time
    /// for every value of the right length.
    pub(super) fn verify(self, key: &[u8], parts: &[&[u8]], expected: &[u8]) -> bool {
        match self {
            Hash::Sha256 => keyed::<Hmac<Sha256>>(key, parts).verify_slice(expected).is_ok(),
            Hash::Sha384 => keyed::<Hmac<Sha384>>(key, parts).verify_slice(expected).is_ok(),
            Hash::Sha512 => keyed::<Hmac<Sha512>>(key, parts).verify_slice(expected).is_ok(),
        }
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SHA-{}", self.bytes() * 8)
    }
}

/// Creates a MAC that has processed `parts`.
fn keyed<M: KeyInit + Mac>(key: &[u8], parts: &[&[u8]]) -> M {
    let mut mac = <M as KeyInit>::new_from_slice(key).expect("HMAC accepts keys of every length");
    parts.iter().for_each(|part| mac.update(part));
    mac
}
