//! The Diffie-Hellman groups of DH-HMAC-CHAP: the null group, and the finite-field groups of RFC 7919.

use crate::random;
use crypto_bigint::modular::{BoxedMontyForm, BoxedMontyParams};
use crypto_bigint::{BoxedUint, Odd, Resize};
use std::fmt;
use zeroize::Zeroizing;

/// A Diffie-Hellman group. The values are the identifiers on the wire (Base section 8.13.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Group {
    /// No Diffie-Hellman exchange: responses depend on the secret and the challenge only.
    Null = 0,
    /// ffdhe2048: a modulus of 2048 bits.
    Ffdhe2048 = 1,
    /// ffdhe3072: a modulus of 3072 bits.
    Ffdhe3072 = 2,
    /// ffdhe4096: a modulus of 4096 bits.
    Ffdhe4096 = 3,
    /// ffdhe6144: a modulus of 6144 bits.
    Ffdhe6144 = 4,
    /// ffdhe8192: a modulus of 8192 bits.
    Ffdhe8192 = 5,
}

/// The length of a private exponent in bits. RFC 7919 section 5.2 asks for at least twice the strength of the
/// group. This length is enough for the largest group.
const EXPONENT_BITS: u32 = 512;

/// The first 8064 bits of the binary expansion of the number e, in hexadecimal. The first two bits are the
/// integer part. RFC 7919 computes each modulus from the first bits of e.
const E: &str = "\
    adf85458a2bb4a9aafdc5620273d3cf1d8b9c583ce2d3695a9e13641146433fbcc939dce249b3ef97d2fe363630c75d8\
    f681b202aec4617ad3df1ed5d5fd65612433f51f5f066ed0856365553ded1af3b557135e7f57c935984f0c70e0e68b77\
    e2a689daf3efe8721df158a136ade73530acca4f483a797abc0ab182b324fb61d108a94bb2c8e3fbb96adab760d7f468\
    1d4f42a3de394df4ae56ede76372bb190b07a7c8ee0a6d709e02fce1cdf7e2ecc03404cd28342f619172fe9ce98583ff\
    8e4f1232eef28183c3fe3b1b4c6fad733bb5fcbc2ec22005c58ef1837d1683b2c6f34a26c1b2effa886b4238611fcfdc\
    de355b3b6519035bbc34f4def99c023861b46fc9d6e6c9077ad91d2691f7f7ee598cb0fac186d91caefe130985139270\
    b4130c93bc437944f4fd4452e2d74dd364f2e21e71f54bff5cae82ab9c9df69ee86d2bc522363a0dabc521979b0deada\
    1dbf9a42d5c4484e0abcd06bfa53ddef3c1b20ee3fd59d7c25e41d2b669e1ef16e6f52c3164df4fb7930e9e4e58857b6\
    ac7d5f42d69f6d187763cf1d5503400487f55ba57e31cc7a7135c886efb4318aed6a1e012d9e6832a907600a918130c4\
    6dc778f971ad0038092999a333cb8b7a1a1db93d7140003c2a4ecea9f98d0acc0a8291cdcec97dcf8ec9b55a7f88a46b\
    4db5a851f44182e1c68a007e5e0dd9020bfd64b645036c7a4e677d2c38532a3a23ba4442caf53ea63bb454329b7624c8\
    917bdd64b1c0fd4cb38e8c334c701c3acdad0657fccfec719b1f5c3e4e46041f388147fb4cfdb477a52471f7a9a96910\
    b855322edb6340d8a00ef092350511e30abec1fff9e3a26e7fb29f8c183023c3587e38da0077d9b4763e4e4b94b2bbc1\
    94c6651e77caf992eeaac0232a281bf6b3a739c1226116820ae8db5847a67cbef9c9091b462d538cd72b03746ae77f5e\
    62292c311562a846505dc82db854338ae49f5235c95b91178ccf2dd5cacef403ec9d1810c6272b045b3b71f9dc6b80d6\
    3fdd4a8e9adb1e6962a69526d43161c1a41d570d7938dad4a40e329ccff46aaa36ad004cf600c8381e425a31d951ae64\
    fdb23fcec9509d43687feb69edd1cc5e0b8cc3bdf64b10ef86b63142a3ab8829555b2f747c932665cb2c0f1cc01bd702\
    29388839d2af05e454504ac78b7582822846c0ba35c35f5c59160cc046fd8251541fc68c9c86b022bb7099876a460e74\
    51a8a93109703fee1c217e6c3826e52c51aa691e0e423cfc99e9e31650c1217b624816cdad9a95f9d5b8019488d9c0a0\
    a1fe3075a577e23183f81d4a3f2fa4571efc8ce0ba8a4fe8b6855dfe72b0a66eded2fbabfbe58a30fafabe1c5d71a87e\
    2f741ef8c1fe86fea6bbfde530677f0d97d11d49f7a8443d0822e506a9f4614e011e2a94838ff88cd68c8bb7c51eef6d";

impl Group {
    /// All groups, the fastest one first.
    pub const ALL: [Group; 6] = [
        Group::Null,
        Group::Ffdhe2048,
        Group::Ffdhe3072,
        Group::Ffdhe4096,
        Group::Ffdhe6144,
        Group::Ffdhe8192,
    ];

    /// Returns the group with this identifier, or `None` if there is none.
    pub fn from_id(id: u8) -> Option<Self> {
        Self::ALL.get(usize::from(id)).copied()
    }

    /// Returns the length of a public value in bytes: that of the modulus, or 0 for the null group.
    pub fn value_bytes(self) -> usize {
        [0, 256, 384, 512, 768, 1024][self as usize]
    }

    /// Returns the modulus p, most significant byte first (RFC 7919 appendix A):
    /// `p = 2^b - 2^(b-64) + (floor(2^(b-130) * e) + X) * 2^64 - 1`. It is a prime, and so is (p - 1) / 2.
    pub(super) fn modulus(self) -> Vec<u8> {
        let x: u64 = [0, 560_316, 2_625_351, 5_736_041, 15_705_020, 10_965_728][self as usize];
        let middle = self.value_bytes() - 16;
        let mut bytes = vec![0xFF; 8];
        bytes.extend((0..middle).map(|n| u8::from_str_radix(&E[n * 2..n * 2 + 2], 16).expect("a digit")));
        let low: &mut [u8; 8] = bytes.last_chunk_mut().expect("at least 8 bytes");
        // Before the last term of the formula, -1, the lowest 64 bits are 0. Subtracting 1 sets all of them,
        // and borrows 1 from the next 64 bits, which are `low`.
        *low = (u64::from_be_bytes(*low) + x - 1).to_be_bytes();
        bytes.extend([0xFF; 8]);
        bytes
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Group::Null => write!(f, "null"),
            group => write!(f, "ffdhe{}", group.value_bytes() * 8),
        }
    }
}

/// A private exponent and its public value, for one authentication.
pub struct KeyPair {
    group: Group,
    /// The modulus of the group and the private exponent. `None` for the null group.
    private: Option<(BoxedMontyParams, Zeroizing<BoxedUint>)>,
    public: Vec<u8>,
}

impl fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyPair({})", self.group)
    }
}

impl KeyPair {
    /// Creates a random pair. The values of the null group are empty.
    pub fn generate(group: Group) -> Self {
        let mut exponent = Zeroizing::new([0; EXPONENT_BITS as usize / 8]);
        random::fill(&mut exponent[..]);
        Self::with_exponent(group, &exponent[..])
    }

    /// Creates the pair with a given private exponent.
    pub(super) fn with_exponent(group: Group, exponent: &[u8]) -> Self {
        if group == Group::Null {
            return Self { group, private: None, public: Vec::new() };
        }
        let modulus = Odd::new(BoxedUint::from_be_slice_vartime(&group.modulus())).into_option();
        let modulus = BoxedMontyParams::new_vartime(modulus.expect("an odd modulus"));
        let private = Zeroizing::new(BoxedUint::from_be_slice_vartime(exponent));
        let generator = BoxedUint::from(2_u8).resize(modulus.bits_precision());
        let public = power(&generator, &private, &modulus).to_vec();
        Self { group, private: Some((modulus, private)), public }
    }

    /// Returns the public value: as many bytes as the modulus has, most significant byte first.
    pub fn public(&self) -> &[u8] {
        &self.public
    }

    /// Returns the secret shared with the peer whose public value is `peer`. The secret has as many bytes as
    /// the modulus. Returns `None` if the value has a wrong length. Also returns `None` if it is not from 2
    /// to p - 2, because such a value would reveal the secret (RFC 7919 section 5.1).
    pub fn shared(&self, peer: &[u8]) -> Option<Zeroizing<Box<[u8]>>> {
        if peer.len() != self.group.value_bytes() {
            return None;
        }
        let Some((modulus, private)) = &self.private else { return Some(Zeroizing::default()) };
        let value = BoxedUint::from_be_slice_vartime(peer);
        let one = BoxedUint::one_with_precision(value.bits_precision());
        let last = modulus.modulus().as_ref().wrapping_sub(&one);
        (value > one && value < last).then(|| power(&value, private, modulus))
    }
}

/// Returns `base` to the power of `exponent`. The time depends on the sizes only, not on the exponent.
fn power(base: &BoxedUint, exponent: &BoxedUint, modulus: &BoxedMontyParams) -> Zeroizing<Box<[u8]>> {
    let base = BoxedMontyForm::new(base.clone(), modulus);
    let result = Zeroizing::new(base.pow_bounded_exp(exponent, EXPONENT_BITS));
    let result = Zeroizing::new(result.retrieve());
    Zeroizing::new(result.to_be_bytes())
}
