//! The messages of DH-HMAC-CHAP (Base section 8.13.5). Converts them between bytes and values.

use super::{AuthenticationFailure, Group, Hash};

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
/// The most hash functions, and the most groups, of a descriptor in AUTH_Negotiate.
const OFFERED: usize = 30;
/// The length of DH-HMAC-CHAP_Success2 after the fields that all messages begin with.
const SUCCESS2_BYTES: usize = 10;

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
    /// Returns AUTH_TYPE and AUTH_ID.
    fn identifiers(&self) -> (u8, u8) {
        match self {
            AuthenticationMessage::Negotiate(_) => (COMMON, id::NEGOTIATE),
            AuthenticationMessage::Challenge(_) => (DH_HMAC_CHAP, id::CHALLENGE),
            AuthenticationMessage::Reply(_) => (DH_HMAC_CHAP, id::REPLY),
            AuthenticationMessage::Success1 { .. } => (DH_HMAC_CHAP, id::SUCCESS1),
            AuthenticationMessage::Success2 => (DH_HMAC_CHAP, id::SUCCESS2),
            AuthenticationMessage::Failure1(_) => (COMMON, id::FAILURE1),
            AuthenticationMessage::Failure2(_) => (COMMON, id::FAILURE2),
        }
    }

    /// Returns the message's bytes.
    pub fn encode(&self, transaction: u16) -> Vec<u8> {
        let (kind, id) = self.identifiers();
        let [t0, t1] = transaction.to_le_bytes();
        let mut out = vec![kind, id, 0, 0, t0, t1];
        // The fields follow in the order of the specification, with zeros in reserved fields.
        match self {
            AuthenticationMessage::Negotiate(None) => out.extend([0, 0]),
            AuthenticationMessage::Negotiate(Some(Offer { concatenation, hashes, groups })) => {
                out.extend([*concatenation, 1]);
                out.extend([AUTHID, 0, hashes.len() as u8, groups.len() as u8]);
                let (mut hash_ids, mut group_ids) = ([0; OFFERED], [0; OFFERED]);
                hash_ids.iter_mut().zip(hashes).for_each(|(id, hash)| *id = *hash as u8);
                group_ids.iter_mut().zip(groups).for_each(|(id, group)| *id = *group as u8);
                out.extend([hash_ids, group_ids].concat());
            }
            AuthenticationMessage::Challenge(Challenge { hash, group, sequence, challenge, value }) => {
                out.extend([challenge.len() as u8, 0, *hash as u8, *group as u8]);
                out.extend((value.len() as u16).to_le_bytes());
                out.extend(sequence.to_le_bytes());
                out.extend([&challenge[..], value].concat());
            }
            AuthenticationMessage::Reply(AuthenticationReply { response, challenge, value }) => {
                let unused = (0, vec![0; response.len()]);
                let (sequence, bytes) = challenge.as_ref().unwrap_or(&unused);
                out.extend([response.len() as u8, 0, u8::from(challenge.is_some()), 0]);
                out.extend((value.len() as u16).to_le_bytes());
                out.extend(sequence.to_le_bytes());
                out.extend([&response[..], bytes, value].concat());
            }
            AuthenticationMessage::Success1 { hash_bytes, response } => {
                out.extend([*hash_bytes, 0, u8::from(response.is_some())]);
                out.extend([0; 7]);
                let unused = vec![0; usize::from(*hash_bytes)];
                out.extend(response.as_ref().unwrap_or(&unused));
            }
            AuthenticationMessage::Success2 => out.extend([0; SUCCESS2_BYTES]),
            AuthenticationMessage::Failure1(failure) | AuthenticationMessage::Failure2(failure) => {
                out.extend([AUTHENTICATION_FAILURE, failure.0]);
            }
        }
        out
    }

    /// Decodes a message. Returns its transaction ID and the message. Ignores bytes after the message,
    /// because a controller pads messages to the length that the host requested.
    ///
    /// # Errors
    /// Returns the failure to report to the peer.
    pub fn decode(bytes: &[u8]) -> Result<(u16, Self), AuthenticationFailure> {
        let mut body = Reader(bytes);
        let [kind, id, _, _, t0, t1] = body.array()?;
        let message = match (kind, id) {
            (COMMON, id::NEGOTIATE) => AuthenticationMessage::Negotiate(offer(&mut body)?),
            (DH_HMAC_CHAP, id::CHALLENGE) => {
                let [length, _, hash, group, v0, v1] = body.array()?;
                let sequence = u32::from_le_bytes(body.array()?);
                let hash = Hash::from_id(hash).ok_or(AuthenticationFailure::HASH_UNUSABLE)?;
                let group = Group::from_id(group).ok_or(AuthenticationFailure::GROUP_UNUSABLE)?;
                let value_bytes = usize::from(u16::from_le_bytes([v0, v1]));
                if usize::from(length) != hash.bytes() || value_bytes != group.value_bytes() {
                    return Err(AuthenticationFailure::INCORRECT_PAYLOAD);
                }
                let (challenge, value) = (body.take(hash.bytes())?, body.take(value_bytes)?);
                AuthenticationMessage::Challenge(Challenge { hash, group, sequence, challenge, value })
            }
            (DH_HMAC_CHAP, id::REPLY) => {
                let [length, _, valid, _, v0, v1] = body.array()?;
                let sequence = u32::from_le_bytes(body.array()?);
                let (response, challenge) = (body.take(length.into())?, body.take(length.into())?);
                AuthenticationMessage::Reply(AuthenticationReply {
                    response,
                    challenge: (valid != 0).then_some((sequence, challenge)),
                    value: body.take(u16::from_le_bytes([v0, v1]).into())?,
                })
            }
            (DH_HMAC_CHAP, id::SUCCESS1) => {
                let [hash_bytes, _, valid, ..]: [u8; 10] = body.array()?;
                let response = (valid != 0).then(|| body.take(hash_bytes.into())).transpose()?;
                AuthenticationMessage::Success1 { hash_bytes, response }
            }
            (DH_HMAC_CHAP, id::SUCCESS2) => {
                body.array::<SUCCESS2_BYTES>()?;
                AuthenticationMessage::Success2
            }
            (COMMON, id::FAILURE1 | id::FAILURE2) => {
                let [_, explanation] = body.array()?;
                let failure = AuthenticationFailure(explanation);
                match id {
                    id::FAILURE1 => AuthenticationMessage::Failure1(failure),
                    _ => AuthenticationMessage::Failure2(failure),
                }
            }
            _ => return Err(AuthenticationFailure::INCORRECT_MESSAGE),
        };
        Ok((u16::from_le_bytes([t0, t1]), message))
    }
}

/// Decodes the rest of AUTH_Negotiate: SC_C, NAPD, and the descriptors of authentication protocols.
fn offer(body: &mut Reader<'_>) -> Result<Option<Offer>, AuthenticationFailure> {
    let [concatenation, descriptors] = body.array()?;
    let mut offer = None;
    for _ in 0..descriptors {
        let [protocol, _, hashes, groups] = body.array()?;
        let (hash_ids, group_ids): ([u8; OFFERED], [u8; OFFERED]) = (body.array()?, body.array()?);
        if protocol != AUTHID || offer.is_some() {
            continue;
        }
        let (hashes, groups) =
            (Reader(&hash_ids).take(hashes.into())?, Reader(&group_ids).take(groups.into())?);
        offer = Some(Offer {
            concatenation,
            hashes: hashes.into_iter().filter_map(Hash::from_id).collect(),
            groups: groups.into_iter().filter_map(Group::from_id).collect(),
        });
    }
    Ok(offer)
}

/// The bytes of a message that are not decoded yet.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    /// Removes and returns the first `count` bytes.
    fn take(&mut self, count: usize) -> Result<Vec<u8>, AuthenticationFailure> {
        let split = self.0.split_at_checked(count).ok_or(AuthenticationFailure::INCORRECT_PAYLOAD)?;
        self.0 = split.1;
        Ok(split.0.to_vec())
    }

    /// Removes and returns the first `N` bytes.
    fn array<const N: usize>(&mut self) -> Result<[u8; N], AuthenticationFailure> {
        let split = self.0.split_first_chunk().ok_or(AuthenticationFailure::INCORRECT_PAYLOAD)?;
        self.0 = split.1;
        Ok(*split.0)
    }
}
