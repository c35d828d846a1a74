//! A device's interrupts, delivered to eventfds.

use super::device::Device;
use super::sys;
use crate::error::{Error, Result};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::{Errno, read};
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// The kind of a device's interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InterruptKind {
    /// MSI, with up to 32 vectors.
    Msi,
    /// MSI-X, with a table in a BAR and up to 2048 vectors.
    MsiX,
}

impl InterruptKind {
    fn index(self) -> u32 {
        match self {
            InterruptKind::Msi => 1,
            InterruptKind::MsiX => 2,
        }
    }
}

impl fmt::Display for InterruptKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            InterruptKind::Msi => "MSI",
            InterruptKind::MsiX => "MSI-X",
        })
    }
}

impl Device {
    /// Returns how many interrupt vectors of this kind the device has.
    ///
    /// # Errors
    /// [`Error::Os`] if the request fails.
    pub fn interrupt_vectors(&self, kind: InterruptKind) -> Result<u32> {
        let argsz = size_of::<sys::IrqInfo>() as u32;
        let mut info = sys::IrqInfo { argsz, index: kind.index(), ..Default::default() };
        // SAFETY: this is the structure that the request takes.
        unsafe { sys::ioctl_with(self.as_fd(), sys::DEVICE_GET_IRQ_INFO, &mut info) }.map_err(|error| {
            Error::os(format!("reading the number of {kind} vectors of {}", self.address()), error)
        })?;
        Ok(info.count)
    }

    /// Enables the first `vectors` interrupts of a kind, delivered to eventfds, until the result is dropped.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device has fewer; [`Error::Os`] if some are enabled already.
    pub fn interrupts(&self, kind: InterruptKind, vectors: u32) -> Result<Interrupts> {
        Interrupts::new(self, kind, vectors)
    }
}

/// The enabled interrupts of a device. Dropping this value disables them.
///
/// Each vector has an eventfd that counts its interrupts. One read may therefore report several interrupts.
/// Interrupts that the device raised before they were enabled are lost.
#[derive(Debug)]
pub struct Interrupts {
    device: Device,
    kind: InterruptKind,
    events: Vec<OwnedFd>,
}

impl Interrupts {
    fn new(device: &Device, kind: InterruptKind, vectors: u32) -> Result<Self> {
        let there = device.interrupt_vectors(kind)?;
        if vectors == 0 || vectors > there {
            return Err(Error::Unsupported {
                what: format!("{vectors} {kind} vectors of {}", device.address()),
                why: format!("the device has {there}"),
            });
        }
        let os = |error: std::io::Error| Error::os(format!("enabling {kind} of {}", device.address()), error);
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let events: Vec<OwnedFd> = (0..vectors)
            .map(|_| eventfd(0, flags))
            .collect::<Result<_, Errno>>()
            .map_err(|e| os(e.into()))?;
        device.enable_bus_master()?;
        set(device, kind, &events).map_err(os)?;
        Ok(Self { device: device.clone(), kind, events })
    }

    /// Returns the number of enabled vectors.
    pub fn vectors(&self) -> usize {
        self.events.len()
    }

    /// Returns the eventfd of a vector, for use with `poll`.
    ///
    /// # Panics
    /// If there is no such vector.
    pub fn event(&self, vector: usize) -> BorrowedFd<'_> {
        self.events[vector].as_fd()
    }

    /// Returns how often a vector was raised since the last call, without waiting.
    ///
    /// # Errors
    /// [`Error::Os`] if the eventfd cannot be read.
    ///
    /// # Panics
    /// If there is no such vector.
    pub fn take(&self, vector: usize) -> Result<u64> {
        take(&self.events[vector]).map_err(|error| {
            Error::os(format!("reading {} vector {vector} of {}", self.kind, self.device.address()), error)
        })
    }

    /// Waits at most `limit` for any vector. Returns the raised vectors and their counts; none after a
    /// timeout.
    ///
    /// # Errors
    /// [`Error::Os`] if the wait fails.
    pub fn wait(&self, limit: Duration) -> Result<Vec<(usize, u64)>> {
        let os = |error| Error::os(format!("waiting for {} of {}", self.kind, self.device.address()), error);
        wait(&self.events, limit).map_err(os)
    }
}

impl Drop for Interrupts {
    fn drop(&mut self) {
        // Ignore an error, because the kernel disables the interrupts anyway when the device is closed.
        let _ = set(&self.device, self.kind, &[]);
    }
}

/// Delivers interrupt i to eventfd i of `events`. An empty list disables all interrupts.
fn set(device: &Device, kind: InterruptKind, events: &[OwnedFd]) -> std::io::Result<()> {
    let header = size_of::<sys::IrqSet>() / 4;
    let mut words = vec![0i32; header + events.len()];
    let data = if events.is_empty() { sys::IRQ_SET_DATA_NONE } else { sys::IRQ_SET_DATA_EVENTFD };
    let wanted = sys::IrqSet {
        argsz: (words.len() * 4) as u32,
        flags: data | sys::IRQ_SET_ACTION_TRIGGER,
        index: kind.index(),
        start: 0,
        count: events.len() as u32,
    };
    words[header..].iter_mut().zip(events).for_each(|(word, event)| *word = event.as_raw_fd());
    // SAFETY: the buffer is aligned and holds the structure and the descriptors that follow it.
    unsafe {
        words.as_mut_ptr().cast::<sys::IrqSet>().write(wanted);
        sys::ioctl(device.as_fd(), sys::DEVICE_SET_IRQS, words.as_mut_ptr() as usize).map(|_| ())
    }
}

fn take(event: &OwnedFd) -> Result<u64, Errno> {
    let mut bytes = [0; 8];
    match read(event, &mut bytes) {
        Ok(_) => Ok(u64::from_ne_bytes(bytes)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(0),
        Err(error) => Err(error),
    }
}

fn wait(events: &[OwnedFd], limit: Duration) -> Result<Vec<(usize, u64)>, Errno> {
    let end = Instant::now() + limit;
    loop {
        let mut watched: Vec<PollFd<'_>> =
            events.iter().map(|event| PollFd::new(event, PollFlags::IN)).collect();
        let left = end.saturating_duration_since(Instant::now());
        let timeout = left.try_into().ok();
        match poll(&mut watched, timeout.as_ref()) {
            Ok(0) => return Ok(Vec::new()),
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error),
        }
        let counts = events.iter().enumerate().map(|(vector, event)| Ok((vector, take(event)?)));
        let raised: Vec<_> =
            counts.filter(|count| !matches!(count, Ok((_, 0)))).collect::<Result<_, Errno>>()?;
        if !raised.is_empty() {
            return Ok(raised);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_returns_the_raised_vectors_with_their_counts() {
        let events: Vec<OwnedFd> = (0..3).map(|_| eventfd(0, EventfdFlags::NONBLOCK).unwrap()).collect();
        assert_eq!(wait(&events, Duration::from_millis(5)).unwrap(), []);
        rustix::io::write(&events[1], &2u64.to_ne_bytes()).unwrap();
        rustix::io::write(&events[2], &1u64.to_ne_bytes()).unwrap();
        assert_eq!(wait(&events, Duration::from_secs(5)).unwrap(), [(1, 2), (2, 1)]);
        assert_eq!(take(&events[1]).unwrap(), 0);
    }
}
