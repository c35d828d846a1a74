//! Decodes arbitrary bytes as the formats that the offload engine and its preloaded library exchange:
//! messages, records, headers of datagrams, addresses, rules and words of shared memory. If a value is
//! decoded, encoding it and decoding it again must return the same value.

use inlane_offload_protocol::datagram::{self, Header};
use inlane_offload_protocol::message::{Message, read_options};
use inlane_offload_protocol::name::SocketName;
use inlane_offload_protocol::rules::{Rule, Use, decide};
use inlane_offload_protocol::slots::{POSITION, ReceiveRing, SendRing};
use inlane_offload_protocol::{address, message};
use std::sync::atomic::{AtomicU64, Ordering};

pub fn run(bytes: &[u8]) {
    let mut whole = bytes.to_vec();
    whole.resize(message::LEN, 0);
    for bytes in [bytes, &whole] {
        if let Some(message) = Message::decode(bytes) {
            assert_eq!(Message::decode(&message.encode()), Some(message));
            assert!(message.program().len() <= message.program.len());
            assert!(read_options(message.value()).count() <= message::MAX_VALUE / 12);
        }
    }
    shared_words(bytes);
    if let Some(found) = address::decode(bytes) {
        assert_eq!(address::decode(&address::encode(Some(found))), Some(found));
    }
    if let Some(name) = SocketName::decode(bytes) {
        // A stand-in has the name of a listener.
        assert!(name.kind.is_stand_in() || SocketName::decode(&name.encode()) == Some(name));
    }
    if let Some(engine) = bytes.first_chunk() {
        let engine = u64::from_le_bytes(*engine);
        let header = Header::decode(engine, bytes);
        assert_eq!(header.is_some(), bytes.len() >= datagram::LEN);
        if let Some(header) = header {
            assert_eq!(Header::decode(engine, &header.encode()), Some(header));
            assert_eq!(Header::decode(!engine, bytes), None);
        }
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        if let Some(rule) = text.lines().next().and_then(Rule::parse) {
            let printed = rule.to_string();
            assert_eq!(Rule::parse(&printed), Some(rule));
        }
        let _ = decide(text, "program", bytes.len().is_multiple_of(2), [10, 0, 0, 1].into(), 80, Use::Listen);
    }
}

/// Runs the engine's operations on words of shared memory that a hostile program may have written.
fn shared_words(bytes: &[u8]) {
    let words: Vec<u64> =
        bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
    for words in words.windows(2) {
        let word = AtomicU64::new(words[0]);
        let ring = SendRing(&word);
        let committed = ring.committed();
        assert_eq!(ring.close().unwrap_or(committed), committed);
        assert_eq!(ring.close_by_force(), Ok(committed));
        word.store(words[0], Ordering::Relaxed);
        receive_ring(&word, words[1]);
    }
}

/// Opens, fills and ends a receive ring whose word the program has written, and writes again as `next` while the ring is open.
fn receive_ring(word: &AtomicU64, next: u64) {
    let filled = AtomicU64::new(next);
    let ring = ReceiveRing { word, filled: &filled };
    let most = next & 0xffff;
    if let Some(received) = ring.received(most) {
        assert!((1..=most).contains(&received.len) && received.position() <= POSITION);
    }
    let (_, taken) = ring.taken();
    if ring.is_asked() {
        assert!(ring.open(taken));
        let start = taken.wrapping_add(1) & POSITION;
        assert_eq!(ring.taken(), (true, start));
        ring.fill(start.wrapping_add(most));
        assert_eq!(ring.received(most).map(|received| received.len), (most > 0).then_some(most));
        word.store(next, Ordering::Relaxed);
    }
    assert!(ring.end() <= POSITION);
    assert!(!ring.taken().0 && !ring.is_asked());
    ring.close();
    assert!(!ring.ask() && !ring.taken().0);
}
