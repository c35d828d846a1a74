//! The controller's side of an authentication.

use super::{
    Challenge, Credentials, Failure, Group, Hash, KeyPair, Message, Names, Offer, Reply, Response, Role,
    random_bytes, random_sequence,
};
use crate::Result;
use std::sync::Arc;
use zeroize::Zeroizing;

/// Where an authentication stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// No authentication is in progress. The host may begin one.
    Idle,
    /// The authentication is in progress.
    Busy,
    /// The authentication succeeded. The host may begin another one.
    Authenticated,
    /// The authentication failed, and the host knows that. The connection must be closed.
    Failed(Failure),
}

/// The authentication of a host on one queue, as the controller sees it.
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
    Challenge(Exchange),
    /// The host must send DH-HMAC-CHAP_Reply.
    Reply(Exchange),
    /// DH-HMAC-CHAP_Success1 is to be sent. The value is R2, if the host challenged the controller.
    Success1(Option<Vec<u8>>),
    /// The host must send DH-HMAC-CHAP_Success2.
    Success2,
    /// AUTH_Failure1 is to be sent.
    Failure1(Failure),
    /// The host was told that the authentication failed, or said so itself.
    Failed(Failure),
}

/// The controller's values of an authentication.
#[derive(Debug)]
struct Exchange {
    sequence: u32,
    challenge: Vec<u8>,
    keys: Option<KeyPair>,
}

impl ControllerSide {
    /// Creates the state of a queue on which a host has connected. The host must support `hash` and `group`.
    pub fn new(credentials: Arc<Credentials>, hash: Hash, group: Group, names: Names) -> Self {
        Self { credentials, hash, group, names, transaction: 0, state: State::Idle(false) }
    }

    /// Returns true if [`ControllerSide::receive`] can take milliseconds, because it computes with the values
    /// of a Diffie-Hellman group.
    pub fn is_slow(&self) -> bool {
        self.group != Group::Null
    }

    /// Returns where the authentication stands.
    pub fn progress(&self) -> Progress {
        match self.state {
            State::Idle(false) => Progress::Idle,
            State::Idle(true) => Progress::Authenticated,
            State::Failed(failure) => Progress::Failed(failure),
            _ => Progress::Busy,
        }
    }

    /// Returns the NQN of the host.
    pub fn host(&self) -> &str {
        &self.names.host
    }

    /// Processes a message of the host: the data of an Authentication Send.
    ///
    /// # Errors
    /// If the system has no random numbers. A wrong message is no error: [`ControllerSide::next_message`] then
    /// returns AUTH_Failure1.
    pub fn receive(&mut self, message: &[u8]) -> Result<()> {
        let state = std::mem::replace(&mut self.state, State::Failure1(Failure::FAILED));
        let next = match Message::decode(message) {
            Ok((transaction, Message::Negotiate(offer))) if matches!(state, State::Idle(_)) => {
                self.transaction = transaction;
                self.negotiate(offer)
            }
            Ok((_, Message::Negotiate(_))) => Err(Failure::INCORRECT_MESSAGE.into()),
            Ok(_) if matches!(state, State::Idle(_)) => Err(Failure::INCORRECT_MESSAGE.into()),
            Ok((transaction, _)) if transaction != self.transaction => Err(Failure::INCORRECT_PAYLOAD.into()),
            Ok((_, message)) => self.proceed(state, message),
            Err(failure) => Err(failure.into()),
        };
        match next {
            Ok(next) => self.state = next,
            Err(Stop::Failure(failure)) => self.state = State::Failure1(failure),
            Err(Stop::Error(error)) => return Err(error),
        }
        Ok(())
    }

    /// Processes a message that is no AUTH_Negotiate.
    fn proceed(&self, state: State, message: Message) -> Result<State, Stop> {
        match (state, message) {
            (State::Reply(exchange), Message::Reply(reply)) => self.verify(&exchange, reply),
            (State::Success2, Message::Success2) => Ok(State::Idle(true)),
            (_, Message::Failure2(failure)) => Ok(State::Failed(failure)),
            _ => Err(Failure::INCORRECT_MESSAGE.into()),
        }
    }

    fn negotiate(&self, offer: Option<Offer>) -> Result<State, Stop> {
        let offer = offer.ok_or(Failure::PROTOCOL_UNUSABLE)?;
        if offer.concatenation != 0 {
            return Err(Failure::CONCATENATION_MISMATCH.into());
        }
        if !offer.hashes.contains(&self.hash) {
            return Err(Failure::HASH_UNUSABLE.into());
        }
        if !offer.groups.contains(&self.group) {
            return Err(Failure::GROUP_UNUSABLE.into());
        }
        Ok(State::Challenge(Exchange {
            sequence: random_sequence()?,
            challenge: random_bytes(self.hash.bytes())?,
            keys: KeyPair::generate(self.group)?,
        }))
    }

    /// Checks the host's response, and computes the response to the host's challenge.
    fn verify(&self, exchange: &Exchange, reply: Reply) -> Result<State, Stop> {
        let Exchange { sequence, challenge, keys } = exchange;
        let bytes = self.hash.bytes();
        if reply.response.len() != bytes || reply.value.len() != self.group.value_bytes() {
            return Err(Failure::INCORRECT_PAYLOAD.into());
        }
        let shared: Option<Zeroizing<Box<[u8]>>> = match keys {
            None => None,
            Some(keys) => Some(keys.shared(&reply.value).ok_or(Failure::INCORRECT_PAYLOAD)?),
        };
        let response = Response {
            hash: self.hash,
            shared: shared.as_ref().map(|shared| &shared[..]),
            challenge,
            sequence: *sequence,
            transaction: self.transaction,
            role: Role::Host,
            names: &self.names,
        };
        if !response.verify(&self.credentials.host, &reply.response) {
            return Err(Failure::FAILED.into());
        }
        let Some((sequence, challenge)) = &reply.challenge else { return Ok(State::Success1(None)) };
        // Refuse the controller's own challenge, because the host would only reflect it.
        let secret = self.credentials.target.as_ref().filter(|_| challenge != &exchange.challenge);
        let secret = secret.ok_or(Failure::FAILED)?;
        let response = Response { challenge, sequence: *sequence, role: Role::Controller, ..response };
        Ok(State::Success1(Some(response.compute(secret))))
    }

    /// Returns the message to send as the data of an Authentication Receive whose host expects at most `most`
    /// bytes. Returns `None` if there is no message, or a longer one.
    pub fn next_message(&mut self, most: usize) -> Option<Vec<u8>> {
        let message = match &self.state {
            State::Challenge(exchange) => Message::Challenge(Challenge {
                hash: self.hash,
                group: self.group,
                sequence: exchange.sequence,
                challenge: exchange.challenge.clone(),
                value: exchange.keys.as_ref().map_or_else(Vec::new, |keys| keys.public().to_vec()),
            }),
            State::Success1(response) => {
                Message::Success1 { hash_bytes: self.hash.bytes() as u8, response: response.clone() }
            }
            State::Failure1(failure) => Message::Failure1(*failure),
            State::Idle(_) | State::Reply(_) | State::Success2 | State::Failed(_) => return None,
        };
        let bytes = message.encode(self.transaction);
        if bytes.len() > most {
            return None;
        }
        self.state = match std::mem::replace(&mut self.state, State::Idle(false)) {
            State::Challenge(exchange) => State::Reply(exchange),
            State::Success1(None) => State::Idle(true),
            State::Success1(Some(_)) => State::Success2,
            State::Failure1(failure) => State::Failed(failure),
            _ => unreachable!("only these states have a message"),
        };
        Some(bytes)
    }
}

/// Why a message has no successor: the authentication fails, or the system fails.
enum Stop {
    Failure(Failure),
    Error(crate::Error),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Stop::Failure(failure)
    }
}

impl From<crate::Error> for Stop {
    fn from(error: crate::Error) -> Self {
        Stop::Error(error)
    }
}
