//! Leaves a socket with the kernel, and says why.

use super::Conversion;
use crate::{control, settings};
use inlane_offload_protocol::message::{Message, VERSION};
use std::sync::atomic::{AtomicBool, Ordering};

/// Why a socket stays with the kernel if no engine answers on the control socket.
pub(super) const NO_ANSWER: &[u8] = b"no engine answers";

/// Says, once for each process, that the engine refuses this library's version. The socket stays with the
/// kernel, or the call fails if the user demands offloading.
pub(super) fn refused_version(engine: u8) -> Conversion {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        let (mut engine_digits, mut own_digits) = ([0; 3], [0; 3]);
        print(&[
            b"inlane: ",
            settings::program(),
            b": sockets are not offloaded: the engine has protocol version ",
            digits(engine, &mut engine_digits),
            b", and this program's preloaded library version ",
            digits(VERSION, &mut own_digits),
            b"; start the program again with the 'inlane offload run' of the engine's installation\n",
        ]);
    }
    if settings::require() { Conversion::Failed(libc::ENETDOWN) } else { Conversion::Kernel }
}

/// Writes a number as text into `room`, without allocating.
fn digits(number: u8, room: &mut [u8; 3]) -> &[u8] {
    *room = [b'0' + number / 100, b'0' + number / 10 % 10, b'0' + number % 10];
    &room[if number >= 100 {
        0
    } else if number >= 10 {
        1
    } else {
        2
    }..]
}

fn print(texts: &[&[u8]]) {
    for text in texts {
        // SAFETY: the text outlives the call.
        unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
    }
}

/// Leaves a socket with the kernel and reports this to the engine. If `matters` is set and the user demands
/// offloading, prints `reason` and fails the program's call instead.
pub(super) fn stays(message: &Message, reason: &[u8], matters: bool) -> Conversion {
    if !matters || !settings::require() {
        control::report_kernel(*message, reason);
        return Conversion::Kernel;
    }
    let remedy: [&[u8]; 3] = match reason == NO_ANSWER {
        true => [b"; start one with '", settings::engine_command(), b"'"],
        false => {
            [b"; to leave the socket with the kernel, start the program without ", settings::demand(), b""]
        }
    };
    let [before, command, after] = remedy;
    print(&[
        b"inlane: ",
        settings::program(),
        b": cannot offload a socket, as ",
        settings::demand(),
        b" demands: ",
        reason,
        before,
        command,
        after,
        b"\n",
    ]);
    Conversion::Failed(libc::ENETDOWN)
}

#[cfg(test)]
mod tests {
    use super::digits;

    #[test]
    fn digits_are_written_without_leading_zeros() {
        for number in 0..=u8::MAX {
            assert_eq!(digits(number, &mut [0; 3]), number.to_string().as_bytes());
        }
    }
}
