//! The server that QEMU's `ivshmem-doorbell` devices connect to: it hands each virtual machine the shared memory, a
//! number, and the eventfds that are the others' interrupts.
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

/// Serves shared memory, peer numbers and interrupts to QEMU's ivshmem-doorbell devices, until SIGINT or SIGTERM.
#[derive(Parser)]
#[command(version)]
struct Options {
    /// Where to listen; made, and removed at the end.
    socket: PathBuf,
    /// How much memory the machines share: a power of two from 4K.
    #[arg(long, default_value = "4M", value_parser = inlane_core::units::parse_size)]
    memory: u64,
    /// Interrupts of each machine; as many as its device says (`vectors=`).
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    vectors: u16,
    /// The most machines at a time.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    peers: u16,
}

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    ensure!(
        options.memory >= 4096 && options.memory.is_power_of_two(),
        "--memory {}: a PCI BAR is a power of two, here at least 4K",
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
                Event::Joined(n) => eprintln!("ivshmem-server: peer {n} came, {} there", server.peers()),
                Event::Left(n, why) => eprintln!("ivshmem-server: peer {n} went: {why}"),
                Event::Refused(why) => eprintln!("ivshmem-server: refused a connection: {why}"),
            }
        }
        if rustix::io::read(signals, &mut [0u8; 128]).is_ok() {
            return Ok(());
        }
    }
}

/// Listens at `path`; takes over a socket whose server is dead, and leaves a live one alone.
fn listen(path: &Path) -> anyhow::Result<UnixListener> {
    let bind = || UnixListener::bind(path).with_context(|| format!("listening at {}", path.display()));
    if !path.try_exists()? {
        return bind();
    }
    match UnixStream::connect(path) {
        Ok(_) => bail!("{} is another server's: end that one, or name another path", path.display()),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path)
                .with_context(|| format!("removing the dead socket {}", path.display()))?;
            bind()
        }
        Err(error) => Err(error).with_context(|| format!("{} is there, and no socket", path.display())),
    }
}

/// SIGINT and SIGTERM as a descriptor that becomes readable.
fn signals() -> anyhow::Result<OwnedFd> {
    // SAFETY: the set is initialised before it is used, and the descriptor returned is ours alone.
    let descriptor = unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGINT);
        libc::sigaddset(&mut set, libc::SIGTERM);
        libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
    };
    ensure!(descriptor >= 0, "no descriptor for signals: {}", std::io::Error::last_os_error());
    // SAFETY: just made, and owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}
