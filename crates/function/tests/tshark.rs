//! Checks the U-plane packets of the other tests against Wireshark's dissector.

#[path = "../examples/fronthaul/mod.rs"]
#[allow(dead_code, reason = "the example uses the rest")]
mod fronthaul;

use fronthaul::{Carrier, Section, UPlane, pcap};
use std::process::Command;

#[test]
fn wireshark_dissects_the_test_packets_as_intended() {
    if Command::new("tshark").arg("--version").output().is_err() {
        eprintln!(
            "SKIPPED wireshark_dissects_the_test_packets_as_intended: no tshark; apt-get install tshark"
        );
        return;
    }
    let plain = Carrier { eaxc: &[0x0102, 7], prbs: 40, slots_per_subframe: 2, prb_bytes: 48, header: None };
    let compressed = Carrier { prb_bytes: 28, header: Some(0x91), slots_per_subframe: 4, ..plain };
    let one = |slot, stream, symbol, tagged, sections| UPlane { slot, stream, symbol, tagged, sections };
    let packets = [
        one(0, 0, 0, false, vec![Section::of(0, 4)]),
        one(4000, 1, 13, true, vec![Section::of(3, 2), Section::of(9, 1)]),
        one(77, 1, 6, false, vec![Section { every_second: true, ..Section::of(1, 5) }]),
        one(78, 0, 6, false, vec![Section::of(0, 1), Section { next_symbol: true, ..Section::of(0, 1) }]),
        one(79, 0, 6, false, vec![Section::of(0, 0)]),
    ];
    for carrier in [plain, compressed] {
        let frames: Vec<(u64, Vec<u8>)> = packets.iter().map(|packet| (0, packet.frame(&carrier))).collect();
        let folder = tempfile::tempdir().expect("a temporary directory");
        let path = folder.path().join("uplane.pcap");
        std::fs::write(&path, pcap(&frames)).expect("written");
        // Request four fields for the eAxC ID, because tshark prints it in parts of 2, 6, 4 and 4 bits.
        let fields = [
            "oran_fh_cus.du_port_id",
            "oran_fh_cus.bandsector_id",
            "oran_fh_cus.cc_id",
            "oran_fh_cus.ru_port_id",
            "oran_fh_cus.frameId",
            "oran_fh_cus.subframe_id",
            "oran_fh_cus.slotId",
            "oran_fh_cus.startSymbolId",
            "oran_fh_cus.rb",
            "oran_fh_cus.symInc",
            "oran_fh_cus.startPrbu",
            "oran_fh_cus.numPrbu",
            "_ws.malformed",
        ];
        // Tell tshark the sample width and the compression method. It needs them to dissect packets that do
        // not contain them.
        let (bits, method) = if carrier.header.is_some() {
            (9, "Block Floating Point Compression")
        } else {
            (16, "No Compression")
        };
        let settings = [
            format!("iq_bitwidth_up:{bits}"),
            format!("ud_comp_up:{method}"),
            format!("ud_comp_hdr_up:{}", carrier.header.is_some()),
            format!("rbs_in_uplane_section:{}", carrier.prbs),
        ];
        let mut tshark = Command::new("tshark");
        tshark.arg("-r").arg(&path).args(["-T", "fields", "-E", "separator=;"]);
        for setting in &settings {
            tshark.arg("-o").arg(format!("oran_fh_cus.oran.{setting}"));
        }
        for field in fields {
            tshark.args(["-e", field]);
        }
        let output = tshark.output().expect("tshark runs");
        let found = String::from_utf8_lossy(&output.stdout);
        let expected: Vec<String> = packets.iter().map(|packet| line(packet, &carrier)).collect();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(found.lines().collect::<Vec<_>>(), expected, "{said}");
    }
}

/// Returns the line that tshark should print for a packet.
fn line(packet: &UPlane, carrier: &Carrier) -> String {
    let eaxc = carrier.eaxc[packet.stream];
    let subframes = packet.slot / carrier.slots_per_subframe;
    let of_sections = |field: fn(&Section) -> u16| {
        let values: Vec<String> = packet.sections.iter().map(|section| field(section).to_string()).collect();
        values.join(",")
    };
    [
        (eaxc >> 14).to_string(),
        (eaxc >> 8 & 63).to_string(),
        (eaxc >> 4 & 15).to_string(),
        (eaxc & 15).to_string(),
        (subframes / 10).to_string(),
        (subframes % 10).to_string(),
        (packet.slot % carrier.slots_per_subframe).to_string(),
        packet.symbol.to_string(),
        of_sections(|section| section.every_second as u16),
        of_sections(|section| section.next_symbol as u16),
        of_sections(|section| section.start),
        of_sections(|section| section.count),
        String::new(), // not malformed
    ]
    .join(";")
}
