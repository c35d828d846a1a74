//! Dissects frames for the reference implementations, and generates frames for tests. The dissector is
//! written from the RFCs.

#![allow(dead_code, reason = "each test file uses a part")]

use proptest::prelude::*;
use std::net::IpAddr;

/// The bytes at a frame's front in which functions look for headers.
const HEAD: usize = 96;

/// An IP header. Offsets are in bytes from the frame's beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ip {
    pub version: u8,
    pub start: usize,
    pub source: IpAddr,
    pub destination: IpAddr,
    pub protocol: u8,
    pub fragment: bool,
    pub routed: bool,
    pub upper: usize,
    pub end: usize,
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// Returns the EtherType after up to two tags, and the offset of the header that follows.
pub fn ether_type(frame: &[u8]) -> (u16, usize) {
    let head = &frame[..frame.len().min(HEAD)];
    let at = [12, 16].into_iter().find(|&at| !matches!(word(head, at), Some(0x8100 | 0x88a8))).unwrap_or(20);
    (word(head, at).unwrap_or(0), at + 2)
}

/// Returns the IP header of a frame, or `None` if the first [`HEAD`] bytes hold no valid one.
pub fn ip(frame: &[u8]) -> Option<Ip> {
    let head = &frame[..frame.len().min(HEAD)];
    match ether_type(frame) {
        (0x0800, start) => {
            let header = head.get(start..start + 20)?;
            let length = (header[0] & 15) as usize * 4;
            if header[0] >> 4 != 4 || length < 20 || head.len() < start + length {
                return None;
            }
            let address = |at: usize| IpAddr::from(<[u8; 4]>::try_from(&header[at..at + 4]).expect("four"));
            let more_or_offset = word(header, 6)? & 0x3fff;
            Some(Ip {
                version: 4,
                start,
                source: address(12),
                destination: address(16),
                protocol: header[9],
                fragment: more_or_offset != 0,
                routed: false,
                upper: start + length,
                end: start + word(header, 2)? as usize,
            })
        }
        (0x86dd, start) => {
            let header = head.get(start..start + 40)?;
            if header[0] >> 4 != 6 {
                return None;
            }
            let address =
                |at: usize| IpAddr::from(<[u8; 16]>::try_from(&header[at..at + 16]).expect("sixteen"));
            let mut found = Ip {
                version: 6,
                start,
                source: address(8),
                destination: address(24),
                protocol: header[6],
                fragment: false,
                routed: false,
                upper: start + 40,
                end: start + 40 + word(header, 4)? as usize,
            };
            for _ in 0..8 {
                let Some(extension) = head.get(found.upper..found.upper + 8) else { break };
                let length = match found.protocol {
                    0 | 43 | 60 => 8 * (1 + extension[1] as usize),
                    44 => 8,
                    51 => 4 * (2 + extension[1] as usize),
                    _ => break,
                };
                found.fragment |= found.protocol == 44 && word(extension, 2)? & 0xfff9 != 0;
                found.routed |= found.protocol == 43;
                found.protocol = extension[0];
                found.upper += length;
            }
            Some(found)
        }
        _ => None,
    }
}

/// Returns the source and destination port, if the packet has them.
pub fn ports(frame: &[u8], ip: &Ip) -> Option<(u16, u16)> {
    let head = &frame[..frame.len().min(HEAD)];
    let has = !ip.fragment && matches!(ip.protocol, 6 | 17 | 132);
    Some((word(head, ip.upper)?, word(head, ip.upper + 2)?)).filter(|_| has)
}

/// Returns the one's complement sum of RFC 1071, added word by word.
pub fn ones_sum(parts: &[&[u8]]) -> u16 {
    let mut sum = 0u16;
    for part in parts {
        for pair in part.chunks(2) {
            let value = u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]);
            let (added, carry) = sum.overflowing_add(value);
            sum = added + carry as u16;
        }
    }
    sum
}

/// Generates valid frames: Ethernet, up to two tags, IPv4 or IPv6 with options or extension headers, and TCP,
/// UDP or ICMP. Some have padding at the end.
pub fn well_formed() -> impl Strategy<Value = Vec<u8>> {
    let tags = proptest::collection::vec((prop_oneof![Just(0x8100u16), Just(0x88a8)], any::<u16>()), 0..=2);
    let payload = proptest::collection::vec(any::<u8>(), 0..200);
    (tags, any::<[u8; 40]>(), 0..3usize, 0..=10usize, 0..3usize, payload, 0..20usize, 0..16u8).prop_map(
        |(tags, random, upper, options, extensions, payload, padding, flows)| {
            let mut frame = random[..12].to_vec();
            for (kind, tag) in tags {
                frame.extend(kind.to_be_bytes());
                frame.extend(tag.to_be_bytes());
            }
            // Limit addresses and ports to a few values. Several frames then belong to one flow.
            let low = |byte: u8| byte % 3;
            let mut segment: Vec<u8> = match upper {
                0 => [
                    &[0, 80 + low(flows), 1, low(random[13])][..],
                    &random[14..26],
                    &[0x50, 2, 4, 0, 0, 0, 0, 0],
                ]
                .concat(),
                1 => [&[0, 53 + low(flows), 2, low(random[13])][..], &[0, 0, 0, 0]].concat(),
                _ => [&[8, 0, 0, 0][..], &random[14..18]].concat(),
            };
            // The TCP header above has 24 bytes, so the data offset is 6 words.
            if upper == 0 {
                segment[12] = 0x60;
            }
            segment.extend(&payload);
            let length = segment.len() as u16;
            let (at, protocol) = match upper {
                0 => (16, 6u8),
                1 => {
                    segment[4..6].copy_from_slice(&length.to_be_bytes());
                    (6, 17)
                }
                _ => (2, if random[39] & 1 == 0 { 1 } else { 58 }),
            };
            segment[at..at + 2].fill(0);
            let six = random[39] & 1 == 1;
            if six {
                let (source, destination) = ([0xfd, 0, low(random[27])], [0xfd, 1, low(random[28])]);
                let address = |first: [u8; 3]| [&first[..], &[0; 13]].concat();
                let sum = ones_sum(&[
                    &address(source),
                    &address(destination),
                    &(length as u32).to_be_bytes(),
                    &[0, protocol],
                    &segment,
                ]);
                let sum = if protocol == 17 && sum == 0xffff { 0 } else { sum };
                segment[at..at + 2].copy_from_slice(&(!sum).to_be_bytes());
                let mut chain = Vec::new();
                let mut next = protocol;
                for i in 0..extensions {
                    let (kind, header): (u8, Vec<u8>) = match (random[30 + i] % 4, i) {
                        (0, _) => (60, [&[next, 0][..], &[1, 4, 0, 0, 0, 0]].concat()),
                        (1, _) => (44, vec![next, 0, 0, 0, 0, 0, 0, i as u8]),
                        (2, _) => (60, [&[next, 1][..], &[1, 12], &[0; 12]].concat()),
                        _ => (0, [&[next, 0][..], &[1, 4, 0, 0, 0, 0]].concat()),
                    };
                    chain = [header, chain].concat();
                    next = kind;
                }
                frame.extend(0x86ddu16.to_be_bytes());
                frame.extend([0x60 | random[34] & 15, random[35], 0, 0]);
                frame.extend(((chain.len() + segment.len()) as u16).to_be_bytes());
                frame.extend([next, random[36]]);
                frame.extend(address(source));
                frame.extend(address(destination));
                frame.extend(chain);
            } else {
                let addresses = [10, 0, 0, low(random[27]), 10, 1, 0, low(random[28])];
                let mut pseudo = addresses.to_vec();
                pseudo.extend([0, protocol]);
                pseudo.extend(length.to_be_bytes());
                let sum = if protocol == 1 { ones_sum(&[&segment]) } else { ones_sum(&[&pseudo, &segment]) };
                let sum = if protocol == 17 && sum == 0xffff { 0 } else { sum };
                segment[at..at + 2].copy_from_slice(&(!sum).to_be_bytes());
                let mut header = vec![0x45 + options as u8, random[34]];
                header.extend((20 + 4 * options as u16 + length).to_be_bytes());
                header.extend([random[35], random[36], 0x40, 0, random[37], protocol, 0, 0]);
                header.extend(addresses);
                header.resize(20 + 4 * options, 1);
                let sum = !ones_sum(&[&header]);
                header[10..12].copy_from_slice(&sum.to_be_bytes());
                frame.extend(0x0800u16.to_be_bytes());
                frame.extend(header);
            }
            frame.extend(segment);
            frame.resize(frame.len() + padding, 0xee);
            frame
        },
    )
}

/// Generates any frames: valid ones, truncated ones, ones with changed bytes, and random bytes.
pub fn hostile() -> impl Strategy<Value = Vec<u8>> {
    let cut = (well_formed(), any::<prop::sample::Index>()).prop_map(|(frame, at)| {
        let length = at.index(frame.len() + 1);
        frame[..length].to_vec()
    });
    let changed =
        (well_formed(), proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6));
    let changed = changed.prop_map(|(mut frame, changes)| {
        for (at, byte) in changes {
            // Change only bytes in the first 70 bytes, because these contain the headers.
            let at = at.index(frame.len().min(70));
            frame[at] = byte;
        }
        frame
    });
    prop_oneof![
        3 => well_formed(),
        2 => cut,
        4 => changed,
        1 => proptest::collection::vec(any::<u8>(), 0..120),
    ]
}
