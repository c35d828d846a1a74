//! The options of sockets as programs set and read them.

use crate::stack::options::SocketOptions;
use inlane_offload_protocol::datagram::{Header, receive, send};
use inlane_offload_protocol::message::NumberOption;
use inlane_offload_protocol::name::KEPT_OPTIONS;
use inlane_tcp::{Keepalive, SECOND};

/// The SO_RCVBUF of a connection as getsockopt returns it, if the program has not set it. It is the kernel's default.
const RECEIVE_BUFFER: i32 = 131_072;
/// The smallest SO_RCVBUF that the kernel's getsockopt returns.
const LEAST_RECEIVE_BUFFER: i32 = 2304;
/// The longest time of TCP_DEFER_ACCEPT in seconds. It is that of 255 retransmissions.
const MOST_DEFER: i32 = 29_887;
/// TTL and hop limit of sockets on which the program has not set them.
const HOPS: u8 = 64;

/// Returns the time in seconds that TCP_DEFER_ACCEPT gets if a program sets it to `seconds`. As in Linux, it is the time of a
/// number of retransmissions: each takes twice as long as the one before, and at most 120 seconds.
fn rounded_defer(seconds: i32) -> i32 {
    let (mut timeout, mut sum) = (1, 0);
    while sum < seconds && sum < MOST_DEFER {
        sum += timeout;
        timeout = (timeout * 2).min(120);
    }
    sum
}

impl SocketOptions {
    /// The most options without a field of their own that are kept. Programs can read kept options back.
    /// Further options are ignored.
    const MOST_OTHERS: usize = 32;

    /// Sets an option. Also stores options without a field of their own, up to `MOST_OTHERS`, for later
    /// reads.
    pub fn set(&mut self, level: i32, name: i32, value: &[u8]) {
        let number = match value {
            [a, b, c, d, ..] => i32::from_ne_bytes([*a, *b, *c, *d]),
            [a, ..] => i32::from(*a),
            [] => return,
        };
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_REUSEADDR) => self.reuse_address = number != 0,
            (libc::SOL_SOCKET, libc::SO_REUSEPORT) => self.reuse_port = number != 0,
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => self.keepalive = number != 0,
            (libc::SOL_SOCKET, libc::SO_LINGER) => {
                let seconds = value
                    .get(4..8)
                    .map_or(0, |part| i32::from_ne_bytes([part[0], part[1], part[2], part[3]]));
                self.linger = (number != 0).then_some(seconds);
            }
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => self.send_buffer = Some(number),
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => self.receive_buffer = Some(number),
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => self.v6_only = number != 0,
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => self.no_delay = number != 0,
            (libc::IPPROTO_TCP, libc::TCP_CORK) => self.cork = number != 0,
            (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT) => self.user_timeout = number.max(0) as u32,
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => self.max_segment = number.clamp(0, 65535) as u16,
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => {
                self.keepalive_times[0] = Some(number.clamp(1, 32767) as u32)
            }
            (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL) => {
                self.keepalive_times[1] = Some(number.clamp(1, 32767) as u32)
            }
            (libc::IPPROTO_TCP, libc::TCP_KEEPCNT) => {
                self.keepalive_times[2] = Some(number.clamp(1, 127) as u32)
            }
            // -1 is the default.
            (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS)
                if number == -1 =>
            {
                self.others.remove(&(level, name));
            }
            (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT) => {
                self.others.insert((level, name), rounded_defer(number).to_ne_bytes().into());
            }
            // The kernel raises the value to half of the smallest SO_RCVBUF.
            (libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP) if number > 0 => {
                let bytes = number.max(LEAST_RECEIVE_BUFFER / 2);
                self.others.insert((level, name), bytes.to_ne_bytes().into());
            }
            (libc::IPPROTO_IP, libc::IP_MULTICAST_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_HOPS)
                if number == -1 =>
            {
                self.others.remove(&(level, name));
            }
            (libc::IPPROTO_TCP, libc::TCP_QUICKACK)
            | (libc::IPPROTO_IP, libc::IP_MULTICAST_LOOP)
            | (libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_LOOP) => {
                self.others.insert((level, name), i32::from(number != 0).to_ne_bytes().into());
            }
            (libc::IPPROTO_TCP, libc::TCP_LINGER2) => {
                self.others.insert((level, name), number.clamp(-1, 120).to_ne_bytes().into());
            }
            _ if self.others.len() < Self::MOST_OTHERS || self.others.contains_key(&(level, name)) => {
                self.others.insert((level, name), value.to_vec());
            }
            _ => {}
        }
    }

    /// Returns an option's value, or `None` if it is unknown.
    pub fn get(&self, level: i32, name: i32) -> Option<Vec<u8>> {
        let usual = Keepalive::default();
        let times = [(usual.idle / SECOND) as u32, (usual.interval / SECOND) as u32, u32::from(usual.probes)];
        let time = |index: usize| self.keepalive_times[index].unwrap_or(times[index]) as i32;
        let number = match (level, name) {
            (libc::SOL_SOCKET, libc::SO_REUSEPORT) => i32::from(self.reuse_port),
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => i32::from(self.v6_only),
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => i32::from(self.no_delay),
            (libc::IPPROTO_TCP, libc::TCP_CORK) => i32::from(self.cork),
            (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT) => self.user_timeout as i32,
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => time(0),
            (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL) => time(1),
            (libc::IPPROTO_TCP, libc::TCP_KEEPCNT) => time(2),
            (libc::IPPROTO_TCP, libc::TCP_CONGESTION) => {
                return Some(b"cubic\0\0\0\0\0\0\0\0\0\0\0".to_vec());
            }
            (libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP) if !self.others.contains_key(&(level, name)) => {
                self.receive_buffer.unwrap_or(RECEIVE_BUFFER) / 2
            }
            (libc::IPPROTO_TCP, libc::TCP_QUICKACK)
            | (libc::IPPROTO_IP, libc::IP_MULTICAST_TTL | libc::IP_MULTICAST_LOOP)
            | (libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_HOPS | libc::IPV6_MULTICAST_LOOP)
                if !self.others.contains_key(&(level, name)) =>
            {
                1
            }
            (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER) if !self.others.contains_key(&(level, name)) => {
                libc::IP_PMTUDISC_WANT
            }
            (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER) if !self.others.contains_key(&(level, name)) => {
                libc::IPV6_PMTUDISC_WANT
            }
            (libc::IPPROTO_TCP, libc::TCP_SYNCNT) if !self.others.contains_key(&(level, name)) => 6,
            (libc::IPPROTO_TCP, libc::TCP_LINGER2)
                if self
                    .others
                    .get(&(level, name))
                    .is_none_or(|value| value.iter().all(|&byte| byte == 0)) =>
            {
                60
            }
            (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT | libc::TCP_FASTOPEN | libc::TCP_NOTSENT_LOWAT)
            | (libc::IPPROTO_IP, libc::IP_TOS | libc::IP_RECVERR)
            | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS | libc::IPV6_RECVERR)
                if !self.others.contains_key(&(level, name)) =>
            {
                0
            }
            (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS)
                if !self.others.contains_key(&(level, name)) =>
            {
                64
            }
            _ => return self.others.get(&(level, name)).cloned(),
        };
        Some(number.to_ne_bytes().to_vec())
    }

    /// Returns how long a listener defers connections without data, in nanoseconds (TCP_DEFER_ACCEPT).
    pub fn defer_accept(&self) -> u64 {
        let seconds = self.number(libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT).unwrap_or(0);
        u64::try_from(seconds).unwrap_or(0) * SECOND
    }

    /// Returns how long a closed connection waits in FIN-WAIT-2, in nanoseconds (TCP_LINGER2). `None` for the default.
    pub fn fin_timeout(&self) -> Option<u64> {
        match self.number(libc::IPPROTO_TCP, libc::TCP_LINGER2)? {
            0 => None,
            seconds => Some(u64::try_from(seconds).unwrap_or(0) * SECOND),
        }
    }

    /// Returns those options of [`KEPT_OPTIONS`] whose values differ from the values of a new socket.
    pub fn kept(&self) -> Vec<NumberOption> {
        let usual = Self::default();
        let number = |options: &Self, level, name| match (level, name) {
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => options.send_buffer,
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => options.receive_buffer,
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => Some(i32::from(options.max_segment)),
            _ => options.get(level, name).and_then(|value| Some(i32::from_ne_bytes(value.try_into().ok()?))),
        };
        let kept = |&(level, name): &(i32, i32)| {
            let value = number(self, level, name)?;
            (number(&usual, level, name) != Some(value)).then_some((level, name, value))
        };
        KEPT_OPTIONS.iter().filter_map(kept).collect()
    }

    /// Returns the value of a numeric option in `others`, or `None` if the program has not set the option.
    fn number(&self, level: i32, name: i32) -> Option<i32> {
        match *self.others.get(&(level, name))?.as_slice() {
            [a, b, c, d, ..] => Some(i32::from_ne_bytes([a, b, c, d])),
            [a, ..] => Some(a.into()),
            [] => None,
        }
    }

    /// Returns the ancillary data that the program has asked for: flags of [`receive`].
    pub fn wanted(&self) -> u8 {
        let flags = [
            (libc::IPPROTO_IP, libc::IP_PKTINFO, receive::INFO_V4),
            (libc::IPPROTO_IP, libc::IP_RECVTTL, receive::HOPS_V4),
            (libc::IPPROTO_IP, libc::IP_RECVTOS, receive::CLASS_V4),
            (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, receive::INFO_V6),
            (libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT, receive::HOPS_V6),
            (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, receive::CLASS_V6),
        ];
        let set = flags
            .into_iter()
            .filter(|&(level, name, _)| self.number(level, name).is_some_and(|number| number != 0));
        set.fold(0, |wanted, (.., flag)| wanted | flag)
    }

    /// Returns an option of a UDP socket, as Linux's getsockopt does.
    pub fn datagram_option(&self, level: i32, name: i32) -> i32 {
        let usual = match (level, name) {
            (libc::SOL_SOCKET, libc::SO_REUSEPORT) => return i32::from(self.reuse_port),
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => return i32::from(self.v6_only),
            (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS) => HOPS.into(),
            (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER) => libc::IP_PMTUDISC_WANT,
            (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER) => libc::IPV6_PMTUDISC_WANT,
            (libc::IPPROTO_IP, libc::IP_MULTICAST_TTL | libc::IP_MULTICAST_LOOP) => 1,
            (libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_HOPS | libc::IPV6_MULTICAST_LOOP) => 1,
            _ => 0,
        };
        self.number(level, name).unwrap_or(usual)
    }

    /// Returns the traffic class, and the TTL or hop limit, of a datagram. The datagram's header may override
    /// the socket's options.
    pub fn class_and_hops(&self, header: &Header, v6: bool) -> (u8, u8) {
        let (class, hops) = match v6 {
            false => ((libc::IPPROTO_IP, libc::IP_TOS), (libc::IPPROTO_IP, libc::IP_TTL)),
            true => ((libc::IPPROTO_IPV6, libc::IPV6_TCLASS), (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS)),
        };
        // Use the default for values outside 0 to 255. As in Linux, programs set -1 to return to the default.
        let set = |(level, name)| self.number(level, name).filter(|number| (0..256).contains(number));
        let class = match header.flags & send::CLASS {
            0 => set(class).unwrap_or(0) as u8,
            _ => header.class,
        };
        let hops = match header.flags & send::HOPS {
            0 => set(hops).map_or(HOPS, |hops| hops as u8),
            _ => header.hops,
        };
        (class, hops)
    }
}
