//! Keeps the program's end of a pair unwritable while a connection is being established: bytes fill its send buffer.
//! The engine discards them when the connection is established.

/// The value of SO_PRIORITY of a program's end while the connection is being established.
pub const CONNECTING: i32 = 4;
/// The most bytes that one system call writes to fill a pair, or discards from it. One call fills the smallest
/// send buffer.
pub const LEN: usize = 8192;

/// Fills a pair. `set` sets an option of SOL_SOCKET of the program's end. `send` sends bytes from this end without
/// blocking, and returns how many it has sent, or `None` if there is no room. Returns the number of bytes in the pair.
///
/// # Errors
/// Those of `set` and `send`.
pub fn fill<E>(
    set: impl Fn(i32, i32) -> Result<(), E>,
    send: impl Fn(&[u8]) -> Result<Option<usize>, E>,
) -> Result<usize, E> {
    set(libc::SO_SNDBUF, 1)?;
    set(libc::SO_PRIORITY, CONNECTING)?;
    let mut filled = 0;
    loop {
        match send(&[0; LEN])? {
            Some(sent) => {
                filled += sent;
                if sent < LEN {
                    return Ok(filled);
                }
            }
            None => return Ok(filled),
        }
    }
}
