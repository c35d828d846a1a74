//! Keeps epoll registrations when a descriptor's socket is replaced.
//!
//! A registration belongs to the socket, not to the descriptor's number, so it is lost when another socket
//! replaces the registered one. Programs such as nginx register a socket before they connect it. So this
//! module remembers in which epoll instance a descriptor was last registered. The registration itself is read
//! from the kernel's description of that instance. If the remembered instance is outdated, the description
//! does not contain the descriptor, and nothing is restored.

use crate::real;
use libc::c_int;
use std::sync::atomic::{AtomicI32, Ordering};

/// Descriptors from this number on are not remembered.
const MOST: usize = 65536;

/// For each descriptor: the epoll instance in which it was last registered plus 1, or 0.
static INSTANCES: [AtomicI32; MOST] = [const { AtomicI32::new(0) }; MOST];

/// Remembers that `fd` was registered in `epoll`.
pub fn remember(epoll: c_int, fd: c_int) {
    if let Some(entry) = usize::try_from(fd).ok().and_then(|fd| INSTANCES.get(fd)) {
        entry.store(epoll.saturating_add(1), Ordering::Relaxed);
    }
}

/// A registration.
pub struct Registration {
    epoll: c_int,
    fd: c_int,
    event: libc::epoll_event,
}

impl Registration {
    /// Returns the registration of `fd`, if it has one.
    pub fn of(fd: c_int) -> Option<Self> {
        let entry = INSTANCES.get(usize::try_from(fd).ok()?)?;
        let epoll = entry.load(Ordering::Relaxed).checked_sub(1).filter(|&epoll| epoll >= 0)?;
        let mut path = [0u8; 48];
        path[..18].copy_from_slice(b"/proc/self/fdinfo/");
        write_number(&mut path[18..], epoll);
        let mut bytes = [0u8; 4096];
        // SAFETY: the path ends with a zero byte, `read` gets the length of the rest of the buffer, and only
        // this code closes the descriptor.
        let read = unsafe {
            let file = libc::open(path.as_ptr().cast(), libc::O_RDONLY | libc::O_CLOEXEC);
            if file < 0 {
                return None;
            }
            let mut filled = 0;
            loop {
                let len = real::read(file, bytes[filled..].as_mut_ptr().cast(), bytes.len() - filled);
                match usize::try_from(len) {
                    Ok(len) if len > 0 => filled += len,
                    _ => break,
                }
            }
            libc::close(file);
            filled
        };
        let (events, data) = find(std::str::from_utf8(&bytes[..read]).ok()?, fd)?;
        Some(Self { epoll, fd, event: libc::epoll_event { events, u64: data } })
    }

    /// Registers the descriptor again.
    pub fn restore(mut self) {
        // SAFETY: the event lives through the call; a descriptor that is not an epoll instance is refused.
        unsafe { real::epoll_ctl(self.epoll, libc::EPOLL_CTL_ADD, self.fd, &mut self.event) };
    }
}

/// Writes a number and a terminating zero.
fn write_number(to: &mut [u8], number: c_int) {
    let mut digits = [0u8; 12];
    let (mut rest, mut count) = (number.unsigned_abs(), 0);
    loop {
        digits[count] = b'0' + (rest % 10) as u8;
        (rest, count) = (rest / 10, count + 1);
        if rest == 0 {
            break;
        }
    }
    for (to, &digit) in to.iter_mut().zip(digits[..count].iter().rev()) {
        *to = digit;
    }
}

/// Finds a line `tfd: FD events: HEX data: HEX` for `fd` in the kernel's description of an epoll instance.
fn find(text: &str, fd: c_int) -> Option<(u32, u64)> {
    text.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        if words.next()? != "tfd:" || words.next()?.parse::<c_int>().ok()? != fd {
            return None;
        }
        let mut value =
            |name| (words.next()? == name).then(|| u64::from_str_radix(words.next()?, 16).ok())?;
        let events = value("events:")?;
        Some((events as u32, value("data:")?))
    })
}
