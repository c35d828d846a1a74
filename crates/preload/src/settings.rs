//! The library's settings, copied from the environment before `main`: programs overwrite their environment later.

use inlane_offload_protocol::rules::{self, Action, Use};
use inlane_offload_protocol::{DEFAULT_SOCKET, REQUIRE_VARIABLE, RULES_VARIABLE, SOCKET_VARIABLE};
use std::cell::UnsafeCell;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A text of at most `N` bytes that is written once, before `main`.
struct Text<const N: usize> {
    bytes: UnsafeCell<[u8; N]>,
    /// The text's length plus 1, or 0 if there is none.
    len: AtomicUsize,
}

// SAFETY: `set` writes the bytes before it stores the length. The bytes are never written again, because
// `set` checks the length.
unsafe impl<const N: usize> Sync for Text<N> {}

impl<const N: usize> Text<N> {
    const fn new() -> Self {
        Self { bytes: UnsafeCell::new([0; N]), len: AtomicUsize::new(0) }
    }

    /// Stores `text` if it fits and no text is stored yet. Only the initialisation calls this, on one thread.
    fn set(&self, text: &[u8]) {
        self.set_parts(&[text]);
    }

    /// As [`Text::set`], for the concatenation of `parts`.
    fn set_parts(&self, parts: &[&[u8]]) {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        if len <= N && self.len.load(Ordering::Relaxed) == 0 {
            let mut at = 0;
            for part in parts {
                // SAFETY: nobody reads the bytes while the length is 0.
                unsafe { (&mut (*self.bytes.get()))[at..at + part.len()].copy_from_slice(part) };
                at += part.len();
            }
            self.len.store(len + 1, Ordering::Release);
        }
    }

    fn get(&self) -> Option<&[u8]> {
        let len = self.len.load(Ordering::Acquire).checked_sub(1)?;
        // SAFETY: the bytes are not written after the length was stored.
        Some(unsafe { &(&(*self.bytes.get()))[..len] })
    }
}

static SOCKET: Text<108> = Text::new();
static RULES: Text<16384> = Text::new();
static REQUIRE: Text<1024> = Text::new();
static PROGRAM: Text<256> = Text::new();
/// The environment variables for the programs that this program starts. Each is `NAME=VALUE` with a
/// terminating zero byte.
static EXPORTED: [Text<16640>; 4] = [const { Text::new() }; 4];

unsafe extern "C" {
    /// The file name of the program, without its folder (an extension of glibc and musl).
    static program_invocation_short_name: *const libc::c_char;
}

/// Reads the environment and the program's name.
pub fn read() {
    let variable = |name: &str| -> Option<&[u8]> {
        let mut terminated = [0u8; 64];
        let room = terminated.get_mut(..name.len())?;
        room.copy_from_slice(name.as_bytes());
        // SAFETY: the name is a terminated string. The result is null or a terminated string. It is read
        // before anything can change it.
        unsafe {
            let value = libc::getenv(terminated.as_ptr().cast());
            (!value.is_null()).then(|| std::ffi::CStr::from_ptr(value).to_bytes())
        }
    };
    for (text, name) in EXPORTED.iter().zip(["LD_PRELOAD", SOCKET_VARIABLE, RULES_VARIABLE, REQUIRE_VARIABLE])
    {
        if let Some(value) = variable(name) {
            text.set_parts(&[name.as_bytes(), b"=", value, b"\0"]);
        }
    }
    SOCKET.set(variable(SOCKET_VARIABLE).unwrap_or(DEFAULT_SOCKET.as_bytes()));
    if let Some(rules) = variable(RULES_VARIABLE) {
        RULES.set(rules);
    }
    if let Some(require) = variable(REQUIRE_VARIABLE) {
        REQUIRE.set(require);
    }
    // SAFETY: the C library sets the variable before it calls initialisers. The variable is null or a
    // terminated string.
    let name = unsafe {
        let name = program_invocation_short_name;
        if name.is_null() { &[][..] } else { std::ffi::CStr::from_ptr(name).to_bytes() }
    };
    PROGRAM.set(name);
}

/// Returns the environment variables for the programs that this program starts. An element is null if its
/// variable is not set. The first element is the list of preloaded libraries.
pub fn exported() -> [*const libc::c_char; 4] {
    std::array::from_fn(|index| EXPORTED[index].get().map_or(std::ptr::null(), |text| text.as_ptr().cast()))
}

/// Returns the path of the engine's control socket.
pub fn socket() -> &'static [u8] {
    SOCKET.get().unwrap_or(DEFAULT_SOCKET.as_bytes())
}

/// Returns the program's name.
pub fn program() -> &'static [u8] {
    PROGRAM.get().unwrap_or_default()
}

/// Returns true if the user demands offloading of all sockets.
pub fn require() -> bool {
    REQUIRE.get().is_some_and(|value| !value.is_empty() && value != b"0")
}

/// Returns how the user has demanded offloading, for messages.
pub fn demand() -> &'static [u8] {
    lines().0
}

/// Returns the command that starts an engine, for messages.
pub fn engine_command() -> &'static [u8] {
    lines().1
}

fn lines() -> (&'static [u8], &'static [u8]) {
    split_line(REQUIRE.get().unwrap_or_default())
}

/// Returns the first line of `text` and the rest of it.
fn split_line(text: &[u8]) -> (&[u8], &[u8]) {
    match text.iter().position(|&byte| byte == b'\n') {
        Some(end) => (&text[..end], &text[end + 1..]),
        None => (text, &[]),
    }
}

/// Returns the action for a socket of this program, as the user's rules decide. Returns `None` if no rule
/// applies.
pub fn decide(datagrams: bool, address: SocketAddr, usage: Use) -> Option<Action> {
    let rules = std::str::from_utf8(RULES.get()?).ok()?;
    let program = std::str::from_utf8(program()).unwrap_or_default();
    rules::decide(rules, program, datagrams, address.ip(), address.port(), usage)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_stored_once_and_only_if_it_fits() {
        let text = Text::<8>::new();
        assert_eq!(text.get(), None);
        text.set(b"too long for it");
        assert_eq!(text.get(), None);
        text.set_parts(&[b"1234", b"", b"5678"]);
        text.set(b"other");
        assert_eq!(text.get(), Some(&b"12345678"[..]));
        let empty = Text::<8>::new();
        empty.set(b"");
        assert_eq!(empty.get(), Some(&b""[..]));
    }

    #[test]
    fn a_demand_has_two_lines() {
        assert_eq!(
            split_line(b"--require\ninlane offload serve"),
            (&b"--require"[..], &b"inlane offload serve"[..])
        );
        assert_eq!(split_line(b"1"), (&b"1"[..], &b""[..]));
        assert_eq!(split_line(b""), (&b""[..], &b""[..]));
    }
}
