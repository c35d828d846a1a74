//! Finds the descriptors that a message passes to another process (SCM_RIGHTS).

use crate::{memory, real};
use libc::{c_int, cmsghdr, msghdr};

/// Returns the descriptors that `message` passes. Stops at control data that the program may not read.
///
/// # Safety
/// As for [`memory::read_bytes`], for the control data.
pub unsafe fn descriptors(message: &msghdr) -> impl Iterator<Item = c_int> {
    let (start, len) = (message.msg_control.cast::<u8>(), real::length(message.msg_controllen as _));
    let mut at = 0;
    let mut rest = 0..0;
    std::iter::from_fn(move || {
        loop {
            if let Some(place) = rest.next() {
                // SAFETY: the caller's promise.
                return unsafe { memory::read(start.wrapping_add(place * size_of::<c_int>()).cast()) };
            }
            if start.is_null() || at + size_of::<cmsghdr>() > len {
                return None;
            }
            // SAFETY: the caller's promise. A control message begins with integers.
            let header = unsafe { memory::read(start.wrapping_add(at).cast::<cmsghdr>()) }?;
            let end = at.checked_add(real::length(header.cmsg_len as _)).filter(|&end| end <= len)?;
            let first = at + size_of::<cmsghdr>();
            if (header.cmsg_level, header.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) && first < end {
                rest = first / size_of::<c_int>()..end / size_of::<c_int>();
            }
            if end <= at {
                return None;
            }
            at = end.next_multiple_of(size_of::<usize>());
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_descriptors_of_all_messages_are_found() {
        // A timestamp, then two descriptors, then one.
        let message = |kind, data: &[u8]| {
            let len = size_of::<cmsghdr>() + data.len();
            let mut bytes = len.to_ne_bytes().to_vec();
            bytes.extend(libc::SOL_SOCKET.to_ne_bytes());
            bytes.extend::<[u8; 4]>(c_int::to_ne_bytes(kind));
            bytes.extend(data);
            bytes.resize(len.next_multiple_of(8), 0);
            bytes
        };
        let fds = |fds: &[c_int]| fds.iter().flat_map(|fd| fd.to_ne_bytes()).collect::<Vec<_>>();
        let mut all = message(libc::SCM_TIMESTAMP, &[7; 16]);
        all.extend(message(libc::SCM_RIGHTS, &fds(&[3, 9])));
        all.extend(message(libc::SCM_RIGHTS, &fds(&[5])));
        let found = |bytes: &[u8]| {
            // SAFETY: an all-zero message is valid, and its control data is readable.
            unsafe {
                let mut header: msghdr = std::mem::zeroed();
                (header.msg_control, header.msg_controllen) =
                    (bytes.as_ptr().cast_mut().cast(), bytes.len() as _);
                descriptors(&header).collect::<Vec<_>>()
            }
        };
        assert_eq!(found(&all), [3, 9, 5]);
        assert_eq!(found(&all[..all.len() - 9]), [3, 9], "the last message is cut");
        all[0] = 0;
        assert_eq!((found(&all), found(&[])), (vec![], vec![]));
    }
}
