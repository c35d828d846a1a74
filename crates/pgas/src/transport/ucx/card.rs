//! The card of a PE: the data that other PEs need to access the PE's memory through UCX.

/// The message that each PE sends to all PEs when it connects. It holds the sizes, addresses and UCX keys of
/// the PE's memory, and the address of its UCX worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Card {
    /// Length of the PE's symmetric memory in bytes.
    pub symmetric_bytes: u64,
    /// Length of the PE's static objects in bytes, or 0.
    pub statics_bytes: u64,
    /// Address of the memory that UCX allocated, in the PE's address space.
    pub memory: u64,
    /// Address of the static objects, in the PE's address space.
    pub statics: u64,
    /// The address of the PE's UCX worker. The other PEs create their UCX endpoints to this address.
    pub address: Vec<u8>,
    /// The packed UCX key with which the other PEs access this PE's memory.
    pub key: Vec<u8>,
    /// The packed UCX key for this PE's static objects. Other PEs need it to access them. Empty if there are
    /// none.
    pub statics_key: Vec<u8>,
}

impl Card {
    /// Encodes the card in little-endian format: four numbers of 8 bytes, then three byte strings. A 4-byte
    /// length precedes each string.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for number in [self.symmetric_bytes, self.statics_bytes, self.memory, self.statics] {
            bytes.extend(number.to_le_bytes());
        }
        for part in [&self.address, &self.key, &self.statics_key] {
            bytes.extend((part.len() as u32).to_le_bytes());
            bytes.extend(part);
        }
        bytes
    }

    /// Decodes a card. Returns `None` if the bytes are no valid card.
    pub fn decode(mut bytes: &[u8]) -> Option<Self> {
        let mut number = || {
            let (number, rest) = bytes.split_first_chunk::<8>()?;
            bytes = rest;
            Some(u64::from_le_bytes(*number))
        };
        let numbers = [number()?, number()?, number()?, number()?];
        let mut part = || {
            let (length, rest) = bytes.split_first_chunk::<4>()?;
            let (part, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
            bytes = rest;
            Some(part.to_vec())
        };
        let (address, key, statics_key) = (part()?, part()?, part()?);
        let [symmetric_bytes, statics_bytes, memory, statics] = numbers;
        let card = Self { symmetric_bytes, statics_bytes, memory, statics, address, key, statics_key };
        (bytes.is_empty() && !card.address.is_empty() && !card.key.is_empty()).then_some(card)
    }
}

#[cfg(test)]
mod tests {
    use super::Card;
    use proptest::prelude::*;

    fn part(least: usize) -> impl Strategy<Value = Vec<u8>> {
        proptest::collection::vec(any::<u8>(), least..40)
    }

    proptest! {
        #[test]
        fn cards_are_read_as_they_were_written(numbers: [u64; 4], address in part(1), key in part(1), statics_key in part(0)) {
            let [symmetric_bytes, statics_bytes, memory, statics] = numbers;
            let card = Card { symmetric_bytes, statics_bytes, memory, statics, address, key, statics_key };
            let bytes = card.encode();
            prop_assert_eq!(Card::decode(&bytes).unwrap(), card);
            prop_assert!((0..bytes.len()).all(|length| Card::decode(&bytes[..length]).is_none()));
        }

        #[test]
        fn any_bytes_are_a_card_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
            if let Some(card) = Card::decode(&bytes) {
                prop_assert_eq!(card.encode(), bytes);
            }
        }
    }
}
