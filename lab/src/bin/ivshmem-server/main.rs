//! The server for QEMU's `ivshmem-doorbell` devices. It gives each virtual machine the shared memory and a
//! number. It also gives each machine the eventfds to interrupt the other machines.
//!
//! ```sh
//! ivshmem-server --memory 4M --vectors 4 /tmp/ivshmem.sock &
//! lab/vm/run.py --doorbell /tmp/ivshmem.sock:4 -- ...
//! lab/vm/run.py --doorbell /tmp/ivshmem.sock:4 -- ...
//! ```

mod server;
#[cfg(test)]
mod tests;

use anyhow::{Context, bail, ensure};
use clap::Parser;
use server::{Event, Server};
use std::io::ErrorKind;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Serves shared memory, peer numbers and interrupts to QEMU's ivshmem-doorbell devices until SIGINT or
/// SIGTERM
#[derive(Parser)]
#[command(version)]
struct Options {
    /// The socket to listen on. It is created, and removed at the end
    socket: PathBuf,
    /// The size of the shared memory: a power of two, at least 4K
    #[arg(long, default_value = "4M", value_parser = inlane_core::units::parse_size)]
    memory: u64,
    /// The number of interrupt vectors of each machine. Give the same number as `vectors=` of its device
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    vectors: u16,
    /// The most machines at the same time
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    peers: u16,
}

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    ensure!(
        options.memory >= 4096 && options.memory.is_power_of_two(),
        "--memory {}: give a power of two of at least 4K, because it becomes a PCI BAR",
        options.memory
    );
    let signals = signals()?;
    let listener = listen(&options.socket)?;
    let mut server = Server::new(listener, options.memory, options.vectors, options.peers)?;
    eprintln!("ivshmem-server: listening at {}", options.socket.display());
    let outcome = serve(&mut server, &signals);
    let _ = std::fs::remove_file(&options.socket);
    outcome
}

fn serve(server: &mut Server, signals: &OwnedFd) -> anyhow::Result<()> {
    loop {
        for event in server.step(None, Some(signals.as_fd())).context("waiting for peers")? {
            match event {
                Event::Joined(n) => {
                    eprintln!("ivshmem-server: peer {n} joined; {} connected", server.peers())
                }
                Event::Left(n, why) => eprintln!("ivshmem-server: peer {n} left: {why}"),
                Event::Refused(why) => eprintln!("ivshmem-server: refused a connection: {why}"),
            }
        }
        if rustix::io::read(signals, &mut [0u8; 128]).is_ok() {
            return Ok(());
        }
    }
}

/// Listens at `path`. Replaces the socket of a server that has ended. Fails if a running server listens
/// there.
fn listen(path: &Path) -> anyhow::Result<UnixListener> {
    let bind = || UnixListener::bind(path).with_context(|| format!("listening at {}", path.display()));
    if !path.try_exists()? {
        return bind();
    }
    match UnixStream::connect(path) {
        Ok(_) => bail!("another server listens at {}; end it or name another path", path.display()),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path)
                .with_context(|| format!("removing the socket {} of a dead server", path.display()))?;
            bind()
        }
        Err(error) => Err(error).with_context(|| format!("{} exists and is not a socket", path.display())),
    }
}

/// Blocks SIGINT and SIGTERM. Returns a descriptor that becomes readable when one of these signals arrives.
fn signals() -> anyhow::Result<OwnedFd> {
    // SAFETY: `sigemptyset` initialises the set before its use, and the calls access no other memory.
    let descriptor = unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGINT);
        libc::sigaddset(&mut set, libc::SIGTERM);
        libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
    };
    ensure!(descriptor >= 0, "cannot create a descriptor for signals: {}", std::io::Error::last_os_error());
    // SAFETY: the descriptor was just created, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}
