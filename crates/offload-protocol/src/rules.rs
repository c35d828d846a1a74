//! Rules that keep sockets with the kernel or give them to the engine. Their conditions are program, address
//! and port.
//!
//! `inlane offload run` reads them from TOML and passes them to the library as text, one rule a line:
//! `engine` or `kernel`, and conditions `program=NAME`, `protocol=tcp|udp`, `address=ADDRESS/LENGTH`,
//! `port=FIRST-LAST`, `use=listen|connect`. The first rule whose conditions all hold applies. If no rule
//! applies, the engine chooses by its addresses and routes.

use std::fmt;
use std::net::IpAddr;

/// Who runs a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The engine runs the socket, if it can.
    Engine,
    /// The socket stays with the kernel.
    Kernel,
}

/// How a program uses a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// The program binds the socket to an address.
    Listen,
    /// The program connects the socket to an address.
    Connect,
}

/// A range of addresses: all that share the first `length` bits of `address`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// The address.
    pub address: IpAddr,
    /// The number of leading bits that are compared.
    pub length: u8,
}

impl Prefix {
    /// Parses a range such as `10.0.0.1/24` or `fd00::1/64`. An address without a length is a range of one
    /// address.
    pub fn parse(text: &str) -> Option<Self> {
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length.parse::<u8>().ok()?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().ok()?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let length = length.unwrap_or(most);
        (length <= most).then_some(Self { address, length })
    }

    /// Returns true if `address` is in the range.
    pub fn contains(&self, address: IpAddr) -> bool {
        let bits = |address: IpAddr| match address {
            IpAddr::V4(ip) => (u128::from(ip.to_bits()) << 96, 4),
            IpAddr::V6(ip) => (ip.to_bits(), 6),
        };
        let ((ours, family), (theirs, other)) = (bits(self.address), bits(address.to_canonical()));
        family == other && (ours ^ theirs).checked_shr(128 - u32::from(self.length)).unwrap_or(0) == 0
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

/// One rule. A condition that is `None` always holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule<'a> {
    /// Who runs the sockets.
    pub action: Action,
    /// The name of the program to which the rule applies: the last part of the program's path. With `None`,
    /// the rule applies to every program.
    pub program: Option<&'a str>,
    /// The protocol: true for UDP, false for TCP, `None` for both.
    pub datagrams: Option<bool>,
    /// The addresses.
    pub address: Option<Prefix>,
    /// The first and the last port of a range.
    pub ports: Option<(u16, u16)>,
    /// How the program uses the socket.
    pub usage: Option<Use>,
}

impl<'a> Rule<'a> {
    /// Parses a line. Returns `None` if it is not a rule.
    pub fn parse(line: &'a str) -> Option<Self> {
        let mut words = line.split(' ').filter(|word| !word.is_empty());
        let action = match words.next()? {
            "engine" => Action::Engine,
            "kernel" => Action::Kernel,
            _ => return None,
        };
        let mut rule =
            Self { action, program: None, datagrams: None, address: None, ports: None, usage: None };
        for word in words {
            match word.split_once('=')? {
                ("program", name) => rule.program = Some(name),
                ("protocol", "tcp") => rule.datagrams = Some(false),
                ("protocol", "udp") => rule.datagrams = Some(true),
                ("address", range) => rule.address = Some(Prefix::parse(range)?),
                ("port", range) => {
                    let (first, last) = range.split_once('-').unwrap_or((range, range));
                    let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
                    rule.ports = Some((first, last)).filter(|_| first <= last);
                    rule.ports?;
                }
                ("use", "listen") => rule.usage = Some(Use::Listen),
                ("use", "connect") => rule.usage = Some(Use::Connect),
                _ => return None,
            }
        }
        Some(rule)
    }

    /// Returns true if every condition holds.
    pub fn holds(&self, program: &str, datagrams: bool, address: IpAddr, port: u16, usage: Use) -> bool {
        self.program.is_none_or(|name| name == program)
            && self.datagrams.is_none_or(|wanted| wanted == datagrams)
            && self.address.is_none_or(|range| range.contains(address))
            && self.ports.is_none_or(|(first, last)| (first..=last).contains(&port))
            && self.usage.is_none_or(|wanted| wanted == usage)
    }
}

impl fmt::Display for Rule<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.action {
            Action::Engine => "engine",
            Action::Kernel => "kernel",
        })?;
        if let Some(program) = self.program {
            write!(f, " program={program}")?;
        }
        if let Some(datagrams) = self.datagrams {
            f.write_str(if datagrams { " protocol=udp" } else { " protocol=tcp" })?;
        }
        if let Some(address) = self.address {
            write!(f, " address={address}")?;
        }
        if let Some((first, last)) = self.ports {
            write!(f, " port={first}-{last}")?;
        }
        match self.usage {
            None => Ok(()),
            Some(Use::Listen) => f.write_str(" use=listen"),
            Some(Use::Connect) => f.write_str(" use=connect"),
        }
    }
}

/// Returns the action of the first rule in `text` whose conditions all hold. Returns `None` if there is no
/// such rule. Skips lines that are not rules.
pub fn decide(
    text: &str,
    program: &str,
    datagrams: bool,
    address: IpAddr,
    port: u16,
    usage: Use,
) -> Option<Action> {
    let mut rules = text.lines().filter_map(Rule::parse);
    rules.find(|rule| rule.holds(program, datagrams, address, port, usage)).map(|rule| rule.action)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_first_rule_that_holds_decides() {
        let text = "kernel program=sshd\nnot a rule\nengine address=10.0.0.0/8 port=80-90\nkernel use=connect address=::/0\nkernel port=443";
        let ask = |program, address: &str, port, usage| {
            decide(text, program, false, address.parse().unwrap(), port, usage)
        };
        assert_eq!(ask("sshd", "10.1.1.1", 80, Use::Listen), Some(Action::Kernel));
        assert_eq!(ask("curl", "10.1.1.1", 90, Use::Connect), Some(Action::Engine));
        assert_eq!(ask("curl", "::ffff:10.1.1.1", 90, Use::Connect), Some(Action::Engine));
        assert_eq!(ask("curl", "10.1.1.1", 91, Use::Connect), None);
        assert_eq!(ask("curl", "fd00::1", 80, Use::Connect), Some(Action::Kernel));
        assert_eq!(ask("curl", "fd00::1", 80, Use::Listen), None);
        assert_eq!(ask("curl", "1.1.1.1", 443, Use::Listen), Some(Action::Kernel));
        let any = IpAddr::from([1, 1, 1, 1]);
        let udp = |datagrams| decide("kernel protocol=udp", "x", datagrams, any, 53, Use::Connect);
        assert_eq!((udp(true), udp(false)), (Some(Action::Kernel), None));
    }

    #[test]
    fn prefixes_compare_their_first_bits() {
        let holds =
            |range: &str, address: &str| Prefix::parse(range).unwrap().contains(address.parse().unwrap());
        assert!(holds("10.0.0.1/24", "10.0.0.255") && !holds("10.0.0.1/24", "10.0.1.0"));
        assert!(holds("0.0.0.0/0", "1.2.3.4") && !holds("0.0.0.0/0", "::1"));
        assert!(holds("::/0", "::1") && holds("fd00::/16", "fd00:1::") && !holds("fd00::1", "fd00::2"));
        for bad in ["10.0.0.1/33", "x", "::/129", "10.0.0.1/", ""] {
            assert_eq!(Prefix::parse(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_safe(text in "\\PC{0,80}") {
            let _ = decide(&text, "x", true, IpAddr::from([1, 2, 3, 4]), 5, Use::Listen);
        }

        #[test]
        fn rules_read_back_as_written(kernel: bool, ports: Option<(u16, u16)>, datagrams: Option<bool>, address: [u8; 4], length in 0u8..=32) {
            let action = if kernel { Action::Kernel } else { Action::Engine };
            let ports = ports.map(|(one, other)| (one.min(other), one.max(other)));
            let address = Some(Prefix { address: address.into(), length });
            let rule = Rule { action, program: Some("curl"), datagrams, address, ports, usage: Some(Use::Listen) };
            let text = rule.to_string();
            prop_assert_eq!(Rule::parse(&text), Some(rule));
        }
    }
}
