use super::*;
use crate::wire::command::{Command, Completion, Sgl, Status, io};
use proptest::prelude::*;
use zerocopy::{Immutable, IntoBytes, Unaligned};

fn rules(sender: Sender, digests: Digests, alignment: u8) -> Rules {
    Rules { sender, digests, alignment, max_capsule_data: 8192, max_data: 1 << 20 }
}

fn layout(pdu: &[u8], rules: &Rules) -> Result<Layout, Fault> {
    Layout::decode(pdu[..8].try_into().unwrap(), rules)
}

fn whole<T: IntoBytes + Immutable + Unaligned>(
    header: &Pdu<T>,
    data: &[u8],
    digests: Digests,
    alignment: u8,
) -> Vec<u8> {
    let mut out = [0xEE; MAX_HEADER];
    let written = encode(header, data.len() as u32, digests, alignment, &mut out);
    let mut pdu = out[..written].to_vec();
    pdu.extend_from_slice(data);
    if digests.data && !data.is_empty() {
        pdu.extend_from_slice(&digest(data));
    }
    pdu
}

fn receive<'a>(pdu: &'a [u8], rules: &Rules) -> Result<(Layout, Header<'a>, &'a [u8]), Fault> {
    let layout = layout(pdu, rules)?;
    assert_eq!(layout.total_bytes(), pdu.len());
    let header = &pdu[..layout.header_bytes.into()];
    layout.check_digest(header)?;
    let data = &pdu[layout.data_at()..][..layout.data_bytes as usize];
    if layout.data_digest {
        assert_eq!(pdu[pdu.len() - 4..], digest(data));
    }
    Ok((layout, Header::decode(&layout, header)?, data))
}

fn any_digests() -> impl Strategy<Value = Digests> {
    any::<(bool, bool)>().prop_map(|(header, data)| Digests { header, data })
}

#[test]
fn headers_have_the_sizes_of_the_specification() {
    assert_eq!((size_of::<Pdu<Initialization>>(), size_of::<Pdu<TermReq>>()), (128, 24));
    assert_eq!((size_of::<Pdu<Command>>(), size_of::<Pdu<Completion>>()), (72, 24));
    assert_eq!(size_of::<Pdu<Transfer>>(), 24);
}

#[test]
fn the_digest_is_that_of_rfc_3720() {
    // RFC 3720, appendix B.4: 32 bytes of zeroes.
    assert_eq!(digest(&[0; 32]), [0xAA, 0x36, 0x91, 0x8A]);
}

#[test]
fn a_connection_is_negotiated_without_digests() {
    let digests = Digests { header: true, data: true };
    let pdu = whole(&Pdu::initialization(Kind::IcReq, digests, 0), &[], digests, 4);
    assert_eq!(pdu[..8], [0, 0, 128, 0, 128, 0, 0, 0]);
    let (_, header, _) = receive(&pdu, &rules(Sender::Host, digests, 4)).unwrap();
    assert!(matches!(header, Header::IcReq { digests: found, alignment: 4 } if found == digests));
    assert_eq!(pdu[12..16], [0; 4], "MAXR2T");

    let pdu = whole(&Pdu::initialization(Kind::IcResp, digests, 4096), &[], digests, 4);
    let (_, header, _) = receive(&pdu, &rules(Sender::Controller, digests, 4)).unwrap();
    assert!(matches!(header, Header::IcResp { max_h2c_data: 4096, .. }));
}

#[test]
fn faults_name_the_field_and_its_offset() {
    let from_controller = rules(Sender::Controller, Digests::default(), 4);
    let good =
        whole(&Pdu::transfer(Kind::C2hData, data_flags::LAST, 1, 0, 0, 8), &[5; 8], Digests::default(), 4);
    receive(&good, &from_controller).unwrap();
    let expect = |at: usize, value: u8, field, offset| {
        let mut bad = good.clone();
        bad[at] = value;
        let header = |layout: Layout| Header::decode(&layout, &bad).map(|_| ());
        let fault = layout(&bad, &from_controller).and_then(header).unwrap_err();
        assert_eq!((fault.field, fault.offset), (field, offset), "{fault}");
        fault
    };
    let fault = expect(0, 0x48, "PDU-Type", 0);
    assert_eq!(fault.to_string(), "PDU-Type (byte 0) is 0x48, which does not exist");
    expect(0, 0x08, "PDU-Type", 0);
    expect(0, 0x06, "PDU-Type", 0);
    expect(1, 0x01, "FLAGS", 1);
    expect(1, 0x02, "FLAGS", 1);
    expect(1, 0x08, "FLAGS", 1);
    expect(2, 23, "HLEN", 2);
    expect(3, 23, "PDO", 3);
    expect(3, 26, "PDO", 3);
    expect(3, 32, "PLEN", 4);
    expect(4, 8, "PLEN", 4);
    expect(4, 24, "PLEN", 4);
    expect(6, 0xFF, "PLEN", 4);
    let fault = expect(16, 9, "DATAL", 16);
    assert_eq!(
        fault.to_string(),
        "C2HData: DATAL at byte 16 is 0x9: it differs from the length of the data in the PDU"
    );
    let mut over = good.clone();
    over[12..16].fill(0xFF);
    let fault = receive(&over, &from_controller).unwrap_err();
    assert_eq!((fault.status, fault.information()), (FatalStatus::DataOutOfRange, 12));
}

#[test]
fn a_termination_repeats_the_bad_header() {
    let from_host = rules(Sender::Host, Digests::default(), 4);
    let mut bad =
        whole(&Pdu::new(Kind::CapsuleCmd, 0, Command::new(io::FLUSH, 1)), &[], Digests::default(), 4);
    let fault = Fault::new(FatalStatus::InvalidHeaderField, Kind::CapsuleCmd, field::FLAGS, 0_u8, "");
    let mut out = [0; 152];
    assert_eq!(encode_termination(&from_host, &fault, &bad[..30], &mut out), 24 + 30);
    assert_eq!(encode_termination(&from_host, &fault, &[&bad[..], &[9; 9]].concat(), &mut out), 24 + 72);
    // If the first bytes are invalid, the length of the header is unknown.
    bad[2] = 71;
    let fault = layout(&bad, &from_host).unwrap_err();
    let written = encode_termination(&from_host, &fault, &bad, &mut out);
    assert_eq!(written, 24 + 8);
    let from_controller = rules(Sender::Controller, Digests { header: true, data: true }, 4);
    let (_, header, data) = receive(&out[..written], &from_controller).unwrap();
    let Header::TermReq(termination) = header else { panic!("{header:?}") };
    assert_eq!((termination.status, termination.information), (1, 2));
    assert_eq!(data, &bad[..8]);
    assert_eq!(termination.to_string(), "Invalid PDU Header Field (FES 1), field at byte 2");
}

#[test]
fn in_capsule_data_is_limited() {
    let command = Command::blocks(io::WRITE, 1, 0, 17, Sgl::in_capsule(8704));
    let pdu = whole(&Pdu::new(Kind::CapsuleCmd, 0, command), &[0; 8704], Digests::default(), 4);
    let fault = receive(&pdu, &rules(Sender::Host, Digests::default(), 4)).unwrap_err();
    assert_eq!(fault.field, "PLEN");
}

proptest! {
    #[test]
    fn pdus_with_data_survive_a_round_trip(
        digests in any_digests(),
        alignment in (1u8..=32).prop_map(|units| units * 4),
        data in proptest::collection::vec(any::<u8>(), 1..600),
        (cid, tag, offset, flags) in (any::<u16>(), any::<u16>(), 0..1u32 << 30, 0u8..2),
    ) {
        let flags = flags * data_flags::LAST;
        for (kind, sender) in [(Kind::C2hData, Sender::Controller), (Kind::H2cData, Sender::Host)] {
            let sent = Pdu::transfer(kind, flags, cid, tag, offset, data.len() as u32);
            let pdu = whole(&sent, &data, digests, alignment);
            let (layout, header, received) = receive(&pdu, &rules(sender, digests, alignment)).unwrap();
            let (Header::C2hData(header) | Header::H2cData(header)) = header else { panic!("{header:?}") };
            prop_assert_eq!(header, sent.fields);
            prop_assert_eq!(layout.flags & data_flags::LAST, flags);
            prop_assert_eq!(received, &data[..]);
            prop_assert_eq!(layout.data_at() % usize::from(alignment), 0);
        }
    }

    #[test]
    fn capsules_survive_a_round_trip(
        digests in any_digests(),
        bytes in any::<[u8; 32]>(),
        data in proptest::collection::vec(any::<u8>(), 0..64),
    ) {
        let mut command = Command::blocks(bytes[0], 3, 9, 8, Sgl::in_capsule(data.len() as u32));
        command.as_mut_bytes()[32..].copy_from_slice(&bytes);
        let pdu = whole(&Pdu::new(Kind::CapsuleCmd, 0, command), &data, digests, 4);
        let (_, header, received) = receive(&pdu, &rules(Sender::Host, digests, 4)).unwrap();
        prop_assert!(matches!(header, Header::CapsuleCmd(found) if *found == command));
        prop_assert_eq!(received, &data[..]);

        let completion = Completion::new(7, Status::LBA_OUT_OF_RANGE, 8, 9, 10);
        let pdu = whole(&Pdu::new(Kind::CapsuleResp, 0, completion), &[], digests, 4);
        let (_, header, _) = receive(&pdu, &rules(Sender::Controller, digests, 4)).unwrap();
        prop_assert!(matches!(header, Header::CapsuleResp(found) if found == completion));

        let pdu = whole(&Pdu::transfer(Kind::R2t, 0, 7, 8, 4096, 512), &[], digests, 4);
        let (_, header, _) = receive(&pdu, &rules(Sender::Controller, digests, 4)).unwrap();
        prop_assert!(matches!(header, Header::R2t(found) if found.length.get() == 512));
    }

    /// Changes one byte of a header. With a header digest, decoding must fail, unless the change makes the PDU a
    /// termination request, which has no digest. Otherwise decoding must return a layout within the limits, or a fault
    /// with an offset inside the header.
    #[test]
    fn mutated_headers_are_refused_or_harmless(
        digests in any_digests(),
        at in 0usize..24,
        change in 1u8..,
        c2h in any::<bool>(),
    ) {
        let (sender, kind) = if c2h { (Sender::Controller, Kind::C2hData) } else { (Sender::Host, Kind::H2cData) };
        let mut pdu = whole(&Pdu::transfer(kind, 0, 1, 2, 512, 64), &[9; 64], digests, 4);
        pdu[at] ^= change;
        let rules = rules(sender, digests, 4);
        let result = layout(&pdu, &rules).and_then(|layout| {
            assert!(layout.data_bytes <= rules.max_data && layout.header_bytes <= 132);
            pdu.resize(layout.total_bytes().max(pdu.len()), 0);
            layout.check_digest(&pdu[..layout.header_bytes.into()])?;
            Header::decode(&layout, &pdu).map(|_| layout.kind)
        });
        match result {
            Ok(kind) => prop_assert!(!digests.header || matches!(kind, Kind::H2cTermReq | Kind::C2hTermReq)),
            Err(fault) => prop_assert!(fault.offset <= 128),
        }
    }

    #[test]
    fn any_8_bytes_give_a_bounded_layout_or_a_fault(
        bytes in any::<[u8; 8]>(),
        digests in any_digests(),
        alignment in any::<u8>(),
        host in any::<bool>(),
    ) {
        let rules = rules(if host { Sender::Host } else { Sender::Controller }, digests, alignment);
        if let Ok(layout) = Layout::decode(&bytes, &rules) {
            let expected = u32::from_le_bytes(bytes[4..].try_into().unwrap()) as usize;
            prop_assert_eq!(layout.total_bytes(), expected);
            prop_assert!(layout.data_bytes <= rules.max_data);
        }
    }
}

proptest! {
    #[test]
    fn the_digest_of_parts_is_that_of_the_whole(
        data in prop::collection::vec(any::<u8>(), 0..10_000),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(data.len() + 1)).collect();
        cuts.extend([0, data.len()]);
        cuts.sort_unstable();
        let mut running = RunningDigest::default();
        for ends in cuts.windows(2) {
            running.update(&data[ends[0]..ends[1]]);
        }
        prop_assert_eq!(running.bytes(), digest(&data));
    }
}

#[test]
fn the_digest_is_crc_32c_in_little_endian() {
    // The check value of CRC-32/ISCSI is e3069283h.
    assert_eq!(digest(b"123456789"), [0x83, 0x92, 0x06, 0xe3]);
}
