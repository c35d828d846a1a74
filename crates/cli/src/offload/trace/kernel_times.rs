//! The kernel's time stamps of packets (SO_TIMESTAMPING), as raw readings of inlane's clock.

use inlane_core::clock::Clock;
use std::io;
use std::mem::{size_of, size_of_val};
use std::net::TcpStream;
use std::os::fd::AsRawFd;

/// Flags of Linux's include/uapi/linux/net_tstamp.h.
const TX_SOFTWARE: u32 = 1 << 1;
const RX_SOFTWARE: u32 = 1 << 3;
const SOFTWARE: u32 = 1 << 4;
const OPT_ID: u32 = 1 << 7;
const TX_SCHED: u32 = 1 << 8;
const OPT_TSONLY: u32 = 1 << 11;

/// The kinds of time stamps of sent packets, in `ee_info`.
const SCM_TSTAMP_SND: u32 = 0;
const SCM_TSTAMP_SCHED: u32 = 1;

/// The same instant by the kernel's clock of time stamps and by inlane's.
#[derive(Clone, Copy)]
pub struct KernelClock {
    real_ns: u64,
    raw: u64,
}

fn nanoseconds(time: libc::timespec) -> u64 {
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

impl KernelClock {
    /// Reads both clocks. Of several readings, takes the one that was not interrupted.
    pub fn read() -> Self {
        let clock = Clock::new();
        let reading = || {
            let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            let before = clock.raw();
            // SAFETY: the call writes only the struct.
            unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &mut time) };
            let after = clock.raw();
            (after - before, Self { real_ns: nanoseconds(time), raw: before + (after - before) / 2 })
        };
        (0..100).map(|_| reading()).min_by_key(|(gap, _)| *gap).expect("there are readings").1
    }

    /// Returns a function that converts times between this reading and a later one to raw readings.
    pub fn converter(self, later: Self) -> impl Fn(u64) -> u64 {
        let ticks =
            (later.raw - self.raw) as f64 / (later.real_ns.saturating_sub(self.real_ns)).max(1) as f64;
        move |real_ns| {
            self.raw.saturating_add_signed((real_ns.wrapping_sub(self.real_ns) as i64 as f64 * ticks) as i64)
        }
    }
}

/// The time stamps of a connection's packets.
pub struct KernelTimes;

impl KernelTimes {
    /// Asks for the time stamps of sent packets.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn of_sent(stream: &TcpStream) -> io::Result<Self> {
        ask(stream, TX_SCHED | TX_SOFTWARE | SOFTWARE | OPT_ID | OPT_TSONLY)
    }

    /// Asks for the time stamps of received packets.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn of_received(stream: &TcpStream) -> io::Result<Self> {
        ask(stream, RX_SOFTWARE | SOFTWARE)
    }

    /// Returns when the packet of the last message entered the queue of the interface, and when its driver sent it.
    pub fn sent(&self, stream: &TcpStream) -> [Option<u64>; 2] {
        let mut times = [None; 2];
        while let Ok((_, Some((kind, time)))) =
            receive(stream, &mut [], libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT)
        {
            match kind {
                Some(SCM_TSTAMP_SCHED) => times[0] = Some(time),
                Some(SCM_TSTAMP_SND) => times[1] = Some(time),
                _ => {}
            }
        }
        times
    }

    /// Receives a message. Returns when the kernel received its packet.
    ///
    /// # Errors
    /// If the connection has ended.
    pub fn receive(&self, stream: &TcpStream, message: &mut [u8]) -> io::Result<Option<u64>> {
        let wanted = message.len();
        match receive(stream, message, libc::MSG_WAITALL)? {
            (len, time) if len == wanted => Ok(time.map(|(_, time)| time)),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

fn ask(stream: &TcpStream, flags: u32) -> io::Result<KernelTimes> {
    let (level, option, size) =
        (libc::SOL_SOCKET, libc::SO_TIMESTAMPING, size_of_val(&flags) as libc::socklen_t);
    // SAFETY: the kernel reads the flags during the call.
    match unsafe { libc::setsockopt(stream.as_raw_fd(), level, option, (&raw const flags).cast(), size) } {
        0 => Ok(KernelTimes),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A time stamp with the kind of a sent packet's.
type Stamp = (Option<u32>, u64);

/// Receives bytes or an entry of the error queue. Returns the number of bytes, and the time stamp.
fn receive(stream: &TcpStream, bytes: &mut [u8], flags: i32) -> io::Result<(usize, Option<Stamp>)> {
    let mut control = [0u64; 64];
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: all-zero bytes are a valid msghdr.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (&raw mut part, 1);
    (header.msg_control, header.msg_controllen) = (control.as_mut_ptr().cast(), size_of_val(&control));
    // SAFETY: the header names memory that outlives the call.
    let len = unsafe { libc::recvmsg(stream.as_raw_fd(), &raw mut header, flags) };
    if len < 0 {
        return Err(io::Error::last_os_error());
    }
    let (mut kind, mut time) = (None, None);
    // SAFETY: the kernel has filled the control messages and set their length. Their data may lie unaligned.
    unsafe {
        let mut message = libc::CMSG_FIRSTHDR(&raw const header);
        while !message.is_null() {
            let data = libc::CMSG_DATA(message);
            let room = (*message).cmsg_len - libc::CMSG_LEN(0) as usize;
            match ((*message).cmsg_level, (*message).cmsg_type) {
                (libc::SOL_SOCKET, libc::SCM_TIMESTAMPING) if room >= size_of::<libc::timespec>() => {
                    time = Some(nanoseconds(data.cast::<libc::timespec>().read_unaligned()));
                }
                (libc::SOL_IP, libc::IP_RECVERR) if room >= size_of::<libc::sock_extended_err>() => {
                    kind = Some(data.cast::<libc::sock_extended_err>().read_unaligned().ee_info);
                }
                _ => {}
            }
            message = libc::CMSG_NXTHDR(&raw const header, message);
        }
    }
    Ok((len as usize, time.filter(|&time| time > 0).map(|time| (kind, time))))
}
