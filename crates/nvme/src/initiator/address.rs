//! Parses and resolves the addresses of targets: `HOST` or `HOST:PORT`.

use crate::{Error, Result};
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::num::NonZeroU16;
use std::str::FromStr;

/// The address of a target's listener: a host name or IP address, and optionally a TCP port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    host: String,
    port: Option<u16>,
}

impl Address {
    /// The default TCP port of I/O controllers (NVMe/TCP section 3.1).
    pub const IO_PORT: u16 = 4420;
    /// The default TCP port of discovery controllers (NVMe/TCP section 3.1).
    pub const DISCOVERY_PORT: u16 = 8009;

    /// Creates an address.
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Self { host: host.into(), port: Some(port) }
    }

    /// Returns the address with `port`, unless it already has a port.
    pub fn with_default_port(&self, port: u16) -> Self {
        Self { host: self.host.clone(), port: Some(self.port.unwrap_or(port)) }
    }

    /// Resolves the name. The port is 4420 unless the address has one.
    ///
    /// # Errors
    /// If the name cannot be resolved.
    pub fn resolve(&self) -> Result<Vec<SocketAddr>> {
        let unresolved = |why: String| Error::unreachable(self.to_string(), why);
        let port = self.port.unwrap_or(Self::IO_PORT);
        let addresses: Vec<_> = (self.host.as_str(), port)
            .to_socket_addrs()
            .map_err(|error| {
                unresolved(format!(
                    "the name cannot be resolved: {error}; check the host and the name server"
                ))
            })?
            .collect();
        match addresses.is_empty() {
            true => Err(unresolved("the name has no address; check the host".into())),
            false => Ok(addresses),
        }
    }
}

impl FromStr for Address {
    type Err = Error;

    /// Parses `HOST`, `HOST:PORT`, `[IPV6]` or `[IPV6]:PORT`. The host is a name or an IPv4 address.
    fn from_str(text: &str) -> Result<Self> {
        let invalid = |why: &str| {
            let example = "give HOST:PORT, for example 10.0.0.2:4420 or [::1]:4420";
            Error::invalid(format!("'{text}'"), format!("{why}; {example}"))
        };
        if text.contains("://") {
            return Err(invalid("a scheme such as nvme:// is not part of an address"));
        }
        let bracketed = text.strip_prefix('[');
        let (host, rest) = match bracketed {
            Some(rest) => rest.split_once(']').ok_or_else(|| invalid("the bracket is not closed"))?,
            None => text.split_at(text.find(':').unwrap_or(text.len())),
        };
        if bracketed.is_none() && rest.matches(':').count() > 1 {
            return Err(invalid("an IPv6 address needs brackets"));
        }
        if host.is_empty() || host.contains(|c: char| c.is_whitespace() || c.is_control() || c == '/') {
            return Err(invalid("the host is missing or no name"));
        }
        let port = match rest.strip_prefix(':').map(str::parse::<NonZeroU16>) {
            Some(port) => Some(port.map_err(|_| invalid("the port is no number from 1 to 65535"))?.get()),
            None if rest.is_empty() => None,
            None => return Err(invalid("text follows the bracket")),
        };
        Ok(Self { host: host.into(), port })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]", self.host)?;
        } else {
            write!(f, "{}", self.host)?;
        }
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed_and_shown() {
        for text in ["10.0.0.2:4420", "storage", "storage.example:8009", "[::1]", "[fe80::1]:4420"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        for text in
            ["", ":4420", "host:", "host:0", "host:65536", "::1", "[::1", "[::1]4420", "a b", "tcp://a"]
        {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
        let error = "nvme://a:4420".parse::<Address>().unwrap_err().to_string();
        assert!(error.contains("a scheme such as nvme:// is not part"), "{error}");
        let local = "127.0.0.1".parse::<Address>().unwrap();
        assert_eq!(local.resolve().unwrap()[0].port(), 4420);
        assert_eq!(local.with_default_port(8009).resolve().unwrap()[0].port(), 8009);
    }
}
