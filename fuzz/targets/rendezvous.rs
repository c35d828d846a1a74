//! Decodes arbitrary bytes as the data by which PEs and the launcher connect over UCX: frames, PEs' cards,
//! and addresses. Each decoder must return a value or refuse the bytes. If a decoded frame or card is
//! encoded, the result must be the same bytes. An address must not change if it is encoded and decoded again.

use inlane_pgas::launch::Invitation;
use inlane_pgas::transport::rendezvous::{Frame, Meeting, Meetings};
use inlane_pgas::transport::ucx::card::Card;

pub fn run(bytes: &[u8]) {
    let Some((kind, payload)) = bytes.split_first() else { return };
    if let Some(frame) = Frame::decode(*kind, payload) {
        assert_eq!(&frame.encode()[4..], bytes);
    }
    let mut stream = payload;
    while let Ok(frame) = Frame::read(&mut stream, 1000) {
        assert!(frame.encode().len() <= payload.len());
    }
    if let Some(card) = Card::decode(payload) {
        assert_eq!(card.encode(), payload);
    }
    let Ok(text) = std::str::from_utf8(payload) else { return };
    if let Ok(meeting) = text.parse::<Meeting>() {
        assert_eq!(meeting.to_string().parse::<Meeting>().unwrap(), meeting);
    }
    if let Ok(meetings) = text.parse::<Meetings>() {
        assert_eq!(meetings.to_string().parse::<Meetings>().unwrap(), meetings);
    }
    if let Ok(invitation) = text.parse::<Invitation>() {
        assert_eq!(invitation.to_string().parse::<Invitation>().unwrap(), invitation);
    }
}
