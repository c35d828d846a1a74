//! Tells systemd when a service is ready and when it ends, by the protocol of sd_notify(3).

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Sends a state such as `READY=1` to the service manager that started this process. Does nothing if there is none.
pub fn notify(state: &str) {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(error) = send(name.as_encoded_bytes(), state) {
        tracing::warn!("cannot tell systemd {state} over NOTIFY_SOCKET={}: {error}", name.display());
    }
}

/// Sends to the socket `name`: a path, or `@` and an abstract name.
fn send(name: &[u8], state: &str) -> std::io::Result<()> {
    let address = match name.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(std::ffi::OsStr::new(
            std::str::from_utf8(name).map_err(std::io::Error::other)?,
        ))?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_arrives_at_a_path_and_at_an_abstract_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        send(path.as_os_str().as_encoded_bytes(), "READY=1").unwrap();
        let name = format!("inlane-test-{}", std::process::id());
        let abstract_manager =
            UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        send(format!("@{name}").as_bytes(), "STOPPING=1").unwrap();
        for (manager, expected) in [(manager, "READY=1"), (abstract_manager, "STOPPING=1")] {
            let mut bytes = [0; 32];
            let count = manager.recv(&mut bytes).unwrap();
            assert_eq!(&bytes[..count], expected.as_bytes());
        }
        assert!(send(b"/nowhere/socket", "READY=1").is_err());
    }
}
