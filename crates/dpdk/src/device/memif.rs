//! memif ports: shared memory with another process. The two processes agree on the memory over a Unix socket.

use super::{LINK_HEADERS, Plan};
use crate::error::{Error, Result};
use crate::spec::{EthSpec, PortKind};
use std::path::{Path, PathBuf};

/// The longest path of a UNIX socket that the kernel accepts, in bytes without the terminating zero.
const LONGEST_PATH: usize = 107;

pub(super) fn plan(
    spec: &EthSpec,
    socket: &str,
    server: bool,
    id: u32,
    secret: Option<&str>,
) -> Result<Plan> {
    let path = socket_path(spec, socket, server)?;
    let role = if server { "server" } else { "client" };
    // Pass `socket-abstract=no`. By default, the driver uses the path as the name of an abstract socket,
    // which has no file.
    let mut arguments =
        format!("role={role},id={id},socket={},socket-abstract=no,bsize={}", path.display(), buffer(spec));
    if let Some(secret) = secret {
        arguments += &format!(",secret={secret}");
    }
    Ok(Plan::new("net_memif", arguments))
}

/// Returns the absolute path of the socket of a memif port, and the size of its shared buffers in bytes. Returns `None` for
/// other ports. For a server, removes a socket file on which no process listens.
///
/// # Errors
/// If there cannot be a socket at this path.
pub fn memif_socket(spec: &EthSpec) -> Result<Option<(PathBuf, u32)>> {
    let PortKind::Memif { socket, server, .. } = &spec.kind else { return Ok(None) };
    Ok(Some((socket_path(spec, socket, *server)?, buffer(spec))))
}

fn socket_path(spec: &EthSpec, socket: &str, server: bool) -> Result<PathBuf> {
    // The driver accepts only absolute paths, so make a relative path absolute.
    let path = std::path::absolute(socket).map_err(|error| {
        invalid(spec, format!("the socket's path {socket} has no absolute form: {error}"))
    })?;
    if path.to_str().is_none_or(|text| text.len() > LONGEST_PATH || text.contains(',')) {
        return Err(invalid(
            spec,
            format!(
                "the socket's path is {}: give one of at most {LONGEST_PATH} characters, without commas",
                path.display()
            ),
        ));
    }
    check_socket(spec, &path, server)?;
    Ok(path)
}

/// Returns the size of memif's shared buffers in bytes. The client sets this size for both ends. A longer
/// frame would be split, and DPDK's driver loses some of the parts.
pub(crate) fn buffer(spec: &EthSpec) -> u32 {
    spec.mtu.map_or(0, |mtu| u32::from(mtu) + LINK_HEADERS).next_multiple_of(64).max(2048)
}

fn invalid(spec: &EthSpec, why: String) -> Error {
    Error::Spec { spec: spec.text.clone(), why }
}

/// Checks that the socket's directory can be used. For a server, removes a socket file on which no process
/// listens.
fn check_socket(spec: &EthSpec, path: &Path, server: bool) -> Result<()> {
    use rustix::fs::Access;
    use std::os::unix::fs::FileTypeExt;
    let directory = path.parent().unwrap_or(Path::new("/"));
    if !directory.is_dir() {
        return Err(Error::Missing {
            port: spec.text.clone(),
            what: format!("directory {}", directory.display()),
            remedy: "create it, or name a socket elsewhere".into(),
        });
    }
    // DPDK's driver requires read and write access to the directory at both ends.
    if rustix::fs::access(directory, Access::READ_OK | Access::WRITE_OK).is_err() {
        return Err(Error::Unavailable {
            port: spec.text.clone(),
            why: format!("cannot read and write directory {}", directory.display()),
            remedy: "name a socket elsewhere, or run as a user who may write there".into(),
        });
    }
    let Ok(metadata) = std::fs::symlink_metadata(path) else {
        return if server { check_bind(spec, path) } else { Ok(()) };
    };
    if !metadata.file_type().is_socket() {
        return Err(invalid(spec, format!("{} exists and is no socket; name another path", path.display())));
    }
    if server && nobody_listens(path) {
        // Ignore a failure here. The driver reports it when the driver binds its socket.
        let _ = std::fs::remove_file(path);
    }
    Ok(())
}

/// Checks that a socket can be created at `path`, where no file is. Creates one and removes it.
fn check_bind(spec: &EthSpec, path: &Path) -> Result<()> {
    match std::os::unix::net::UnixListener::bind(path) {
        Ok(_) => {
            // Ignore a failure to remove the socket: the driver replaces the file, or reports that it cannot
            // bind.
            let _ = std::fs::remove_file(path);
            Ok(())
        }
        Err(error) => Err(invalid(
            spec,
            format!("cannot create socket {}: {error}; name a path on another file system", path.display()),
        )),
    }
}

/// Returns true if no process has the Unix socket at `path` open. Connects with a datagram socket, which a
/// server refuses by the socket's type: it does not notice the attempt. The kernel refuses the connection with
/// another error if the socket is closed.
fn nobody_listens(path: &Path) -> bool {
    use rustix::io::Errno;
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
    let Ok(address) = SocketAddrUnix::new(path) else { return false };
    let kind = SocketType::DGRAM;
    socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)
        .is_ok_and(|socket| connect(&socket, &address) == Err(Errno::CONNREFUSED))
}
