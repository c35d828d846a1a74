//! Reads arbitrary bytes as each kind of header. Nothing may panic. Payloads must stay inside the buffer. A
//! field that was written must read back as written.

use inlane_wire::*;

fn inside(whole: &[u8], part: &[u8]) {
    let (whole, part) = (whole.as_ptr_range(), part.as_ptr_range());
    assert!(whole.start <= part.start && part.end <= whole.end, "a view reaches beyond its buffer");
}

fn read(bytes: &[u8]) {
    if let Ok(view) = ethernet::Frame::new(bytes) {
        inside(bytes, view.payload());
        assert!(view.tags().count() <= ethernet::MAX_TAGS);
    }
    if let Ok(view) = ipv4::Packet::new(bytes) {
        inside(bytes, view.payload());
        inside(bytes, view.options());
        let _ = (view.checksum_ok(), view.is_fragment(), view.pseudo_sum());
    }
    if let Ok(view) = ipv6::Packet::new(bytes) {
        inside(bytes, view.payload());
        if let Ok(upper) = view.upper() {
            assert!(upper.offset <= bytes.len());
        }
    }
    if let Ok(view) = tcp::Segment::new(bytes) {
        inside(bytes, view.payload());
        inside(bytes, view.options());
        let _ = view.checksum_ok(checksum::Sum::new());
    }
    if let Ok(view) = udp::Datagram::new(bytes) {
        inside(bytes, view.payload());
        let _ = view.checksum_ok(checksum::Sum::new());
    }
    if let Ok(view) = icmp::Message::new(bytes) {
        inside(bytes, view.payload());
    }
    if let Ok(view) = ecpri::Message::new(bytes) {
        inside(bytes, view.payload());
    }
    if let Ok(view) = oran::Message::new(bytes) {
        for (_, samples) in view.sections(bytes.len() % 64, bytes[0] as u16) {
            inside(bytes, samples);
        }
    }
    if let Ok(view) = roce::Bth::new(bytes) {
        inside(bytes, view.payload());
        assert!(view.padding() < 4 && view.psn() <= roce::MASK && view.queue_pair() <= roce::MASK);
        if let Ok(extended) = roce::Reth::new(view.payload()) {
            let _ = (extended.address(), extended.key(), extended.length());
        }
    }
    let _ = roce::icrc_ok(bytes);
    if let Ok(view) = arp::Packet::new(bytes) {
        let _ = (view.operation(), view.sender(), view.target_mac());
    }
    if let Ok(Some(layers)) = Layers::of(bytes) {
        assert!(
            layers.network <= layers.transport
                && layers.transport <= bytes.len()
                && layers.end <= bytes.len()
        );
    }
    let _ = FiveTuple::of(bytes);
}

fn write(bytes: &mut [u8]) {
    if roce::fill_icrc(bytes).is_ok() {
        assert!(roce::icrc_ok(bytes), "a written ICRC is right");
    }
    if let Ok(mut packet) = ipv4::Packet::new(&mut *bytes) {
        packet.fill_checksum();
        assert!(packet.checksum_ok());
        if packet.decrement_ttl() {
            assert!(packet.checksum_ok(), "the incremental checksum equals the complete one");
        }
    }
}

pub fn run(bytes: &[u8]) {
    read(bytes);
    write(&mut bytes.to_vec());
}
