//! Converts the settings of `drop-rule` to the rules of `functions/drop_rule.cu`, and reads their counts
//! after a run.
//!
//! ```text
//! drop-rule:RULE[,RULE...]      RULE = MATCH[@PORT]: matching packets are dropped, or sent to port PORT
//! MATCH: udp tcp sctp icmp icmp6 ip ip6 arp all | udp:53 tcp:8000-8080 | udp:from:53 (source port)
//!        proto:47 | type:0x88f7 | src:10.0.0.0/8 | dst:2001:db8::/32
//! ```

use crate::report::{FunctionReport, Table, u64_at};
use inlane_core::struct_layout;
use std::mem::offset_of;
use std::net::IpAddr;

/// The most rules that the settings of `drop-rule` can contain.
const MOST: usize = 32;

// Bits of `Rule::checks`. If a bit is set, the rule checks the packet field with the name of the constant.
const TYPE: u32 = 1;
const VERSION: u32 = 2;
const PROTOCOL: u32 = 4;
const SOURCE_PORT: u32 = 8;
const DESTINATION_PORT: u32 = 16;
const SOURCE_NET: u32 = 32;
const DESTINATION_NET: u32 = 64;

/// One rule in the format that the packet function reads. The C++ source calls this struct `rule`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Rule {
    checks: u32,
    ether_type: u32,
    version: u32,
    protocol: u32,
    first_port: u32,
    last_port: u32,
    verdict: u32,
    reserved: u32,
    net: [u8; 16],
    mask: [u8; 16],
}

/// The state of `drop-rule`. The C++ source calls this struct `drop_rule`.
#[repr(C)]
struct State {
    count: u32,
    reserved: [u32; 15],
    rules: [Rule; MOST],
    hits: [u64; MOST],
}

/// Returns C++ assertions which check that the C++ structs of `drop-rule` have the same layout as the Rust
/// structs.
pub(super) fn layout() -> String {
    let rule = struct_layout!(Rule as "rule" {
        checks, ether_type as "type", version, protocol, first_port, last_port, verdict, reserved, net, mask
    });
    rule + &struct_layout!(State as "drop_rule" { count, reserved, rules, hits })
}

/// Parses the settings of `drop-rule`. Returns the first bytes of the function's state: the number of rules,
/// and the rules.
pub(super) fn settings(text: &str) -> Result<Vec<u8>, String> {
    if text.is_empty() {
        return Err(
            "it has no rules; give for example drop-rule:udp:53,tcp:8000-8080,src:10.0.0.0/8,arp@1".into()
        );
    }
    let rules: Vec<Rule> = text.split(',').map(rule).collect::<Result<_, _>>()?;
    if rules.len() > MOST {
        return Err(format!("'{text}': {} rules were given; at most {MOST} are possible", rules.len()));
    }
    let mut state = vec![0u8; offset_of!(State, rules)];
    state[..4].copy_from_slice(&(rules.len() as u32).to_ne_bytes());
    for rule in rules {
        let numbers = [
            rule.checks,
            rule.ether_type,
            rule.version,
            rule.protocol,
            rule.first_port,
            rule.last_port,
            rule.verdict,
            rule.reserved,
        ];
        state.extend(numbers.into_iter().flat_map(u32::to_ne_bytes));
        state.extend(rule.net);
        state.extend(rule.mask);
    }
    Ok(state)
}

/// Returns how many packets each rule matched.
pub(super) fn report(state: &[u8], settings: &str) -> FunctionReport {
    let mut table = Table::new("rules", &["rule", "packets"]);
    for (i, rule) in settings.split(',').enumerate() {
        table.rows.push(vec![rule.into(), u64_at(state, offset_of!(State, hits) + 8 * i).to_string()]);
    }
    FunctionReport { counters: Vec::new(), tables: vec![table] }
}

/// Converts one rule.
fn rule(text: &str) -> Result<Rule, String> {
    let wrong = |why: &str| format!("rule '{text}': {why}");
    let (what, verdict) = match text.split_once('@') {
        None => (text, inlane_core::ring::layout::DROP),
        Some((what, port)) => {
            let port: u16 = port.parse().map_err(|_| wrong("give a port number from 0 to 65534 after @"))?;
            if port == u16::MAX {
                return Err(wrong("give a port number from 0 to 65534 after @"));
            }
            (what, inlane_core::ring::layout::PORT_BASE + port as u32)
        }
    };
    let (kind, value) = what.split_once(':').map_or((what, None), |(kind, value)| (kind, Some(value)));
    let mut rule = Rule { verdict, ..Rule::default() };
    let mut check = |bit: u32, field: fn(&mut Rule) -> &mut u32, value: u32| {
        rule.checks |= bit;
        *field(&mut rule) = value;
    };
    match (kind, value) {
        ("all", None) => {}
        ("arp", None) => check(TYPE, |rule| &mut rule.ether_type, 0x0806),
        ("ip", None) => check(VERSION, |rule| &mut rule.version, 4),
        ("ip6", None) => check(VERSION, |rule| &mut rule.version, 6),
        ("icmp", None) => check(PROTOCOL, |rule| &mut rule.protocol, 1),
        ("icmp6", None) => check(PROTOCOL, |rule| &mut rule.protocol, 58),
        ("type", Some(value)) => {
            let number =
                number(value, u16::MAX.into()).ok_or_else(|| wrong("give an EtherType from 0 to 0xffff"))?;
            check(TYPE, |rule| &mut rule.ether_type, number);
        }
        ("proto", Some(value)) => {
            let number =
                number(value, u8::MAX.into()).ok_or_else(|| wrong("give a protocol number from 0 to 255"))?;
            check(PROTOCOL, |rule| &mut rule.protocol, number);
        }
        ("udp" | "tcp" | "sctp", ports) => {
            let protocol = match kind {
                "udp" => 17,
                "tcp" => 6,
                _ => 132,
            };
            check(PROTOCOL, |rule| &mut rule.protocol, protocol);
            if let Some(ports) = ports {
                let (ports, side) = match ports.strip_prefix("from:") {
                    Some(ports) => (ports, SOURCE_PORT),
                    None => (ports, DESTINATION_PORT),
                };
                let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
                let (first, last) = number(first, u16::MAX.into())
                    .zip(number(last, u16::MAX.into()))
                    .filter(|(first, last)| first <= last)
                    .ok_or_else(|| {
                        wrong(
                            "give ports from 0 to 65535 as 53, as 8000-8080, or as from:53 for source ports",
                        )
                    })?;
                check(side, |rule| &mut rule.first_port, first);
                rule.last_port = last;
            }
        }
        ("src" | "dst", Some(value)) => {
            rule.checks |= if kind == "src" { SOURCE_NET } else { DESTINATION_NET };
            (rule.version, rule.net, rule.mask) = net(value)
                .ok_or_else(|| wrong("give a network as 10.0.0.0/8 or 2001:db8::/32, or one address"))?;
        }
        _ => {
            return Err(wrong(
                "choose one of udp, tcp, sctp (also with :PORT), icmp, icmp6, ip, ip6, arp, all, proto:N, type:N, src:NET or dst:NET; \
                 append @PORT to send matching packets to a port",
            ));
        }
    }
    Ok(rule)
}

/// Parses a decimal or hexadecimal number. Returns `None` if it is malformed or exceeds `most`.
fn number(text: &str, most: u32) -> Option<u32> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok()?,
        None => text.parse().ok()?,
    };
    (number <= most).then_some(number)
}

/// Parses a network such as `10.0.0.0/8`. Returns its IP version, masked address and mask.
fn net(text: &str) -> Option<(u32, [u8; 16], [u8; 16])> {
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address, Some(bits.parse::<u32>().ok()?)),
        None => (text, None),
    };
    let (mut net, mut mask) = ([0u8; 16], [0u8; 16]);
    let (version, length) = match address.parse().ok()? {
        IpAddr::V4(address) => {
            net[..4].copy_from_slice(&address.octets());
            (4, 32)
        }
        IpAddr::V6(address) => {
            net = address.octets();
            (6, 128)
        }
    };
    let bits = bits.unwrap_or(length);
    if bits > length {
        return None;
    }
    for (i, byte) in mask.iter_mut().enumerate() {
        let ones = bits.saturating_sub(8 * i as u32).min(8);
        *byte = !(0xffu32 >> ones) as u8;
    }
    net.iter_mut().zip(&mask).for_each(|(byte, mask)| *byte &= mask);
    Some((version, net, mask))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_become_rules() {
        let rule = rule("udp:from:53-99@3").unwrap();
        assert_eq!((rule.checks, rule.protocol), (PROTOCOL | SOURCE_PORT, 17));
        assert_eq!((rule.first_port, rule.last_port, rule.verdict), (53, 99, 5));
        let (version, net, mask) = net("10.129.3.4/9").unwrap();
        assert_eq!((version, &net[..4], &mask[..4]), (4, &[10, 128, 0, 0][..], &[255, 128, 0, 0][..]));
        assert_eq!(settings("udp:53,arp").unwrap().len(), 64 + 2 * 64);
    }

    #[test]
    fn wrong_rules_are_refused_and_named() {
        for text in [
            "",
            "udp:",
            "udp:70000",
            "udp:9-3",
            "udp:from:",
            "tcp:x",
            "src:10.0.0.0/33",
            "dst:nowhere",
            "type:0x10000",
            "proto:256",
            "arp:1",
            "all@65535",
            "all@",
            "frob",
            "udp:53,,",
            "all@-1",
        ] {
            let error = settings(text).expect_err(text);
            assert!(text.is_empty() || error.contains("rule '"), "{text}: {error}");
        }
        assert!(settings(&vec!["arp"; 33].join(",")).is_err());
    }
}
