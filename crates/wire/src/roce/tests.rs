use super::*;
use proptest::prelude::*;

/// Packets that scapy 2.8.0 built with its contribution `roce`, which computes the ICRC.
const SCAPY: [&str; 2] = [
    "451a0048000700003d1169820a0000010a000002c00012b70034258f0a30ffff0012345680abcdef1122334455667788deadbeef00000009696e6c616e65206f6b0000004587a1e1",
    "45000030000100004011eb61c0a80709c0a80701c35012b7001c3f931100ffff00000011000000051f000003376cf33a",
];

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[at * 2..at * 2 + 2], 16).unwrap()).collect()
}

/// Builds an IP packet with an RDMA WRITE of `data`.
fn write(v6: bool, psn: u32, reth: (u64, u32), data: &[u8]) -> Vec<u8> {
    let padding = data.len().wrapping_neg() % 4;
    let body = udp::HEADER + BTH + RETH + data.len() + padding + ICRC;
    let ip = if v6 { ipv6::HEADER } else { ipv4::HEADER };
    let mut packet = vec![0; ip + body];
    let pseudo = if v6 {
        let mut view = ipv6::Packet::init(&mut packet[..]).unwrap();
        view.set_next_header(ipv4::UDP);
        view.set_source("fd00::1".parse().unwrap());
        view.set_destination("fd00::2".parse().unwrap());
        view.pseudo_sum(ipv4::UDP, body as u32)
    } else {
        let mut view = ipv4::Packet::init(&mut packet[..]).unwrap();
        view.set_protocol(ipv4::UDP);
        view.set_source([10, 0, 0, 1].into());
        view.set_destination([10, 0, 0, 2].into());
        view.fill_checksum();
        view.pseudo_sum()
    };
    let mut datagram = udp::Datagram::new(&mut packet[ip..]).unwrap();
    datagram.set_source_port(0xc000);
    datagram.set_destination_port(PORT);
    datagram.set_length(body as u16);
    let mut bth = Bth::new(&mut packet[ip + udp::HEADER..]).unwrap();
    bth.fill(opcode::WRITE_ONLY, 0x12_3456, psn, true, padding);
    let mut view = Reth::new(&mut packet[ip + udp::HEADER + BTH..]).unwrap();
    view.set_address(reth.0);
    view.set_key(reth.1);
    view.set_length(data.len() as u32);
    let at = ip + udp::HEADER + BTH + RETH;
    packet[at..at + data.len()].copy_from_slice(data);
    fill_icrc(&mut packet).unwrap();
    udp::Datagram::new(&mut packet[ip..]).unwrap().fill_checksum(pseudo);
    packet
}

#[test]
fn icrc_and_layout_agree_with_scapy() {
    for hex in SCAPY {
        assert!(icrc_ok(&bytes(hex)), "{hex}");
    }
    let packet = bytes(SCAPY[0]);
    let bth = Bth::new(&packet[28..]).unwrap();
    assert_eq!((bth.opcode(), bth.queue_pair(), bth.psn()), (opcode::WRITE_ONLY, 0x12_3456, 0xab_cdef));
    assert_eq!((bth.padding(), bth.acknowledge(), bth.partition(), bth.version()), (3, true, 0xffff, 0));
    let reth = Reth::new(bth.payload()).unwrap();
    assert_eq!((reth.address(), reth.key(), reth.length()), (0x1122_3344_5566_7788, 0xdead_beef, 9));
    let mut built = write(false, 0xab_cdef, (0x1122_3344_5566_7788, 0xdead_beef), b"inlane ok");
    built[4..6].copy_from_slice(&packet[4..6]); // the identification
    fill_icrc(&mut built).unwrap();
    assert_eq!(built[28..], packet[28..]);

    let packet = bytes(SCAPY[1]);
    let bth = Bth::new(&packet[28..]).unwrap();
    let aeth = Aeth::new(bth.payload()).unwrap();
    assert_eq!((bth.opcode(), aeth.syndrome(), aeth.messages()), (opcode::ACKNOWLEDGE, 0x1f, 3));
}

#[test]
fn what_is_no_ip_packet_has_no_icrc() {
    for packet in [&[][..], &[0x45; 39], &[0x60; 59], &[0x44; 100], &[0x55; 100], &[0; 100]] {
        assert!(icrc(packet).is_err(), "{packet:?}");
        assert!(!icrc_ok(packet));
    }
}

proptest! {
    #[test]
    fn every_changed_bit_breaks_the_icrc_unless_routers_may_change_it(
        v6: bool, psn in 0..=MASK, reth: (u64, u32), data in proptest::collection::vec(any::<u8>(), 0..100), bit: u16,
    ) {
        let mut packet = write(v6, psn, reth, &data);
        prop_assert!(icrc_ok(&packet));
        let bit = bit as usize % (packet.len() * 8);
        packet[bit / 8] ^= 1 << (bit % 8);
        let header = if v6 { ipv6::HEADER } else { ipv4::HEADER };
        let at = bit / 8;
        let mutable = if v6 {
            (at == 0 && bit % 8 < 4) || (1..4).contains(&at) || at == 7
        } else {
            at == 1 || at == 8 || at == 10 || at == 11
        } || at == header + 6 || at == header + 7 || at == header + udp::HEADER + 4;
        prop_assert_eq!(icrc_ok(&packet), mutable, "bit {} of byte {}", bit % 8, at);
    }

    #[test]
    fn fields_read_back_as_written(words: (u32, u32), acknowledge: bool, padding in 0..4usize, opcode: u8) {
        let mut bth = Bth::new([0; BTH]).unwrap();
        bth.fill(opcode, words.0, words.1, acknowledge, padding);
        prop_assert_eq!(bth.queue_pair(), words.0 & MASK);
        prop_assert_eq!(bth.psn(), words.1 & MASK);
        prop_assert_eq!((bth.opcode(), bth.acknowledge(), bth.padding()), (opcode, acknowledge, padding));
    }
}

#[test]
fn tshark_dissects_writes_over_both_versions() {
    const TEST: &str = "tshark_dissects_writes_over_both_versions";
    let missing = |program: &str| {
        std::process::Command::new(program).arg("--version").output().err().map(|_| program.to_string())
    };
    if let Some(program) = missing("text2pcap").or_else(|| missing("tshark")) {
        eprintln!("SKIPPED {TEST}: no {program}; install the package tshark");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (text, capture) = (directory.path().join("dump"), directory.path().join("capture"));
    let mut dump = String::new();
    for v6 in [false, true] {
        let mut frame = [[0; 12].as_slice(), &if v6 { [0x86, 0xdd] } else { [8, 0] }].concat();
        frame.extend(write(v6, 0xab_cdef, (0x1000, 0xdead_beef), b"inlane ok"));
        dump += "000000";
        frame.iter().for_each(|byte| dump += &format!(" {byte:02x}"));
        dump += "\n";
    }
    std::fs::write(&text, dump).unwrap();
    let run = |command: &mut std::process::Command| {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    run(std::process::Command::new("text2pcap").arg("-q").args([&text, &capture]));
    let mut tshark = std::process::Command::new("tshark");
    tshark.arg("-r").arg(&capture).args(["-T", "fields", "-E", "separator=,"]);
    for field in ["bth.opcode", "bth.destqp", "bth.psn", "bth.a", "reth.va", "reth.r_key", "reth.dmalen"] {
        tshark.args(["-e", &format!("infiniband.{field}")]);
    }
    tshark.args(["-e", "_ws.malformed", "-e", "udp.checksum.status", "-o", "udp.check_checksum:true"]);
    let fields = run(&mut tshark);
    let line = "10,0x123456,11259375,True,0x0000000000001000,0xdeadbeef,9,,1";
    // Versions of tshark differ in how they print numbers and booleans.
    let fields = fields.replace(",1,0x", ",True,0x").replace("0x00123456", "0x123456");
    assert_eq!(fields.lines().collect::<Vec<_>>(), [line, line]);
}
