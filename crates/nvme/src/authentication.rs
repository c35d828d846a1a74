//! DH-HMAC-CHAP: hosts and controllers prove to each other that they know a secret, without sending it (Base
//! section 8.13.5).
//!
//! ```text
//!   host                                              controller
//!   AUTH_Negotiate: hash functions, groups      -->
//!                                               <--   Challenge: hash function, group, C1, g^x
//!   Reply: R1 = HMAC(host's secret, C1, ...),   -->
//!          C2, g^y
//!                                               <--   Success1: R2 = HMAC(controller's secret, C2, ...)
//!   Success2                                    -->
//! ```
//!
//! [`HostSide`] and [`ControllerSide`] are state machines without I/O: they turn received messages into
//! messages to send. Each queue is authenticated separately. If the host does not authenticate the
//! controller, the messages do not contain C2 and R2, and Success2 is not sent. With a [`Group`] other than
//! the null group, the responses also depend on the shared secret g^xy.
//!
//! Connections stay in plain text: authentication protects neither commands nor data. Secure channel
//! concatenation derives a key for TLS. It is not supported.

mod controller;
mod file;
mod group;
mod hash;
mod host;
mod message;
mod secret;
#[cfg(test)]
mod tests;

pub use controller::{ControllerSide, Progress};
pub use file::SecretsFile;
pub use group::{Group, KeyPair};
pub use hash::Hash;
pub use host::{HostSide, Refusal};
pub use message::{AuthenticationMessage, AuthenticationReply, Challenge, MAX_MESSAGE, Offer};
pub use secret::Secret;

use crate::random;
use std::fmt;
use zeroize::Zeroizing;

/// The secrets with which a host and a target prove their identities to each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// The host's secret.
    pub host: Secret,
    /// The target's secret. `None` if the host does not authenticate the target.
    pub target: Option<Secret>,
}

/// The names of the two sides of an authentication: host and subsystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// The NQN of the host.
    pub host: String,
    /// The NQN of the subsystem.
    pub subsystem: String,
}

/// The reason code explanation in AUTH_Failure1 and AUTH_Failure2 (Base section 8.13.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuthenticationFailure(pub u8);

impl AuthenticationFailure {
    /// A response is wrong, or a secret is missing.
    pub const FAILED: AuthenticationFailure = AuthenticationFailure(0x01);
    /// The host does not offer DH-HMAC-CHAP.
    pub const PROTOCOL_UNUSABLE: AuthenticationFailure = AuthenticationFailure(0x02);
    /// The sides do not agree about secure channel concatenation.
    pub const CONCATENATION_MISMATCH: AuthenticationFailure = AuthenticationFailure(0x03);
    /// No hash function is common to both sides.
    pub const HASH_UNUSABLE: AuthenticationFailure = AuthenticationFailure(0x04);
    /// No group is common to both sides.
    pub const GROUP_UNUSABLE: AuthenticationFailure = AuthenticationFailure(0x05);
    /// A field of a message is invalid.
    pub const INCORRECT_PAYLOAD: AuthenticationFailure = AuthenticationFailure(0x06);
    /// A message is unknown, or came out of order.
    pub const INCORRECT_MESSAGE: AuthenticationFailure = AuthenticationFailure(0x07);
}

impl fmt::Display for AuthenticationFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match *self {
            AuthenticationFailure::FAILED => "authentication failed",
            AuthenticationFailure::PROTOCOL_UNUSABLE => "authentication protocol not usable",
            AuthenticationFailure::CONCATENATION_MISMATCH => "secure channel concatenation mismatch",
            AuthenticationFailure::HASH_UNUSABLE => "hash function not usable",
            AuthenticationFailure::GROUP_UNUSABLE => "DH group not usable",
            AuthenticationFailure::INCORRECT_PAYLOAD => "incorrect payload",
            AuthenticationFailure::INCORRECT_MESSAGE => "incorrect protocol message",
            AuthenticationFailure(code) => return write!(f, "unknown failure {code:#04x}"),
        };
        f.write_str(name)
    }
}

/// The sender of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Host,
    Controller,
}

/// What the two sides of an authentication have agreed about. They compute responses from it.
#[derive(Debug)]
struct Exchange<'a> {
    hash: Hash,
    /// The shared secret g^xy of the Diffie-Hellman exchange. Empty for the null group.
    shared: &'a [u8],
    transaction: u16,
    names: &'a Names,
}

impl Exchange<'_> {
    /// Returns the key and the input of the HMAC that is the response of `role` to a challenge. If the secret demands a
    /// transformation, the key is the secret transformed with the NQN of the responding side.
    fn hmac(&self, role: Role, sequence: u32, challenge: &[u8], secret: &Secret) -> [Zeroizing<Vec<u8>>; 2] {
        let mut input = match self.shared {
            [] => Zeroizing::new(challenge.to_vec()),
            shared => self.hash.hmac(&self.hash.of(shared), &[challenge]),
        };
        input.extend(sequence.to_le_bytes());
        input.extend(self.transaction.to_le_bytes());
        // SC_C: no secure channel follows.
        input.push(0);
        let Names { host, subsystem } = self.names;
        let (role, first, second) = match role {
            Role::Host => ("HostHost", host, subsystem),
            Role::Controller => ("Controller", subsystem, host),
        };
        for part in [role, first, "\0", second] {
            input.extend(part.as_bytes());
        }
        [secret.key(first), input]
    }

    /// Returns the response of `role` to a challenge.
    fn respond(&self, role: Role, sequence: u32, challenge: &[u8], secret: &Secret) -> Vec<u8> {
        let [key, input] = self.hmac(role, sequence, challenge, secret);
        self.hash.hmac(&key, &[&input]).to_vec()
    }

    /// Returns true if `response` is the response of `role` to a challenge.
    fn verify(&self, role: Role, sequence: u32, challenge: &[u8], secret: &Secret, response: &[u8]) -> bool {
        let [key, input] = self.hmac(role, sequence, challenge, secret);
        self.hash.verify(&key, &[&input], response)
    }
}

/// Returns a random sequence number. It is never 0, because 0 in a host's reply means that the host does not
/// authenticate the controller.
fn random_sequence() -> u32 {
    let mut bytes = [0; 4];
    random::fill(&mut bytes);
    u32::from_le_bytes(bytes).max(1)
}

/// Returns `count` random bytes.
fn random_bytes(count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    random::fill(&mut bytes);
    bytes
}
