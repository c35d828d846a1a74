//! Compares `l3-decrement`, `flow-count`, `drop-rule` and `checksum` with references in Rust.

#[path = "harness/dissect.rs"]
mod dissect;
mod harness;

use dissect::{hostile, ones_sum, well_formed};
use harness::{Fate, instance, run_shaped};
use inlane_function::flows;
use proptest::prelude::*;
use std::collections::HashMap;

fn many(frame: impl Strategy<Value = Vec<u8>>) -> impl Strategy<Value = Vec<Vec<u8>>> {
    proptest::collection::vec(frame, 0..70)
}

fn decremented(frame: &[u8]) -> Fate {
    let Some(ip) = dissect::ip(frame) else { return Fate::Forward(frame.to_vec()) };
    if is_discovery(frame, &ip) {
        return Fate::Forward(frame.to_vec());
    }
    let mut frame = frame.to_vec();
    let life = ip.start + if ip.version == 4 { 8 } else { 7 };
    if frame[life] < 2 {
        return Fate::Drop;
    }
    frame[life] -= 1;
    if ip.version == 4 {
        // Update the checksum by the difference of the changed word (RFC 1624). A wrong checksum then stays
        // wrong. The time to live is the upper byte of the word, so the word decreases by 0x100.
        let sum = ip.start + 10;
        let old = u16::from_be_bytes([frame[sum], frame[sum + 1]]);
        let (new, carry) = (!old).overflowing_add(0xfeff);
        frame[sum..sum + 2].copy_from_slice(&(!(new + carry as u16)).to_be_bytes());
    }
    Fate::Forward(frame)
}

/// Returns true for IPv6 neighbour discovery with its hop limit of 255.
fn is_discovery(frame: &[u8], ip: &dissect::Ip) -> bool {
    ip.version == 6
        && frame[ip.start + 6..ip.start + 8] == [58, 255]
        && frame.get(ip.start + 40).is_some_and(|kind| (133..=137).contains(kind))
}

/// Returns an Ethernet frame with an IPv6 header and one byte of payload.
fn ipv6_frame(next_header: u8, hop_limit: u8, first_byte: u8) -> Vec<u8> {
    let mut frame = vec![0; 14 + 40 + 8];
    frame[12..14].copy_from_slice(&[0x86, 0xdd]);
    (frame[14], frame[19]) = (0x60, 8);
    (frame[20], frame[21], frame[54]) = (next_header, hop_limit, first_byte);
    frame
}

#[test]
fn l3_decrement_leaves_neighbour_discovery_alone() {
    let cases = [
        (58, 255, 133, 255),
        (58, 255, 135, 255),
        (58, 255, 137, 255),
        // These packets are no neighbour discovery, so their hop limit must be decremented. They are an echo,
        // a solicitation that was forwarded by a router, and UDP.
        (58, 255, 128, 254),
        (58, 254, 135, 253),
        (17, 255, 135, 254),
    ];
    for (next_header, hop_limit, first_byte, expected) in cases {
        let frame = ipv6_frame(next_header, hop_limit, first_byte);
        let fates = run_shaped(&mut instance("l3-decrement"), &[frame], 1, true, 0, 0);
        let Fate::Forward(after) = &fates[0] else { panic!("{fates:?}") };
        assert_eq!(
            after[21], expected,
            "next header {next_header}, hop limit {hop_limit}, type {first_byte}"
        );
    }
}

/// Returns true if all checksums are right, or `None` if there is none to check.
fn is_right(frame: &[u8]) -> Option<bool> {
    let ip = dissect::ip(frame)?;
    if ip.version == 4 && ones_sum(&[&frame[ip.start..ip.upper]]) != 0xffff {
        return Some(false);
    }
    if ip.end > frame.len() || ip.end < ip.upper {
        return Some(false);
    }
    if ip.fragment || ip.routed {
        return None;
    }
    let mut segment = &frame[ip.upper..ip.end];
    let least = match (ip.protocol, ip.version) {
        (17, _) => 8,
        (6, _) => 20,
        (1, 4) | (58, 6) => 4,
        _ => return None,
    };
    if segment.len() < least {
        return Some(false);
    }
    if ip.protocol == 17 {
        let stated = u16::from_be_bytes([segment[4], segment[5]]) as usize;
        if stated < 8 || stated > segment.len() {
            return Some(false);
        }
        if segment[6..8] == [0, 0] {
            return if ip.version == 4 { None } else { Some(false) };
        }
        segment = &segment[..stated];
    }
    let addresses = if ip.version == 4 {
        &frame[ip.start + 12..ip.start + 20]
    } else {
        &frame[ip.start + 8..ip.start + 40]
    };
    let length = (segment.len() as u32).to_be_bytes();
    let pseudo: &[&[u8]] = if ip.protocol == 1 { &[] } else { &[addresses, &length, &[0, ip.protocol]] };
    Some(ones_sum(&[pseudo, &[segment]].concat()) == 0xffff)
}

proptest! {
    #[test]
    fn l3_decrement_acts_as_a_router_hop(frames in many(hostile()), burst in 1..64usize, as_packets: bool, shift in 0..8usize) {
        let mut instance = instance("l3-decrement");
        let fates = run_shaped(&mut instance, &frames, burst, as_packets, shift, 0);
        prop_assert_eq!(&fates, &frames.iter().map(|frame| decremented(frame)).collect::<Vec<_>>());
        let report = instance.report();
        let dropped = fates.iter().filter(|fate| **fate == Fate::Drop).count() as u64;
        prop_assert_eq!(report.counter("expired_packets"), Some(dropped));
        let unrouted = |frame: &&Vec<u8>| dissect::ip(frame).is_none_or(|ip| is_discovery(frame, &ip));
        let others = frames.iter().filter(unrouted).count() as u64;
        prop_assert_eq!(report.counter("other_packets"), Some(others));
        prop_assert_eq!(report.counter("decremented_packets"), Some(frames.len() as u64 - dropped - others));
    }

    #[test]
    fn l3_decrement_keeps_checksums_right(frame in well_formed()) {
        let mut instance = instance("l3-decrement");
        if let Fate::Forward(after) = &run_shaped(&mut instance, &[frame], 1, true, 0, 0)[0]
            && let Some(ip) = dissect::ip(after).filter(|ip| ip.version == 4)
        {
            prop_assert_eq!(ones_sum(&[&after[ip.start..ip.upper]]), 0xffff);
        }
    }

    #[test]
    fn flow_count_counts_each_flow(frames in many(hostile()), burst in 1..64usize, as_packets: bool) {
        let mut instance = instance("flow-count");
        let fates = run_shaped(&mut instance, &frames, burst, as_packets, 0, 0);
        prop_assert_eq!(fates, frames.iter().cloned().map(Fate::Forward).collect::<Vec<_>>());
        let mut expected = HashMap::new();
        let mut others = 0;
        for frame in &frames {
            let Some(ip) = dissect::ip(frame) else {
                others += 1;
                continue;
            };
            let (source_port, destination_port) = dissect::ports(frame, &ip).unwrap_or((0, 0));
            let flow = expected
                .entry((ip.source, ip.destination, ip.protocol, source_port, destination_port))
                .or_insert((0, 0));
            *flow = (flow.0 + 1, flow.1 + frame.len() as u64);
        }
        let found: HashMap<_, _> = flows(instance.state())
            .into_iter()
            .map(|flow| {
                let key = (flow.source, flow.destination, flow.protocol, flow.source_port, flow.destination_port);
                (key, (flow.packets, flow.bytes))
            })
            .collect();
        prop_assert_eq!(found, expected);
        prop_assert_eq!(instance.report().counter("other_packets"), Some(others));
    }

    #[test]
    fn checksum_drops_what_is_wrong(frames in many(hostile()), burst in 1..64usize, as_packets: bool, shift in 0..8usize) {
        let fates = run_shaped(&mut instance("checksum"), &frames, burst, as_packets, shift, 0);
        for (frame, fate) in frames.iter().zip(fates) {
            let expected = if is_right(frame) == Some(false) { Fate::Drop } else { Fate::Forward(frame.clone()) };
            prop_assert_eq!(fate, expected);
        }
    }

    #[test]
    fn checksum_detects_every_single_bit_error(frame in well_formed(), bit in any::<prop::sample::Index>()) {
        let ip = dissect::ip(&frame).expect("well formed");
        let mut instance = instance("checksum");
        prop_assert_eq!(run_shaped(&mut instance, std::slice::from_ref(&frame), 1, true, 0, 0), vec![Fate::Forward(frame.clone())]);
        prop_assume!(instance.report().counter("right_packets") == Some(1));
        // Change a bit after the UDP header. A change in the UDP header could set the checksum to 0 (none) or
        // alter the length, and would then not be an error.
        let from = ip.upper + if ip.protocol == 17 { 8 } else { 0 };
        prop_assume!(ip.end > from);
        let bit = bit.index((ip.end - from) * 8);
        let mut frame = frame;
        frame[from + bit / 8] ^= 1 << (bit % 8);
        prop_assert_eq!(run_shaped(&mut instance, &[frame], 1, true, 0, 0), vec![Fate::Drop]);
    }

    #[test]
    fn drop_rule_applies_the_first_matching_rule(frames in many(hostile()), burst in 1..64usize, as_packets: bool) {
        type Rule = (&'static str, fn(&[u8]) -> bool, Option<u32>);
        let rules: [Rule; 8] = [
            ("udp:53", |frame| port(frame, 17).is_some_and(|(_, to)| to == 53), None),
            ("tcp:from:80-81@3", |frame| port(frame, 6).is_some_and(|(from, _)| (80..=81).contains(&from)), Some(3)),
            ("src:10.0.0.1", |frame| net(frame, |ip| ip.source == std::net::Ipv4Addr::new(10, 0, 0, 1)), None),
            ("dst:fd01:100::/24@0", |frame| dissect::ip(frame).is_some_and(|ip| match ip.destination {
                std::net::IpAddr::V6(address) => address.octets()[..3] == [0xfd, 1, 1],
                _ => false,
            }), Some(0)),
            ("icmp6", |frame| dissect::ip(frame).is_some_and(|ip| ip.protocol == 58), None),
            ("arp", |frame| dissect::ether_type(frame).0 == 0x0806, None),
            ("dst:10.1.0.0/31@65534", |frame| net(frame, |ip| {
                matches!(ip.destination, std::net::IpAddr::V4(address) if address.octets()[..3] == [10, 1, 0] && address.octets()[3] < 2)
            }), Some(65534)),
            ("proto:17", |frame| dissect::ip(frame).is_some_and(|ip| ip.protocol == 17), None),
        ];
        let text = format!("drop-rule:{}", rules.map(|rule| rule.0).join(","));
        let mut instance = instance(&text);
        let fates = run_shaped(&mut instance, &frames, burst, as_packets, 0, 0);
        let mut hits = [0u64; 8];
        for (frame, fate) in frames.iter().zip(fates) {
            let hit = rules.iter().position(|rule| rule.1(frame));
            if let Some(hit) = hit {
                hits[hit] += 1;
            }
            let expected = match hit.map(|hit| rules[hit].2) {
                None => Fate::Forward(frame.clone()),
                Some(None) => Fate::Drop,
                Some(Some(port)) => Fate::Port(port, frame.clone()),
            };
            prop_assert_eq!(fate, expected);
        }
        let counted: Vec<String> = instance.report().tables[0].rows.iter().map(|row| row[1].clone()).collect();
        prop_assert_eq!(counted, hits.map(|hit| hit.to_string()).to_vec());
    }
}

fn port(frame: &[u8], protocol: u8) -> Option<(u16, u16)> {
    let ip = dissect::ip(frame).filter(|ip| ip.protocol == protocol)?;
    dissect::ports(frame, &ip)
}

fn net(frame: &[u8], what: impl Fn(&dissect::Ip) -> bool) -> bool {
    dissect::ip(frame).is_some_and(|ip| what(&ip))
}

#[test]
fn flows_without_a_place_are_counted_as_unplaced() {
    let mut instance = instance("flow-count");
    let mut sent = 0u64;
    for block in 0..40u32 {
        let frames: Vec<Vec<u8>> = (0..2500u32)
            .map(|i| {
                let mut frame = vec![0u8; 42];
                frame[12] = 8;
                frame[14] = 0x45;
                frame[23] = 17;
                frame[26..30].copy_from_slice(&(block * 2500 + i).to_be_bytes());
                frame
            })
            .collect();
        sent += frames.len() as u64;
        harness::run(&mut instance, &frames);
    }
    let found = flows(instance.state());
    let unplaced = instance.report().counter("unplaced_packets").expect("the report has this counter");
    assert!(found.len() > 60_000, "{} places used of 65536", found.len());
    assert_eq!(found.iter().map(|flow| flow.packets).sum::<u64>() + unplaced, sent);
}
