//! How the PEs of a job find its server if a process manager such as `mpirun` started them. PE 0 publishes the TCP
//! addresses of its server. Each PE tries these addresses one after another.

use super::{Client, Meeting};
use crate::error::{Error, Result};
use crate::transport::bootstrap::LONGEST_INVITATION;
use crate::transport::machine::machine;
use std::fmt::{Display, Formatter};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

/// The addresses of PE 0's server to which all PEs of a job connect. PE 0 publishes them as the text
/// `PLACE/PORT/TOKEN/ADDRESS,ADDRESS...`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meetings {
    /// A text that identifies PE 0's machine and network namespace, from [`place`].
    place: String,
    port: u16,
    token: [u8; 16],
    /// The IP addresses of PE 0's server, in the order in which PEs try them. PEs in other network namespaces
    /// than PE 0 skip loopback addresses.
    addresses: Vec<IpAddr>,
}

impl Meetings {
    /// Returns what PE 0 publishes about its server. `meeting` has the server's address and token. If the
    /// server listens at 0.0.0.0, the result has the IPv4 addresses of this machine, as many as fit into a
    /// text of the process manager.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn of(meeting: &Meeting) -> Result<Self> {
        let listening = meeting.address.ip();
        let mut addresses = vec![listening];
        if listening.is_unspecified() {
            addresses = vec![IpAddr::from(Ipv4Addr::LOCALHOST)];
            addresses.extend(own_addresses()?.into_iter().filter(IpAddr::is_ipv4));
        }
        let port = meeting.address.port();
        let mut card = Self { place: place()?, port, token: meeting.token, addresses };
        while card.to_string().len() > LONGEST_INVITATION && card.addresses.len() > 1 {
            card.addresses.pop();
        }
        Ok(card)
    }

    /// Joins the job as PE `me`. Tries the addresses of PE 0's server in turn.
    ///
    /// # Errors
    /// If no address leads to PE 0's server: the error of the last attempt.
    pub fn join(&self, me: u32) -> Result<Client> {
        let here = self.place == place()?;
        let reachable = |address: &&IpAddr| here || !address.is_loopback();
        let mut last = Error::Failed {
            what: format!("joining the job as PE {me}"),
            why: format!(
                "PE 0 runs on another machine and has no address that leads there; set {} to an address of PE 0's machine",
                crate::variables::ADDRESS
            ),
        };
        for address in self.addresses.iter().filter(reachable) {
            let meeting = Meeting { address: SocketAddr::new(*address, self.port), token: self.token };
            match Client::join(&meeting, me) {
                Ok(client) => return Ok(client),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

impl Display for Meetings {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let token = u128::from_be_bytes(self.token);
        write!(f, "{}/{}/{token:032x}/", self.place, self.port)?;
        let addresses: Vec<_> = self.addresses.iter().map(IpAddr::to_string).collect();
        f.write_str(&addresses.join(","))
    }
}

impl FromStr for Meetings {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parse = || {
            let parts: Vec<_> = text.split('/').collect();
            let [place, port, token, addresses] = parts[..] else { return None };
            // Accept only 32 hexadecimal digits: `from_str_radix` would also accept a sign.
            let plain = token.len() == 32 && token.bytes().all(|digit| digit.is_ascii_hexdigit());
            Some(Self {
                place: place.into(),
                port: port.parse().ok()?,
                token: u128::from_str_radix(token, 16).ok().filter(|_| plain)?.to_be_bytes(),
                addresses: addresses.split(',').map(|address| address.parse().ok()).collect::<Option<_>>()?,
            })
        };
        parse().ok_or_else(|| {
            Error::invalid(
                format!("the invitation of PE 0, '{text}'"),
                "it is another release's; use one release and one INLANE_NTB_TRANSPORT for all PEs",
            )
        })
    }
}

/// Returns a text that identifies this machine and this process's network namespace. Processes that get
/// the same text can reach each other's loopback addresses.
fn place() -> Result<String> {
    let path = "/proc/self/ns/net";
    let namespace = std::fs::read_link(path).map_err(|error| Error::os(format!("reading {path}"), error))?;
    Ok(format!("{} {}", machine(), namespace.display()).replace([' ', '/'], "."))
}

/// Returns the addresses of all network interfaces that are up, except loopback and link-local addresses.
fn own_addresses() -> Result<Vec<IpAddr>> {
    let mut first = std::ptr::null_mut();
    // SAFETY: the call stores a pointer to a new list in `first`. The list is freed below.
    if unsafe { libc::getifaddrs(&mut first) } != 0 {
        return Err(Error::os("this machine's addresses", std::io::Error::last_os_error()));
    }
    let (mut addresses, mut next) = (Vec::new(), first);
    // SAFETY: each element of the list is valid until the list is freed. In the last element, the pointer to
    // the next is null.
    while let Some(interface) = unsafe { next.as_ref() } {
        next = interface.ifa_next;
        if interface.ifa_flags & libc::IFF_UP as u32 == 0 || interface.ifa_addr.is_null() {
            continue;
        }
        // SAFETY: the address family determines the type of the address.
        let address = unsafe {
            match i32::from((*interface.ifa_addr).sa_family) {
                libc::AF_INET => {
                    let address = interface.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned();
                    IpAddr::from(Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr)))
                }
                libc::AF_INET6 => {
                    let address = interface.ifa_addr.cast::<libc::sockaddr_in6>().read_unaligned();
                    IpAddr::from(Ipv6Addr::from(address.sin6_addr.s6_addr))
                }
                _ => continue,
            }
        };
        let local = match address {
            IpAddr::V4(address) => address.is_loopback() || address.is_link_local(),
            IpAddr::V6(address) => address.is_loopback() || address.is_unicast_link_local(),
        };
        if !local && !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    // SAFETY: `getifaddrs` allocated the list. It is freed only here.
    unsafe { libc::freeifaddrs(first) };
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_card_with_many_addresses_fits_into_a_text() {
        let meeting = Meeting { address: "127.0.0.1:65535".parse().unwrap(), token: [255; 16] };
        let card = Meetings::of(&meeting).unwrap();
        assert_eq!(card.to_string().parse::<Meetings>().unwrap(), card);
        assert!(card.to_string().len() <= LONGEST_INVITATION && !card.to_string().contains(' '));
        let everywhere = Meeting { address: "0.0.0.0:7".parse().unwrap(), ..meeting };
        let card = Meetings::of(&everywhere).unwrap();
        assert_eq!(card.addresses[0], IpAddr::from(Ipv4Addr::LOCALHOST));
        assert!(card.to_string().len() <= LONGEST_INVITATION);
    }

    #[test]
    fn loopback_addresses_of_another_machine_are_not_tried() {
        let meeting = Meeting { address: "127.0.0.1:1".parse().unwrap(), token: [0; 16] };
        let card = Meetings { place: "elsewhere".into(), ..Meetings::of(&meeting).unwrap() };
        let error = card.join(1).err().unwrap().to_string();
        assert!(error.contains("INLANE_NTB_ADDRESS"), "{error}");
    }

    proptest! {
        #[test]
        fn any_text_is_a_card_or_refused(text in ".{0,200}") {
            let _ = text.parse::<Meetings>();
        }
    }
}
