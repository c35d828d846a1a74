//! The controller's side of an authentication.

use super::{
    AuthenticationFailure, AuthenticationMessage, AuthenticationReply, Challenge, Credentials, Exchange,
    Group, Hash, KeyPair, Names, Offer, Role, random_bytes, random_sequence,
};
use std::sync::Arc;

/// The progress of an authentication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// No authentication is in progress. The host may begin one.
    Idle,
    /// The authentication is in progress.
    Busy,
    /// The authentication succeeded. The host may begin another one.
    Authenticated,
    /// The authentication failed, and AUTH_Failure1 is to be sent.
    Refused(AuthenticationFailure),
    /// The authentication failed, and AUTH_Failure1 was sent or AUTH_Failure2 received. The connection must be
    /// closed.
    Failed(AuthenticationFailure),
}

/// The controller's side of the authentication of a host on one queue.
#[derive(Debug)]
pub struct ControllerSide {
    credentials: Arc<Credentials>,
    hash: Hash,
    group: Group,
    names: Names,
    transaction: u16,
    state: State,
}

/// The message that the controller expects or is to send next.
#[derive(Debug)]
enum State {
    /// The host may send AUTH_Negotiate. The value is true if the host is authenticated.
    Idle(bool),
    /// DH-HMAC-CHAP_Challenge is to be sent.
    Challenge(ControllerChallenge),
    /// The host must send DH-HMAC-CHAP_Reply.
    Reply(ControllerChallenge),
    /// DH-HMAC-CHAP_Success1 is to be sent. The value is R2, if the host challenged the controller.
    Success1(Option<Vec<u8>>),
    /// The host must send DH-HMAC-CHAP_Success2.
    Success2,
    /// AUTH_Failure1 is to be sent.
    Failure1(AuthenticationFailure),
    /// AUTH_Failure1 was sent, or the host sent AUTH_Failure2.
    Failed(AuthenticationFailure),
}

/// The sequence number, the challenge and the key pair of the controller.
#[derive(Debug)]
struct ControllerChallenge {
    sequence: u32,
    challenge: Vec<u8>,
    keys: KeyPair,
}

impl ControllerSide {
    /// Creates the state of a queue on which a host has connected. The host must support `hash` and `group`.
    pub fn new(credentials: Arc<Credentials>, hash: Hash, group: Group, names: Names) -> Self {
        Self { credentials, hash, group, names, transaction: 0, state: State::Idle(false) }
    }

    /// Returns true if no authentication is in progress. The next message of the host begins one.
    pub fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle(_))
    }

    /// Replaces the secrets, the hash function and the group. Call this before an authentication begins.
    pub fn renew(&mut self, credentials: Arc<Credentials>, hash: Hash, group: Group) {
        debug_assert!(self.is_idle(), "the authentication in progress uses the old values");
        (self.credentials, self.hash, self.group) = (credentials, hash, group);
    }

    /// Refuses the authentication that this message of the host begins.
    pub fn refuse(&mut self, message: &[u8]) {
        if let Ok((transaction, _)) = AuthenticationMessage::decode(message) {
            self.transaction = transaction;
        }
        self.state = State::Failure1(AuthenticationFailure::FAILED);
    }

    /// Returns true if the call of [`ControllerSide::receive`] for this message can take milliseconds. Such a
    /// call computes with values of a Diffie-Hellman group.
    pub fn is_slow(&self, message: &[u8]) -> bool {
        if self.group == Group::Null {
            return false;
        }
        match (&self.state, AuthenticationMessage::decode(message)) {
            (State::Idle(_), Ok((_, AuthenticationMessage::Negotiate(offer)))) => {
                self.check_offer(offer).is_ok()
            }
            (State::Reply(_), Ok((transaction, AuthenticationMessage::Reply(reply)))) => {
                transaction == self.transaction && self.has_right_lengths(&reply)
            }
            _ => false,
        }
    }

    /// Returns the progress of the authentication.
    pub fn progress(&self) -> Progress {
        match self.state {
            State::Idle(false) => Progress::Idle,
            State::Idle(true) => Progress::Authenticated,
            State::Failure1(failure) => Progress::Refused(failure),
            State::Failed(failure) => Progress::Failed(failure),
            _ => Progress::Busy,
        }
    }

    /// Returns the NQN of the host.
    pub fn host(&self) -> &str {
        &self.names.host
    }

    /// Processes a message of the host: the data of an Authentication Send. If the message is wrong,
    /// [`ControllerSide::next_message`] then returns AUTH_Failure1.
    pub fn receive(&mut self, message: &[u8]) {
        let state = std::mem::replace(&mut self.state, State::Failure1(AuthenticationFailure::FAILED));
        let next = match AuthenticationMessage::decode(message) {
            Ok((transaction, AuthenticationMessage::Negotiate(offer))) if matches!(state, State::Idle(_)) => {
                self.transaction = transaction;
                self.negotiate(offer)
            }
            Ok((_, AuthenticationMessage::Negotiate(_))) => Err(AuthenticationFailure::INCORRECT_MESSAGE),
            Ok(_) if matches!(state, State::Idle(_)) => Err(AuthenticationFailure::INCORRECT_MESSAGE),
            Ok((transaction, _)) if transaction != self.transaction => {
                Err(AuthenticationFailure::INCORRECT_PAYLOAD)
            }
            Ok((_, message)) => self.proceed(state, message),
            Err(failure) => Err(failure),
        };
        self.state = next.unwrap_or_else(State::Failure1);
    }

    /// Processes a message that is no AUTH_Negotiate.
    fn proceed(&self, state: State, message: AuthenticationMessage) -> Result<State, AuthenticationFailure> {
        match (state, message) {
            (State::Reply(own), AuthenticationMessage::Reply(reply)) => self.verify(&own, reply),
            (State::Success2, AuthenticationMessage::Success2) => Ok(State::Idle(true)),
            (_, AuthenticationMessage::Failure2(failure)) => Ok(State::Failed(failure)),
            _ => Err(AuthenticationFailure::INCORRECT_MESSAGE),
        }
    }

    /// Checks that the host's offer contains what this controller requires.
    fn check_offer(&self, offer: Option<Offer>) -> Result<(), AuthenticationFailure> {
        let offer = offer.ok_or(AuthenticationFailure::PROTOCOL_UNUSABLE)?;
        if offer.concatenation != 0 {
            return Err(AuthenticationFailure::CONCATENATION_MISMATCH);
        }
        if !offer.hashes.contains(&self.hash) {
            return Err(AuthenticationFailure::HASH_UNUSABLE);
        }
        if !offer.groups.contains(&self.group) {
            return Err(AuthenticationFailure::GROUP_UNUSABLE);
        }
        Ok(())
    }

    /// Returns true if the host's response and public value have the lengths of the hash function and the group.
    fn has_right_lengths(&self, reply: &AuthenticationReply) -> bool {
        reply.response.len() == self.hash.bytes() && reply.value.len() == self.group.value_bytes()
    }

    fn negotiate(&self, offer: Option<Offer>) -> Result<State, AuthenticationFailure> {
        self.check_offer(offer)?;
        Ok(State::Challenge(ControllerChallenge {
            sequence: random_sequence(),
            challenge: random_bytes(self.hash.bytes()),
            keys: KeyPair::generate(self.group),
        }))
    }

    /// Checks the host's response, and computes the response to the host's challenge.
    fn verify(
        &self,
        own: &ControllerChallenge,
        reply: AuthenticationReply,
    ) -> Result<State, AuthenticationFailure> {
        let ControllerChallenge { sequence, challenge, keys } = own;
        if !self.has_right_lengths(&reply) {
            return Err(AuthenticationFailure::INCORRECT_PAYLOAD);
        }
        let shared = keys.shared(&reply.value).ok_or(AuthenticationFailure::INCORRECT_PAYLOAD)?;
        let (hash, transaction) = (self.hash, self.transaction);
        let exchange = Exchange { hash, shared: &shared, transaction, names: &self.names };
        if !exchange.verify(Role::Host, *sequence, challenge, &self.credentials.host, &reply.response) {
            return Err(AuthenticationFailure::FAILED);
        }
        let Some((sequence, challenge)) = &reply.challenge else { return Ok(State::Success1(None)) };
        // Refuse a challenge that equals the controller's own challenge. A host that sends it back may be
        // mounting a reflection attack.
        let secret = self.credentials.target.as_ref().filter(|_| challenge != &own.challenge);
        let secret = secret.ok_or(AuthenticationFailure::FAILED)?;
        let response = exchange.respond(Role::Controller, *sequence, challenge, secret);
        Ok(State::Success1(Some(response)))
    }

    /// Returns the next message to the host, as the data of an Authentication Receive command. The host
    /// expects at most `most` bytes. Returns `None` if there is no message, or if it is longer.
    pub fn next_message(&mut self, most: usize) -> Option<Vec<u8>> {
        let message = match &self.state {
            State::Challenge(own) => AuthenticationMessage::Challenge(Challenge {
                hash: self.hash,
                group: self.group,
                sequence: own.sequence,
                challenge: own.challenge.clone(),
                value: own.keys.public().to_vec(),
            }),
            State::Success1(response) => AuthenticationMessage::Success1 {
                hash_bytes: self.hash.bytes() as u8,
                response: response.clone(),
            },
            State::Failure1(failure) => AuthenticationMessage::Failure1(*failure),
            State::Idle(_) | State::Reply(_) | State::Success2 | State::Failed(_) => return None,
        };
        let bytes = message.encode(self.transaction);
        if bytes.len() > most {
            return None;
        }
        self.state = match std::mem::replace(&mut self.state, State::Idle(false)) {
            State::Challenge(own) => State::Reply(own),
            State::Success1(None) => State::Idle(true),
            State::Success1(Some(_)) => State::Success2,
            State::Failure1(failure) => State::Failed(failure),
            _ => unreachable!("only these states have a message"),
        };
        Some(bytes)
    }
}
