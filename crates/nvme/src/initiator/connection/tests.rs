use super::*;
use crate::wire::command::{Command, Status, io};
use crate::wire::pdu::{
    self, FatalStatus, Fault, Header, Kind, Layout, MAX_HEADER, Pdu, Termination, Transfer, data_flags,
};
use proptest::prelude::*;
use zerocopy::{Immutable, IntoBytes, Unaligned};

const NO_DIGESTS: Digests = Digests { header: false, data: false };
const BOTH: Digests = Digests { header: true, data: true };

fn pdu<T: IntoBytes + Immutable + Unaligned>(header: &Pdu<T>, data: &[u8], digests: Digests) -> Vec<u8> {
    let mut out = [0; MAX_HEADER];
    let written = pdu::encode(header, data.len() as u32, digests, 4, &mut out);
    let mut pdu = out[..written].to_vec();
    pdu.extend_from_slice(data);
    if digests.data && !data.is_empty() {
        pdu.extend_from_slice(&pdu::digest(data));
    }
    pdu
}

fn response(cid: u16, status: Status, digests: Digests) -> Vec<u8> {
    pdu(&Pdu::new(Kind::CapsuleResp, 0, Completion::new(cid, status, 0, 0, 0)), &[], digests)
}

/// Passes received bytes to the connection, at most `part` bytes at a time.
fn feed(connection: &mut HostConnection, mut bytes: &[u8], part: usize) -> Result<(), Failure> {
    while !bytes.is_empty() {
        let mut given = 0;
        for slice in &mut connection.receive_slices() {
            let len = slice.len().min(bytes.len()).min(part - given);
            slice[..len].copy_from_slice(&bytes[..len]);
            bytes = &bytes[len..];
            given += len;
        }
        connection.received(given)?;
    }
    Ok(())
}

/// Returns the connection's output, taken at most `part` bytes at a time.
fn sent(connection: &mut HostConnection, part: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while connection.has_output() {
        let mut slices = [IoSlice::new(&[]); 3];
        let filled = connection.transmit_slices(&mut slices);
        let bytes: Vec<u8> = slices[..filled].iter().flat_map(|slice| slice.iter().copied()).collect();
        let len = bytes.len().min(part);
        all.extend_from_slice(&bytes[..len]);
        connection.transmitted(len);
    }
    all
}

/// Creates a connection that is ready for commands, with H2CData PDUs of at most 4096 bytes.
fn ready(digests: Digests) -> HostConnection {
    let mut connection = HostConnection::new(digests, 9, 8192);
    assert_eq!(sent(&mut connection, 10)[..8], [0, 0, 128, 0, 128, 0, 0, 0]);
    assert!(!connection.is_ready());
    feed(&mut connection, &pdu(&Pdu::initialization(Kind::IcResp, digests, 4096), &[], NO_DIGESTS), 7)
        .unwrap();
    assert!(connection.is_ready());
    connection
}

fn request(opcode: u8, bytes: usize) -> Submission {
    let mut buffer = Buffer::new(bytes).unwrap();
    if opcode == io::WRITE {
        buffer.bytes_mut().iter_mut().zip(0..).for_each(|(byte, n)| *byte = pattern(n));
    }
    let command = Command::blocks(opcode, 1, 0, (bytes / 512).max(1) as u32, Sgl::NONE);
    Submission { token: 77, command, buffer: Some(buffer) }
}

fn pattern(n: usize) -> u8 {
    (n % 251) as u8
}

fn submit(connection: &mut HostConnection, request: Submission) -> u16 {
    connection.submit(request).expect("a free slot");
    let bytes = sent(connection, usize::MAX);
    u16::from_le_bytes([bytes[10], bytes[11]])
}

fn c2h(cid: u16, flags: u8, at: u32, data: &[u8], digests: Digests) -> Vec<u8> {
    pdu(&Pdu::transfer(Kind::C2hData, flags, cid, 0, at, data.len() as u32), data, digests)
}

fn expect_fault(connection: &mut HostConnection, bytes: &[u8], status: FatalStatus, field: &str) {
    match feed(connection, bytes, usize::MAX) {
        Err(Failure::Fault(fault)) => {
            assert_eq!((fault.status, fault.field), (status, field), "{fault}");
            let mut request = [0; 152];
            let len = connection.encode_termination(&fault, &mut request);
            let header = &request[24..len];
            assert_eq!(header[0], fault.kind, "{fault}");
            assert!(bytes.windows(header.len()).any(|part| part == header), "{fault}: {header:?}");
        }
        other => panic!("{other:?}"),
    }
    assert!(!connection.is_ready());
}

#[test]
fn a_read_lands_in_its_buffer_however_it_is_split() {
    for digests in [NO_DIGESTS, BOTH] {
        for part in [1, 3, 500, 5000, usize::MAX] {
            let mut connection = ready(digests);
            let cid = submit(&mut connection, request(io::READ, 65_536));
            let data: Vec<u8> = (0..65_536).map(pattern).collect();
            let mut bytes = c2h(cid, 0, 0, &data[..40_000], digests);
            bytes.extend(c2h(cid, data_flags::LAST, 40_000, &data[40_000..], digests));
            bytes.extend(response(cid, Status::SUCCESS, digests));
            feed(&mut connection, &bytes, part).unwrap();
            let done = connection.next_done().expect("completed");
            assert!(done.status().is_success() && done.token == 77);
            assert_eq!(done.buffer.unwrap().bytes(), data);
            assert_eq!(connection.in_flight(), 0);
        }
    }
}

#[test]
fn data_with_success_completes_the_command() {
    let mut connection = ready(NO_DIGESTS);
    let cid = submit(&mut connection, request(io::READ, 512));
    let flags = data_flags::LAST | data_flags::SUCCESS;
    feed(&mut connection, &c2h(cid, flags, 0, &[7; 512], NO_DIGESTS), 100).unwrap();
    assert_eq!(connection.next_done().unwrap().buffer.unwrap().bytes(), [7; 512]);
    // The slot is reused with another identifier, so a late response is detected.
    let next = submit(&mut connection, request(io::READ, 512));
    assert_ne!(next, cid);
    let late = response(cid, Status::SUCCESS, NO_DIGESTS);
    expect_fault(&mut connection, &late, FatalStatus::InvalidHeaderField, "CID");
}

#[test]
fn small_writes_travel_with_their_command() {
    for digests in [NO_DIGESTS, BOTH] {
        let mut connection = ready(digests);
        connection.submit(request(io::WRITE, 4096)).unwrap();
        let bytes = sent(&mut connection, 1000);
        let rules =
            Rules { sender: Sender::Host, digests, alignment: 4, max_capsule_data: 8192, max_data: 0 };
        let layout = Layout::decode(bytes[..8].try_into().unwrap(), &rules).unwrap();
        assert_eq!((layout.total_bytes(), layout.data_bytes), (bytes.len(), 4096));
        let expected: Vec<u8> = (0..4096).map(pattern).collect();
        assert_eq!(bytes[layout.data_at()..][..4096], expected);
        if digests.data {
            assert_eq!(bytes[bytes.len() - 4..], pdu::digest(&expected));
        }
        let cid = u16::from_le_bytes([bytes[10], bytes[11]]);
        feed(&mut connection, &response(cid, Status::LBA_OUT_OF_RANGE, digests), 5).unwrap();
        assert_eq!(connection.next_done().unwrap().status(), Status::LBA_OUT_OF_RANGE);
    }
}

#[test]
fn large_writes_are_sent_as_requested_in_exact_order() {
    for digests in [NO_DIGESTS, BOTH] {
        let mut connection = ready(digests);
        let cid = submit(&mut connection, request(io::WRITE, 20_480));
        let rules =
            Rules { sender: Sender::Host, digests, alignment: 4, max_capsule_data: 8192, max_data: 4096 };
        let mut received = Vec::new();
        for (tag, at, len) in [(5, 0, 10_000), (6, 10_000, 10_480)] {
            feed(&mut connection, &pdu(&Pdu::transfer(Kind::R2t, 0, cid, tag, at, len), &[], digests), 9)
                .unwrap();
            let bytes = sent(&mut connection, 777);
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let layout = Layout::decode(rest[..8].try_into().unwrap(), &rules).unwrap();
                layout.check_digest(rest).unwrap();
                let Header::H2cData(header) = Header::decode(&layout, rest).unwrap() else { panic!() };
                assert_eq!((header.cccid.get(), header.ttag.get()), (cid, tag));
                assert_eq!(header.offset.get() as usize, received.len());
                let data = &rest[layout.data_at()..][..layout.data_bytes as usize];
                received.extend_from_slice(data);
                rest = &rest[layout.total_bytes()..];
                let last = layout.flags & data_flags::LAST != 0;
                assert_eq!(last, rest.is_empty(), "LAST_PDU ends the answer to an R2T");
            }
        }
        assert_eq!(received, (0..20_480).map(pattern).collect::<Vec<_>>());
        feed(&mut connection, &response(cid, Status::SUCCESS, digests), usize::MAX).unwrap();
        assert!(connection.next_done().unwrap().status().is_success());
    }
}

#[test]
fn a_command_that_ends_while_its_data_is_sent_keeps_its_buffer_until_then() {
    let mut connection = ready(NO_DIGESTS);
    let cid = submit(&mut connection, request(io::WRITE, 16_384));
    feed(&mut connection, &pdu(&Pdu::transfer(Kind::R2t, 0, cid, 1, 0, 16_384), &[], NO_DIGESTS), usize::MAX)
        .unwrap();
    feed(&mut connection, &response(cid, Status::INTERNAL_ERROR, NO_DIGESTS), usize::MAX).unwrap();
    assert!(connection.next_done().is_none());
    let again = response(cid, Status::SUCCESS, NO_DIGESTS);
    sent(&mut connection, 1000);
    assert_eq!(connection.next_done().unwrap().status(), Status::INTERNAL_ERROR);
    expect_fault(&mut connection, &again, FatalStatus::InvalidHeaderField, "CID");
}

#[test]
fn a_wrong_data_digest_fails_the_command_only() {
    let mut connection = ready(BOTH);
    let cid = submit(&mut connection, request(io::READ, 512));
    let mut bytes = c2h(cid, data_flags::LAST, 0, &[7; 512], BOTH);
    bytes[100] ^= 1;
    bytes.extend(response(cid, Status::SUCCESS, BOTH));
    feed(&mut connection, &bytes, 33).unwrap();
    assert_eq!(connection.next_done().unwrap().status(), Status::TRANSIENT_TRANSPORT_ERROR);
    assert!(connection.is_ready());
}

#[test]
fn violations_of_a_hostile_controller_are_refused() {
    use FatalStatus::*;
    let setup = |opcode, bytes| {
        let mut connection = ready(NO_DIGESTS);
        let cid = submit(&mut connection, request(opcode, bytes));
        (connection, cid)
    };
    let refuse = |opcode, make: &dyn Fn(u16) -> Vec<u8>, status, field: &str| {
        let (mut connection, cid) = setup(opcode, 16_384);
        expect_fault(&mut connection, &make(cid), status, field);
        connection.fail();
        let done = connection.next_done().expect("given back");
        assert_eq!(done.status(), Status::HOST_PATH_ERROR);
        assert_eq!(done.buffer.unwrap().len(), 16_384);
    };
    let data = |at, len: usize| move |cid| c2h(cid, 0, at, &vec![1; len], NO_DIGESTS);
    refuse(io::READ, &data(4, 512), DataOutOfRange, "DATAO");
    refuse(io::READ, &data(0, 16_385), DataOutOfRange, "DATAL");
    refuse(io::READ, &|cid| c2h(cid ^ 1, 0, 0, &[1; 8], NO_DIGESTS), InvalidHeaderField, "CCCID");
    refuse(io::WRITE, &data(0, 512), InvalidHeaderField, "CCCID");
    refuse(io::READ, &|cid| response(cid, Status::SUCCESS, NO_DIGESTS), SequenceError, "CID");
    refuse(io::WRITE, &|cid| response(cid, Status::SUCCESS, NO_DIGESTS), SequenceError, "CID");
    refuse(
        io::READ,
        &|cid| pdu(&Pdu::transfer(Kind::R2t, 0, cid, 0, 0, 512), &[], NO_DIGESTS),
        InvalidHeaderField,
        "CCCID",
    );
    refuse(
        io::WRITE,
        &|cid| pdu(&Pdu::transfer(Kind::R2t, 0, cid, 0, 1, 16_384), &[], NO_DIGESTS),
        DataOutOfRange,
        "R2TL",
    );
    let two = |second: Pdu<Transfer>| {
        move |cid| {
            let mut bytes = pdu(&Pdu::transfer(Kind::R2t, 0, cid, 0, 0, 8192), &[], NO_DIGESTS);
            let fields = Transfer { cccid: cid.into(), ..second.fields };
            bytes.extend(pdu(&Pdu { fields, ..second }, &[], NO_DIGESTS));
            bytes
        }
    };
    refuse(io::WRITE, &two(Pdu::transfer(Kind::R2t, 0, 0, 1, 8192, 8192)), LimitExceeded, "CCCID");
    refuse(
        io::READ,
        &|_| pdu(&Pdu::initialization(Kind::IcResp, NO_DIGESTS, 4096), &[], NO_DIGESTS),
        SequenceError,
        "PDU-Type",
    );
    let success = data_flags::LAST | data_flags::SUCCESS;
    refuse(io::READ, &|cid| c2h(cid, success, 0, &[1; 8], NO_DIGESTS), SequenceError, "FLAGS");

    // An R2T that asks again for data that was already sent must be a fault.
    let (mut connection, cid) = setup(io::WRITE, 16_384);
    feed(&mut connection, &pdu(&Pdu::transfer(Kind::R2t, 0, cid, 0, 0, 8192), &[], NO_DIGESTS), usize::MAX)
        .unwrap();
    sent(&mut connection, usize::MAX);
    let overlap = pdu(&Pdu::transfer(Kind::R2t, 0, cid, 0, 8191, 100), &[], NO_DIGESTS);
    expect_fault(&mut connection, &overlap, DataOutOfRange, "R2TO");
}

#[test]
fn nothing_is_accepted_before_the_connection_is_initialized() {
    let mut connection = HostConnection::new(NO_DIGESTS, 2, 0);
    assert!(connection.submit(request(io::READ, 512)).is_err());
    let early = response(0, Status::SUCCESS, NO_DIGESTS);
    expect_fault(&mut connection, &early, FatalStatus::SequenceError, "PDU-Type");
    let mut connection = HostConnection::new(BOTH, 2, 0);
    let weaker = pdu(&Pdu::initialization(Kind::IcResp, NO_DIGESTS, 4096), &[], NO_DIGESTS);
    expect_fault(&mut connection, &weaker, FatalStatus::UnsupportedParameter, "DGST");
}

#[test]
fn a_termination_ends_the_connection() {
    let mut connection = ready(NO_DIGESTS);
    let fault =
        Fault { status: FatalStatus::DataOutOfRange, kind: 6, field: "DATAO", offset: 12, found: 0, why: "" };
    let mut request = [0; 152];
    let rules =
        Rules { sender: Sender::Host, digests: NO_DIGESTS, alignment: 4, max_capsule_data: 0, max_data: 0 };
    let len = pdu::encode_termination(&rules, &fault, &[9; 72], &mut request);
    let result = feed(&mut connection, &request[..len], 11);
    assert_eq!(result, Err(Failure::Terminated(Termination { status: 4, information: 12 })));
}

#[test]
fn the_time_of_a_command_restarts_by_data_of_it_and_of_those_before_it_only() {
    let mut connection = ready(NO_DIGESTS);
    let [first, second, third] =
        [io::READ, io::READ, io::WRITE].map(|opcode| submit(&mut connection, request(opcode, 65_536)));
    assert_eq!((connection.tick(), connection.tick()), (1, 2));
    // The commands after the first one wait for its data, whether it arrives in its buffer or in the input buffer.
    feed(&mut connection, &c2h(first, 0, 0, &[1; 8192], NO_DIGESTS), usize::MAX).unwrap();
    assert_eq!((connection.tick(), connection.tick()), (0, 1));
    feed(&mut connection, &c2h(first, 0, 8192, &[1; 40_000], NO_DIGESTS), 5000).unwrap();
    assert_eq!((connection.tick(), connection.tick()), (0, 1));
    // Data of later commands does not hide that the first one got none.
    feed(&mut connection, &c2h(second, 0, 0, &[1; 8192], NO_DIGESTS), usize::MAX).unwrap();
    feed(&mut connection, &pdu(&Pdu::transfer(Kind::R2t, 0, third, 1, 0, 8192), &[], NO_DIGESTS), usize::MAX)
        .unwrap();
    sent(&mut connection, 4096);
    assert_eq!(connection.tick(), 2);
    feed(&mut connection, &response(first, Status::INTERNAL_ERROR, NO_DIGESTS), usize::MAX).unwrap();
    feed(&mut connection, &response(second, Status::INTERNAL_ERROR, NO_DIGESTS), usize::MAX).unwrap();
    assert_eq!((connection.tick(), connection.tick()), (0, 1));
    feed(
        &mut connection,
        &pdu(&Pdu::transfer(Kind::R2t, 0, third, 2, 8192, 8192), &[], NO_DIGESTS),
        usize::MAX,
    )
    .unwrap();
    assert_eq!(connection.tick(), 2);
    sent(&mut connection, 4096);
    assert_eq!(connection.tick(), 0);
}

#[test]
fn a_few_bytes_now_and_then_do_not_extend_the_time_of_a_command() {
    let mut connection = ready(NO_DIGESTS);
    let cid = submit(&mut connection, request(io::READ, 65_536));
    let bytes = c2h(cid, 0, 0, &[1; 65_536], NO_DIGESTS);
    let ages: Vec<u32> = bytes
        .chunks(100)
        .take(20)
        .map(|part| {
            feed(&mut connection, part, usize::MAX).unwrap();
            connection.tick()
        })
        .collect();
    assert_eq!(ages, (1..=20).collect::<Vec<_>>());
}

#[test]
fn no_more_commands_are_in_flight_than_the_queue_has_entries() {
    let mut connection = ready(NO_DIGESTS);
    for _ in 0..8 {
        connection.submit(request(io::READ, 512)).unwrap();
    }
    assert_eq!((connection.available(), connection.in_flight()), (0, 8));
    assert!(connection.submit(request(io::READ, 512)).is_err());
}

proptest! {
    /// No bytes that a controller sends may crash the connection or complete a read with missing data.
    #[test]
    fn any_bytes_are_handled(
        header_digest in any::<bool>(),
        data_digest in any::<bool>(),
        pdus in proptest::collection::vec((0u8..6, any::<u8>(), any::<u16>(), any::<u16>(), any::<u8>()), 1..40),
        part in 1usize..600,
    ) {
        let digests = Digests { header: header_digest, data: data_digest };
        let mut connection = ready(digests);
        let cids: Vec<u16> = [io::READ, io::WRITE, io::READ, io::WRITE]
            .into_iter()
            .map(|opcode| submit(&mut connection, request(opcode, 12_288)))
            .collect();
        for (kind, which, at, len, flags) in pdus {
            let cid = cids[usize::from(which % 4)];
            let mut bytes = match kind {
                0 => response(cid, Status(u16::from(flags & 1)), digests),
                1 | 2 => {
                    let flags = flags & 0x0C;
                    c2h(cid, flags, u32::from(at % 3) * 4096, &vec![3; usize::from(len % 8192) + 1], digests)
                }
                3 => pdu(&Pdu::transfer(Kind::R2t, 0, cid, 1, u32::from(at % 3) * 4096, u32::from(len)), &[], digests),
                4 => vec![flags; usize::from(len % 64)],
                _ => pdu(&Pdu::initialization(Kind::IcResp, digests, 4096), &[], digests),
            };
            if at % 16 == 1 && !bytes.is_empty() {
                let index = usize::from(len) % bytes.len();
                bytes[index] ^= 1 << (which % 8);
            }
            let failed = feed(&mut connection, &bytes, part).is_err();
            sent(&mut connection, part);
            if failed {
                connection.fail();
                break;
            }
        }
        while let Some(done) = connection.next_done() {
            let buffer = done.buffer.as_ref().expect("each command had a buffer");
            prop_assert_eq!(buffer.len(), 12_288);
            if done.status().is_success() && done.command.opcode == io::READ {
                prop_assert!(digests.data || buffer.bytes().iter().all(|byte| *byte != 0));
            }
        }
    }
}
