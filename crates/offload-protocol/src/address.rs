//! Internet addresses as fixed bytes, and as the C library's `sockaddr`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// The length of an encoded address, in bytes.
pub const LEN: usize = 20;

/// Encodes an address in [`LEN`] bytes: the family (4, 6, or 0 for no address), a zero byte, the port in 2
/// bytes, and the address in 16 bytes.
pub fn encode(address: Option<SocketAddr>) -> [u8; LEN] {
    let mut bytes = [0; LEN];
    let Some(address) = address else { return bytes };
    bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
    match address.ip() {
        IpAddr::V4(ip) => {
            bytes[0] = 4;
            bytes[4..8].copy_from_slice(&ip.octets());
        }
        IpAddr::V6(ip) => {
            bytes[0] = 6;
            bytes[4..].copy_from_slice(&ip.octets());
        }
    }
    bytes
}

/// Decodes what [`encode`] wrote. Returns `None` for other bytes, and if there is no address.
pub fn decode(bytes: &[u8]) -> Option<SocketAddr> {
    let bytes: &[u8; LEN] = bytes.get(..LEN)?.try_into().ok()?;
    let port = u16::from_be_bytes([bytes[2], bytes[3]]);
    let ip = match bytes[0] {
        4 => IpAddr::V4(Ipv4Addr::new(bytes[4], bytes[5], bytes[6], bytes[7])),
        6 => {
            let mut octets = [0; 16];
            octets.copy_from_slice(&bytes[4..]);
            IpAddr::V6(Ipv6Addr::from(octets))
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

/// Returns false if a program's memory can never lie at these addresses: below the first page, or in the kernel's
/// half. Programs pass such pointers, like null and -1, to get the error EFAULT from the kernel.
pub fn is_possible<T>(start: *const T, len: usize) -> bool {
    const FIRST: usize = 4096;
    let start = start as usize;
    start >= FIRST && start.checked_add(len).is_some_and(|end| end <= isize::MAX as usize)
}

/// Reads the internet address at `address`. Returns `None` if the family is not AF_INET or AF_INET6, if `len`
/// is too short, or if [`is_possible`] rejects the pointer. It rejects null, for example.
///
/// # Safety
/// `len` bytes at `address` are readable, or [`is_possible`] rejects the pointer.
pub unsafe fn read_sockaddr(address: *const libc::sockaddr, len: libc::socklen_t) -> Option<SocketAddr> {
    if !is_possible(address, len as usize) || (len as usize) < size_of::<libc::sa_family_t>() {
        return None;
    }
    // SAFETY: the family's bytes are readable. Each structure below is read only if `len` covers it.
    unsafe {
        match address.cast::<libc::sa_family_t>().read_unaligned() as i32 {
            libc::AF_INET if len as usize >= size_of::<libc::sockaddr_in>() => {
                let raw = address.cast::<libc::sockaddr_in>().read_unaligned();
                let ip = Ipv4Addr::from(u32::from_be(raw.sin_addr.s_addr));
                Some(SocketAddrV4::new(ip, u16::from_be(raw.sin_port)).into())
            }
            // Accept addresses without the last field, `sin6_scope_id`, as Linux does, because early versions
            // of the structure lacked it.
            libc::AF_INET6 if len as usize >= size_of::<libc::sockaddr_in6>() - 4 => {
                let raw = address.cast::<[u8; 24]>().read_unaligned();
                let mut octets = [0; 16];
                octets.copy_from_slice(&raw[8..24]);
                let port = u16::from_be_bytes([raw[2], raw[3]]);
                Some(SocketAddrV6::new(octets.into(), port, 0, 0).into())
            }
            _ => None,
        }
    }
}

/// Writes `value` as the C library's functions do: at most `*len` bytes, and the full length to `*len`. If
/// `v6` is set, writes an IPv4 address as an IPv4-mapped IPv6 address.
///
/// # Safety
/// `len` is readable and writable, and `*len` bytes at `address` are writable. Both pointers may be null.
pub unsafe fn write_sockaddr(
    value: SocketAddr,
    v6: bool,
    address: *mut libc::sockaddr,
    len: *mut libc::socklen_t,
) {
    if address.is_null() || len.is_null() {
        return;
    }
    let mut bytes = [0u8; size_of::<libc::sockaddr_in6>()];
    bytes[2..4].copy_from_slice(&value.port().to_be_bytes());
    let (family, full) = match value.ip() {
        IpAddr::V4(ip) if !v6 => {
            bytes[4..8].copy_from_slice(&ip.octets());
            (libc::AF_INET, size_of::<libc::sockaddr_in>())
        }
        ip => {
            let ip = match ip {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            bytes[8..24].copy_from_slice(&ip.octets());
            (libc::AF_INET6, size_of::<libc::sockaddr_in6>())
        }
    };
    bytes[..2].copy_from_slice(&(family as libc::sa_family_t).to_ne_bytes());
    // SAFETY: the caller promises that these bytes are accessible.
    unsafe {
        let room = len.read_unaligned() as usize;
        address.cast::<u8>().copy_from(bytes.as_ptr(), room.min(full));
        len.write_unaligned(full as libc::socklen_t);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn addresses() -> impl Strategy<Value = SocketAddr> {
        prop_oneof![
            any::<([u8; 4], u16)>().prop_map(|(ip, port)| SocketAddr::new(IpAddr::from(ip), port)),
            any::<([u8; 16], u16)>().prop_map(|(ip, port)| SocketAddr::new(IpAddr::from(ip), port)),
        ]
    }

    proptest! {
        #[test]
        fn addresses_read_back_as_written(address in addresses()) {
            prop_assert_eq!(decode(&encode(Some(address))), Some(address));
            // SAFETY: an all-zero structure is valid.
            let mut raw: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
            let mut len = size_of_val(&raw) as libc::socklen_t;
            let pointer = (&raw mut raw).cast();
            // SAFETY: the structure and the length live through the calls.
            let read = unsafe {
                write_sockaddr(address, address.is_ipv6(), pointer, &mut len);
                read_sockaddr(pointer, len)
            };
            prop_assert_eq!(read, Some(address));
        }

        #[test]
        fn any_bytes_decode(bytes in proptest::collection::vec(any::<u8>(), 0..30)) {
            let _ = decode(&bytes);
        }
    }

    #[test]
    fn a_short_buffer_gets_a_part_and_the_full_length() {
        let mut bytes = [0xffu8; 16];
        let mut len: libc::socklen_t = 4;
        let address: SocketAddr = "1.2.3.4:258".parse().unwrap();
        // SAFETY: the bytes and the length live through the call.
        unsafe { write_sockaddr(address, false, bytes.as_mut_ptr().cast(), &mut len) };
        assert_eq!((len, &bytes[2..5]), (16, &[1, 2, 0xff][..]));
    }
}
