use super::*;
use inlane_core::HeapPool;
use inlane_wire::oran::PRB;
use inlane_wire::{ecpri, ethernet, oran};
use std::collections::HashSet;
use std::process::Command;

fn frames(text: &str) -> (Arc<Plan>, Vec<Vec<u8>>) {
    let mut radio = Radio::open(text, &Clock::new()).unwrap();
    let pool: Arc<dyn Pool> = Arc::new(HeapPool::new(64, 9216).unwrap());
    radio.configure(std::slice::from_ref(&pool), 0).unwrap();
    let mut rx = radio.take_rx(0).unwrap();
    let mut packets = [Packet::EMPTY; 32];
    let mut frames = Vec::new();
    loop {
        let count = rx.receive(&mut packets).unwrap();
        // SAFETY: the packets were just received, and lie in host memory.
        frames.extend(packets[..count].iter().map(|packet| unsafe { packet.bytes() }.to_vec()));
        // SAFETY: the packets are from this pool, and are not used again.
        unsafe { pool.free(&packets[..count]) };
        if count == 0 && rx.exhausted() {
            break;
        }
    }
    assert_eq!(pool.outstanding(), 0);
    assert_eq!(rx.counters().packets, frames.len() as u64);
    (radio.plan.clone(), frames)
}

/// Returns eAxC, sequence number, time, first PRB, number of PRBs and samples of a frame.
fn read(frame: &[u8]) -> (u16, u8, SymbolTime, usize, usize, Vec<u8>) {
    let frame = ethernet::Frame::new(frame).unwrap();
    assert_eq!(frame.payload_ethertype(), ethernet::ECPRI);
    let message = ecpri::Message::new(frame.payload()).unwrap();
    let header = oran::Message::new(message.payload()).unwrap();
    let sections: Vec<_> = header.sections(PRB, 273).collect();
    let [(section, samples)] = sections[..] else { panic!("expected one section: {sections:?}") };
    let time = SymbolTime {
        frame: header.frame(),
        subframe: header.subframe(),
        slot: header.slot(),
        symbol: header.symbol(),
    };
    (
        message.pc_id(),
        message.sequence(),
        time,
        section.first_prb as usize,
        samples.len() / PRB,
        samples.to_vec(),
    )
}

#[test]
fn every_prb_of_a_slot_is_sent_once() {
    for text in [
        "gen:oran,slots=45",
        "gen:oran,slots=3,mtu=9000,vlan=6,eaxc=7,scs=120",
        "gen:oran,slots=2,prbs=13,mtu=64,eaxc=0x100+1,shuffle=50",
    ] {
        let (plan, frames) = frames(text);
        let slots = plan.offer_of(text);
        assert_eq!(frames.len() as u64, slots * 14 * plan.packets_per_symbol(), "{text}");
        let mut seen = HashSet::new();
        let mut prbs = 0;
        for frame in &frames {
            let (eaxc, _, time, first, count, samples) = read(frame);
            let stream = plan.eaxc.iter().position(|&id| id == eaxc).unwrap();
            let slot =
                (time.frame as u64 * 10 + time.subframe as u64) * plan.slots_per_subframe + time.slot as u64;
            let symbol = slot * 14 + time.symbol as u64;
            assert!(seen.insert((eaxc, symbol, first)), "sent twice");
            assert_eq!(samples, plan.samples(stream, symbol)[first * PRB..(first + count) * PRB]);
            prbs += count;
        }
        assert_eq!(prbs, slots as usize * 14 * plan.eaxc.len() * plan.prbs, "{text}");
    }
}

impl Plan {
    fn offer_of(&self, text: &str) -> u64 {
        Plan::parse(text).unwrap().1.positions.unwrap() / 14 / self.packets_per_symbol()
    }
}

#[test]
fn the_seed_determines_order_and_losses() {
    let text = "gen:oran,slots=20,shuffle=100,loss=5%,seed=3";
    let (plan, all) = frames(text);
    let positions = Plan::parse(text).unwrap().1.positions.unwrap();
    let lost = (0..positions).filter(|&position| plan.is_lost(position)).count();
    assert_eq!(all.len() + lost, positions as usize);
    assert!((lost as f64 / positions as f64 - 0.05).abs() < 0.01, "{lost} of {positions}");
    let sequence: Vec<_> =
        all.iter().map(|frame| read(frame)).map(|(eaxc, number, ..)| (eaxc, number)).collect();
    let in_order = sequence.windows(2).filter(|pair| pair[1].1 == pair[0].1.wrapping_add(1)).count();
    assert!(in_order < sequence.len() / 10, "the order is not shuffled");
    assert_eq!(frames(text).1, all);
    assert_ne!(frames("gen:oran,slots=20,shuffle=100,loss=5%,seed=4").1, all);
}

#[test]
fn a_radio_without_slots_sends_without_end() {
    let mut radio = Radio::open("gen:oran,shuffle=100,prbs=1,eaxc=1", &Clock::new()).unwrap();
    let pool: Arc<dyn Pool> = Arc::new(HeapPool::new(64, 2048).unwrap());
    radio.configure(std::slice::from_ref(&pool), 0).unwrap();
    let mut rx = radio.take_rx(0).unwrap();
    let mut packets = [Packet::EMPTY; 64];
    for _ in 0..100 {
        assert_eq!(rx.receive(&mut packets).unwrap(), 64);
        // SAFETY: the packets are from this pool, and are not used again.
        unsafe { pool.free(&packets) };
    }
    assert!(!rx.exhausted());
}

#[test]
fn a_radio_that_loses_every_packet_returns_and_ends() {
    let (_, all) = frames("gen:oran,loss=100%,slots=100,eaxc=0,prbs=1");
    assert!(all.is_empty());
    let mut radio = Radio::open("gen:oran,loss=100%", &Clock::new()).unwrap();
    let pool: Arc<dyn Pool> = Arc::new(HeapPool::new(4, 9216).unwrap());
    radio.configure(std::slice::from_ref(&pool), 0).unwrap();
    let mut rx = radio.take_rx(0).unwrap();
    assert_eq!(rx.receive(&mut [Packet::EMPTY; 4]).unwrap(), 0);
    assert!(!rx.exhausted(), "without slots there is no end");
    assert_eq!(pool.outstanding(), 0);
}

#[test]
fn real_time_sends_no_symbol_early() {
    let clock = Clock::new();
    let start = clock.now_ns();
    // No packet may be sent before its symbol begins. The ten slots take 5 ms. The last of their 140 symbols
    // begins 36 us before the end, so sending must take almost 5 ms.
    let (_, frames) = frames("gen:oran,slots=10,realtime,eaxc=0");
    assert_eq!(frames.len(), 10 * 14 * 10);
    let took = clock.now_ns() - start;
    assert!(took >= 4_900_000, "{took}");
}

#[test]
fn wrong_options_are_refused() {
    let error = |text: &str| Radio::open(text, &Clock::new()).err().expect(text).to_string();
    assert!(error("gen:oran,eaxc=1+1").contains("each once"));
    assert!(error("gen:oran,prbs=2000").contains("1 to 1024"));
    assert!(error("gen:oran,scs=45").contains("15, 30, 60 or 120"));
    assert!(error("gen:oran,loss=2").contains("0 % to 100 %"));
    assert!(error("gen:oran,rate=1G,realtime").contains("not both"));
    assert!(error("gen:oran,flows=3").contains("unknown option 'flows'"));
}

#[test]
fn tshark_decodes_every_field_as_planned() {
    if Command::new("tshark").arg("-v").output().is_err() {
        eprintln!("SKIPPED tshark_reads_what_was_planned: tshark is not installed");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("oran.pcap");
    let (plan, frames) = frames("gen:oran,slots=23,prbs=25,eaxc=0x1234+7,shuffle=30,loss=3%");
    let mut writer = crate::pcap::writer::CaptureWriter::create(
        "pcap:oran",
        path.to_str().unwrap(),
        crate::pcap::reader::Resolution::Nano,
    )
    .unwrap();
    for frame in &frames {
        writer.record(0, Default::default(), frame.len(), |buffer| buffer.extend(frame)).unwrap();
        writer.reserve(9000).unwrap();
    }
    drop(writer);
    let fields = [
        "ecpri.revision",
        "ecpri.type",
        "ecpri.size",
        "oran_fh_cus.du_port_id",
        "oran_fh_cus.bandsector_id",
        "oran_fh_cus.cc_id",
        "oran_fh_cus.ru_port_id",
        "oran_fh_cus.sequence_id",
        "oran_fh_cus.e_bit",
        "oran_fh_cus.data_direction",
        "oran_fh_cus.frameId",
        "oran_fh_cus.subframe_id",
        "oran_fh_cus.slotId",
        "oran_fh_cus.startSymbolId",
        "oran_fh_cus.startPrbu",
        "oran_fh_cus.numPrbu",
        "_ws.malformed",
    ];
    let mut command = Command::new("tshark");
    command.arg("-r").arg(&path).args(["-T", "fields", "-E", "occurrence=f"]);
    command.args([
        "-o",
        "oran_fh_cus.oran.iq_bitwidth_up:16",
        "-o",
        "oran_fh_cus.oran.ud_comp_up:No Compression",
    ]);
    fields.iter().for_each(|field| {
        command.args(["-e", field]);
    });
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines: Vec<String> = String::from_utf8(output.stdout).unwrap().lines().map(Into::into).collect();
    assert_eq!(lines.len(), frames.len());
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).unwrap_or(u64::MAX),
        None => text.parse().unwrap_or(u64::MAX),
    };
    for (line, frame) in lines.iter().zip(&frames) {
        let (eaxc, sequence, time, first, count, _) = read(frame);
        let found: Vec<u64> = line.split('\t').map(number).collect();
        let size = frame.len() as u64 - 14 - 4;
        let expected = [
            1,
            0,
            size,
            // By default, tshark shows the eAxC as four numbers of 2, 6, 4 and 4 bits.
            eaxc as u64 >> 14,
            eaxc as u64 >> 8 & 0x3f,
            eaxc as u64 >> 4 & 0xf,
            eaxc as u64 & 0xf,
            sequence as u64,
            1,
            0,
            time.frame as u64,
            time.subframe as u64,
            time.slot as u64,
            time.symbol as u64,
            first as u64,
            count as u64,
        ];
        assert_eq!(found[..expected.len()], expected, "{line}");
        assert!(line.ends_with('\t'), "tshark reports a malformed packet: {line}");
    }
    assert_eq!(plan.eaxc, [0x1234, 7]);
}
