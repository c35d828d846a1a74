//! A hostile controller. It sends arbitrary PDUs, or arbitrary bytes, to an initiator with reads and writes
//! in flight. The initiator must refuse what violates the protocol, return every buffer, and complete no read
//! whose data is missing.

use inlane_nvme::initiator::{Buffer, HostConnection, Submission};
use inlane_nvme::wire::command::{Command, Completion, Sgl, Status, io};
use inlane_nvme::wire::pdu::{self, Digests, Kind, MAX_HEADER, Pdu};
use std::io::IoSlice;

const BYTES: usize = 8192;
/// The value of every data byte that the controller sends in well-formed PDUs.
const SENT: u8 = 0xA5;

/// Gives received bytes to the connection in parts. Returns false if it refused them.
fn feed(connection: &mut HostConnection, mut bytes: &[u8], part: usize) -> bool {
    while !bytes.is_empty() {
        let mut given = 0;
        for slice in &mut connection.receive_slices() {
            let len = slice.len().min(bytes.len()).min(part - given);
            slice[..len].copy_from_slice(&bytes[..len]);
            bytes = &bytes[len..];
            given += len;
        }
        if connection.received(given).is_err() {
            return false;
        }
    }
    true
}

/// Takes all output of the connection. Returns the command identifier in the first PDU. Returns 0 if the
/// output is too short to contain one.
fn drain(connection: &mut HostConnection) -> u16 {
    let mut all = Vec::new();
    while connection.has_output() {
        let mut slices = [IoSlice::new(&[]); 8];
        let filled = connection.transmit_slices(&mut slices);
        let start = all.len();
        slices[..filled].iter().for_each(|slice| all.extend_from_slice(slice));
        let sent = all.len() - start;
        connection.transmitted(sent);
    }
    if all.len() >= 12 { u16::from_le_bytes([all[10], all[11]]) } else { 0 }
}

fn encode<T: zerocopy::IntoBytes + zerocopy::Immutable + zerocopy::Unaligned>(
    header: &Pdu<T>,
    data: &[u8],
    digests: Digests,
) -> Vec<u8> {
    let mut out = [0; MAX_HEADER];
    let written = pdu::encode(header, data.len() as u32, digests, 4, &mut out);
    let mut bytes = out[..written].to_vec();
    bytes.extend_from_slice(data);
    if digests.data && !data.is_empty() {
        bytes.extend_from_slice(&pdu::digest(data));
    }
    bytes
}

pub fn run(input: &[u8]) {
    let [mode, part, rest @ ..] = input else { return };
    let digests = Digests { header: mode & 1 != 0, data: mode & 2 != 0 };
    let part = usize::from(*part) * 8 + 1;
    let mut connection = HostConnection::new(digests, 9, 4096);
    drain(&mut connection);
    if mode & 4 != 0 && !feed(&mut connection, rest, part) {
        // Arbitrary bytes arrived before ICResp, and the connection refused them. So this run ends.
        return;
    }
    if !feed(
        &mut connection,
        &encode(&Pdu::initialization(Kind::IcResp, digests, 4096), &[], Digests::default()),
        part,
    ) {
        return;
    }
    if !connection.is_ready() {
        // The connection is not ready if the arbitrary bytes end within a PDU. The host then reads the
        // controller's ICResp as the rest of that PDU.
        return;
    }
    let mut cids = Vec::new();
    // True if the controller sends arbitrary bytes. These can form PDUs with any data, so the data returned
    // by reads is then not compared.
    let mut arbitrary = mode & 8 != 0;
    for opcode in [io::READ, io::WRITE, io::READ, io::WRITE] {
        let mut buffer = Buffer::new(BYTES).expect("memory");
        buffer.set_len(if cids.len() == 3 { 4096 } else { BYTES });
        let command = Command::blocks(opcode, 1, 0, 1, Sgl::NONE);
        connection
            .submit(Submission { token: cids.len() as u64, command, buffer: Some(buffer) })
            .expect("a free slot");
        cids.push(drain(&mut connection));
    }
    if mode & 8 != 0 {
        feed(&mut connection, rest, part);
    } else {
        for step in rest.chunks_exact(6) {
            let [kind, which, at, len, flags, change] = *step else { unreachable!() };
            let cid = cids[usize::from(which % 4)];
            let at = u32::from(at) * 64;
            let len = u32::from(len) * 64;
            let mut bytes = match kind % 5 {
                0 => encode(
                    &Pdu::new(
                        Kind::CapsuleResp,
                        0,
                        Completion::new(cid, Status(u16::from(flags & 1)), 0, 0, 0),
                    ),
                    &[],
                    digests,
                ),
                1 | 2 => {
                    let data = vec![SENT; len.max(1) as usize];
                    encode(
                        &Pdu::transfer(Kind::C2hData, flags & 0x0C, cid, 0, at, len.max(1)),
                        &data,
                        digests,
                    )
                }
                3 => encode(&Pdu::transfer(Kind::R2t, 0, cid, flags.into(), at, len), &[], digests),
                _ => {
                    arbitrary = true;
                    vec![flags; usize::from(which)]
                }
            };
            if change != 0 && !bytes.is_empty() {
                // Change only the header. The data must keep the value `SENT`, because every completed read
                // is checked for it.
                let index = usize::from(change) % bytes.len().min(24);
                bytes[index] ^= flags | 1;
            }
            let accepted = feed(&mut connection, &bytes, part);
            drain(&mut connection);
            if !accepted {
                break;
            }
        }
    }
    connection.fail();
    let mut returned = 0;
    while let Some(done) = connection.next_done() {
        returned += 1;
        let buffer = done.buffer.expect("each command had a buffer");
        if done.completion.status().is_success() && done.command.opcode == io::READ && !arbitrary {
            assert!(buffer.bytes().iter().all(|byte| *byte == SENT), "a read with missing data completed");
        }
    }
    assert_eq!(returned, cids.len(), "a buffer was lost");
}
