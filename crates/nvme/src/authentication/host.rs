//! The host's side of an authentication.

use super::{
    AuthenticationFailure, AuthenticationMessage, AuthenticationReply, Challenge, Credentials, Exchange,
    Group, Hash, KeyPair, Names, Offer, Role, random_bytes, random_sequence,
};
use std::fmt;
use zeroize::Zeroizing;

/// The reason for which the host ends an authentication.
#[derive(Debug)]
pub enum Refusal {
    /// The controller sent AUTH_Failure1.
    ByController(AuthenticationFailure),
    /// The controller's message is wrong. The host must send AUTH_Failure2 with this explanation.
    ByHost(AuthenticationFailure),
    /// The controller does not know the target's secret. The host must send AUTH_Failure2.
    WrongController,
}

impl Refusal {
    /// Returns the AUTH_Failure2 to send to the controller, or `None` if the controller ended the
    /// authentication itself.
    pub fn message(&self, transaction: u16) -> Option<Vec<u8>> {
        let failure = match self {
            Refusal::ByController(_) => return None,
            Refusal::ByHost(failure) => *failure,
            Refusal::WrongController => AuthenticationFailure::FAILED,
        };
        Some(AuthenticationMessage::Failure2(failure).encode(transaction))
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::ByController(AuthenticationFailure::FAILED) => write!(
                f,
                "the target refused this host's secret, or has no secret of its own; give both sides the same \
                 line for this host"
            ),
            Refusal::ByController(
                failure @ (AuthenticationFailure::HASH_UNUSABLE | AuthenticationFailure::GROUP_UNUSABLE),
            ) => write!(
                f,
                "the target refused the authentication: {failure}; choose SHA-256, SHA-384 or SHA-512 and the \
                 group null or ffdhe2048 to ffdhe8192 there"
            ),
            Refusal::ByController(failure) => {
                write!(f, "the target refused the authentication: {failure}")
            }
            Refusal::ByHost(
                failure @ (AuthenticationFailure::HASH_UNUSABLE | AuthenticationFailure::GROUP_UNUSABLE),
            ) => write!(
                f,
                "the target chose a hash function or a group that this side does not support ({failure}); \
                 choose SHA-256, SHA-384 or SHA-512 and the group null or ffdhe2048 to ffdhe8192 there"
            ),
            Refusal::ByHost(failure) => {
                write!(f, "the target's authentication message is wrong: {failure}")
            }
            Refusal::WrongController => write!(
                f,
                "the target did not prove that it knows the target's secret; compare the secrets of both \
                 sides, and check that this is the right target"
            ),
        }
    }
}

impl From<AuthenticationFailure> for Refusal {
    fn from(failure: AuthenticationFailure) -> Self {
        Refusal::ByHost(failure)
    }
}

/// The host's side of the authentication of a queue. Call [`HostSide::begin`], [`HostSide::challenged`] and
/// [`HostSide::succeeded`] in this order, once each.
#[derive(Debug)]
pub struct HostSide<'a> {
    credentials: &'a Credentials,
    names: &'a Names,
    transaction: u16,
    sent: Option<SentReply>,
}

/// The values of the host's reply that are needed to check the controller's response.
#[derive(Debug)]
struct SentReply {
    hash: Hash,
    shared: Zeroizing<Box<[u8]>>,
    /// S2 and C2. `None` if the host does not authenticate the controller.
    challenge: Option<(u32, Vec<u8>)>,
}

impl<'a> HostSide<'a> {
    /// Creates the host's side of one authentication of a queue. `transaction` is the authentication's number
    /// (T_ID).
    pub fn new(credentials: &'a Credentials, names: &'a Names, transaction: u16) -> Self {
        Self { credentials, names, transaction, sent: None }
    }

    /// Returns AUTH_Negotiate, which offers all hash functions and groups.
    pub fn begin(&self) -> Vec<u8> {
        let offer = Offer { concatenation: 0, hashes: Hash::ALL.into(), groups: Group::ALL.into() };
        AuthenticationMessage::Negotiate(Some(offer)).encode(self.transaction)
    }

    /// Processes the controller's challenge. Returns DH-HMAC-CHAP_Reply.
    ///
    /// # Errors
    /// If the controller refuses, or its message is wrong.
    pub fn challenged(&mut self, message: &[u8]) -> Result<Vec<u8>, Refusal> {
        let AuthenticationMessage::Challenge(Challenge { hash, group, sequence, challenge, value }) =
            self.decode(message)?
        else {
            return Err(AuthenticationFailure::INCORRECT_MESSAGE.into());
        };
        let keys = KeyPair::generate(group);
        let shared = keys.shared(&value).ok_or(AuthenticationFailure::INCORRECT_PAYLOAD)?;
        let exchange = self.exchange(hash, &shared);
        let response = exchange.respond(Role::Host, sequence, &challenge, &self.credentials.host);
        let own = self.credentials.target.as_ref().map(|_| (random_sequence(), random_bytes(hash.bytes())));
        self.sent = Some(SentReply { hash, shared, challenge: own.clone() });
        let reply = AuthenticationReply { response, challenge: own, value: keys.public().to_vec() };
        Ok(AuthenticationMessage::Reply(reply).encode(self.transaction))
    }

    /// Processes the controller's DH-HMAC-CHAP_Success1. Returns DH-HMAC-CHAP_Success2 if the host
    /// authenticates the controller, else `None`.
    ///
    /// # Errors
    /// If the controller refuses, sends a wrong message, or does not know the target's secret.
    pub fn succeeded(&mut self, message: &[u8]) -> Result<Option<Vec<u8>>, Refusal> {
        let AuthenticationMessage::Success1 { response, .. } = self.decode(message)? else {
            return Err(AuthenticationFailure::INCORRECT_MESSAGE.into());
        };
        let sent = self.sent.take().ok_or(AuthenticationFailure::INCORRECT_MESSAGE)?;
        let (Some(secret), Some((sequence, challenge))) = (&self.credentials.target, &sent.challenge) else {
            return Ok(None);
        };
        let exchange = self.exchange(sent.hash, &sent.shared);
        let verify = |response| exchange.verify(Role::Controller, *sequence, challenge, secret, response);
        match response {
            Some(response) if verify(&response) => {
                Ok(Some(AuthenticationMessage::Success2.encode(self.transaction)))
            }
            _ => Err(Refusal::WrongController),
        }
    }

    fn exchange<'b>(&'b self, hash: Hash, shared: &'b [u8]) -> Exchange<'b> {
        Exchange { hash, shared, transaction: self.transaction, names: self.names }
    }

    /// Decodes a message of the controller.
    fn decode(&self, message: &[u8]) -> Result<AuthenticationMessage, Refusal> {
        match AuthenticationMessage::decode(message)? {
            (_, AuthenticationMessage::Failure1(failure)) => Err(Refusal::ByController(failure)),
            (transaction, _) if transaction != self.transaction => {
                Err(AuthenticationFailure::INCORRECT_PAYLOAD.into())
            }
            (_, message) => Ok(message),
        }
    }
}
