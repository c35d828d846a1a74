//! Tests of the capture reader.

use super::*;

#[test]
fn classic_captures_are_read_in_either_byte_order_and_unit() {
    let mut cut = entry(SECOND + 5000, &[7; 20]);
    cut.wire_length = 1500;
    let entries = vec![entry(SECOND, b"first"), cut, entry(SECOND + 7000, b"")];
    for big in [false, true] {
        let micro = classic(0xa1b2_c3d4, big, 1, &entries);
        assert_eq!(read(&micro), Ok((entries.clone(), Resolution::Micro)));
        let mut fine = entries.clone();
        fine[0].time_ns += 1;
        let nano = classic(0xa1b2_3c4d, big, 1, &fine);
        assert_eq!(read(&nano), Ok((fine, Resolution::Nano)));
    }
    assert_eq!(read(&classic(0xa1b2_cd34, false, 1, &entries)), Ok((entries, Resolution::Micro)));
    assert_eq!(read(&classic(0xa1b2_c3d4, false, 1, &[])), Ok((vec![], Resolution::Micro)));
}

#[test]
fn pcapng_captures_are_read_with_sections_interfaces_and_resolutions() {
    let mut ng = Ng::new(false);
    ng.interface(1, 0, None, None);
    ng.interface(1, 0, Some(9), Some(10));
    ng.packet(0, SECOND / 1000, 5, b"micro");
    ng.packet(1, SECOND + 1, 100, b"nano!");
    ng.block(0x0bad, b"unknown blocks are skipped");
    ng.section(true);
    ng.interface(1, 3, Some(0x80 | 10), Some(-1));
    ng.packet(0, (SECOND / 1_000_000_000) << 10 | 512, 2, b"be");
    let simple = [&ng.word(4)[..], b"abc\0"].concat();
    ng.block(3, &simple);
    let expected = vec![
        entry(SECOND, b"micro"),
        Entry { time_ns: SECOND + 10_000_000_001, wire_length: 100, interface: 1, bytes: b"nano!".into() },
        Entry { interface: 2, ..entry(SECOND - 500_000_000, b"be") },
        Entry { time_ns: 0, wire_length: 4, interface: 2, bytes: b"abc".into() },
    ];
    assert_eq!(read(&ng.bytes), Ok((expected, Resolution::Nano)));
}

#[test]
fn a_resolution_is_micro_if_microseconds_represent_it() {
    for (resolution, expected) in [
        (None, Resolution::Micro),
        (Some(6), Resolution::Micro),
        (Some(3), Resolution::Micro),
        (Some(7), Resolution::Nano),
        (Some(0x80 | 20), Resolution::Nano),
        (Some(0xff), Resolution::Nano),
        (Some(0x7f), Resolution::Nano),
    ] {
        let mut ng = Ng::new(false);
        ng.interface(1, 0, resolution, None);
        ng.packet(0, u64::MAX, 1, b"x");
        assert_eq!(read(&ng.bytes).unwrap().1, expected, "{resolution:?}");
    }
}

#[test]
fn damaged_files_and_other_files_are_refused_with_a_reason() {
    let error = |bytes: &[u8]| read(bytes).unwrap_err().1;
    assert!(error(b"").contains("is empty"));
    assert!(error(b"GIF").contains("fewer than four"));
    assert!(error(b"GIF89a, certainly no capture").contains("not a capture"));
    assert!(error(&classic(0xa1b2_c3d4, false, 113, &[])).contains("link type 113"));
    let whole = classic(0xa1b2_c3d4, false, 1, &[entry(SECOND, &[1; 60]), entry(SECOND, &[2; 60])]);
    let (before, cut) = read(&whole[..whole.len() - 1]).unwrap_err();
    assert_eq!(before.len(), 1);
    assert!(
        cut.contains("cut short")
            && cut.contains("offset 100")
            && cut.contains("the packet before it is whole"),
        "{cut}"
    );
    let mut huge = whole.clone();
    huge[24 + 8..24 + 12].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(error(&huge).contains("damaged at offset 24"));

    let mut ng = Ng::new(false);
    ng.packet(0, 0, 1, b"x");
    assert!(error(&ng.bytes).contains("names interface 0, which is not described"));
    let mut ng = Ng::new(false);
    ng.interface(1, 0, None, None);
    ng.block(2, &[0; 40]);
    assert!(error(&ng.bytes).contains("editcap"));
    let mut ng = Ng::new(false);
    ng.interface(105, 0, None, None);
    ng.packet(0, 0, 1, b"x");
    assert!(error(&ng.bytes).contains("link type 105"));
    let mut ng = Ng::new(false);
    ng.bytes[8] = 0;
    assert!(error(&ng.bytes).contains("byte order"));
}

#[test]
fn a_block_with_a_wrong_length_is_damage() {
    for big in [false, true] {
        let mut ng = Ng::new(big);
        ng.interface(1, 0, None, None);
        ng.packet(0, 0, 60, &[1; 60]);
        let second = ng.bytes.len();
        ng.packet(0, 0, 60, &[2; 60]);
        let end = ng.bytes.len();
        // Add a third packet. Without it, a too large length of the second packet would reach beyond the end
        // of the file, which is another error.
        ng.packet(0, 0, 60, &[3; 60]);
        let length = (end - second) as u32;
        for (first, last, said) in [
            (length, length - 4, "two lengths differ"),
            (length - 4, length, "two lengths differ"),
            (0, 0, "a block claims 0 bytes"),
            (8, 8, "a block claims 8 bytes"),
            (length + 1, length + 1, "which no block has"),
            (length + 4, length + 4, "two lengths differ"),
            (u32::MAX - 3, u32::MAX - 3, "claims"),
        ] {
            let mut bytes = ng.bytes.clone();
            bytes[second + 4..second + 8].copy_from_slice(&ng.word(first));
            bytes[end - 4..end].copy_from_slice(&ng.word(last));
            let (before, error) = read(&bytes).unwrap_err();
            assert_eq!(before.len(), 1, "{first} {last}: {error}");
            assert!(
                error.contains(said) && error.contains(&format!("offset {second}")),
                "{first} {last}: {error}"
            );
        }
        // The two lengths of a section header differ. This must be reported as for a packet block with
        // differing lengths.
        let mut bytes = ng.bytes.clone();
        bytes[24..28].copy_from_slice(&ng.word(32));
        assert!(read(&bytes).unwrap_err().1.contains("two lengths differ: 28 and 32"));
    }
}

/// An input that returns its pieces in order, and fails with [`std::io::ErrorKind::WouldBlock`] after each
/// piece.
struct TwoPieces {
    pieces: std::collections::VecDeque<Vec<u8>>,
}

impl std::io::Read for TwoPieces {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let Some(piece) = self.pieces.front_mut() else { return Ok(0) };
        if piece.is_empty() {
            self.pieces.pop_front();
            return Err(std::io::ErrorKind::WouldBlock.into());
        }
        let count = piece.len().min(buffer.len());
        buffer[..count].copy_from_slice(&piece[..count]);
        piece.drain(..count);
        Ok(count)
    }
}

#[test]
fn an_input_in_two_pieces_is_read_like_a_whole_one() {
    let mut ng = Ng::new(false);
    ng.interface(1, 0, None, None);
    ng.packet(0, 7, 3, b"abc");
    ng.section(true);
    ng.interface(1, 0, None, None);
    ng.packet(0, 9, 3, b"def");
    for bytes in [classic(0xa1b2_c3d4, false, 1, &[entry(1000, b"abc"), entry(2000, b"defg")]), ng.bytes] {
        let whole = read(&bytes).unwrap().0;
        for cut in 0..bytes.len() {
            let pieces = [bytes[..cut].to_vec(), bytes[cut..].to_vec()].into();
            let mut reader = CaptureReader::new("pcap:test", Box::new(TwoPieces { pieces }));
            let mut entries = Vec::new();
            loop {
                let Some(record) = reader.peek().unwrap() else {
                    if reader.waiting() {
                        continue;
                    }
                    break;
                };
                let bytes = reader.data(&record).to_vec();
                let Record { time_ns, wire_length, interface, .. } = record;
                entries.push(Entry { time_ns, wire_length, interface, bytes });
                reader.consume();
            }
            assert_eq!(entries, whole, "cut at {cut}");
        }
    }
}

#[test]
fn packets_of_ethernet_are_read_whatever_other_interfaces_are_described() {
    let mut ng = Ng::new(false);
    ng.interface(105, 0, Some(9), None);
    ng.interface(1, 0, None, None);
    ng.packet(1, SECOND / 1000, 5, b"ether");
    let expected = Entry { interface: 1, ..entry(SECOND, b"ether") };
    assert_eq!(read(&ng.bytes), Ok((vec![expected], Resolution::Micro)));
    ng.packet(0, 0, 5, b"radio");
    let (before, error) = read(&ng.bytes).unwrap_err();
    assert!(before.len() == 1 && error.contains("link type 105"), "{error}");
}
