//! RoCEv2 packets on a network interface, as whole Ethernet frames.

use anyhow::{Context, ensure};
use inlane_wire::{ethernet, ipv4, roce, udp};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::fs::{File, read_to_string};
use std::io::{ErrorKind, Read, Write};
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;

/// Bytes before the BTH.
const BEFORE: usize = ethernet::HEADER + ipv4::HEADER + udp::HEADER;

/// An interface and its address, or those of the peer.
pub struct Side {
    pub interface: String,
    pub address: Ipv4Addr,
}

impl Side {
    /// Reads a file of the interface below /sys.
    fn read(&self, file: &str) -> anyhow::Result<String> {
        let path = format!("/sys/class/net/{}/{file}", self.interface);
        Ok(read_to_string(&path).with_context(|| path)?.trim().into())
    }

    fn mac(&self) -> anyhow::Result<[u8; 6]> {
        let text = self.read("address")?;
        let bytes: Result<Vec<u8>, _> = text.split(':').map(|byte| u8::from_str_radix(byte, 16)).collect();
        bytes?.try_into().ok().with_context(|| format!("'{text}' is no MAC address"))
    }
}

/// A packet socket of the local interface.
pub struct Link {
    socket: File,
    /// Addresses, EtherType, and all zeros up to the BTH.
    before: [u8; BEFORE],
    addresses: [Ipv4Addr; 2],
}

impl Link {
    pub fn open(local: &Side, remote: &Side) -> anyhow::Result<Self> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)?;
        // SAFETY: zeros are a valid value of this C structure.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = (libc::ETH_P_IP as u16).to_be();
        address.sll_ifindex = local.read("ifindex")?.parse()?;
        // SAFETY: the kernel reads the address during the call.
        let result = unsafe {
            libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size_of_val(&address) as u32)
        };
        ensure!(result == 0, "cannot bind to {}: {}", local.interface, std::io::Error::last_os_error());
        let mut before = [0; BEFORE];
        before[..6].copy_from_slice(&remote.mac()?);
        before[6..12].copy_from_slice(&local.mac()?);
        before[12..14].copy_from_slice(&ethernet::IPV4.to_be_bytes());
        Ok(Self { socket: File::from(socket), before, addresses: [local.address, remote.address] })
    }

    /// Sends a packet: `body` begins with the BTH and ends before the ICRC. If `damaged` is true, one bit of the ICRC is wrong.
    pub fn send(&mut self, body: &[u8], damaged: bool) -> anyhow::Result<()> {
        let mut frame = self.before.to_vec();
        frame.extend_from_slice(body);
        frame.resize(frame.len() + roce::ICRC, 0);
        let packet = &mut frame[ethernet::HEADER..];
        let mut ip = ipv4::Packet::init(&mut *packet)?;
        ip.set_protocol(ipv4::UDP);
        ip.set_source(self.addresses[0]);
        ip.set_destination(self.addresses[1]);
        ip.fill_checksum();
        let mut datagram = udp::Datagram::new(ip.payload_mut())?;
        datagram.set_source_port(0xc000);
        datagram.set_destination_port(roce::PORT);
        let len = datagram.bytes().len() as u16;
        datagram.set_length(len);
        roce::fill_icrc(packet)?;
        if damaged {
            *frame.last_mut().expect("a frame has bytes") ^= 0x10;
        }
        self.socket.write_all(&frame)?;
        Ok(())
    }

    /// Returns the next received packet, from its BTH to the byte before the ICRC, or `None` if none arrives for 2 ms.
    ///
    /// # Errors
    /// If the peer's ICRC is wrong.
    pub fn receive(&mut self) -> anyhow::Result<Option<Vec<u8>>> {
        let mut frame = [0; 2048];
        loop {
            let len = match self.socket.read(&mut frame) {
                Ok(len) => len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let mut wanted = [rustix::event::PollFd::new(&self.socket, rustix::event::PollFlags::IN)];
                    let limit = rustix::event::Timespec { tv_sec: 0, tv_nsec: 2_000_000 };
                    if rustix::event::poll(&mut wanted, Some(&limit))? == 0 {
                        return Ok(None);
                    }
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let Some(bytes) = frame.get(ethernet::HEADER..len) else { continue };
            let Ok(ip) = ipv4::Packet::new(bytes) else { continue };
            let to_here = [ip.destination(), ip.source()] == self.addresses && ip.protocol() == ipv4::UDP;
            let Some(Ok(datagram)) = to_here.then(|| udp::Datagram::new(ip.payload())) else { continue };
            if datagram.destination_port() != roce::PORT {
                continue;
            }
            ensure!(
                roce::icrc_ok(&bytes[..ip.end()]),
                "the peer's ICRC is wrong: {:02x?}",
                &bytes[..ip.end()]
            );
            let body = datagram.payload();
            return Ok(Some(body[..body.len() - roce::ICRC].to_vec()));
        }
    }
}
