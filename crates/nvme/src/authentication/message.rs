//! The messages of DH-HMAC-CHAP (Base section 8.13.5). Converts them between bytes and values.

use super::{AuthenticationFailure, Group, Hash};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, IntoBytes};

/// The longest message that a peer may send, in bytes. The longest valid messages are a challenge and a reply
/// with a public value of 1024 bytes.
pub const MAX_MESSAGE: usize = 4096;

/// AUTH_TYPE: the message belongs to no authentication protocol.
const COMMON: u8 = 0;
/// AUTH_TYPE: the message belongs to DH-HMAC-CHAP.
const DH_HMAC_CHAP: u8 = 1;
/// AUTHID: the identifier of DH-HMAC-CHAP in a descriptor of AUTH_Negotiate.
const AUTHID: u8 = 1;
/// REASON_CODE: authentication failed.
const AUTHENTICATION_FAILURE: u8 = 1;

/// AUTH_ID: the identifiers of the messages.
mod id {
    pub const NEGOTIATE: u8 = 0x00;
    pub const CHALLENGE: u8 = 0x01;
    pub const REPLY: u8 = 0x02;
    pub const SUCCESS1: u8 = 0x03;
    pub const SUCCESS2: u8 = 0x04;
    pub const FAILURE2: u8 = 0xF0;
    pub const FAILURE1: u8 = 0xF1;
}

wire! {
    /// The first bytes of every message.
    pub struct MessageStart {
        /// AUTH_TYPE.
        pub kind: u8,
        /// AUTH_ID.
        pub id: u8,
        /// Reserved.
        pub reserved: U16,
        /// T_ID: the transaction.
        pub transaction: U16,
    }

    /// The header of AUTH_Negotiate. Descriptors follow.
    pub struct NegotiateHeader {
        /// The common first bytes.
        pub start: MessageStart,
        /// SC_C: whether a secure channel is to follow.
        pub concatenation: u8,
        /// NAPD: the number of descriptors.
        pub descriptors: u8,
    }

    /// A descriptor of an authentication protocol.
    pub struct Descriptor {
        /// AUTHID: the protocol.
        pub protocol: u8,
        /// Reserved.
        pub reserved: u8,
        /// HALEN: the number of hash functions.
        pub hash_count: u8,
        /// DHLEN: the number of groups.
        pub group_count: u8,
        /// The identifiers of the hash functions.
        pub hashes: [u8; 30],
        /// The identifiers of the groups.
        pub groups: [u8; 30],
    }

    /// The header of DH-HMAC-CHAP_Challenge. The challenge and the public value follow.
    pub struct ChallengeHeader {
        /// The common first bytes.
        pub start: MessageStart,
        /// HL: the length of a hash value in bytes. The challenge has the same length.
        pub hash_bytes: u8,
        /// Reserved.
        pub reserved: u8,
        /// HashID.
        pub hash: u8,
        /// DHgID.
        pub group: u8,
        /// DHVLEN: the length of the public value.
        pub value_bytes: U16,
        /// SEQNUM.
        pub sequence: U32,
    }

    /// The header of DH-HMAC-CHAP_Reply. The response, the challenge and the public value follow.
    pub struct ReplyHeader {
        /// The common first bytes.
        pub start: MessageStart,
        /// HL: the length of the response and of the challenge.
        pub hash_bytes: u8,
        /// Reserved.
        pub reserved: u8,
        /// CVALID: 1 if the challenge is valid.
        pub challenge_valid: u8,
        /// Reserved.
        pub reserved2: u8,
        /// DHVLEN: the length of the public value.
        pub value_bytes: U16,
        /// SEQNUM.
        pub sequence: U32,
    }

    /// The header of DH-HMAC-CHAP_Success1. The response follows.
    pub struct Success1Header {
        /// The common first bytes.
        pub start: MessageStart,
        /// HL: the length of the response.
        pub hash_bytes: u8,
        /// Reserved.
        pub reserved: u8,
        /// RVALID: 1 if the response is valid.
        pub response_valid: u8,
        /// Reserved.
        pub reserved2: [u8; 7],
    }

    /// DH-HMAC-CHAP_Success2.
    pub struct Success2Header {
        /// The common first bytes.
        pub start: MessageStart,
        /// Reserved.
        pub reserved: [u8; 10],
    }

    /// AUTH_Failure1 and AUTH_Failure2.
    pub struct FailureHeader {
        /// The common first bytes.
        pub start: MessageStart,
        /// The reason code.
        pub reason: u8,
        /// The explanation of the reason code.
        pub explanation: u8,
    }
}

/// The hash functions and groups that the host offers in AUTH_Negotiate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// SC_C: 0 if no secure channel is to follow.
    pub concatenation: u8,
    /// The known hash functions of the host, the preferred one first.
    pub hashes: Vec<Hash>,
    /// The known groups of the host, the preferred one first.
    pub groups: Vec<Group>,
}

/// DH-HMAC-CHAP_Challenge, without the transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Challenge {
    /// The hash function that the controller chose.
    pub hash: Hash,
    /// The group that the controller chose.
    pub group: Group,
    /// S1: the sequence number.
    pub sequence: u32,
    /// C1: the challenge.
    pub challenge: Vec<u8>,
    /// The controller's public value; empty for the null group.
    pub value: Vec<u8>,
}

/// DH-HMAC-CHAP_Reply, without the transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthenticationReply {
    /// R1: the host's response.
    pub response: Vec<u8>,
    /// S2, the sequence number, and C2, the challenge for the controller. `None` if the host does not
    /// authenticate the controller.
    pub challenge: Option<(u32, Vec<u8>)>,
    /// The host's public value; empty for the null group.
    pub value: Vec<u8>,
}

/// A message of an authentication. The transaction ID in the message's header is not included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthenticationMessage {
    /// AUTH_Negotiate: the host begins. `None` if the host does not offer DH-HMAC-CHAP.
    Negotiate(Option<Offer>),
    /// DH-HMAC-CHAP_Challenge: the controller challenges the host.
    Challenge(Challenge),
    /// DH-HMAC-CHAP_Reply: the host responds.
    Reply(AuthenticationReply),
    /// DH-HMAC-CHAP_Success1: the host is authenticated.
    Success1 {
        /// The length of a hash value in bytes. If `response` is `None`, the message contains this many zero
        /// bytes in its place.
        hash_bytes: u8,
        /// R2: the controller's response to the host's challenge. `None` if there was no challenge.
        response: Option<Vec<u8>>,
    },
    /// DH-HMAC-CHAP_Success2: the controller is authenticated, too.
    Success2,
    /// AUTH_Failure1: the controller ends the authentication.
    Failure1(AuthenticationFailure),
    /// AUTH_Failure2: the host ends the authentication.
    Failure2(AuthenticationFailure),
}

impl AuthenticationMessage {
    /// Returns the message's bytes.
    pub fn encode(&self, transaction: u16) -> Vec<u8> {
        let start =
            |kind, id| MessageStart { kind, id, reserved: U16::ZERO, transaction: transaction.into() };
        let failure = |id, failure: AuthenticationFailure| {
            let start = start(COMMON, id);
            FailureHeader { start, reason: AUTHENTICATION_FAILURE, explanation: failure.0 }
                .as_bytes()
                .to_vec()
        };
        match self {
            AuthenticationMessage::Negotiate(offer) => {
                let concatenation = offer.as_ref().map_or(0, |offer| offer.concatenation);
                let descriptors = u8::from(offer.is_some());
                let start = start(COMMON, id::NEGOTIATE);
                let mut bytes = NegotiateHeader { start, concatenation, descriptors }.as_bytes().to_vec();
                if let Some(offer) = offer {
                    bytes.extend(Descriptor::new(offer).as_bytes());
                }
                bytes
            }
            AuthenticationMessage::Challenge(Challenge { hash, group, sequence, challenge, value }) => {
                let header = ChallengeHeader {
                    start: start(DH_HMAC_CHAP, id::CHALLENGE),
                    hash_bytes: challenge.len() as u8,
                    reserved: 0,
                    hash: *hash as u8,
                    group: *group as u8,
                    value_bytes: (value.len() as u16).into(),
                    sequence: (*sequence).into(),
                };
                [header.as_bytes(), challenge, value].concat()
            }
            AuthenticationMessage::Reply(AuthenticationReply { response, challenge, value }) => {
                let unused = (0, vec![0; response.len()]);
                let (sequence, bytes) = challenge.as_ref().unwrap_or(&unused);
                let header = ReplyHeader {
                    start: start(DH_HMAC_CHAP, id::REPLY),
                    hash_bytes: response.len() as u8,
                    reserved: 0,
                    challenge_valid: u8::from(challenge.is_some()),
                    reserved2: 0,
                    value_bytes: (value.len() as u16).into(),
                    sequence: (*sequence).into(),
                };
                [header.as_bytes(), response, bytes, value].concat()
            }
            AuthenticationMessage::Success1 { hash_bytes, response } => {
                let unused = vec![0; usize::from(*hash_bytes)];
                let bytes = response.as_ref().unwrap_or(&unused);
                let header = Success1Header {
                    start: start(DH_HMAC_CHAP, id::SUCCESS1),
                    hash_bytes: *hash_bytes,
                    reserved: 0,
                    response_valid: u8::from(response.is_some()),
                    reserved2: [0; 7],
                };
                [header.as_bytes(), bytes].concat()
            }
            AuthenticationMessage::Success2 => {
                let start = start(DH_HMAC_CHAP, id::SUCCESS2);
                Success2Header { start, reserved: [0; 10] }.as_bytes().to_vec()
            }
            AuthenticationMessage::Failure1(why) => failure(id::FAILURE1, *why),
            AuthenticationMessage::Failure2(why) => failure(id::FAILURE2, *why),
        }
    }

    /// Decodes a message. Returns its transaction ID and the message. Ignores bytes after the message,
    /// because a controller pads messages to the length that the host requested.
    ///
    /// # Errors
    /// Returns the failure to report to the peer.
    pub fn decode(bytes: &[u8]) -> Result<(u16, Self), AuthenticationFailure> {
        let (start, _) =
            MessageStart::ref_from_prefix(bytes).map_err(|_| AuthenticationFailure::INCORRECT_PAYLOAD)?;
        let message = match (start.kind, start.id) {
            (COMMON, id::NEGOTIATE) => AuthenticationMessage::Negotiate(negotiate(bytes)?),
            (DH_HMAC_CHAP, id::CHALLENGE) => AuthenticationMessage::Challenge(challenge(bytes)?),
            (DH_HMAC_CHAP, id::REPLY) => AuthenticationMessage::Reply(reply(bytes)?),
            (DH_HMAC_CHAP, id::SUCCESS1) => {
                let (header, rest) = split::<Success1Header>(bytes)?;
                let hash_bytes = header.hash_bytes;
                let response = match header.response_valid {
                    0 => None,
                    _ => Some(take(rest, hash_bytes.into())?.0.to_vec()),
                };
                AuthenticationMessage::Success1 { hash_bytes, response }
            }
            (DH_HMAC_CHAP, id::SUCCESS2) => {
                split::<Success2Header>(bytes)?;
                AuthenticationMessage::Success2
            }
            (COMMON, id::FAILURE1) => AuthenticationMessage::Failure1(AuthenticationFailure(
                split::<FailureHeader>(bytes)?.0.explanation,
            )),
            (COMMON, id::FAILURE2) => AuthenticationMessage::Failure2(AuthenticationFailure(
                split::<FailureHeader>(bytes)?.0.explanation,
            )),
            _ => return Err(AuthenticationFailure::INCORRECT_MESSAGE),
        };
        Ok((start.transaction.get(), message))
    }
}

impl Descriptor {
    fn new(offer: &Offer) -> Self {
        let (mut hashes, mut groups) = ([0; 30], [0; 30]);
        hashes.iter_mut().zip(&offer.hashes).for_each(|(id, hash)| *id = *hash as u8);
        groups.iter_mut().zip(&offer.groups).for_each(|(id, group)| *id = *group as u8);
        Self {
            protocol: AUTHID,
            reserved: 0,
            hash_count: offer.hashes.len() as u8,
            group_count: offer.groups.len() as u8,
            hashes,
            groups,
        }
    }
}

fn negotiate(bytes: &[u8]) -> Result<Option<Offer>, AuthenticationFailure> {
    let (header, mut rest) = split::<NegotiateHeader>(bytes)?;
    let mut offer = None;
    for _ in 0..header.descriptors {
        let (descriptor, behind) = split::<Descriptor>(rest)?;
        rest = behind;
        if descriptor.protocol != AUTHID || offer.is_some() {
            continue;
        }
        let hashes = take(&descriptor.hashes, descriptor.hash_count.into())?.0;
        let groups = take(&descriptor.groups, descriptor.group_count.into())?.0;
        offer = Some(Offer {
            concatenation: header.concatenation,
            hashes: hashes.iter().filter_map(|id| Hash::from_id(*id)).collect(),
            groups: groups.iter().filter_map(|id| Group::from_id(*id)).collect(),
        });
    }
    Ok(offer)
}

fn challenge(bytes: &[u8]) -> Result<Challenge, AuthenticationFailure> {
    let (header, rest) = split::<ChallengeHeader>(bytes)?;
    let hash = Hash::from_id(header.hash).ok_or(AuthenticationFailure::HASH_UNUSABLE)?;
    let group = Group::from_id(header.group).ok_or(AuthenticationFailure::GROUP_UNUSABLE)?;
    if usize::from(header.hash_bytes) != hash.bytes()
        || usize::from(header.value_bytes.get()) != group.value_bytes()
    {
        return Err(AuthenticationFailure::INCORRECT_PAYLOAD);
    }
    let (challenge, rest) = take(rest, hash.bytes())?;
    let (value, _) = take(rest, group.value_bytes())?;
    let sequence = header.sequence.get();
    Ok(Challenge { hash, group, sequence, challenge: challenge.to_vec(), value: value.to_vec() })
}

fn reply(bytes: &[u8]) -> Result<AuthenticationReply, AuthenticationFailure> {
    let (header, rest) = split::<ReplyHeader>(bytes)?;
    let (response, rest) = take(rest, header.hash_bytes.into())?;
    let (challenge, rest) = take(rest, header.hash_bytes.into())?;
    let (value, _) = take(rest, header.value_bytes.get().into())?;
    let valid = header.challenge_valid != 0;
    Ok(AuthenticationReply {
        response: response.to_vec(),
        challenge: valid.then(|| (header.sequence.get(), challenge.to_vec())),
        value: value.to_vec(),
    })
}

/// Splits a header off.
fn split<T: FromBytes + zerocopy::KnownLayout + zerocopy::Immutable + zerocopy::Unaligned>(
    bytes: &[u8],
) -> Result<(&T, &[u8]), AuthenticationFailure> {
    T::ref_from_prefix(bytes).map_err(|_| AuthenticationFailure::INCORRECT_PAYLOAD)
}

/// Splits the first `count` bytes off.
fn take(bytes: &[u8], count: usize) -> Result<(&[u8], &[u8]), AuthenticationFailure> {
    bytes.split_at_checked(count).ok_or(AuthenticationFailure::INCORRECT_PAYLOAD)
}
