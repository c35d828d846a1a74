//! The secrets of hosts and targets, in the representation that nvme-cli and Linux use.

use super::Hash;
use crate::random;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crc_fast::{CrcAlgorithm, checksum};
use std::fmt;
use std::str::FromStr;
use zeroize::Zeroizing;

/// A secret in the form `DHHC-1:0t:BASE64:` (Base section 8.13.5). The Base64 text contains the secret's
/// bytes and their CRC-32. The digit t names the hash function that transforms the secret before it is used.
/// If t is 0, the secret is not transformed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    bytes: Zeroizing<Vec<u8>>,
    transform: Option<Hash>,
}

impl fmt::Debug for Secret {
    /// Writes the length only, because the secret must not appear in logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({} bytes)", self.bytes.len())
    }
}

impl Secret {
    /// Creates a random secret. It is as long as a hash value of `transform`: 32, 48 or 64 bytes. Without a
    /// transform, it has 32 bytes.
    pub fn generate(transform: Option<Hash>) -> Self {
        let mut bytes = Zeroizing::new(vec![0; transform.map_or(32, Hash::bytes)]);
        random::fill(&mut bytes);
        Self { bytes, transform }
    }

    /// Returns the representation, to store it in a file.
    pub fn to_text(&self) -> Zeroizing<String> {
        let mut bytes = Zeroizing::new(self.bytes.to_vec());
        bytes.extend(crc32(&self.bytes));
        let text = Zeroizing::new(STANDARD.encode(&bytes[..]));
        Zeroizing::new(format!("DHHC-1:{:02}:{}:", self.transform.map_or(0, |hash| hash as u8), *text))
    }

    /// Returns the key for the HMAC. If the secret's text form names a hash, the key is an HMAC of the
    /// owner's NQN with the secret. Otherwise the key is the secret itself.
    pub(super) fn key(&self, nqn: &str) -> Zeroizing<Vec<u8>> {
        match self.transform {
            None => self.bytes.clone(),
            Some(hash) => hash.hmac(&self.bytes, &[nqn.as_bytes(), b"NVMe-over-Fabrics"]),
        }
    }
}

impl FromStr for Secret {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid =
            |why| format!("{why}; 'inlane nvme gen-dhchap-key' and 'nvme gen-dhchap-key' make secrets");
        let rest = text.strip_prefix("DHHC-1:").ok_or_else(|| invalid("it does not start with DHHC-1:"))?;
        let (transform, rest) = rest.split_once(':').ok_or_else(|| invalid("its second ':' is missing"))?;
        let transform = match transform {
            "00" => None,
            "01" => Some(Hash::Sha256),
            "02" => Some(Hash::Sha384),
            "03" => Some(Hash::Sha512),
            _ => return Err(invalid("the part after DHHC-1: must be 00, or a hash function: 01, 02 or 03")),
        };
        let encoded = rest.strip_suffix(':').ok_or_else(|| invalid("the ':' at its end is missing"))?;
        let bytes = STANDARD.decode(encoded).map_err(|_| invalid("its third part is not Base64"))?;
        let mut bytes = Zeroizing::new(bytes);
        if !matches!(bytes.len(), 36 | 52 | 68) {
            return Err(invalid("it must have 32, 48 or 64 bytes"));
        }
        let length = bytes.len() - 4;
        if bytes[length..] != crc32(&bytes[..length]) {
            return Err(invalid("its checksum is wrong, so a character is wrong or missing"));
        }
        bytes.truncate(length);
        Ok(Self { bytes, transform })
    }
}

/// Returns the CRC-32 of a secret, as the four bytes that follow the secret in its text form.
fn crc32(bytes: &[u8]) -> [u8; 4] {
    (checksum(CrcAlgorithm::Crc32IsoHdlc, bytes) as u32).to_le_bytes()
}
